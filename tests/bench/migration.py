"""What a live migration costs the VM and those who talk with it.

`PYTHONPATH=. .venv/bin/python tests/bench/migration.py [--json] [--rounds N] [--every MS]`, as root. One guest, without KVM, goes
from launcher pod to launcher pod on one node: for each round the plugin attaches a new pod, QEMU moves there what it has, and the
plugin detaches the old one. Meanwhile a neighbour at the same bridge asks it something every millisecond.

    total       from the order to the end, as QEMU has measured it
    downtime    for which the guest stood still, as QEMU has measured it
    gap         longest time without an answer, as the neighbour sees it
    lost        its requests without an answer

The gap ends when the switch forwards to the new port, which it learns from the guest's first frames there. That takes some 20 ms,
and now and then half a second (OVS 3.1); always so long at a port that the same guest has had a moment before. Hence each
round has a new port, as each launcher pod has.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.bench.report import arguments, machine, tell
from tests.lab.guests.guest_peer import Peer, peer_at
from tests.lab.guests.qemu import Qemu, migrate
from tests.lab.guests.qemu_pods import BRIDGE, GUEST, Launcher
from tests.lab.node.node import Node, clean
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.switch import Switch, wait_until

FIGURES = ("total", "downtime", "gap", "lost")
AROUND_S = 0.3
"""Seconds of undisturbed traffic before and after."""


def moved(peer: Peer, source: Qemu, target: Qemu, mac: str, every: float) -> dict[str, float]:
    """One migration amid a stream: milliseconds, and frames."""

    def some_more() -> None:
        wanted = len(stream.answered) + AROUND_S / every
        wait_until(lambda: len(stream.answered) > wanted, what="answers of the guest")

    with peer.stream(mac, GUEST, every) as stream:
        some_more()
        told = migrate(source, target)
        some_more()
    gap = stream.longest_gap * 1000
    return {"total": told["total-time"], "downtime": told["downtime"], "gap": round(gap, 1), "lost": stream.lost}


def rounds(count: int, every: float) -> Iterator[dict[str, float]]:
    """The guest is booted once and moves `count` times."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="uc-")))
        switch = stack.enter_context(Switch())
        node = stack.enter_context(clean(Node(directory / "n", switch)))
        here = Launcher(node, "00000", stack.enter_context(netns()))
        here.add()
        peer = stack.enter_context(peer_at(switch, BRIDGE, directory))
        running = stack.enter_context(here.qemu())
        running.until("GUEST ready")
        for number in range(1, count + 1):
            there = Launcher(node, f"{number:05}", stack.enter_context(netns()))
            there.add()
            target = stack.enter_context(there.qemu(incoming=True))
            yield moved(peer, running, target, here.attached["mac"], every)
            here.delete()
            running.end()
            here, running = there, target


def summary(samples: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Median, least and most of each figure."""
    columns = {name: [sample[name] for sample in samples] for name in FIGURES}
    return {name: {"median": statistics.median(c), "min": min(c), "max": max(c)} for name, c in columns.items()}


def show(report: dict[str, Any]) -> None:
    console = Console(width=120)
    table = Table(title=f"Live migration between two ports, {report['rounds']} rounds", title_justify="left")
    for column in ("", "median", "min", "max"):
        table.add_column(column, justify="right")
    for name, unit in zip(FIGURES, ("ms", "ms", "ms", f"of one per {report['every_ms']:g} ms"), strict=True):
        figures = report["summary"][name]
        table.add_row(f"{name} ({unit})", *(f"{figures[kind]:g}" for kind in ("median", "min", "max")))
    console.print(table)
    console.print(report["machine"])


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--every", type=float, default=1.0, metavar="MS", help="pace of the neighbour's requests")
    options = parser.parse_args()
    told = machine()
    samples = list(rounds(options.rounds, options.every / 1000))
    report = {
        "machine": told,
        "rounds": options.rounds,
        "every_ms": options.every,
        "summary": summary(samples),
        "samples": samples,
    }
    return tell(report, options.json, show)


if __name__ == "__main__":
    sys.exit(main())
