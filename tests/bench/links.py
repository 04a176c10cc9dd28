"""What an ordinary pod's port costs through the agent, beside a vhost-user port and beside Debian's own plugins.

`python tests/bench/links.py [--json] [--rounds N] [--ports 0,100] [--only PART,...]`, as root. Everything is measured in one run
on one private switch, in turns, and compared: the machine's own speed drifts between runs.

    resting     ADD and DEL, each after 80 ms in which nothing happens, of one pod: a vhost-user port and a veth port of each type
                through shim and agent on one bridge, without addresses and with a lease of host-local; and by Debian's `bridge`
                and `ptp` with such a lease, in the same network namespace as the host ends of ours
    burst       40 ADDs at once, each in a namespace of its own, and 40 DELs, through shim and agent; beside one transaction of
                ovsdbapp with 40 such ports, awaited; for ports with a link, those are made before by one thread of this process
                (guard and veth, by the drivers themselves), which is told apart

Milliseconds, p50 / p95; stages are the agent's (`userspace_cni.base.stages`), medians over the calls.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.bench.attach import BRIDGE, Bare, existing_ports
from tests.bench.calls import Seconds, Shim, Spent, difference, milliseconds, stages_of
from tests.bench.floor import Floor
from tests.bench.latency import REST_S, calm
from tests.bench.report import arguments, machine, tell
from tests.lab.frames.taps import entered
from tests.lab.node.agent import running
from tests.lab.node.node import PLUGINS, Node, clean
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.switch import Switch
from userspace_cni.attachment.steps import Guard, Link
from userspace_cni.base.deadline import Deadline
from userspace_cni.host.pod_net.guards import GuardDriver
from userspace_cni.host.pod_net.pod_links import LinkDriver

PARTS = ("resting", "burst")
KINDS = ("vhost-user", "system", "afxdp")
DEBIAN = ("bridge", "ptp")
TOGETHER = 40
WARM = 2
VERBS = ("ADD", "DEL")


def network(node: Node, kind: str, *, leased: bool) -> dict[str, Any]:
    """A network whose ports are of that kind, or whose plugin is Debian's of that name."""
    ipam = {"ipam": {**node.host_local(), "routes": [{"dst": "0.0.0.0/0"}]}} if leased else {}
    if kind in DEBIAN:
        more = {"bridge": "cni-bench", "isGateway": True} if kind == "bridge" else {}
        return {"cniVersion": "1.0.0", "name": kind, "type": kind, **more, **ipam}
    if kind == "vhost-user":
        return node.network("1.0.0", **ipam)
    host = {"engine": "ovs-dpdk", "iftype": "veth", "port": kind, "bridge": {"bridgeName": BRIDGE}}
    return {"cniVersion": "1.0.0", "name": f"net-{kind}", "type": "userspace", "host": host, **ipam}


@dataclass
class Taken:
    """What calls of one kind took: wall seconds, the agent's processor seconds, and its seconds by stage."""

    walls: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    stages: list[Seconds] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """Milliseconds."""
        found: dict[str, Any] = {"wall": milliseconds(self.walls)}
        if self.stages:
            found |= {"agent cpu": milliseconds(self.cpu), "stages": stages_of(self.stages, self.walls)}
        return found


