"""What the picture of a node costs, from facts to SVG and to the page, beside the least: the same facts as JSON.

`python tests/bench/pictures.py [--json] [--rounds N] [--ports N...]` tells processor time, the median of N rounds (7) in turns.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from tests.bench.report import arguments, machine, tell
from tests.lab.node.pictured import pictured_node
from userspace_cni.cli.map.html_page import write_page
from userspace_cni.cli.map.picture import draw_picture
from userspace_cni.cli.map.svg_drawing import write_svg
from userspace_cni.diagnosis.node_map import NodeMap

WAYS: Final[dict[str, Callable[[NodeMap], str]]] = {
    "json": lambda node: json.dumps(asdict(node)),
    "svg": lambda node: write_svg(draw_picture(node)),
    "page": lambda node: write_page(draw_picture(node)),
}


def measure(ports: int, rounds: int) -> dict[str, Any]:
    """Milliseconds and kilobytes of each way, for a node of this size on three bridges and OVN's."""
    node, took = pictured_node(ports, 3, ovn=True), {name: [0.0] * 0 for name in WAYS}
    sizes = {name: len(write(node).encode()) for name, write in WAYS.items()}
    for _ in range(rounds):
        for name, write in WAYS.items():
            begun = time.process_time()
            write(node)
            took[name].append(time.process_time() - begun)
    return {"ports": ports} | {name: {"ms": statistics.median(took[name]) * 1000, "kb": sizes[name] / 1000} for name in WAYS}


def show(report: dict[str, Any]) -> None:
    table = Table("ports", *(f"{name}: ms, kB" for name in WAYS), "svg / json", title=report["machine"])
    for each in report["nodes"]:
        cells = (f"{each[name]['ms']:.1f}, {each[name]['kb']:.0f}" for name in WAYS)
        table.add_row(str(each["ports"]), *cells, f"{each['svg']['ms'] / each['json']['ms']:.1f}")
    Console(width=120).print(table)


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--ports", type=int, nargs="+", default=[40, 400, 4000])
    asked = parser.parse_args()
    report = {"machine": machine(), "nodes": [measure(each, asked.rounds) for each in asked.ports]}
    return tell(report, asked.json, show)


if __name__ == "__main__":
    sys.exit(main())
