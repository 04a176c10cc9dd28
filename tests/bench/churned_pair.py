"""What a pair of vhost-user pods carries while other pods come to its node and go.

`python tests/bench/churned_pair.py [--json] [--rounds N] [--seconds S] [--pods N] [--stateful]`, as root, on a machine that does
nothing else. UDP in frames of 64 bytes between two pods on OVN's bridge of one private switch, with OVN and an agent. In turns,
S seconds each: at rest, with 2 N others on the node, and while N pods a second (10) come and as many go: the row of the logical
port, ADD through shim and agent until OVN has installed the port, an application that listens at the socket until the switch has
connected, and two seconds later DEL and the end of the row. The machine needs two cores.

The polling thread has one core; what other programs of the machine take of it is counted out. All else shares the other one:
OVN's daemons, ovs-vswitchd's main thread, ovsdb-servers, agent, shims, and what sends. That is too much for a sender that never
rests. So it takes samples: with a real-time priority it fills the polling thread for half a millisecond, and leaves the core to
the others for the next four and a half. A pause of the polling thread shows as a sample with few frames, or none; what the others
do with that thread takes longer than on a node, by the sender's share, 10 %.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import groupby
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

from rich.console import Console
from rich.table import Table

from tests.bench.calls import milliseconds, processor_s
from tests.bench.ovn_adds import NAMESPACE, RULE, NamedShim, networks
from tests.bench.ovn_pair import BATCH, NAMES, SWITCH, OvnPair, bursts, frames
from tests.bench.policed_pair import PORT, rules
from tests.bench.raw_database import RawDatabase
from tests.bench.report import arguments, machine, tell
from tests.lab.node.agent import Agent, running
from tests.lab.node.node import Node, clean
from tests.lab.ovn.central import version
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.switch import wait_until
from userspace_cni.fastpath.rings.burst import Burst
from userspace_cni.fastpath.vhost.front_end import FrontEndListener, FrontEndOptions

SAMPLE_NS, EVERY_NS, FILLED_NS = 500_000, 5_000_000, 50_000
_PRIORITY: Final = 10
_WORKERS: Final = 32
_LIVES_S: Final = 2.0
_SETTLED_S: Final = 1.0
_CONNECTED_S: Final = 30.0
"""ovs-vswitchd tries again once a second."""


class Turn(NamedTuple):
    """Samples of a turn, frames per second each; of that time the share in which the polling thread could run."""

    samples: list[float]
    share: float

    @property
    def mean(self) -> float:
        """Mpps."""
        return statistics.mean(self.samples) / 1e6 / self.share


def sample(pair: OvnPair, wanted: list[Burst], seconds: float) -> list[float]:
    """Frames per second in each of the samples."""
    (source, sink), back, clock, rested = pair.ends, Burst(BATCH), time.perf_counter_ns, threading.Event()
    found: list[float] = []
    due = clock()
    end = due + int(seconds * 1e9)
    while due < end:
        turn = received = 0
        start = clock()
        while (now := clock()) < start + FILLED_NS:
            source.send(wanted[turn % len(wanted)], BATCH)
            sink.receive(back)
        begun = now
        while now < begun + SAMPLE_NS:
            for _ in range(4):
                source.send(wanted[turn % len(wanted)], BATCH)
                turn += 1
                received += sink.receive(back)
            now = clock()
        found.append(received / (now - begun) * 1e9)
        due += EVERY_NS
        if (rest := due - clock()) > 0:
            rested.wait(rest / 1e9)
    return found


def send(pair: OvnPair, orders: Connection) -> None:
    """The sender's process: it has both ports, and takes samples for as many seconds as it is told."""
    with pair.attached():
        wanted = bursts(frames(PORT, range(20_000, 20_001)))
        wait_until(lambda: pair.arrive(wanted), what="frames between the two pods")
        answers = bursts(frames(PORT, range(20_000, 20_001), back=True))
        wait_until(lambda: pair.arrive(answers, back=True), what="answers")
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_PRIORITY))
        orders.send(None)
        while (seconds := orders.recv()) is not None:
            orders.send(sample(pair, wanted, seconds))


