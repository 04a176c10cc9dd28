"""What `userspace-cni top` costs on a node with 400 attachments, all of which carry frames.

`python tests/bench/top_cost.py [--json] [--ports N] [--seconds S]`, as root, on a private switch of its own. Every port has an
application, and each frame of one of them goes to all, so that the figures of every row change with each refresh.

    live     `top` on a terminal of 132 by 50 that refreshes each second: percent of a core that it takes, and what ovs-vswitchd's
             main thread and ovsdb-server take above what they take without it; and bytes that it writes per refresh
    parts    median milliseconds of one refresh in this process: the look at the node (with what is read every 5 s, and without),
             the rows in their order, the lines of the screen, and what is written of them
    rich     the same lines drawn by rich.live, as a table of what fits on the screen and of all rows: milliseconds and bytes,
             and how many times more than ours
"""

from __future__ import annotations

import io
import resource
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from tests.bench.agent import attached
from tests.bench.calls import Shim, processor_s
from tests.bench.report import arguments, machine, show_parts, tell
from tests.lab.node.agent import running
from tests.lab.node.node import Node, clean
from tests.lab.runtimes.runtime import netns
from tests.lab.screens.terminal import Terminal
from tests.lab.switch.switch import Switch, wait_until
from userspace_cni.base.settings import load
from userspace_cni.cli.site import Site
from userspace_cni.cli.top.top_columns import HIDDEN, fit_columns
from userspace_cni.cli.top.top_layout import draw_screen
from userspace_cni.cli.top.top_rows import RowChoice, TopRow, choose
from userspace_cni.cli.top.top_samples import TopSample, TopSampler
from userspace_cni.cli.top.top_screen import Screen
from userspace_cni.cli.top.top_state import TopState
from userspace_cni.fastpath.vhost.front_end import FrontEnd, FrontEndListener, FrontEndOptions

COLUMNS, LINES = 132, 50
PAUSE_S = 0.05
FRAME = bytes.fromhex("ffffffffffff02000000000188b5") + bytes(50)
START_S = 120.0
ROUNDS = 20


@contextmanager
def flooded(switch: Switch) -> Iterator[None]:
    """Every port of ours has an application, and one of them sends to all."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    paths = [row["options"]["vhost-server-path"] for row in switch.rows("Interface", "external_ids:owner=userspace-cni")]
    over = threading.Event()

    def send(ends: list[FrontEnd]) -> None:
        while not over.wait(PAUSE_S):
            ends[0].pairs[0].send_frames([FRAME])
            for end in ends:
                end.pairs[0].receive_frames()

    with ExitStack() as stack:
        listeners = [stack.enter_context(FrontEndListener(path, FrontEndOptions(queue_size=64))) for path in paths]
        ends = [stack.enter_context(listener.accept(START_S)) for listener in listeners]
        thread = threading.Thread(target=send, args=(ends,))
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def live(node: Node, seconds: float) -> dict[str, Any]:
    """The program on a terminal."""
    assert node.switch
    switch = node.switch
    task = Path(f"/proc/{switch.vswitchd_pid}/task/{switch.vswitchd_pid}/schedstat")

    def used() -> tuple[float, float]:
        return int(task.read_text().split()[0]) / 1e9, processor_s(switch.ovsdb_pid)

    def spent(rest: Callable[[], object]) -> tuple[list[float], float]:
        before, began = used(), time.monotonic()
        rest()
        took = time.monotonic() - began
        return [(now - then) / took for now, then in zip(used(), before, strict=True)], took

    without, _ = spent(lambda: threading.Event().wait(seconds))
    with Terminal(COLUMNS, LINES) as terminal:
        terminal.start((sys.executable, "-m", "userspace_cni", "top"), node.environ)
        terminal.wait_for("rows 1-")
        terminal.rest(3.0)  # the first refreshes import what they use
        pid, written = terminal.process.pid, bytearray()
        before = processor_s(pid)
        beside, took = spent(lambda: written.extend(terminal.rest(seconds)))
        share = (processor_s(pid) - before) / took
        terminal.type("q")
        terminal.wait_end()
    refreshes = max(1, written.count(b"\x1b[?2026h"))
    vswitchd, ovsdb = (100 * (now - then) for now, then in zip(beside, without, strict=True))
    return {
        "percent of a core": round(100 * share, 2),
        "ovs-vswitchd, percent": round(vswitchd, 2),
        "ovsdb-server, percent": round(ovsdb, 2),
        "refreshes": refreshes,
        "bytes per refresh": round(len(written) / refreshes),
    }


def timed(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Median milliseconds of processor time."""
    taken = []
    for _ in range(rounds):
        began = time.thread_time()
        work()
        taken.append(1000 * (time.thread_time() - began))
    return round(statistics.median(taken), 2)


