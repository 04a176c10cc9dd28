"""How soon a port that was left can be taken again, and which thread of the switch it waits for.

`python tests/bench/taken_again.py [--json] [--rounds N]`, as root, on a machine that does nothing else. A client port is left by
`detach`, after which OVS connects again; a server port by `close`, after which a new front-end connects with new memory. The
polling thread of the switch looks at its ports all the time, or carries frames between two others, or sleeps while there are none
(`pmd-maxsleep` of 100 us). CPU is that of the switch's threads for leaving the client port and taking it again.
"""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from tests.bench.our_loads import Ends, frame_of
from tests.bench.report import arguments, machine, tell
from tests.bench.switch_pair import BRIDGE, INSTALLED, SwitchPair, switch_pair
from userspace_cni.fastpath import FrontEnd, FrontEndListener, FrontEndOptions, Load, blast

_STATES: Final = ("polls", "carries frames", "sleeps")
_PAUSE_S: Final = 0.005  # between two rounds, in which the switch finishes what the last one left
_WARM: Final = 3
_THREADS: Final = {"vhost-events": "DPDK's vhost thread", "main": "main thread"}


def cpu_of(pid: int) -> dict[str, float]:
    """Milliseconds of CPU that the threads of _THREADS have had."""
    found = dict.fromkeys(_THREADS.values(), 0.0)
    for task in Path(f"/proc/{pid}/task").iterdir():
        name = "main" if task.name == str(pid) else (task / "comm").read_text().strip()
        if name in _THREADS:
            found[_THREADS[name]] += int((task / "schedstat").read_text().split()[0]) / 1e6
    return found


@contextmanager
def in_state(state: str, pair: SwitchPair, ends: Ends) -> Iterator[None]:
    """The polling thread does what `state` says."""
    pair.switch.vsctl("set", "Open_vSwitch", ".", f"other_config:pmd-maxsleep={100 if state == 'sleeps' else 0}")
    over = threading.Event()

    def carry() -> None:
        while not over.is_set():
            blast(ends.a[0], ends.b[0], Load(frame_of(64), seconds=0.2))

    thread = threading.Thread(target=carry)
    if state == "carries frames":
        thread.start()
    try:
        over.wait(0.3)  # until it does so
        yield
    finally:
        over.set()
        if thread.ident:
            thread.join()


def measure(pair: SwitchPair, directory: Path, rounds: int) -> list[dict[str, Any]]:
    path, server = str(directory / "c"), f"{pair.switch.rundir}/server"
    kinds = {"c": ("dpdkvhostuserclient", f"options:vhost-server-path={path}"), "server": ("dpdkvhostuser", "")}
    with ExitStack() as stack:
        listener = stack.enter_context(FrontEndListener(path, FrontEndOptions()))
        for name, (kind, option) in kinds.items():
            pair.switch.vsctl("add-port", BRIDGE, name, "--", "set", "Interface", name, f"type={kind}", *filter(None, [option]))
        client = stack.enter_context(listener.accept())
        ends = stack.enter_context(pair.attached(FrontEndOptions()))
        rows = []
        for state in _STATES:
            with in_state(state, pair, ends):
                rows.append({"polling thread": state, **left_and_taken(client, server, pair.switch.vswitchd_pid, rounds)})
    return rows


def left_and_taken(client: FrontEnd, server: str, pid: int, rounds: int) -> dict[str, Any]:
    times: dict[str, list[float]] = {"detach": [], "reattach": [], "both": [], "close and connect": []}
    pause = threading.Event()
    cpu: dict[str, list[float]] = {name: [] for name in _THREADS.values()}
    for number in range(-_WARM, rounds):
        pause.wait(_PAUSE_S)
        used, began = cpu_of(pid), time.perf_counter()
        client.detach()
        left = time.perf_counter()
        client.reattach()
        taken, spent = time.perf_counter(), cpu_of(pid)
        front_end = FrontEnd.connect(server)
        pause.wait(_PAUSE_S)
        closed = time.perf_counter()
        front_end.close()
        front_end = FrontEnd.connect(server)
        again = time.perf_counter()
        front_end.close()
        if number < 0:
            continue
        seconds = (left - began, taken - left, taken - began, again - closed)
        for values, took in zip(times.values(), seconds, strict=True):
            values.append(took * 1000)
        for name, values in cpu.items():
            values.append(spent[name] - used[name])
    return {
        **{name: {"median": round(statistics.median(values), 2), "min": round(min(values), 2)} for name, values in times.items()},
        "CPU": {name: round(statistics.median(values), 2) for name, values in cpu.items()},
    }


def show(report: dict[str, Any]) -> None:
    table = Table(title="A port is left and taken again: median (least), milliseconds", title_justify="left")
    columns = ("polling thread", "detach", "reattach", "both", "close and connect", *_THREADS.values())
    for column in columns:
        table.add_column(column, justify="left" if column == columns[0] else "right")
    for row in report["rows"]:
        cells = [f"{row[name]['median']} ({row[name]['min']})" for name in columns[1:5]]
        table.add_row(row["polling thread"], *cells, *(str(row["CPU"][name]) for name in _THREADS.values()))
    Console(width=130).print(table, report["machine"])


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()
    with TemporaryDirectory(prefix="uc-") as path, switch_pair(INSTALLED, Path(path)) as pair:
        rows = measure(pair, Path(path), options.rounds)
    return tell({"machine": machine(), "cores": os.cpu_count(), "rows": rows}, options.json, show)


if __name__ == "__main__":
    sys.exit(main())