class Churn:
    """Pods that come and go."""

    def __init__(self, pair: OvnPair, node: Node, sandbox: str, pods_per_s: float) -> None:
        [network] = [network for kind, network in networks(node).items() if kind == "installed"]
        self._shim = NamedShim(node, [sandbox], node.directory / "shim", network)
        self._pair = pair
        self._every_s = 1 / pods_per_s
        self._lock = threading.Lock()
        self._number = 0
        self._alive: list[tuple[int, Future[ExitStack]]] = []
        self.adds: list[float] = []

    @contextmanager
    def standing(self) -> Iterator[None]:
        """As many pods as live at a time are there from now on, also while none comes."""
        with ExitStack() as stack:
            self._northbound = stack.enter_context(RawDatabase(self._pair.ovn.remote("nb")))
            self._switch = stack.enter_context(RawDatabase(self._pair.switch.ovsdb, "Open_vSwitch"))
            self._pool = stack.enter_context(ThreadPoolExecutor(_WORKERS))
            for _ in range(round(_LIVES_S / self._every_s)):
                self._add()
            for _, come in self._alive:
                come.result()
            try:
                yield
            finally:
                for each in self._alive:
                    self._go(*each)

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """While the block runs a pod comes again and again, and the oldest goes."""
        ended = threading.Event()
        loop = threading.Thread(target=self._loop, args=(ended,))
        loop.start()
        try:
            yield
        finally:
            ended.set()
            loop.join()

    def _loop(self, ended: threading.Event) -> None:
        going: list[Future[None]] = []
        due = time.monotonic()
        while not ended.wait(max(0.0, due - time.monotonic())):
            due += self._every_s
            self._add()
            going.append(self._pool.submit(self._go, *self._alive.pop(0)))
        for gone in going:
            gone.result()
        for _, come in self._alive:
            come.result()

    def _add(self) -> None:
        self._number += 1
        self._alive.append((self._number, self._pool.submit(self._come, self._number)))

    def _come(self, number: int) -> ExitStack:
        """A pod and its application; closing what it gives ends the application."""
        name = f"{NAMESPACE}_p{number}"
        port = {
            "op": "insert",
            "table": "Logical_Switch_Port",
            "row": {"name": name, "addresses": "unknown"},
            "uuid-name": "port",
        }
        change = {"op": "mutate", "table": "Logical_Switch", "where": [["name", "==", SWITCH]]}
        with self._lock:
            self._northbound.transact(port, {**change, "mutations": [["ports", "insert", ["named-uuid", "port"]]]})
        took, _ = self._shim.call("ADD", number)
        self.adds.append(took)
        where = {"table": "Interface", "where": [["external_ids", "includes", ["map", [["iface-id", name]]]]]}
        with self._lock:
            [found] = self._switch.transact({"op": "select", **where, "columns": ["options"]})
        application = ExitStack()
        path = dict(found["rows"][0]["options"][1])["vhost-server-path"]
        listener = application.enter_context(FrontEndListener(path, FrontEndOptions()))
        application.enter_context(listener.accept(_CONNECTED_S))
        return application

    def _go(self, number: int, come: Future[ExitStack]) -> None:
        come.result().close()
        self._shim.call("DEL", number)
        with self._lock:
            where = {"table": "Logical_Switch_Port", "where": [["name", "==", f"{NAMESPACE}_p{number}"]]}
            [found] = self._northbound.transact({"op": "select", **where, "columns": ["_uuid"]})
            change = {"op": "mutate", "table": "Logical_Switch", "where": [["name", "==", SWITCH]]}
            self._northbound.transact({**change, "mutations": [["ports", "delete", ["set", [found["rows"][0]["_uuid"]]]]]})


def polling_thread(pair: OvnPair) -> int:
    """Its number."""
    tasks = Path(f"/proc/{pair.switch.vswitchd_pid}/task")
    [found] = [int(each.name) for each in tasks.iterdir() if (each / "comm").read_text().startswith("pmd-")]
    return found


def daemons(pair: OvnPair, agent: Agent) -> dict[str, int]:
    """Process numbers of what runs beside the polling thread."""
    directory = Path(pair.ovn.rundir)
    found = {name: int((directory / f"{name}.pid").read_text()) for name in ("nb", "sb", "northd", "controller")}
    return {**found, "ovsdb-server": pair.switch.ovsdb_pid, "ovs-vswitchd": pair.switch.vswitchd_pid, "agent": agent.pid}