def parts(node: Node) -> tuple[dict[str, Any], TopSample]:
    """One refresh in this process."""
    site = Site(load(node.environ), environ=node.environ)
    try:
        sampler = TopSampler(site)
        whole = timed(lambda: _anew(sampler), 5)
        often = timed(sampler.sample)
        sample = sampler.sample()
    finally:
        site.close()
    picture, state = sample.picture("node", RowChoice()), TopState()
    with Terminal(COLUMNS, LINES) as terminal:
        screen = Screen(terminal.slave, terminal.slave)
        lines, _ = draw_screen(picture, state, (COLUMNS, LINES))
        return {
            "look, with records and limits": whole,
            "look": often,
            "rows in order": timed(lambda: choose(sample.rows, RowChoice())),
            "lines": timed(lambda: draw_screen(picture, state, (COLUMNS, LINES))),
            "painting": timed(lambda: [screen.paint(line) for line in lines]),
        }, sample


def _anew(sampler: TopSampler) -> None:
    sampler._looks._due = 0.0
    sampler.sample()


def by_rich(sample: TopSample, ours_ms: float, ours_bytes: int) -> dict[str, Any]:
    """The same by rich.live: the rows that fit, and all."""
    rows = choose(sample.rows, RowChoice())
    found: dict[str, Any] = {}
    for name, shown in (("of the rows that fit", rows[: LINES - 10]), ("of all rows", rows)):
        file = io.StringIO()
        console = Console(file=file, width=COLUMNS, height=LINES, force_terminal=True)
        with Live(_table(shown), console=console, auto_refresh=False, screen=True) as drawn:
            before = file.tell()
            took = timed(partial(lambda shown, drawn: drawn.update(_table(shown), refresh=True), shown, drawn), 5)
            size = (file.tell() - before) // 5
        found[f"{name}, ms"] = took
        found[f"{name}, bytes"] = size
        found[f"{name}, times our ms"] = round(took / ours_ms, 1)
        found[f"{name}, times our bytes"] = round(size / ours_bytes, 1)
    return found


def _table(rows: list[TopRow]) -> Table:
    table = Table(box=None)
    fitted = fit_columns(rows, HIDDEN, COLUMNS)
    for column, _ in fitted.columns:
        table.add_column(column.heading)
    for row in rows:
        table.add_row(*(column.show(row).text for column, _ in fitted.columns))
    return table


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--ports", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args()
    with ExitStack() as stack:
        switch = stack.enter_context(Switch())
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="uc-")))
        node = stack.enter_context(clean(Node(directory / "n", switch)))
        sandbox = stack.enter_context(netns())
        stack.enter_context(running(node, USERSPACE_CNI_TICK_S="600"))
        shim = Shim(node, [sandbox], directory)
        shim.namespace = "default"
        with attached(shim, options.ports), flooded(switch):
            wait_until(lambda: len(switch.rows("Interface", "link_state=up")) >= options.ports, START_S, "every link up", pause=1)
            report: dict[str, Any] = {"machine": machine(), "ports": options.ports, "live": live(node, options.seconds)}
            report["parts, ms"], sample = parts(node)
        drawn = report["parts, ms"]["lines"] + report["parts, ms"]["painting"]
        report["rich"] = by_rich(sample, drawn, report["live"]["bytes per refresh"])
    return tell(report, options.json, partial(show_parts, "top"))


if __name__ == "__main__":
    sys.exit(main())
