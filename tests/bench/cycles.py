"""What attaching to a port costs, and whether a thousand attachments leave anything behind, with us or in the switch.

`python tests/bench/cycles.py [--json] [--cycles N]`, as root, on a private switch of its own. Times are of one call each, in
milliseconds: `attach` makes memory, queues and the connection; `again` uses memory and queues that are there; `detach` waits for
the polling thread to let go of the rings, which sleeps in between when it is idle. A server port is attached to each time with
new memory, a client port each time with the same. A descriptor or two more on the switch's side are of the last connection, which
it may not have closed yet.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.lab.node.belongings import Holdings
from tests.lab.switch.switch import Switch
from tests.lab.switch.vhost_ports import CLIENT, SERVER, add_bridge, add_port
from userspace_cni.fastpath.vhost.front_end import FrontEnd, FrontEndListener, FrontEndOptions

WARM = 20
"""Attachments before the first measured one, for mempools and caches."""
SHAPES = {
    "256 x 1536 B": FrontEndOptions(),
    "64 x 1536 B": FrontEndOptions(queue_size=64),
    "256 x 1536 B, 4 pairs": FrontEndOptions(queue_pairs=4),
    "256 x 2048 B, jumbo merged": FrontEndOptions(room=9018, receive_room=2048, mergeable=True),
}


def timed(call: Callable[[], Any], into: list[float]) -> Any:
    """What the call returns; its milliseconds are added to a list."""
    start = time.perf_counter()
    result = call()
    into.append((time.perf_counter() - start) * 1e3)
    return result


def quantiles(times: list[float]) -> dict[str, float]:
    ordered = sorted(times)
    return {
        "min": round(ordered[0], 2),
        "median": round(statistics.median(ordered), 2),
        "p99": round(ordered[len(ordered) * 99 // 100], 2),
    }


def server_cycles(path: str, options: FrontEndOptions, cycles: int) -> dict[str, list[float]]:
    """Attach with new memory and detach, so many times."""
    times: dict[str, list[float]] = {"attach": [], "detach": []}
    for _ in range(cycles):
        front_end = timed(lambda: FrontEnd.connect(path, options), times["attach"])
        timed(front_end.close, times["detach"])
    return times


def client_cycles(front_end: FrontEnd, cycles: int) -> dict[str, list[float]]:
    """Detach and attach again; the wait for OVS to come, once a second unless it notices at once, is in `again`."""
    times: dict[str, list[float]] = {"again": [], "detach": []}
    for _ in range(cycles):
        timed(front_end.detach, times["detach"])
        timed(front_end.reattach, times["again"])
    return times


def run(kind: str, options: FrontEndOptions, cycles: int) -> dict[str, Any]:
    """One row: times of both calls, and what changed between the first and the last."""
    with Switch() as switch:
        add_bridge(switch)
        path = f"{switch.rundir}/vhost-a"
        listener = FrontEndListener(path, options) if kind == CLIENT else None
        add_port(switch, "vhost-a", kind)
        front_end = listener.accept() if listener else FrontEnd.connect(path, options)
        with front_end:

            def go(count: int) -> dict[str, list[float]]:
                return client_cycles(front_end, count) if kind == CLIENT else server_cycles(path, options, count)

            go(WARM)
            before = Holdings(switch.vswitchd_pid)
            start = time.perf_counter()
            times = go(cycles)
            seconds = time.perf_counter() - start
            after = Holdings(switch.vswitchd_pid)
        if listener:
            listener.close()
    return {
        "port": kind,
        "cycles": cycles,
        "seconds": round(seconds, 1),
        **{name: quantiles(values) for name, values in times.items()},
        "our descriptors, mappings": [b - a for a, b in zip(before.ours, after.ours, strict=True)],
        "its descriptors, mappings": [b - a for a, b in zip(before.theirs, after.theirs, strict=True)],
        "its hugepages KiB": after.hugepages - before.hugepages,
        "resident KiB, our and its": [b - a for a, b in zip(before.resident, after.resident, strict=True)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--cycles", type=int, default=1000)
    arguments = parser.parse_args()
    rows = [{"memory": "256 x 1536 B", **run(kind, FrontEndOptions(), arguments.cycles)} for kind in (CLIENT, SERVER)]
    rows += [{"memory": name, **run(SERVER, options, max(50, arguments.cycles // 10))} for name, options in SHAPES.items()]
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    console = Console()
    console.width = max(console.width, 150)
    console.print(shown(rows))


def shown(rows: list[dict[str, Any]]) -> Table:
    """Milliseconds as least / median / 99 of 100; what was left as ours + the switch's."""
    table = Table(title="Attachments", title_justify="left")
    for column in ("memory", "port", "cycles", "attach", "detach", "descriptors", "mappings", "hugepages KiB", "resident KiB"):
        table.add_column(column, justify="left" if column in ("memory", "port") else "right")
    for row in rows:
        times = [" / ".join(map(str, each.values())) for each in (row.get("attach") or row["again"], row["detach"])]
        ours, theirs = row["our descriptors, mappings"], row["its descriptors, mappings"]
        left = [f"{mine} + {its}" for mine, its in (*zip(ours, theirs, strict=True), row["resident KiB, our and its"])]
        table.add_row(row["memory"], row["port"], str(row["cycles"]), *times, *left[:2], str(row["its hugepages KiB"]), left[2])
    return table


if __name__ == "__main__":
    main()
