"""What the controller of logical ports costs in a large cluster, and how long it takes.

`python tests/bench/many_pods.py [--json] [--pods N] [--nodes N] [--idle S] [--churn ROUNDS]`: a northbound database with a
logical switch for each of N nodes (500), an API server of the lab in a process of its own, and `ovn watch`. N pods (22,500) are
made at once. In one run:

- seconds from the first pod until the last row and the last annotation; beside it the same rows written raw, in groups of the
  same size, into another such database, and as many annotations written by as many threads as the controller has, alone;
- a controller that starts over all of it: seconds until it has compared everything; that it has written nothing is checked;
- the memory of both controllers, and processor seconds of each process;
- with --idle: processor seconds of the resting controller in S seconds;
- with --churn: N rounds in which 50 pods end and others come: memory and processor time of the first and of the last tenth.

It needs OVN's databases and schemas (Debian: ovn-central), and no root.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import psutil

from tests.bench.raw_database import RawDatabase
from tests.bench.report import arguments, machine, show_parts, tell
from tests.bench.watch_process import LONG_S, Watch
from tests.lab.kube.served_cluster import ServedCluster
from tests.lab.ovn.database import Authority, NorthboundDatabase
from tests.lab.switch.switch import wait_until
from userspace_cni.base.errors import Unavailable
from userspace_cni.base.root import HERE
from userspace_cni.base.settings import Settings
from userspace_cni.controller.note_writers import WRITERS
from userspace_cni.kube.kubeconfig import KubeconfigBounds
from userspace_cni.kube.object_requests import Objects
from userspace_cni.kube.pod_requests import Clients
from userspace_cni.kube.resources import PODS
from userspace_cni.ovn.port_writing import BATCH

_SWITCHES_AT_ONCE: Final = 100
_CHURNED: Final = 50


class World:
    """A database with the nodes' switches, and an API server with the nodes, below a directory whose path is short."""

    def __init__(self, stack: ExitStack, nodes: int) -> None:
        self.directory = Path(stack.enter_context(TemporaryDirectory(prefix="mp-")))
        self.nodes = nodes
        (self.directory / "kube").mkdir()
        authority = Authority(self.directory / "ca")
        self.database = stack.enter_context(_database(self.directory / "nb", authority, nodes))
        self.raw = stack.enter_context(_database(self.directory / "raw", authority, nodes))
        self.cluster = stack.enter_context(ServedCluster(self.directory / "kube"))
        self.cluster.add_nodes(nodes)


@contextmanager
def _database(directory: Path, authority: Authority, nodes: int) -> Iterator[NorthboundDatabase]:
    directory.mkdir()
    with NorthboundDatabase(directory, authority) as served:
        for first in range(0, nodes, _SWITCHES_AT_ONCE):
            argv: list[str] = []
            for number in range(first, min(first + _SWITCHES_AT_ONCE, nodes)):
                subnet = f"10.{number // 250}.{number % 250}.0/24"
                argv += ["--", "ls-add", f"n{number}"]
                argv += ["--", "set", "logical_switch", f"n{number}", f"other_config:subnet={subnet}"]
            served.nbctl(*argv[1:])
        yield served


def make_all(world: World, pods: int) -> dict[str, Any]:
    """All pods at once, with a controller that waits for them."""
    cluster = world.cluster
    database = psutil.Process(world.database.pid)
    with Watch(world.database.remote("unix"), world.cluster.kubeconfig) as watch:
        watch.await_metric("ovn_full_seconds", 1e-9)
        empty = watch.memory()
        cpu = (watch.cpu_s(), cluster.cpu_s(), database.cpu_times().user)
        began = cluster.add_pods(0, pods, world.nodes)
        added = time.monotonic()
        rows = watch.await_metric("ovn_ports", pods)
        wait_until(partial(_are_noted, cluster, 0, pods), LONG_S, "all annotations", pause=0.2)
        _, last = cluster.noted(0, pods)
        used = (watch.cpu_s(), cluster.cpu_s(), database.cpu_times().user)
        names = ("controller", "API server", "database")
        return {
            "pods made": round(added - began, 1),
            "last row": round(rows - began, 1),
            "last annotation": round(last - began, 1),
            "processor": {name: round(now - then, 1) for name, now, then in zip(names, used, cpu, strict=True)},
            "memory before": empty,
            "memory": watch.memory(),
        }


def write_raw(world: World) -> float:
    """Seconds to write the rows of the one database into the other one, in groups of the same size."""
    with RawDatabase(world.database.remote("unix")) as database:
        rows = database.select("Logical_Switch_Port", "name", "addresses", "port_security", "options", "external_ids")
    rows.sort(key=lambda row: int(str(row["name"]).partition("_p")[2]))
    with RawDatabase(world.raw.remote("unix")) as database:
        began = time.monotonic()
        for first in range(0, len(rows), BATCH):
            operations: list[dict[str, Any]] = []
            switches: dict[str, list[list[str]]] = {}
            for number, row in enumerate(rows[first : first + BATCH]):
                operations.append({"op": "insert", "table": "Logical_Switch_Port", "row": row, "uuid-name": f"r{number}"})
                switches.setdefault(dict(row["external_ids"][1])["switch"], []).append(["named-uuid", f"r{number}"])
            for name, ports in switches.items():
                change = {"op": "mutate", "table": "Logical_Switch", "where": [["name", "==", name]]}
                operations.append({**change, "mutations": [["ports", "insert", ["set", ports]]]})
            database.transact(*operations)
        return round(time.monotonic() - began, 1)