def resting(node: Node, spent: Spent, sandbox: str, rounds: int) -> dict[str, Any]:
    """ADD and DEL of every kind in turns, whose order changes from round to round."""
    assert node.switch
    floor = Floor(node.switch.ovsdb, BRIDGE, node.directory)
    callers: dict[str, Callable[[str, int], float]] = {}
    taken: dict[str, dict[str, Taken]] = {}

    def ours(name: str, shim: Shim, verb: str, number: int) -> float:
        before, used = spent.seconds(verb), spent.processor_s()
        wall = shim.call(verb, number)[0]
        floor.settle()
        found = taken[name][verb]
        found.cpu.append(spent.processor_s() - used)
        found.stages.append(difference(before, spent.seconds(verb, before["count"] + 1)))
        return wall

    def debian(shim: Shim, verb: str, number: int) -> float:
        place = node.switch.netns if node.switch else ""
        return entered(place, lambda: shim.call(verb, number)[0])

    def caller(name: str, kind: str, *, leased: bool) -> Callable[[str, int], float]:
        directory = node.directory / name.replace(" ", "-")
        shim = Shim(node, [sandbox], directory, network(node, kind, leased=leased), f"{PLUGINS}/{kind}" if kind in DEBIAN else "")
        return (lambda verb, number: debian(shim, verb, number)) if kind in DEBIAN else lambda v, n: ours(name, shim, v, n)

    for leased in (False, True):
        for kind in (*KINDS, *(DEBIAN if leased else ())):
            name = f"{kind}, host-local" if leased else kind
            callers[name] = caller(name, kind, leased=leased)
    for number in range(-WARM, rounds):
        if number in (-WARM, 0):
            taken = {name: {verb: Taken() for verb in VERBS} for name in callers}
        for name in list(callers)[:: 1 if number % 2 else -1]:
            for verb in VERBS:
                floor.settle()
                threading.Event().wait(REST_S)
                taken[name][verb].walls.append(callers[name](verb, number + WARM))
    floor.close()
    return {name: {verb: each.summary() for verb, each in found.items()} for name, found in taken.items()}


def burst(node: Node, spent: Spent, sandboxes: list[str], rounds: int) -> dict[str, Any]:
    """Forty at once, in turns with one transaction of forty such ports; each after ovs-vswitchd has come to rest."""
    assert node.switch
    floor = Floor(node.switch.ovsdb, BRIDGE, node.directory)
    numbers = range(TOGETHER)
    found: dict[str, dict[str, Any]] = {}
    for kind, leased in (("vhost-user", False), ("system", False), ("system", True)):
        name = f"{kind}, host-local" if leased else kind
        shim = Shim(node, sandboxes, node.directory / f"burst-{name.replace(' ', '-')}", network(node, kind, leased=leased))
        bares: list[float] = []
        made: list[float] = []
        gone: list[float] = []
        ours = Taken()
        for number in range(-1, rounds):
            with _made(node.switch.netns, sandboxes if kind == "system" else []) as taken:
                made.append(taken)
                bares.append(_bare(node, floor, kind))
            calm(floor, node.switch.vswitchd_pid)
            before, used = spent.seconds("ADD"), spent.processor_s()
            ours.walls.append(shim.burst("ADD", numbers)[0])
            ours.cpu.append((spent.processor_s() - used) / TOGETHER)
            ours.stages.append(difference(before, spent.seconds("ADD", before["count"] + TOGETHER)))
            calm(floor, node.switch.vswitchd_pid)
            gone.append(shim.burst("DEL", numbers)[0])
            if number < 0:  # the first round warms up
                bares, made, gone, ours = [], [], [], Taken()
        least = statistics.median(map(sum, zip(bares, made, strict=True)))
        found[name] = {
            "links": milliseconds(made),
            "one transaction": milliseconds(bares),
            "ADD": milliseconds(ours.walls),
            "/ transaction": round(statistics.median(ours.walls) / statistics.median(bares), 2),
            "/ both": round(statistics.median(ours.walls) / least, 2),
            "DEL": milliseconds(gone),
            "agent cpu": milliseconds(ours.cpu),
            "stages": stages_of(ours.stages, [each["total"] for each in ours.stages]),
        }
    floor.close()
    return found


@contextmanager
def _made(switch_netns: str, sandboxes: list[str]) -> Iterator[float]:
    """Links and guards for `_bare`, one after the other; the seconds that it took to make them."""
    steps: list[tuple[Guard, Link]] = []
    for number, sandbox in enumerate(sandboxes):
        host, mac = f"bare{number}", f"02:00:00:00:{{}}:{number:02x}".format
        guard = Guard(host, "bench", switch_netns)
        link = Link(
            host, mac("01"), "userspace-cni bench", "bare", mac("02"), 1500, sandbox, Path(sandbox).stat().st_ino, switch_netns
        )
        steps.append((guard, link))
    deadline, guards, links = Deadline.after(60), GuardDriver(), LinkDriver()

    def make() -> float:  # not in the main thread, which enters no namespace itself
        began = time.perf_counter()
        for guard, link in steps:
            guards.apply(guard, deadline)
            links.apply(link, deadline)
        return time.perf_counter() - began

    with ThreadPoolExecutor(1) as other:
        taken = other.submit(make).result()
    yield taken
    for guard, link in steps:
        links.undo(link, deadline)
        guards.undo(guard, deadline)


