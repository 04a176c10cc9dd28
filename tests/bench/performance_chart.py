"""Draws the chart of docs/performance.md from that page's own tables: `python tests/bench/performance_chart.py`.

It measures nothing. A test of tests/unit fails when the tables have other figures than the chart.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

from tests.lab.pages import ROOT

PAGE: Final = ROOT / "docs" / "performance.md"
PICTURE: Final = ROOT / "docs" / "pictures" / "performance.svg"
_FONT: Final = 'font-family="DejaVu Sans, Arial, sans-serif" font-size="14"'
_WIDTH, _NAMES, _BAR, _LINE = 760, 250, 380, 22
_LEAST, _OURS = "least", "ours"
_LABELS: Final = (("Open vSwitch alone, or DPDK", _LEAST), ("this project's plugin, or its library", _OURS))
_STYLE: Final = """<style>
text { fill: #1b1f24 } .paper { fill: #ffffff } .least { fill: #9aa5b1 } .ours { fill: #1f6feb }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .paper { fill: #1e2129 } .least { fill: #6e7781 } .ours { fill: #58a6ff }
}
</style>"""
"""Of text, ground and kinds of bars; dark where the reader's system asks for it."""


@dataclass(frozen=True)
class Bar:
    """A line of the chart."""

    name: str
    value: float
    kind: str


def rows_of(text: str, heading: str) -> list[list[str]]:
    """The rows of the table whose first cell of the heading begins so; ValueError if the page has none."""
    found = re.search(rf"^\| {re.escape(heading)}.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    if not found:
        raise ValueError(f"{PAGE.name} has no table that begins with '{heading}'")
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found[1].splitlines()]


def panels(text: str) -> list[tuple[str, list[Bar]]]:
    """Each part of the chart: what it shows, and its bars."""
    attached: list[Bar] = []
    for ports, least, added, *_ in rows_of(text, "Ports there already"):
        attached.append(Bar(f"beside {ports} ports", _median(least), _LEAST))
        attached.append(Bar("", _median(added), _OURS))
    for pods, ports, least, added, *_ in rows_of(text, "Pods at once"):
        if pods == "40":
            attached.append(Bar(f"40 pods at once, beside {ports}", _median(least), _LEAST))
            attached.append(Bar("", _median(added), _OURS))
    dpdk, c_loop, _, _, python, frames = (float(rate) for _, rate, _ in rows_of(text, "Sender and receiver"))
    sent = [
        Bar("DPDK's virtio_user", dpdk, _LEAST),
        Bar("our library in C", c_loop, _OURS),
        Bar("from Python, by bursts", python, _OURS),
        Bar("from Python, by frames", frames, _OURS),
    ]
    return [
        ("Attach a pod: milliseconds, median (less is better)", attached[:6]),
        ("Attach many: milliseconds until the last (less is better)", attached[6:]),
        ("Frames of 64 bytes: millions a second, one polling thread (more is better)", sent),
    ]


def _median(cell: str) -> float:
    return float(cell.partition(" / ")[0])


def draw(text: str) -> str:
    """The chart as SVG."""
    lines: list[str] = []
    y = 30
    for x, (label, kind) in zip((20, 260), _LABELS, strict=True):
        lines.append(f'<rect x="{x}" y="{y - 11}" width="12" height="12" class="{kind}"/>')
        lines.append(f'<text x="{x + 18}" y="{y}">{escape(label)}</text>')
    for title, bars in panels(text):
        y += 34
        lines.append(f'<text x="20" y="{y}" font-weight="bold">{escape(title)}</text>')
        most = max(bar.value for bar in bars)
        for bar in bars:
            y += _LINE
            length = round(bar.value / most * _BAR, 1)
            lines.append(f'<text x="{_NAMES - 10}" y="{y}" text-anchor="end">{escape(bar.name)}</text>')
            lines.append(f'<rect x="{_NAMES}" y="{y - 13}" width="{length}" height="16" class="{bar.kind}"/>')
            lines.append(f'<text x="{_NAMES + length + 6}" y="{y}">{bar.value:g}</text>')
    height, drawn = y + 20, "\n".join(lines)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" {_FONT}>
<title>What an ADD takes, and what an interface carries, beside the least or the usual</title>
{_STYLE}
<rect class="paper" width="{_WIDTH}" height="{height}"/>
{drawn}
</svg>
"""


def main() -> int:
    PICTURE.write_text(draw(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