def write_annotations(world: World, pods: int) -> float:
    """Seconds to write annotations as those of the controller once more, by as many threads as it has."""
    session = Clients(KubeconfigBounds.of(Settings()), HERE, world.cluster.kubeconfig).of("").session
    objects, place = Objects(session), PODS.within("default")

    def write(numbers: range) -> None:
        for number in numbers:
            said = {"ip_address": "192.0.2.9/24", "mac_address": "0a:58:c0:00:02:09", "gateway_ip": "192.0.2.1"}
            patch = {"metadata": {"annotations": {"raw": json.dumps(said)}}}
            while True:
                try:
                    objects.merge(place, f"p{number}", patch, subresource="status")
                except Unavailable:  # a machine that has other work may have no answer in time
                    continue
                break

    threads = [threading.Thread(target=write, args=(range(first, pods, WRITERS),)) for first in range(WRITERS)]
    began = time.monotonic()
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return round(time.monotonic() - began, 1)


def start_over_all(world: World, pods: int, idle_s: float) -> dict[str, Any]:
    """A controller that starts when all is there, and then rests."""
    before = _content(world)
    with Watch(world.database.remote("unix"), world.cluster.kubeconfig) as watch:
        compared = watch.await_metric("ovn_full_seconds", 1e-9)
        cpu = watch.cpu_s()
        took = watch.metric("ovn_full_seconds")
        known = (watch.metric("ovn_pods"), watch.metric("ovn_notes_waiting"))
        assert known == (pods, 0), known
        found: dict[str, Any] = {"compared": round(compared - watch.began, 1), "comparison": took, "processor": round(cpu, 1)}
        if idle_s:
            threading.Event().wait(60.0)  # the second lists are over
            cpu = watch.cpu_s()
            threading.Event().wait(idle_s)
            found["at rest"] = f"{(watch.cpu_s() - cpu) / idle_s:.2%}"
        assert _content(world) == before, "the second controller has written"
        return {**found, "memory": watch.memory()}


def churn(world: World, pods: int, rounds: int) -> dict[str, Any]:
    """Rounds in which pods end and others come; memory and processor time at the begin and at the end."""
    cluster, tenth = world.cluster, max(1, rounds // 10)
    found: list[tuple[float, float]] = []
    with Watch(world.database.remote("unix"), world.cluster.kubeconfig) as watch:
        watch.await_metric("ovn_full_seconds", 1e-9)
        for number in range(rounds + 1):
            if number % tenth == 0:
                found.append((watch.memory()["own"], watch.cpu_s()))
            cluster.remove_pods(number * _CHURNED, _CHURNED)
            cluster.add_pods(pods + number * _CHURNED, _CHURNED, world.nodes)
            noted = partial(_are_noted, cluster, pods + number * _CHURNED, _CHURNED)
            wait_until(noted, LONG_S, "the round's annotations", pause=0.01)
        seconds = [round(now[1] - then[1], 1) for then, now in pairwise(found)]
        return {"MiB": [memory for memory, _ in found], "processor of each tenth": seconds}


def _are_noted(cluster: ServedCluster, first: int, count: int) -> bool:
    return cluster.noted(first, count)[0] == count


def _content(world: World) -> tuple[list[str], dict[str, dict[str, str]]]:
    """All rows with their versions, which each write changes, and the pods' annotations."""
    with RawDatabase(world.database.remote("unix")) as database:
        tables = ("Logical_Switch", "Logical_Switch_Port")
        rows = sorted(str(row) for table in tables for row in database.select(table, "_uuid", "_version"))
    return rows, world.cluster.annotations()


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments(__doc__)
    parser.add_argument("--pods", type=int, default=22_500)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--idle", type=float, default=0.0, metavar="S")
    parser.add_argument("--churn", type=int, default=0, metavar="ROUNDS")
    options = parser.parse_args(argv)
    with ExitStack() as stack:
        world = World(stack, options.nodes)
        made = make_all(world, options.pods)
        report: dict[str, Any] = {"machine": machine(), "pods": options.pods, "nodes": options.nodes, "made": made}
        report["rows raw"] = write_raw(world)
        report["annotations raw"] = write_annotations(world, options.pods)
        report["started over all"] = start_over_all(world, options.pods, options.idle)
        if options.churn:
            report["churn"] = churn(world, options.pods, options.churn)
    return tell(report, options.json, show)


def show(report: dict[str, Any]) -> None:
    """The report as a table."""
    show_parts(f"{report['pods']} pods on {report['nodes']} nodes; {report['machine']}", report)


if __name__ == "__main__":
    sys.exit(main())
