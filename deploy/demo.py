"""Two pods on a private OVS-DPDK, attached by the plugin, exchanging frames; then both detached, and the proof.

What a runtime and a kubelet would do is done here by hand: network namespaces, emptyDir volumes, CNI calls. The application in
each pod is DPDK's testpmd, started with just the arguments that the pod's own document gives it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.syntax import Syntax
from rich.table import Table

HERE = Path(__file__).parent
SWITCH = str(HERE / "private-switch")
CNI_PLUGINS = "/usr/lib/cni"
MAPPED_DIR = "/var/lib/cni/usrspcni"
BRIDGE = "br-demo"
TRAFFIC_S = 5
SETTLE_S = 1
"""Until the last frames have arrived after both applications were told to stop."""
APP_MIB = 64
"""Memory of each pod's application, from hugepages of 2 MiB."""
STEPS = 6

console = Console(width=110, highlight=False)


class DemoFailed(Exception):
    """Something is not as the demo promises; the text says what was done, what happened, what to look at."""


@dataclass(frozen=True)
class Pod:
    """One pod: where its sandbox and its volume are on the host."""

    name: str
    uid: str
    container_id: str
    netns: Path
    volume: Path


class Demo:
    """The demo's own node: every path it uses is below `directory`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.step = 0
        self.began = time.monotonic()

    def say(self, text: str) -> None:
        """Announce the next step."""
        self.step += 1
        console.print(f"\n[bold cyan]{self.step}/{STEPS}[/] [bold]{text}[/] [dim]{time.monotonic() - self.began:.1f} s[/]")

    @property
    def environ(self) -> dict[str, str]:
        """What an administrator would set for a switch that is not at the usual place."""
        here = str(self.directory)
        return {
            "PATH": os.defpath,
            "USERSPACE_CNI_OVSDB": f"unix:{here}/ovs/db.sock",
            "OVS_RUNDIR": f"{here}/ovs",
            "USERSPACE_CNI_STATE_DIR": f"{here}/state",
            "USERSPACE_CNI_RUN_DIR": f"{here}/run",
            "USERSPACE_CNI_SHORT_DIR": f"{here}/short",
            "USERSPACE_CNI_KUBELET_DIR": f"{here}/kubelet",
        }

    @property
    def network(self) -> dict[str, Any]:
        """The network configuration, as a NetworkAttachmentDefinition would hold it."""
        ipam = {"type": "host-local", "dataDir": f"{self.directory}/leases", "ranges": [[{"subnet": "10.56.0.0/24"}]]}
        host = {
            "engine": "ovs-dpdk",
            "iftype": "vhostuser",
            "netType": "bridge",
            "vhost": {"mode": "client"},
            "bridge": {"bridgeName": BRIDGE, "vlanId": 100},
            "mtu": 1500,
        }
        return {"cniVersion": "1.0.0", "name": "dpdk-net", "type": "userspace", "host": host, "ipam": ipam}

    def cni(self, verb: str, pod: Pod) -> tuple[dict[str, Any], float]:
        """One CNI call as a runtime makes it: the decoded result and its milliseconds."""
        environ = {
            **self.environ,
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": pod.container_id,
            "CNI_NETNS": str(pod.netns),
            "CNI_IFNAME": "net1",
            "CNI_PATH": f"{self.directory}/bin:{CNI_PLUGINS}",
            "CNI_ARGS": f"IgnoreUnknown=1;K8S_POD_NAMESPACE=demo;K8S_POD_NAME={pod.name};K8S_POD_UID={pod.uid}",
        }
        began = time.monotonic()
        done = subprocess.run(
            [f"{self.directory}/bin/userspace"],
            env=environ,
            input=json.dumps(self.network).encode(),
            capture_output=True,
            check=False,
        )
        took = (time.monotonic() - began) * 1000
        if done.returncode:
            raise DemoFailed(f"{verb} of {pod.name} answered {done.stdout.decode()} and said {done.stderr.decode()}")
        return (json.loads(done.stdout) if done.stdout else {}), took

    def vsctl(self, *args: str) -> str:
        """Ask the switch's database."""
        return run("ovs-vsctl", f"--db=unix:{self.directory}/ovs/db.sock", *args).strip()

    def pod_document(self, pod: Pod, *args: str) -> str:
        """What `python -m userspace_cni.pod` prints inside the pod."""
        return run(*in_pod(pod), sys.executable, "-I", "-m", "userspace_cni.pod", "--dir", MAPPED_DIR, *args).strip()


def run(*argv: str) -> str:
    """Stdout of a command that must succeed."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DemoFailed(f"{' '.join(argv)}: exit {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout


def in_pod(pod: Pod) -> tuple[str, ...]:
    """The beginning of a command that runs as the pod's container would: in its network, its volume at the mapped directory."""
    script = f'mount -t tmpfs tmpfs /var/lib && mkdir -p {MAPPED_DIR} && mount --bind {pod.volume} {MAPPED_DIR} && exec "$@"'
    return ("nsenter", f"--net={pod.netns}", "unshare", "--mount", "bash", "-c", script, "pod")


