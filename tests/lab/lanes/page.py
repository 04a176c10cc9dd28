"""The table of lanes in docs/compatibility.md, made of what was recorded: `python -m tests.lab.lanes.page` writes it there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.lab.lanes import record
from tests.lab.lanes.record import Ran
from tests.lab.lanes.table import LANES
from tests.lab.suite.exercised import ROOT

PAGE: Final = ROOT / "docs" / "compatibility.md"
BEGIN: Final = "<!-- made by tests.lab.lanes.page of what tests/run.sh lane NAME has recorded -->\n"
END: Final = "<!-- made: end -->\n"


def table(ran: Mapping[str, Ran]) -> str:
    """A row for each lane, in the order of the lanes."""
    lines = ["| Lane | Open vSwitch | DPDK | OVN | Tests | Failed |", "|---|---|---|---|---|---|"]
    for name in (each.name for each in LANES if each.name in ran):
        of = ran[name]
        failed = ", ".join(f"`{test}`" for test in of.failed) or "none"
        lines.append(f"| {name} | {of.open_vswitch} | {of.dpdk} | {of.ovn} | {of.tests:,} | {failed} |")
    return "".join(f"{line}\n" for line in lines)


def with_table(page: str, ran: Mapping[str, Ran]) -> str:
    """The page with that table in the place of the one that it has. ValueError: it has no place for one."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE}: no place for the table: a line {BEGIN.strip()}, and later one {END.strip()}")
    return f"{before}{BEGIN}{table(ran)}{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(), record.read()))