def _bare(node: Node, floor: Floor, kind: str) -> float:
    """Forty ports in one transaction, whose links, if they need any, are there; wall seconds."""
    assert node.switch
    bare = Bare(node.switch.ovsdb, None if kind == "system" else node.directory)
    calm(floor, node.switch.vswitchd_pid)
    began = time.perf_counter()
    bare.together(range(TOGETHER))
    taken = time.perf_counter() - began
    bare.clear(range(TOGETHER))
    bare.close()
    floor.settle()
    return taken


def measure(node: Node, options: argparse.Namespace) -> dict[str, Any]:
    """The parts that were asked for, at each count of existing ports."""
    assert node.switch
    report: dict[str, Any] = {"machine": machine(), "rounds": options.rounds}
    with ExitStack() as stack:
        agent = stack.enter_context(running(node, USERSPACE_CNI_TICK_S="30"))
        spent = Spent(agent)
        sandboxes = [stack.enter_context(netns()) for _ in range(TOGETHER if "burst" in options.only else 1)]
        for count in options.ports:
            with existing_ports(node.switch, node.directory, count):
                where = f"{count} ports"
                if "resting" in options.only:
                    report.setdefault("resting", {})[where] = resting(node, spent, sandboxes[0], options.rounds)
                if "burst" in options.only:
                    many = burst(node, spent, sandboxes, max(3, options.rounds // 6))
                    report.setdefault("burst", {})[where] = many
    report["machine at the end"] = machine()
    return report


def show(report: Mapping[str, Any]) -> None:
    """Print the report: calls, and where their time goes."""
    console = Console(width=150)
    calls: dict[str, Mapping[str, Any]] = {}
    for where, kinds in report.get("resting", {}).items():
        calls |= {f"resting, {where}, {verb}, {kind}": each for verb in VERBS for kind, each in _of(kinds, verb)}
    for where, kinds in report.get("burst", {}).items():
        calls |= {f"{TOGETHER} ADDs at once, {where}, {kind}": each for kind, each in kinds.items()}
    _table(console, "calls: ms, p50 / p95", {name: _without(each) for name, each in calls.items()})
    _table(console, "where the time goes, ms", {name: each["stages"] for name, each in calls.items() if "stages" in each})
    console.print(report["machine"], report["machine at the end"], sep="; at the end: ")


def _of(kinds: Mapping[str, Any], verb: str) -> list[tuple[str, Mapping[str, Any]]]:
    return [(kind, verbs[verb]) for kind, verbs in kinds.items()]


def _without(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "stages"}


def _table(console: Console, title: str, rows: Mapping[str, Mapping[str, Any]]) -> None:
    columns = list(dict.fromkeys(name for row in rows.values() for name in row))
    table = Table(title=title, title_justify="left")
    for column in ("", *columns):
        table.add_column(column, justify="right" if column else "left")
    for name, row in rows.items():
        cells = (row.get(column, "") for column in columns)
        table.add_row(name, *(" / ".join(map(str, c.values())) if isinstance(c, dict) else str(c) for c in cells))
    console.print(table)


def _words(text: str) -> list[str]:
    if unknown := set(text.split(",")) - set(PARTS):
        raise argparse.ArgumentTypeError(f"no part {', '.join(sorted(unknown))}")
    return text.split(",")


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--ports", type=lambda text: [int(word) for word in text.split(",")], default=[0])
    parser.add_argument("--only", type=_words, default=list(PARTS), help=f"parts to measure, of {', '.join(PARTS)}")
    options = parser.parse_args()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="uc-")))
        switch = stack.enter_context(Switch(environment={"PRIVATE_SWITCH_PMD_SLEEP": "0"}))
        locks = stack.enter_context(TemporaryDirectory(prefix="uc-", dir="/dev/shm"))  # in memory, as /run is
        node = stack.enter_context(clean(Node(directory / "n", switch, {"USERSPACE_CNI_RUN_DIR": locks})))
        report = measure(node, options)
    return tell(report, options.json, show)


if __name__ == "__main__":
    sys.exit(main())