def measure(pair: OvnPair, node: Node, agent: Agent, options: Any) -> dict[str, Any]:
    ours, theirs = multiprocessing.get_context("fork").Pipe()
    with ExitStack() as stack:
        sandbox = stack.enter_context(netns())
        sender = multiprocessing.get_context("fork").Process(target=send, args=(pair, theirs), daemon=True)
        sender.start()
        stack.callback(sender.join)
        stack.callback(ours.send, None)
        ours.recv()
        if options.stateful:
            pair.ovn.nbctl("--wait=hv", *rules("f", NAMES, 100, "allow-related")[1:])
        polling = polling_thread(pair)
        churn = Churn(pair, node, sandbox, options.pods)
        stack.enter_context(churn.standing())
        pids = daemons(pair, agent)
        turns: dict[str, list[Turn]] = {"rest": [], "churn": []}
        used: list[dict[str, float]] = []
        for number in range(options.rounds):
            for kind in ("rest", "churn") if number % 2 == 0 else ("churn", "rest"):
                with churn.going_on() if kind == "churn" else ExitStack():
                    threading.Event().wait(_SETTLED_S)
                    before, (polled, waited) = {name: processor_s(pid) for name, pid in pids.items()}, polling_s(polling)
                    began = time.monotonic()
                    ours.send(options.seconds)
                    samples = ours.recv()
                    (now_polled, now_waited), took = polling_s(polling), time.monotonic() - began
                    turns[kind].append(Turn(samples, 1 - (now_waited - waited) / took))
                    if kind == "churn":
                        spent = {name: processor_s(pid) - before[name] for name, pid in pids.items()}
                        spent["ovs-vswitchd"] -= now_polled - polled
                        used.append({name: each / took for name, each in spent.items()})
            sys.stderr.write(f"round {number + 1} of {options.rounds}; {machine()}\n")
    return {
        "pods": len(churn.adds),
        "ADD": milliseconds(churn.adds),
        "turns": {kind: _told(each) for kind, each in turns.items()},
        "ratios": _spread([busy.mean / calm.mean for calm, busy in zip(turns["rest"], turns["churn"], strict=True)]),
        "ratio": round(statistics.mean(e.mean for e in turns["churn"]) / statistics.mean(e.mean for e in turns["rest"]), 3),
        "cores": {name: round(statistics.mean(each[name] for each in used), 3) for name in pids},
    }


def _spread(ratios: list[float]) -> dict[str, float]:
    """Quartiles."""
    return dict(
        zip(("first quarter", "median", "last quarter"), (round(each, 3) for each in statistics.quantiles(ratios)), strict=True)
    )


def polling_s(thread: int) -> tuple[float, float]:
    """Seconds that the polling thread has run, and that it has waited for its core."""
    ran, waited, _ = Path(f"/proc/{thread}/schedstat").read_text().split()
    return int(ran) / 1e9, int(waited) / 1e9


def _told(turns: list[Turn]) -> dict[str, float]:
    samples = sorted(sample for turn in turns for sample in turn.samples)
    low = [sample < samples[len(samples) // 2] / 2 for turn in turns for sample in turn.samples]
    longest = max((len(list(same)) for is_low, same in groupby(low) if is_low), default=0)
    return {
        "Mpps": round(statistics.mean(turn.mean for turn in turns), 2),
        "core": round(statistics.mean(turn.share for turn in turns), 2),
        "median": round(statistics.median(samples) / 1e6, 2),
        "least": round(samples[0] / 1e6, 2),
        "samples below half": round(sum(low) / len(low), 4),
        "in a row": longest,
        "samples": len(samples),
    }


def show(report: Mapping[str, Any]) -> None:
    console = Console(width=140)
    table = Table(title=f"a pair of pods while {report['pods']} others came and went", title_justify="left")
    for column in ("", *report["turns"]["rest"]):
        table.add_column(column, justify="right" if column else "left")
    for name, row in report["turns"].items():
        table.add_row(name, *map(str, row.values()))
    console.print(table)
    console.print(f"ratio {report['ratio']}; of rounds {report['ratios']}; ADD {report['ADD']} ms")
    console.print(f"cores while they come and go: {report['cores']}")
    console.print(report["machine"], report["versions"], sep="; ")


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each turn")
    parser.add_argument("--pods", type=float, default=10.0, help="that come in a second")
    parser.add_argument("--stateful", action="store_true", help="100 stateful rules select the pair")
    options = parser.parse_args()
    report: dict[str, Any] = {"machine": machine()}
    with OvnPair() as pair, ExitStack() as stack:
        report["versions"] = f"OVN {version()}, OVS {pair.version()}"
        locks = stack.enter_context(TemporaryDirectory(prefix="uc-", dir="/dev/shm"))  # in memory, as /run is
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="uc-")))
        node = stack.enter_context(clean(Node(directory / "n", pair.switch, {"USERSPACE_CNI_RUN_DIR": locks})))
        Path(node.environ["USERSPACE_CNI_CONFIG"]).write_text(RULE)
        agent = stack.enter_context(running(node, USERSPACE_CNI_TICK_S="30"))
        report |= measure(pair, node, agent, options)
    return tell(report, options.json, show)


if __name__ == "__main__":
    sys.exit(main())
