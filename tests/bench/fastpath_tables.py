"""What `fastpath.py` prints of its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from tests.bench.dpdk_paths import DPDK_PATHS

_WIDTH: Final = 190
_TITLES: Final = {
    "throughput": "One way, plateau, Mpps",
    "both": "Both ways at once, plateau of the sum, Mpps",
    "queues": "Two queue pairs, one way, plateau, Mpps",
    "queues both": "Two queue pairs, both ways at once, plateau of the sum, Mpps",
    "lossless": "The fastest rate without loss, one way, bursts of 32, Mpps",
}
_DPDK: Final = frozenset(path.name for path in DPDK_PATHS)


def show(report: Mapping[str, Any]) -> None:
    console = Console(width=_WIDTH)
    for name, found in report.get("switches", {}).items():
        versions = ", ".join(f"{part} {version}" for part, version in found["versions"].items())
        console.print(f"[bold]{name}: {versions}")
        for of in found["turns"]:
            trips = " to ".join(map(str, of["round trips"]))
            console.print(f"{of['of']}: {of['compared']} turns of {of['all']} are compared, with round trips of {trips} µs")
        for part, title in _TITLES.items():
            if part in found:
                console.print(comparison(title, found[part]))
        console.print(_paths_taken(found["taken"]))
    if "latency" in report:
        console.print(table("Round trip over two hops, microseconds", report["latency"]))
    if "attach" in report:
        console.print(table("Attachment to a server port, milliseconds", {"median": report["attach"]}))
    if "testpmd" in report:
        rows = report["testpmd"]
        console.print(table("dpdk-testpmd as back-end: Mpps", {key: rows[key] for key in ("static", "copy")}))
        console.print(table("dpdk-testpmd as back-end: round trip, microseconds", rows["latency"]))
    console.print(report["machine"])


def comparison(title: str, cases: Sequence[Mapping[str, Any]]) -> Table:
    """A row for each of DPDK's paths, and one for each of ours with its ratio to the best of them, which has a star."""
    shown = Table(title=f"{title}; *: DPDK's best; in brackets: ratio to it", title_justify="left", box=SIMPLE_HEAD)
    shown.add_column("bytes x burst", no_wrap=True)
    for case in cases:
        shown.add_column(_heading(case), justify="right", no_wrap=True)
    for name in dict.fromkeys(name for case in cases for name in case["rows"]):
        whose = f"DPDK, {name}" if name in _DPDK else name
        shown.add_row(whose, *(_cell(case, name) for case in cases))
    return shown


def table(title: str, rows: Mapping[str, Mapping[str, float]]) -> Table:
    """A row per name, a column per figure."""
    shown = Table(title=title, title_justify="left")
    shown.add_column("")
    for column in next(iter(rows.values())):
        shown.add_column(column, justify="right")
    for name, row in rows.items():
        shown.add_row(name, *(f"{value}" for value in row.values()))
    return shown


def _heading(case: Mapping[str, Any]) -> str:
    """What the columns of a table differ by."""
    batch = f" x {case['batch']}" if "batch" in case else ""
    return f"{case['length']}{batch}" + ("" if case.get("touch", True) else "\nnot touched")


def _cell(case: Mapping[str, Any], name: str) -> str:
    row = case["rows"].get(name)
    if row is None:
        return ""
    value = f"{row['loss-free'] if 'loss-free' in row else row['plateau']:.2f}"
    if name in _DPDK:
        return f"{value}*" if name == case["best"] else f"{value} "
    return f"{value} ({row['of best']:.2f})" if row["of best"] is not None else f"{value} "


def _paths_taken(taken: Mapping[str, Mapping[str, str]]) -> Table:
    shown = Table(title="What DPDK took, by its log", title_justify="left")
    for column in ("path", "functions", "not as asked"):
        shown.add_column(column)
    for name, each in taken.items():
        shown.add_row(name, each["functions"], each["unlike"])
    return shown
