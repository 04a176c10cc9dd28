"""How long 1,000 Services take to be in force on OVN, and what a change of one of them takes then.

`python tests/bench/many_services.py [--json] [--services N] [--endpoints N] [--changes N] [--idle S]`, as root: OVN on two
chassis in userspace, four pods of both kinds, an API server of the lab in a process of its own, and `ovn watch`. N Services
(1,000) with N endpoints each (10), all of them addresses of the four pods, are made at once. In one run:

- seconds until connections from another pod of each node are answered at all of the Services' addresses, and processor seconds of
  each process until then. Beside it the same rows written raw, in groups of the same size: what OVN takes without a controller;
- milliseconds from a change of a Service's only EndpointSlice to the first connection that shows it: of none to one endpoint, and
  back to none, which is refused. Beside it the same change of the row, written raw;
- with --idle: processor of the resting controller, and its memory.

A connection is TCP from a pod's network namespace, with a request and an answer.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from tests.bench.calls import memory_mib, processor_s
from tests.bench.raw_database import RawDatabase
from tests.bench.report import arguments, machine, show_parts, tell
from tests.bench.watch_process import Watch
from tests.lab.kube.cluster_objects import node
from tests.lab.kube.served_cluster import ServedCluster
from tests.lab.kube.services import endpoint, endpoint_slice, service
from tests.lab.ovn.attempts import Attempt, Outcome, tried
from tests.lab.ovn.central import version
from tests.lab.ovn.logical_pods import LogicalPod, LogicalWorld, logical_world
from tests.lab.ovn.two_chassis import NODES
from tests.lab.switch.switch import wait_until
from tests.lab.switch.veths import inside
from userspace_cni.controller.scope_rounds import BATCH

ENDPOINTS: Final = {"pod-a": ("n1", True), "pod-b": ("n1", False), "pod-c": ("n2", True), "pod-d": ("n2", False)}
CLIENTS: Final = {"client-1": ("n1", True), "client-2": ("n2", True)}
GROUPS: Final = ("cluster-load-balancers", "gateway-load-balancers")
TARGET: Final = 8080
LONG_S: Final = 600.0
_LOOKED_AT: Final = 20
"""Services that are tried again and again; the others when these answer."""
_AT_ONCE: Final = 100
_TRY_S, _CHANGE_TRY_S = 0.3, 0.05
"""How long a connection is waited for."""
_CHANGED: Final = "s0000"


def vip(number: int) -> str:
    return f"10.96.{number // 250}.{number % 250 + 1}"


def named(number: int) -> str:
    return f"s{number:04d}"


class Bench:
    """The chassis with endpoints in their pods, the API server, and the processes that share the work."""

    def __init__(self, stack: ExitStack, endpoints: int) -> None:
        self.world: LogicalWorld = stack.enter_context(logical_world(ENDPOINTS | CLIENTS))
        self.ovn = self.world.ovn
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="ms-")))
        self.cluster = stack.enter_context(ServedCluster(directory))
        self.cluster.put([node(name, f"192.0.2.{number}") for number, name in enumerate(NODES, 11)])
        for name in GROUPS:
            row = self.ovn.nbctl("create", "Load_Balancer_Group", f"name={name}")
            for switch in NODES:
                self.ovn.nbctl("add", "Logical_Switch", switch, "load_balancer_group", row)
        self.endpoints = [each for name in ENDPOINTS for each in self._addresses(self.world.pods[name], endpoints)]
        del self.endpoints[endpoints:]
        self.clients = [self.world.pods[name].netns for name in CLIENTS]

    def _addresses(self, pod: LogicalPod, endpoints: int) -> list[str]:
        """Its own address and others, so that four pods have as many as a Service has endpoints; it serves all of them."""
        network, _, last = pod.ipv4.rpartition(".")
        found = [pod.ipv4] + [f"{network}.{int(last) + 50 * more}" for more in range(1, -(-endpoints // len(ENDPOINTS)))]
        for address in found[1:]:
            inside(pod.netns, "ip", "address", "add", f"{address}/24", "dev", "eth0")
        mac = self.ovn.nbctl("get", "Logical_Switch_Port", pod.name, "addresses").split('"')[1].split()[0]
        said = f"{mac} {' '.join(found)} {pod.ipv6}"
        self.ovn.nbctl("lsp-set-addresses", pod.name, said, "--", "lsp-set-port-security", pod.name, said)
        self.world.servers.listen(pod.netns, [TARGET], ["tcp"])
        return found

    def watch(self) -> Watch:
        return Watch(self.ovn.remote("nb"), self.cluster.kubeconfig)

    def slice_of(self, name: str, addresses: Sequence[str]) -> dict[str, Any]:
        return endpoint_slice(f"{name}-x", name, *map(endpoint, addresses))

    def silent(self, numbers: Sequence[int]) -> list[int]:
        """The Services among these that do not answer both clients now."""
        attempts = [Attempt(client, vip(number), 80) for number in numbers for client in self.clients]
        outcomes = tried(attempts, _TRY_S)
        good = [outcome is Outcome.ALLOWED for outcome in outcomes]
        return [number for at, number in enumerate(numbers) if not all(good[at * 2 : at * 2 + 2])]

    def await_all(self, count: int) -> float:
        """Wait until all Services answer; when that was (time.monotonic)."""
        left = sorted({*range(0, count, max(1, count // _LOOKED_AT)), count - 1})
        end = time.monotonic() + LONG_S
        while left := self.silent(left):
            assert time.monotonic() < end, f"Services do not answer: {left}"
            threading.Event().wait(0.05)
        found = time.monotonic()
        for first in range(0, count, _AT_ONCE):
            left = list(range(first, min(first + _AT_ONCE, count)))
            while left := self.silent(left):
                assert time.monotonic() < end, f"Services do not answer: {left}"
                found = time.monotonic()
        return found

    def used(self, watch: Watch | None) -> dict[str, float]:
        """Processor seconds of each process so far."""
        found = {name: processor_s(self.ovn.pid(name)) for name in ("nb", "sb", "northd")}
        found |= {f"ovn-controller {name}": processor_s(self.ovn.pid(name)) for name in NODES}
        return {**({"controller": watch.cpu_s()} if watch else {}), **found, "API server": self.cluster.cpu_s()}

    def await_outcome(self, number: int, wanted: Outcome) -> float:
        """When a connection from the first pod of each node had this outcome for the first time."""
        attempts = [Attempt(client, vip(number), 80) for client in self.clients]
        end = time.monotonic() + LONG_S
        while set(tried([each.again() for each in attempts], _CHANGE_TRY_S)) != {wanted}:
            assert time.monotonic() < end, f"{named(number)}: not {wanted}"
        return time.monotonic()


def _difference(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {name: round(value - before[name], 2) for name, value in after.items()}


def make_all(bench: Bench, count: int, idle_s: float, changes: int) -> dict[str, Any]:
    """All Services at once, with a controller that waits for them; and then single changes."""
    with bench.watch() as watch:
        watch.await_metric("ovn_services_full_seconds", 1e-9)
        empty, before = watch.memory(), bench.used(watch)
        things = [service(named(number), vip(number)) for number in range(count)]
        things += [bench.slice_of(named(number), bench.endpoints) for number in range(count)]
        began = time.monotonic()
        bench.cluster.put(things)
        put = time.monotonic()
        rows = watch.await_metric("ovn_load_balancers", count)
        answered = bench.await_all(count)
        found: dict[str, Any] = {
            "put into the API": round(put - began, 2),
            "known to the controller": round(rows - began, 2),
            "all answer": round(answered - began, 2),
            "processor": _difference(before, bench.used(watch)),
            "memory without": empty,
            "memory": watch.memory(),
        }
        found["change"] = _changes(bench, changes, lambda addresses: bench.cluster.put([bench.slice_of(_CHANGED, addresses)]))
        if idle_s:
            threading.Event().wait(30.0)  # the second lists are over
            cpu = watch.cpu_s()
            threading.Event().wait(idle_s)
            found["at rest"] = f"{(watch.cpu_s() - cpu) / idle_s:.2%}"
        return found


def _changes(bench: Bench, count: int, write: Callable[[Sequence[str]], Any]) -> dict[str, Any]:
    """Milliseconds from a write to what it does, of no endpoint to one and back."""
    taken: dict[str, list[float]] = {"one endpoint": [], "none": []}
    write([])
    bench.await_outcome(0, Outcome.REFUSED)
    for number in range(count):
        for name, addresses, outcome in (
            ("one endpoint", [bench.endpoints[number % len(bench.endpoints)]], Outcome.ALLOWED),
            ("none", [], Outcome.REFUSED),
        ):
            began = time.monotonic()
            write(addresses)
            taken[name].append((bench.await_outcome(0, outcome) - began) * 1000)
    return {
        name: {"median": round(statistics.median(found)), "least": round(min(found)), "most": round(max(found))}
        for name, found in taken.items()
    }


def write_raw(bench: Bench, count: int, changes: int) -> dict[str, Any]:
    """The same rows without a controller, in groups of the same size."""
    with RawDatabase(bench.ovn.remote("nb")) as database:
        columns = ("name", "protocol", "vips", "options", "external_ids")
        rows = database.select("Load_Balancer", *columns)
        assert len(rows) == count, len(rows)
        database.transact(
            *({"op": "update", "table": "Load_Balancer_Group", "where": [], "row": {"load_balancer": ["set", []]}},),
            {"op": "delete", "table": "Load_Balancer", "where": []},
        )
        bench.ovn.nbctl("--wait=hv", "sync")
        wait_until(lambda: bench.silent([count - 1]), what="the end of the load balancers")
        vips = ["map", [[f"{vip(0)}:80", ",".join(f"{each}:{TARGET}" for each in bench.endpoints)]]]
        rows = [row if row["name"] != f"default/{_CHANGED}_tcp" else {**row, "vips": vips} for row in rows]
        before, began = bench.used(None), time.monotonic()
        for first in range(0, count, BATCH):
            operations: list[dict[str, Any]] = []
            batch = rows[first : first + BATCH]
            for number, row in enumerate(batch):
                operations.append({"op": "insert", "table": "Load_Balancer", "row": row, "uuid-name": f"r{number}"})
            members = [["named-uuid", f"r{number}"] for number in range(len(batch))]
            where = {"table": "Load_Balancer_Group", "where": [["name", "==", GROUPS[0]]]}
            operations.append({"op": "mutate", **where, "mutations": [["load_balancer", "insert", ["set", members]]]})
            database.transact(*operations)
        written = time.monotonic()
        found: dict[str, Any] = {"written": round(written - began, 2), "all answer": round(bench.await_all(count) - began, 2)}
        found["processor"] = _difference(before, bench.used(None))

        def write(addresses: Sequence[str]) -> None:
            row = {"vips": ["map", [[f"{vip(0)}:80", ",".join(f"{each}:{TARGET}" for each in addresses)]]]}
            where = [["name", "==", f"default/{_CHANGED}_tcp"]]
            database.transact({"op": "update", "table": "Load_Balancer", "where": where, "row": row})

        found["change"] = _changes(bench, changes, write)
        return found


def measure(options: Any) -> dict[str, Any]:
    with ExitStack() as stack:
        bench = Bench(stack, options.endpoints)
        report: dict[str, Any] = {"machine": machine(), "version": f"OVN {version()}", "services": options.services}
        report["by the controller"] = make_all(bench, options.services, options.idle, options.changes)
        report["by hand"] = write_raw(bench, options.services, options.changes)
        names = {"nb": "nb", "sb": "sb", "northd": "northd", **{f"ovn-controller {name}": name for name in NODES}}
        report["memory, MiB"] = {name: memory_mib(bench.ovn.pid(each)) for name, each in names.items()}
        report["machine at the end"] = machine()
        return report


def show(report: dict[str, Any]) -> None:
    """The report as a table."""
    show_parts(f"{report['services']} Services; {report['version']}; {report['machine']}", report)


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--services", type=int, default=1_000)
    parser.add_argument("--endpoints", type=int, default=10)
    parser.add_argument("--changes", type=int, default=10)
    parser.add_argument("--idle", type=float, default=0.0, metavar="S")
    options = parser.parse_args()
    return tell(measure(options), options.json, show)


if __name__ == "__main__":
    sys.exit(main())
