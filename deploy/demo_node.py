"""The demo's node: a private switch, pods made by hand, the plugin, the agent.

Every path is below one directory, and every process has its name in the environment, so that leftovers can be found. A signal's
handler only notes the signal, and the demo obeys it between two commands: no signal interrupts one.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Self

from rich.text import Text

from userspace_cni.cli import view

SWITCH = str(Path(__file__).with_name("private-switch"))
COMMAND = str(Path(sys.executable).with_name("userspace-cni"))
CNI_PLUGINS = "/usr/lib/cni"
MAPPED_DIR = "/var/lib/cni/usrspcni"
BRIDGE = "br-demo"
COLUMNS = 100
INDENT = 9
"""Of all that is told of a stage: the width of the seconds before its title."""
ROUNDS = 3
"""ADDs of each kind that are timed."""
APP_MIB = 64
"""Memory of each application, from hugepages of 2 MiB."""
WAIT_S = 60.0
"""How long anything is waited for: a busy machine is slow, and only what hangs takes so long."""
SHIM_MAX = 64 << 10
AGENT_MAX_MIB = 80
HTTP_PORT = 8000
MARK = "DEMO_DIRECTORY"
"""Environment variable that marks every process that the demo starts, and their children."""

console = view.console_of(sys.stdout)
console.width = min(console.width, COLUMNS) if console.is_terminal else COLUMNS


class DemoFailed(Exception):
    """A promise of the demo does not hold; the text says what was done, what happened, what to look at."""


class Stopped(Exception):
    """A signal has been noted."""

    noted = 0
    """Its number; 0 for none."""


@dataclass(frozen=True)
class Pod:
    """One pod: where its sandbox and its volume are on the host."""

    name: str
    uid: str
    container_id: str
    netns: Path
    volume: Path
    ifname: str = "net1"

    @property
    def port(self) -> str:
        """The name of its port."""
        return f"{self.container_id[:12]}-{self.ifname}"


@dataclass(frozen=True)
class Call:
    """Result of a CNI call."""

    result: dict[str, Any]
    ms: float
    said: str


class Demo:
    """The demo's own node: every path it uses is below `directory`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.state = directory / "state"
        self.shim = directory / "bin" / "userspace"
        self.process = directory / "bin-standalone" / "userspace"
        self.began = time.monotonic()
        os.environ[MARK] = str(directory)

    def announce(self, text: str) -> None:
        """Announce the next stage, with the seconds since the demo began."""
        console.print(Text.assemble((f"{time.monotonic() - self.began:5.1f} s  ", "bold cyan"), (text, "bold")))

    @property
    def environ(self) -> dict[str, str]:
        """The settings of an administrator whose switch is not at the usual place."""
        here = str(self.directory)
        return {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            MARK: here,
            "USERSPACE_CNI_OVSDB": f"unix:{here}/ovs/db.sock",
            "OVS_RUNDIR": f"{here}/ovs",
            "USERSPACE_CNI_SWITCH_NETNS": f"{here}/ovs/netns",
            "USERSPACE_CNI_STATE_DIR": str(self.state),
            "USERSPACE_CNI_RUN_DIR": f"{here}/run",
            "USERSPACE_CNI_SHORT_DIR": f"{here}/short",
            "USERSPACE_CNI_KUBELET_DIR": f"{here}/kubelet",
            "USERSPACE_CNI_HAND_OVER": "false",  # the process per call is there to be compared with the agent
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

    @property
    def ordinary(self) -> dict[str, Any]:
        """The same network for pods without DPDK."""
        host = {key: value for key, value in self.network["host"].items() if key != "vhost"}
        return {**self.network, "host": {**host, "iftype": "veth"}}

    def cni(self, verb: str, pod: Pod, plugin: Path | None = None, network: dict[str, Any] | None = None) -> Call:
        """Make a CNI call as a runtime does: by the binary, or by the `plugin` given. Raises DemoFailed when it is refused."""
        variables = {
            "CNI_CONTAINERID": pod.container_id,
            "CNI_NETNS": str(pod.netns),
            "CNI_IFNAME": pod.ifname,
            "CNI_ARGS": f"IgnoreUnknown=1;K8S_POD_NAMESPACE=demo;K8S_POD_NAME={pod.name};K8S_POD_UID={pod.uid}",
        }
        done, ms = self._call(plugin or self.shim, verb, network or self.network, variables)
        if done.returncode:
            raise DemoFailed(f"{verb} of {pod.name} answered {done.stdout} and said {done.stderr}")
        return Call(json.loads(done.stdout) if done.stdout else {}, ms, done.stderr)

    def status_ms(self) -> float:
        """Time of STATUS through the binary, milliseconds; 0.0 when it says that pods cannot be attached now."""
        network = {**self.network, "cniVersion": "1.1.0"}  # the version that has STATUS, which Debian's IPAM plugins do not know
        del network["ipam"]
        done, ms = self._call(self.shim, "STATUS", network, {})
        return 0.0 if done.returncode else ms

    def _call(
        self, plugin: Path, verb: str, network: dict[str, Any], variables: dict[str, str]
    ) -> tuple[subprocess.CompletedProcess[str], float]:
        environ = {**self.environ, "CNI_COMMAND": verb, "CNI_PATH": f"{self.directory}/bin:{CNI_PLUGINS}", **variables}
        began = time.monotonic()
        done = execute([str(plugin)], env=environ, input=json.dumps(network))
        return done, (time.monotonic() - began) * 1000

    def vsctl(self, *args: str) -> str:
        """Query the switch's database."""
        return run("ovs-vsctl", f"--db=unix:{self.directory}/ovs/db.sock", *args).strip()

    def command(self, *args: str, code: int = 0, **environ: str) -> str:
        """Stdout of `userspace-cni`, which has to end with `code`, made for this console: it is shown, and read by no program."""
        environ = {**os.environ, **self.environ, "COLUMNS": str(console.width - INDENT), "LC_ALL": "C.UTF-8", **environ}
        if console.is_terminal:
            environ.setdefault("FORCE_COLOR", "1")
        done = execute([COMMAND, *args], env=environ)
        check(done.returncode == code, f"userspace-cni {' '.join(args)}: exit {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout.rstrip()

    def told(self, *args: str) -> Any:
        """What `userspace-cni` says as JSON."""
        text = self.command(*args, "--json", FORCE_COLOR="")
        try:
            return json.loads(text)
        except ValueError as error:
            raise DemoFailed(f"userspace-cni {' '.join(args)} --json is not JSON ({error}): {text}") from error

    def pod_document(self, pod: Pod) -> str:
        """What `python -m userspace_cni.pod` prints inside the pod."""
        return run(*in_pod(pod), sys.executable, "-I", "-m", "userspace_cni.pod", "--dir", MAPPED_DIR).strip()

    def spooled(self) -> list[str]:
        """DELs that wait for an agent."""
        return names(self.state / "spool")


# -- processes, and waiting for them ----------------------------------------------------------------------------------------


def note_signal(number: int, _: FrameType | None) -> None:
    """Handle a signal."""
    Stopped.noted = Stopped.noted or number


def raise_if_stopped() -> None:
    """Raise Stopped if a signal was noted."""
    if Stopped.noted:
        raise Stopped


def check(holds: object, otherwise: str) -> None:
    """Raise DemoFailed saying `otherwise` unless it holds."""
    if not holds:
        raise DemoFailed(otherwise)


def execute(argv: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, whatever its exit code. Its process group is its own: Ctrl-C is for the demo alone."""
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=2 * WAIT_S, process_group=0, **options)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DemoFailed(f"{' '.join(argv)}: {error}") from error


def run(*argv: str) -> str:
    """Stdout of a command that must succeed; not begun when a signal was noted."""
    raise_if_stopped()
    done = execute(list(argv))
    check(done.returncode == 0, f"{' '.join(argv)}: exit {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout


def wait_for(condition: Callable[[], object], what: str, seconds: float = WAIT_S) -> float:
    """Wait until `condition()` holds; return the seconds it took. Raises DemoFailed naming `what` when time is over."""
    began = time.monotonic()
    with view.progress(f"waiting for {what}"):
        while not condition():
            raise_if_stopped()
            check(time.monotonic() - began < seconds, f"waited {seconds:.0f} s for {what}")
            time.sleep(0.02)
    return time.monotonic() - began


def in_pod(pod: Pod) -> tuple[str, ...]:
    """The beginning of a command that runs as the pod's container would: in its network, its volume at the mapped directory."""
    script = f'mount -t tmpfs tmpfs /var/lib && mkdir -p {MAPPED_DIR} && mount --bind {pod.volume} {MAPPED_DIR} && exec "$@"'
    return ("nsenter", f"--net={pod.netns}", "unshare", "--mount", "bash", "-c", script, "pod")


@contextmanager
def switch(demo: Demo, **pages: int) -> Iterator[None]:
    """An OVS-DPDK of the demo's own. `pages`: what it asks for of memory, as PRIVATE_SWITCH_* in small letters."""
    directory = demo.directory / "ovs"
    directory.mkdir()
    try:
        with view.progress("the switch starts"):
            run("env", *(f"PRIVATE_SWITCH_{key.upper()}={each}" for key, each in pages.items()), SWITCH, "start", str(directory))
        yield
    finally:
        with view.progress("the switch stops"):
            done = execute([SWITCH, "stop", str(directory)])
    check(done.returncode == 0, f"stopping the switch: {done.stderr}")
    check(not (directory / "hugepages.added").exists(), "the switch has not given its hugepages back")


@contextmanager
def pod(demo: Demo, number: int) -> Iterator[Pod]:
    """A sandbox and an emptyDir volume, as runtime and kubelet make them before they call the plugin."""
    name, uid = f"pod-{'abcd'[number]}", f"5e4d0a01-0000-4000-8000-00000000000{number + 1}"
    netns = demo.directory / f"netns-{name}"
    netns.touch()
    volume = demo.directory / "kubelet" / "pods" / uid / "volumes" / "kubernetes.io~empty-dir" / "shared-dir"
    volume.mkdir(parents=True)
    run("unshare", f"--net={netns}", "true")
    try:
        yield Pod(name, uid, os.urandom(32).hex(), netns, volume)
    finally:
        execute(["umount", str(netns)])


@contextmanager
def running(pod: Pod, *argv: str) -> Iterator[None]:
    """A program in the pod's network, which is ended at the end."""
    raise_if_stopped()
    null = subprocess.DEVNULL
    entered = ["nsenter", f"--net={pod.netns}", *argv]
    with subprocess.Popen(entered, stdin=null, stdout=null, stderr=null, process_group=0) as process:
        try:
            yield
        finally:
            process.terminate()


class Agent:
    """`userspace-cni agent` on the demo's node."""

    def __init__(self, demo: Demo) -> None:
        self.log = demo.directory / "agent.log"
        self._demo = demo
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process:
            self.process.kill()
            self.process.wait()

    def start(self) -> float:
        """Start it, and return the seconds until it serves. Raises DemoFailed."""
        raise_if_stopped()
        began = time.monotonic()
        with self.log.open("ab") as log:
            argv, null = [COMMAND, "agent"], subprocess.DEVNULL
            self.process = subprocess.Popen(argv, env=self._demo.environ, stdin=null, stdout=log, stderr=log, process_group=0)
        wait_for(self._serves, "the agent to serve")
        return time.monotonic() - began

    def _serves(self) -> bool:
        check(self.process and self.process.poll() is None, "the agent has ended by itself")
        return self._demo.status_ms() > 0

    def end(self, sign: signal.Signals) -> int:
        """End it with a signal, and return its exit code. Raises DemoFailed when it had ended before."""
        assert self.process
        check(self.process.poll() is None, "the agent has ended by itself")
        self.process.send_signal(sign)
        try:
            return self.process.wait(WAIT_S)
        except subprocess.TimeoutExpired as error:
            raise DemoFailed(f"the agent was still there {WAIT_S:.0f} s after {sign.name}") from error

    @property
    def mib(self) -> float:
        """Its resident memory, MiB."""
        assert self.process
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text())
        return int(found[1]) / 1024 if found else 0.0


# -- what is left -----------------------------------------------------------------------------------------------------------


def names(directory: Path) -> list[str]:
    """Names in a directory; none when it is absent."""
    return sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []


def mounts(demo: Demo) -> list[str]:
    """Mounts below the demo's directory, the last first."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [point for point in reversed(points) if point.startswith(f"{demo.directory}/")]


def processes(demo: Demo, *, switch: bool = False) -> list[str]:
    """Processes that the demo started, and their children; with `switch` those of the switch too."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if not entry.name.isdigit() or f"{MARK}={demo.directory}".encode() not in (entry / "environ").read_bytes():
                continue
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue  # the process has ended, or is the kernel's
        if command and (switch or f"--pidfile={demo.directory}/ovs/" not in command):
            found.append(f"{entry.name} {command[:60]}")
    return found


def leftovers(demo: Demo) -> list[tuple[str, list[str]]]:
    """List everything that attachments or agents could have left, by kind."""
    here = demo.directory
    sockets = [str(path) for path in (here / "run").rglob("*") if path.is_socket()]
    return [
        ("bridges", demo.vsctl("list-br").split()),
        ("ports", demo.vsctl("--bare", "--columns=name", "find", "Interface", "external_ids:owner=userspace-cni").split()),
        ("records", names(demo.state / "attachments")),
        ("shared resources", [path.name for path in (here / "run").glob("live/*/places/[!.]*")]),
        ("spooled DELs", demo.spooled()),
        ("mounts for OVS", [point for point in mounts(demo) if point.startswith(f"{here}/short/")]),
        ("mount points", names(here / "short")),
        ("sockets and files of pods", [str(path) for path in (here / "kubelet").rglob("*") if not path.is_dir()]),
        ("leases", [path.name for path in (here / "leases").rglob("10.*")]),
        ("the agent's socket", sockets),
        ("processes", processes(demo)),
    ]