@contextmanager
def switch(demo: Demo) -> Iterator[None]:
    """An OVS-DPDK of the demo's own."""
    directory = str(demo.directory / "ovs")
    Path(directory).mkdir()
    run("env", f"PRIVATE_SWITCH_APP_PAGES={APP_MIB}", SWITCH, "start", directory)
    try:
        yield
    finally:
        run(SWITCH, "stop", directory)


@contextmanager
def pod(demo: Demo, name: str, uid: str) -> Iterator[Pod]:
    """A sandbox and an emptyDir volume, as runtime and kubelet make them before they call the plugin."""
    netns = demo.directory / f"netns-{name}"
    netns.touch()
    run("unshare", f"--net={netns}", "true")
    volume = demo.directory / "kubelet" / "pods" / uid / "volumes" / "kubernetes.io~empty-dir" / "shared-dir"
    volume.mkdir(parents=True)
    try:
        yield Pod(name, uid, os.urandom(32).hex(), netns, volume)
    finally:
        run("umount", str(netns))


@contextmanager
def testpmd(pod: Pod, eal: str) -> Iterator[subprocess.Popen[str]]:
    """DPDK's own test application in the pod. Both of its threads share a core: the demo has two, one is the switch's."""
    argv = [*in_pod(pod), "dpdk-testpmd", "--lcores=0@0,1@0", "--no-pci", "-m", str(APP_MIB), *eal.split()]
    argv += ["--", "--interactive", "--total-num-mbufs=4096", "--no-mlockall", "--port-topology=loop", "--forward-mode=macswap"]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def tell(process: subprocess.Popen[str], *commands: str) -> None:
    """Type commands into testpmd."""
    assert process.stdin
    process.stdin.write("".join(f"{command}\n" for command in commands))
    process.stdin.flush()


def finish(process: subprocess.Popen[str]) -> dict[str, int]:
    """End testpmd, and read its accumulated counters: RX-packets, TX-packets."""
    output, _ = process.communicate("quit\n", timeout=20)
    counters = {name: int(value) for name, value in re.findall(r"(RX-packets|TX-packets): (\d+)", output)}
    if process.returncode or not counters:
        raise DemoFailed(f"testpmd ended with {process.returncode}: {output[-1500:]}")
    return counters


def wait_for(condition: Any, what: str, seconds: float = 15.0) -> None:
    """Until `condition()` holds; DemoFailed naming `what` when it does not in time."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise DemoFailed(f"waited {seconds:.0f} s for {what}")
        time.sleep(0.05)


def exchange(demo: Demo, first: Pod, second: Pod, second_mac: str) -> dict[str, tuple[dict[str, int], dict[str, int]]]:
    """A burst of frames sent to and fro between the applications of two pods.

    Counters by pod name: the application's own, and those of the switch's port.
    """
    with ExitStack() as stack:
        processes = {}
        for each in (second, first):
            processes[each.name] = stack.enter_context(testpmd(each, demo.pod_document(each)))
            port = f"{each.container_id[:12]}-net1"
            wait_for(lambda port=port: demo.vsctl("get", "Interface", port, "link_state") == "up", f"the link of {each.name}")
        tell(processes[second.name], "start")
        tell(processes[first.name], f"set eth-peer 0 {second_mac}", "start tx_first")
        with console.status(f"frames go to and fro for {TRAFFIC_S} s"):
            time.sleep(TRAFFIC_S)
        for process in processes.values():
            tell(process, "stop")
        time.sleep(SETTLE_S)
        switch = {
            each.name: switch_counters(demo, each) for each in (first, second)
        }  # before the ports go down: that clears them
        return {name: (finish(process), switch[name]) for name, process in processes.items()}


def switch_counters(demo: Demo, pod: Pod) -> dict[str, int]:
    """What the switch took from (rx) and gave to (tx) the pod's port, asked of the switch itself: its database lags by 5 s."""
    number = demo.vsctl("get", "Interface", f"{pod.container_id[:12]}-net1", "ofport")
    text = run("ovs-ofctl", "dump-ports", f"unix:{demo.directory}/ovs/{BRIDGE}.mgmt", number)
    return {key: int(value) for key, value in re.findall(r"(rx|tx) pkts=(\d+)", text)}


def show_made(
    demo: Demo, pods: list[Pod], results: dict[str, dict[str, Any]], counted: dict[str, tuple[dict[str, int], dict[str, int]]]
) -> None:
    """The table: what was made, and what was counted at both ends of each port."""
    table = Table(title="What was made, and what was counted", title_justify="left")
    for column in ("", *(each.name for each in pods)):
        table.add_column(column, justify="left" if not column else "right", overflow="fold")

    def row(label: str, value: Any) -> None:
        table.add_row(label, *(str(value(each)) for each in pods))

    def read(each: Pod, kind: str, name: str) -> str:
        return demo.vsctl("get", kind, f"{each.container_id[:12]}-net1", name)

    row("OVS port", lambda each: f"{each.container_id[:12]}-net1")
    row("bridge, VLAN, MTU", lambda each: f"{BRIDGE}, {read(each, 'Port', 'tag')}, {read(each, 'Interface', 'mtu')}")
    row("MAC", lambda each: results[each.name]["interfaces"][0]["mac"])
    row("address", lambda each: results[each.name]["ips"][0]["address"])
    row("application sent", lambda each: f"{counted[each.name][0]['TX-packets']:,}")
    row("switch took from it", lambda each: f"{counted[each.name][1]['rx']:,}")
    row("switch gave to it", lambda each: f"{counted[each.name][1]['tx']:,}")
    row("application received", lambda each: f"{counted[each.name][0]['RX-packets']:,}")
    console.print(table)


