"""What the largest inputs cost the agent that it takes from a tenant, and what larger ones cost that it refuses.

`python tests/bench/largest.py [--json] [--rounds N]`, as root. Each input is given to a new agent on one private switch, through
the shim as a runtime does it, N times (3). Told are the bytes of the network's or the annotations' text, the exit code (0, or the
CNI code), the agent's processor time (the least of the rounds), how much its resident memory grew at its highest over what it was
before, the lines of its log, and how /healthz, which is asked again and again meanwhile, answers: how often not with 200, and the
longest wait.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from tests.bench.calls import processor_s
from tests.bench.report import arguments, machine, tell
from tests.lab.kube.apiserver import ApiServer
from tests.lab.kube.pods import Pod
from tests.lab.node.agent import Agent, install_shim
from tests.lab.node.node import Node, clean
from tests.lab.runtimes.runtime import Call, netns
from tests.lab.switch.switch import Switch
from userspace_cni.cni import outline
from userspace_cni.cni.result import ADDRESSES_MAX, ROUTES_MAX
from userspace_cni.host.netlink.link_messages import get, read
from userspace_cni.host.netlink.netns import open_pod_netns
from userspace_cni.host.netlink.route_messages import Route, put
from userspace_cni.linux.netlink import EXCHANGE_MAX, LISTED_MAX, ROUTE, NetlinkConnection

NAMES: Final = "bytes", "exit", "cpu_s", "memory_mib", "log_lines", "unhealthy", "slowest_s"
Calls = Callable[["Bed"], Call]


class Bed:
    """A node with an agent, a sandbox, and an API server that has one pod."""

    def __init__(self, node: Node, sandbox: str, api: ApiServer) -> None:
        self.node = node
        self.sandbox = sandbox
        self.api = api
        self.pod = Pod()
        self.result: dict[str, Any] = {}
        self.written = 0
        """Bytes of what the call was given."""

    def call(self, verb: str, network: Mapping[str, Any] | bytes, *, is_pod: bool = False) -> Call:
        """One call of the shim for the pod's eth0."""
        more = {"CNI_ARGS": self.pod.args} if is_pod else {}
        self.written = len(network if isinstance(network, bytes) else json.dumps(network))
        return self.node.run(verb, network, self.sandbox, ifname="eth0", **more)

    def veth(self, **keys: Any) -> dict[str, Any]:
        """A network of ordinary pods."""
        host = {"iftype": "veth", "bridge": {"bridgeName": "br-test"}}
        return {"cniVersion": "1.0.0", "name": "podnet", "type": "userspace", "host": host, **keys}

    def routed(self, routes: int) -> dict[str, Any]:
        """One with so many routes, and as many addresses as an interface can have."""
        ranges = [[{"subnet": f"10.56.{number}.0/24"}] for number in range(ADDRESSES_MAX)]
        dst = [{"dst": f"172.{16 + (number >> 8)}.{number & 255}.0/24", "gw": "10.56.0.1"} for number in range(routes)]
        return self.veth(ipam={**self.node.host_local(), "ranges": ranges, "routes": dst})

    def padded(self, size: outline.Size) -> bytes:
        """A network with as many values, and of as many bytes, as may be."""
        whole = self.node.network(args={"cni": {}, "x": [], "y": ""})
        text = json.dumps(whole, separators=(",", ":"))
        values = ",".join(["{}"] * ((size.marks - outline.size_of(text.encode()).marks) // 2))
        text = text.replace('"x":[]', f'"x":[{values}]')
        return text.replace('"y":""', f'"y":"{"x" * (size.octets - len(text))}"').encode()

    def annotate(self, **values: str) -> None:
        """Give the pod annotations of this name, which the agent's requests find."""
        self.api.change("default", "app", {"metadata": {"annotations": values}})

    def fill(self, count: int) -> None:
        """Put so many routes into the pod, as one with CAP_NET_ADMIN can."""
        with open_pod_netns(self.sandbox, 0) as pod, pod.do(lambda: NetlinkConnection(ROUTE)) as kernel:
            (found,) = kernel.exchange(get("eth0"))
            index = read(found.replies[0][1]).index
            every = [put(index, Route.of({"dst": f"11.{n >> 16}.{n >> 8 & 255}.{n & 255}/32"}), 3) for n in range(count)]
            for at in range(0, count, EXCHANGE_MAX):
                kernel.send(*every[at : at + EXCHANGE_MAX])


def attach(bed: Bed, network: Mapping[str, Any]) -> Call:
    """ADD, whose result CHECK is given."""
    done = bed.call("ADD", network)
    bed.result = json.loads(done.stdout) if done.status == 0 else {}
    return done


def check(bed: Bed, network: Mapping[str, Any]) -> Call:
    return bed.call("CHECK", {**network, "prevResult": bed.result})


def noted(bed: Bed, **values: str) -> Call:
    """ADD of a pod with these annotations."""
    bed.annotate(**values)
    done = bed.call("ADD", bed.veth(ipam=bed.node.host_local()), is_pod=True)
    bed.written = sum(len(name) + len(value) for name, value in values.items())
    return done


def twice(count: int) -> str:
    """A JSON object with so many members, the last one's key twice."""
    return "{" + ",".join(f'"k{number}":1' for number in range(count)) + f',"k{count - 1}":1}}'


Input = tuple[str, Callable[[Bed], object], Calls]
"""Name, what is done before, and the call that is measured."""


def inputs() -> Iterator[Input]:
    """Those that are taken, then those that are refused."""
    most, more = ROUTES_MAX, 6 * ROUTES_MAX
    every = {"trunks": ["0-4094"] * 4094, "bridgeName": "br-test"}
    trunks = {"engine": "ovs-dpdk", "vhost": {"mode": "client"}, "bridge": every}
    unknown = {f"socketfil{number:x}": "" for number in range(6000)}
    small = {f"k{number:x}": "" for number in range(30_000)}
    hosts = [{"x": 1}] * 100_000

    def nothing(_: Bed) -> None:
        return None

    def filled(b: Bed) -> None:
        attach(b, b.routed(most))
        b.fill(LISTED_MAX - 2 * most)

    yield "ADD, as many values as may be", nothing, lambda b: b.call("ADD", b.padded(outline.NEW))
    yield "ADD, unknown keys", nothing, lambda b: b.call("ADD", json.dumps(b.node.network() | unknown).encode())
    yield "ADD, trunks", nothing, lambda b: b.call("ADD", b.node.network(host=trunks))
    yield f"ADD, {most} routes, {ADDRESSES_MAX} addresses", nothing, lambda b: attach(b, b.routed(most))
    yield "CHECK of that", lambda b: attach(b, b.routed(most)), lambda b: check(b, b.routed(most))
    yield "DEL of that", lambda b: attach(b, b.routed(most)), lambda b: b.call("DEL", b.routed(most))
    yield f"CHECK, {LISTED_MAX - most} routes in the pod", filled, lambda b: check(b, b.routed(most))
    yield "DEL of what ADD refuses", nothing, lambda b: b.call("DEL", b.padded(outline.Size(1_500_000, 700_000)))
    yield "ADD, 30,000 annotations", nothing, lambda b: noted(b, **small)
    yield "ADD, annotation that is read", nothing, lambda b: noted(b, **{"userspace/bandwidth": twice(1500)})
    yield "ADD, annotation of 248 kB", nothing, lambda b: noted(b, **{"userspace/bandwidth": twice(22_500)})
    yield f"ADD, {more} routes", nothing, lambda b: attach(b, b.routed(more))
    yield "ADD, 'host' is a list", nothing, lambda b: b.call("ADD", b.node.network(host=hosts))
    yield "ADD, 'mirrors' is long", nothing, lambda b: b.call("ADD", b.node.network(mirrors=hosts))


@contextmanager
def beds(switch: Switch) -> Iterator[tuple[Bed, Agent]]:
    """A new agent, and a pod that has nothing yet."""
    with (
        TemporaryDirectory(prefix="uc-") as directory,
        ApiServer() as api,
        netns() as sandbox,
        clean(Node(Path(directory) / "n", switch)) as node,
    ):
        settings = {"KUBECONFIG": api.kubeconfig(node.directory), "KUBEOVN_ANNOTATIONS": "true", "TICK_S": "600"}
        agent = Agent(node, (), **{f"USERSPACE_CNI_{name}": value for name, value in settings.items()}).start()
        install_shim(node)
        bed = Bed(node, sandbox, api)
        api.add_pod(bed.pod.manifest())
        try:
            yield bed, agent
        finally:
            for network in (bed.veth(), bed.node.network()):
                bed.call("DEL", network)
            agent.close()


class Asked:
    """/healthz, asked by a thread until `end`."""

    def __init__(self, agent: Agent) -> None:
        self.unhealthy = 0
        self.slowest = 0.0
        self._agent = agent
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def _ask(self) -> None:
        while not self._ended.wait(0.05):
            began = time.monotonic()
            self.unhealthy += self._agent.get("/healthz")[0] != 200
            self.slowest = max(self.slowest, time.monotonic() - began)

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


def resident_mib(pid: int, field: str) -> float:
    """VmRSS or VmHWM of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024


def measured(switch: Switch, each: Input, rounds: int) -> dict[str, Any]:
    name, before, act = each
    found: list[dict[str, Any]] = []
    for _ in range(rounds):
        with beds(switch) as (bed, agent):
            bed.call("STATUS", bed.veth())  # what is imported once
            before(bed)
            lines = len(agent.log.read_text().splitlines())
            Path(f"/proc/{agent.pid}/clear_refs").write_text("5")
            memory, used, health = resident_mib(agent.pid, "VmRSS"), processor_s(agent.pid), Asked(agent)
            done = act(bed)
            health.end()
            found.append(
                {
                    "bytes": bed.written,
                    "exit": json.loads(done.stdout)["code"] if done.status else 0,
                    "cpu_s": round(processor_s(agent.pid) - used, 3),
                    "memory_mib": round(resident_mib(agent.pid, "VmHWM") - memory, 1),
                    "log_lines": len(agent.log.read_text().splitlines()) - lines,
                    "unhealthy": health.unhealthy,
                    "slowest_s": round(health.slowest, 3),
                }
            )
    best = min(found, key=lambda one: float(one["cpu_s"]))
    worst = {key: max(one[key] for one in found) for key in ("memory_mib", "log_lines", "unhealthy", "slowest_s")}
    return {"input": name, **best, **worst}


def show(report: dict[str, Any]) -> None:
    table = Table("input", *NAMES, title=report["machine"])
    for row in report["inputs"]:
        table.add_row(row["input"], *(str(row[name]) for name in NAMES))
    Console(width=120).print(table)


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with Switch() as switch:
        rows = [measured(switch, each, given.rounds) for each in inputs()]
    return tell({"machine": machine(), "inputs": rows}, given.json, show)


if __name__ == "__main__":
    sys.exit(main())
