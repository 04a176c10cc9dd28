"""The table of lanes in docs/compatibility.md, made from the record: `python -m tests.lab.lanes.page` writes it there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from tests.lab.lanes import record
from tests.lab.lanes.record import Ran, Record
from tests.lab.lanes.table import LANES
from tests.lab.suite.exercised import ROOT

PAGE: Final = ROOT / "docs" / "compatibility.md"
BEGIN: Final = "<!-- made by tests.lab.lanes.page of what tests/run.sh lane NAME has recorded -->\n"
END: Final = "<!-- made: end -->\n"
BY_HAND: Final = "by hand"
"""The phrase by which the page marks what no test runs."""
KINDS: Final = {
    "ovs": "Open vSwitch",
    "ovn": "OVN",
    "cni": "the plugin",
    record.RECORDINGS: "recorded calls of kubelet, containerd and Multus",
    "agent": "the agent",
    "runtimes": "containerd, `ctr` and cnitool as callers",
    "deploy": "the demo",
}
"""Kind of tests -> its subject."""


def table(known: Record) -> str:
    """A column for the machine's own programs and for each lane, in the order of the lanes; its versions, and what ran."""
    ran = {each.name: known.lanes[each.name] for each in LANES if each.name in known.lanes}
    own = " ".join((record.DEBIAN, known.own.get(record.DEBIAN, ""))).strip()
    lines = [_row("", own, ran), _row("---", "---", ["---"] * len(ran))]
    lines += [
        _row(part, known.own.get(part, "none"), (of.versions.get(part, "none") for of in ran.values()))
        for part in dict.fromkeys(part for of in ran.values() for part in of.versions)
    ]
    lines.append(_row("Each run of the suite has", "all tests", ["a sample"] * len(ran)))
    lines += [_row(f"Tests: {about}", "", (f"{of.tests.get(kind, 0):,}" for of in ran.values())) for kind, about in KINDS.items()]
    return "".join([*lines, _row("Failed", "", (_failed(of) for of in ran.values()))])


def with_table(page: str, known: Record) -> str:
    """The page with its table replaced by that one. ValueError: the page has no place for one."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE}: no place for the table: a line {BEGIN.strip()}, and later one {END.strip()}")
    return f"{before}{BEGIN}{table(known)}{END}{after}"


def tried_by_hand(page: str, known: Record) -> Iterator[str]:
    """Lines that say "tried by hand" of something that a lane runs."""
    for line in page.splitlines():
        for part, version in (each for of in known.lanes.values() for each in of.versions.items()):
            if BY_HAND in line and part in line and version in line:
                yield line


def _row(head: str, own: str, lanes: Iterable[str]) -> str:
    return f"| {' | '.join((head, own, *lanes))} |\n"


def _failed(ran: Ran) -> str:
    return ", ".join(f"`{test}`" for test in ran.failed) or "none"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(), record.read()))