def mounts(demo: Demo) -> list[str]:
    """Mounts of pod directories for OVS."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [point for point in points if point.startswith(f"{demo.directory}/short/")]


def leftovers(demo: Demo) -> list[tuple[str, str]]:
    """Everything an attachment could have left, by kind; "" where there is nothing."""
    state, here = demo.directory / "state", demo.directory
    return [
        ("bridges and ports", demo.vsctl("list-br")),
        ("records", " ".join(path.name for path in (state / "attachments").iterdir())),
        ("shared resources", " ".join(path.name for path in (state / "resources").iterdir())),
        ("mounts", " ".join(mounts(demo))),
        ("mount points", " ".join(path.name for path in (here / "short").iterdir())),
        ("sockets and files of pods", " ".join(str(path) for path in (here / "kubelet").rglob("*") if not path.is_dir())),
        ("leases", " ".join(path.name for path in (here / "leases").rglob("10.*"))),
    ]


def play(demo: Demo) -> None:
    """The demo."""
    with ExitStack() as stack:
        demo.say("A private OVS-DPDK, the plugin installed for a runtime, two pods")
        stack.enter_context(switch(demo))
        run(sys.executable, "-m", "userspace_cni", "install", "--standalone", "--bin-dir", f"{demo.directory}/bin")
        pods = [
            stack.enter_context(pod(demo, "pod-a", "5e4d0a01-0000-4000-8000-000000000001")),
            stack.enter_context(pod(demo, "pod-b", "5e4d0a01-0000-4000-8000-000000000002")),
        ]
        console.print(
            f"   {run('ovs-vswitchd', '--version').splitlines()[0]}; {demo.vsctl('get', 'Open_vSwitch', '.', 'dpdk_version')}"
        )

        demo.say("ADD: the runtime calls the plugin once per pod")
        results = {}
        for each in pods:
            results[each.name], took = demo.cni("ADD", each)
            console.print(f"   {each.name}: {took:.0f} ms")
        console.print(
            Panel(
                Syntax(json.dumps(results["pod-a"], indent=2), "json", background_color="default"),
                title="what the runtime is told",
            )
        )

        demo.say("What the pod reads, and what the node keeps")
        console.print(Panel(demo.pod_document(pods[0]), title="in the pod: python -m userspace_cni.pod"))
        record = json.loads(next((demo.directory / "state" / "attachments").iterdir()).read_text())["value"]
        table = Table(
            title=f"the record of {record['container_id'][:12]}, state '{record['state']}': DEL undoes it from the last step up"
        )
        table.add_column("step")
        table.add_column("what it made", overflow="fold")
        for step in record["steps"]:
            what = step.get("server_path") or step.get("target") or step.get("path") or step.get("name") or step.get("plugin")
            table.add_row(step["step"], str(what).replace(str(demo.directory), "…"))
        console.print(table)

        demo.say("Frames: each pod's testpmd sends back what it gets from the other's, through the switch")
        counted = exchange(demo, pods[0], pods[1], results["pod-b"]["interfaces"][0]["mac"])
        show_made(demo, pods, results, counted)
        if not all(counted[each.name][0].get("RX-packets") for each in pods):
            raise DemoFailed("an application received nothing")

        demo.say("DEL: both pods go")
        for each in pods:
            _, took = demo.cni("DEL", each)
            console.print(f"   {each.name}: {took:.0f} ms")

        demo.say("What is left")
        table = Table()
        table.add_column("looked for")
        table.add_column("found")
        found = leftovers(demo)
        for kind, items in found:
            table.add_row(kind, f"[red]{items}" if items else "[green]nothing")
        console.print(table)
        if any(items for _, items in found):
            raise DemoFailed("something is left")
    console.print(
        f"\n[bold green]Done in {time.monotonic() - demo.began:.0f} s.[/] The switch is stopped, its hugepages are given back."
    )


def main() -> int:
    """Run the demo; 0 when everything it promises was seen."""
    with tempfile.TemporaryDirectory(prefix="demo-", ignore_cleanup_errors=True) as directory:
        demo = Demo(Path(directory))
        try:
            play(demo)
        except DemoFailed as error:
            console.print("demo:", style="bold red", end=" ")
            console.print(str(error), markup=False)
            for mount in mounts(demo):
                run("umount", "--lazy", mount)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
