"""What the fast path carries, beside a DPDK loop that does the same through the same two ports of the same switch.

`python tests/bench/fastpath.py [--json] [--quick] [NAMES...]`, as root, on a machine that does nothing else. Names: throughput,
both, latency, attach, testpmd; all by default. Runs alternate; figures are of 64-byte frames in batches of 32.

On a machine that is shared, averages of whole runs tell of the scheduler. So the rate is that of windows of one millisecond of
the receiver's count, of which the 95th percentile is the plateau that is reached while both threads are on their cores. A ratio
is the median of those of paired runs.

    static       our C loop, buffers filled once, received frames not looked at
    copy         each frame copied in, received frames not looked at
    touch        each frame copied in, eight bytes of each received frame compared
    burst        Python: one call per batch, copied in and copied out
    bytes        Python: frames as bytes objects
    dpdk         ethdev and virtio_user, split ring, mergeable, in order: as copy
    dpdk-touch   the same, as touch
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from tests.bench.report import arguments, machine, tell
from tests.lab.switch.switch import Switch, wait_until
from userspace_cni.fastpath.rings.burst import Burst
from userspace_cni.fastpath.rings.generator import Load, blast, blast_both, bounce
from userspace_cni.fastpath.rings.queue_pair import QueuePair
from userspace_cni.fastpath.vhost.front_end import FrontEnd, FrontEndListener, FrontEndOptions

BRIDGE = "br-bench"
BATCH = 32
FRAME = bytes.fromhex("02000000000b02000000000a88b5") + bytes(50)
MEASURES = ("throughput", "both", "latency", "attach", "testpmd")
APP_PAGES = "64"  # 2 MiB each, for the DPDK loop
WINDOW_NS = 1_000_000
TURNS = 4  # bursts between looks at the clock
REFERENCE = {"touch": "dpdk-touch"}
RUN_SECONDS = 60


class Run(NamedTuple):
    """Frames per window, and per second over the whole run."""

    windows: list[int]
    rate: float

    @property
    def plateau(self) -> float:
        """Mpps."""
        return percentile(self.windows, 0.95) * 1e9 / WINDOW_NS / 1e6


class Plan(NamedTuple):
    """How much is measured."""

    rounds: int
    seconds: float
    echoes: int
    attachments: int


def percentile(values: list[int], share: float) -> int:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


class Bench:
    """A switch that polls without pause, and two client ports between which a flow leads each way."""

    def __init__(self, switch: Switch, directory: Path) -> None:
        self.switch = switch
        self.directory = directory
        self.paths = (str(directory / "a"), str(directory / "b"))
        self.loop = directory / "dpdk_loop"
        self.core = 0

    def build(self) -> None:
        """Compile the DPDK loop."""
        source = Path(__file__).with_name("dpdk_loop.c")
        flags, libraries = (shlex.split(_output("pkg-config", what, "libdpdk")) for what in ("--cflags", "--libs"))
        subprocess.run(["gcc", "-O3", "-march=native", *flags, "-o", self.loop, source, *libraries], check=True)

    @contextmanager
    def attached(self, options: FrontEndOptions) -> Iterator[tuple[QueuePair, QueuePair]]:
        """Our front-ends at both ports, through which a frame has gone."""
        with ExitStack() as stack:
            listeners = [stack.enter_context(FrontEndListener(path, options, replace_dead=True)) for path in self.paths]
            pairs = [stack.enter_context(listener.accept()).pairs[0] for listener in listeners]
            a, b = pairs
            wait_until(lambda: bounce(a, b, 1, frame=FRAME, timeout_s=0.05).lost == 0, what="a frame through the switch")
            yield a, b

    def dpdk(self, seconds: float, ways: int, *, touch: bool) -> Run:
        """The DPDK loop; OVS comes to it within a second per port."""
        for path in self.paths:
            Path(path).unlink(missing_ok=True)
        device = "queue_size=256,mrg_rxbuf=1,in_order=1,server=1"
        devices = [f"--vdev=net_virtio_user{index},path={path},{device}" for index, path in enumerate(self.paths)]
        eal = [
            "--in-memory",
            "--single-file-segments",
            "--no-pci",
            "--no-telemetry",
            "-l",
            str(self.core),
            "-m",
            "64",
            "--log-level=3",
        ]
        work = [str(seconds), str(BATCH), str(ways), str(int(touch))]
        done = subprocess.run(
            [self.loop, *eal, *devices, "--", *work], capture_output=True, text=True, timeout=RUN_SECONDS, check=False
        )
        if done.returncode:
            raise RuntimeError(f"dpdk_loop: exit {done.returncode}\n{done.stdout}{done.stderr}")
        told = json.loads(done.stdout.splitlines()[-1])
        return Run(told["windows"], told["received"] / told["seconds"])


def core_beside(switch: Switch) -> int:
    """A core that is not the switch's polling thread's."""
    shown = wait_until(lambda: switch.appctl("dpif-netdev/pmd-rxq-show"))
    taken = {int(line.split("core_id ")[1].rstrip(":")) for line in shown.splitlines() if "core_id" in line}
    return next((core for core in sorted(os.sched_getaffinity(0)) if core not in taken), 0)


def python_burst(a: QueuePair, b: QueuePair, seconds: float) -> Run:
    """One call per batch out, one in."""
    out, back = Burst(BATCH), Burst(BATCH)
    out.fill([FRAME] * BATCH)

    def turn() -> int:
        a.send(out, BATCH)
        return b.receive(back)

    return timed(turn, seconds)


def python_bytes(a: QueuePair, b: QueuePair, seconds: float) -> Run:
    """Lists of bytes out and in."""
    frames = [bytes(bytearray(FRAME)) for _ in range(BATCH)]

    def turn() -> int:
        a.send_frames(frames)
        return len(b.receive_frames(BATCH))

    return timed(turn, seconds)


def timed(turn: Callable[[], int], seconds: float) -> Run:
    """`turn` again and again; it answers how many frames were received."""
    windows: list[int] = []
    received = before = 0
    clock = time.perf_counter_ns
    start = window = now = clock()
    end = start + int(seconds * 1e9)
    while now < end:
        for _ in range(TURNS):
            received += turn()
        now = clock()
        if now - window >= WINDOW_NS:
            windows.append((received - before) * WINDOW_NS // (now - window))
            window, before = now, received
    return Run(windows, received / (now - start) * 1e9)


def loaded(
    pairs: tuple[QueuePair, QueuePair], seconds: float, *, both: bool = False, copy: bool = True, touch: bool = False
) -> Run:
    found = (blast_both if both else blast)(*pairs, Load(FRAME, BATCH, seconds, copy, touch, WINDOW_NS))
    return Run(found.windows, found.received / found.seconds)


def throughput(bench: Bench, plan: Plan, *, both: bool) -> dict[str, Any]:
    runs: dict[str, list[Run]] = {}

    def note(name: str, run: Run) -> None:
        runs.setdefault(name, []).append(run)

    for _ in range(plan.rounds):
        note("dpdk", bench.dpdk(plan.seconds, 1 + both, touch=False))
        with bench.attached(FrontEndOptions()) as pairs:
            note("static", loaded(pairs, plan.seconds, both=both, copy=False))
            note("copy", loaded(pairs, plan.seconds, both=both))
            note("touch", loaded(pairs, plan.seconds, both=both, touch=True))
            if not both:
                note("burst", python_burst(*pairs, plan.seconds))
                note("bytes", python_bytes(*pairs, plan.seconds))
        note("dpdk-touch", bench.dpdk(plan.seconds, 1 + both, touch=True))
    rows = {}
    for name, mine in runs.items():
        reference = runs[REFERENCE.get(name, "dpdk")]
        rows[name] = {
            "plateau": round(statistics.median(run.plateau for run in mine), 2),
            "average": round(statistics.median(run.rate for run in mine) / 1e6, 2),
            "ratio": paired([run.plateau for run in mine], [run.plateau for run in reference]),
            "ratio of averages": paired([run.rate for run in mine], [run.rate for run in reference]),
        }
    return rows


def paired(ours: list[float], theirs: list[float]) -> float:
    """Median of the ratios of runs in the same round."""
    return round(statistics.median(a / b for a, b in zip(ours, theirs, strict=True)), 3)


def latency(pairs: tuple[QueuePair, QueuePair], plan: Plan) -> dict[str, Any]:
    """Round trips over two hops, microseconds."""
    rows = {}
    for name, sleep, count in (("polling", False, plan.echoes), ("sleeping", True, plan.echoes // 10)):
        found = bounce(*pairs, count, frame=FRAME, sleep=sleep)
        if not found.nanoseconds:
            raise RuntimeError(f"no frame came back: {found.lost} were lost")
        shares = {"min": 0.0, "p50": 0.5, "p90": 0.9, "p99": 0.99}
        rows[name] = {key: round(percentile(found.nanoseconds, share) / 1000, 2) for key, share in shares.items()}
        rows[name]["lost"] = found.lost
    return rows


def attachments(bench: Bench, plan: Plan) -> dict[str, float]:
    """Milliseconds of `FrontEnd.connect` to a `dpdkvhostuser` port that has been there for a while, and of `close`."""
    bench.switch.vsctl("add-port", BRIDGE, "server", "--", "set", "Interface", "server", "type=dpdkvhostuser")
    attach, detach = [], []
    for number in range(plan.attachments + 2):
        began = time.perf_counter()
        front_end = FrontEnd.connect(f"{bench.switch.rundir}/server")
        there = time.perf_counter()
        front_end.close()
        if number >= 2:  # the first may wait for a second until DPDK's poller looks at the socket
            attach.append((there - began) * 1000)
            detach.append((time.perf_counter() - there) * 1000)
    return {
        "attach": round(statistics.median(attach), 2),
        "fastest": round(min(attach), 2),
        "close": round(statistics.median(detach), 2),
    }


@contextmanager
def testpmd(directory: Path, core: int) -> Iterator[list[str]]:
    """dpdk-testpmd as back-end of two connections, between which it forwards; no switch, no hugepages."""
    paths = [str(directory / name) for name in ("left", "right")]
    devices = [f"--vdev=net_vhost{index},iface={path}" for index, path in enumerate(paths)]
    others = sorted(os.sched_getaffinity(0) - {core}) or [core]
    eal = ["--no-huge", "-m", "256", "--no-pci", "--no-telemetry", "--file-prefix=uc-bench", "-l", f"{core},{others[0]}"]
    work = [
        "--main-lcore",
        str(core),
        *devices,
        "--",
        "--auto-start",
        "--forward-mode=io",
        "--no-mlockall",
        "--total-num-mbufs=16384",
        "-i",
    ]
    with subprocess.Popen(
        ["dpdk-testpmd", *eal, *work], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            wait_until(lambda: all(Path(path).exists() for path in paths), what="the sockets of dpdk-testpmd")
            yield paths
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.stdin
            process.stdin.close()
            process.wait(RUN_SECONDS)


def independent(directory: Path, core: int, plan: Plan) -> dict[str, Any]:
    """The same against another back-end."""
    os.sched_setaffinity(0, set(range(os.cpu_count() or 1)))
    with testpmd(directory, core) as paths, ExitStack() as stack:
        os.sched_setaffinity(0, {core})
        ends = [stack.enter_context(FrontEnd.connect(path)) for path in paths]
        pairs = (ends[0].pairs[0], ends[1].pairs[0])
        wait_until(lambda: bounce(*pairs, 1, frame=FRAME, timeout_s=0.05).lost == 0, what="a frame through dpdk-testpmd")
        rows: dict[str, Any] = {"latency": latency(pairs, plan)}
        for name, copy in (("static", False), ("copy", True)):
            run = loaded(pairs, plan.seconds, copy=copy)
            rows[name] = {"plateau": round(run.plateau, 2), "average": round(run.rate / 1e6, 2)}
    return rows


def measure(names: list[str], plan: Plan) -> dict[str, Any]:
    report: dict[str, Any] = {"machine": machine(), "rounds": plan.rounds}
    with TemporaryDirectory(prefix="uc-") as path:
        directory = Path(path)
        core = min(os.sched_getaffinity(0))
        if set(names) - {"testpmd"}:
            environment = {"PRIVATE_SWITCH_PMD_SLEEP": "0", "PRIVATE_SWITCH_APP_PAGES": APP_PAGES}
            with Switch(environment=environment) as switch, wired(Bench(switch, directory)) as bench:
                core = bench.core
                on_switch(bench, names, plan, report)
        if "testpmd" in names:
            report["testpmd"] = independent(directory, core, plan)
    return report


@contextmanager
def wired(bench: Bench) -> Iterator[Bench]:
    """The bridge, the ports and the flows; this process on its own core."""
    commands = ["add-br", BRIDGE, "--", "set", "bridge", BRIDGE, "datapath_type=netdev", "fail_mode=secure"]
    for name, path in zip("ab", bench.paths, strict=True):
        commands += ["--", "add-port", BRIDGE, name, "--", "set", "Interface", name, "type=dpdkvhostuserclient"]
        commands += [f"options:vhost-server-path={path}"]
    bench.switch.vsctl(*commands)
    numbers = [bench.switch.interface(name)["ofport"] for name in "ab"]
    for number, other in (numbers, numbers[::-1]):
        flow = f"in_port={number},actions=output:{other}"
        _output("ovs-ofctl", "add-flow", f"unix:{bench.switch.rundir}/{BRIDGE}.mgmt", flow)
    bench.core = core_beside(bench.switch)
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {bench.core})
    try:
        yield bench
    finally:
        os.sched_setaffinity(0, before)


def on_switch(bench: Bench, names: list[str], plan: Plan, report: dict[str, Any]) -> None:
    report["core"] = bench.core
    if {"throughput", "both"} & set(names):
        bench.build()
    if "throughput" in names:
        report["throughput"] = throughput(bench, plan, both=False)
    if "both" in names:
        report["both"] = throughput(bench, plan, both=True)
    if "latency" in names:
        with bench.attached(FrontEndOptions()) as pairs:
            report["latency"] = latency(pairs, plan)
    if "attach" in names:
        report["attach"] = attachments(bench, plan)


def show(report: dict[str, Any]) -> None:
    console = Console(width=120)
    titles = {"throughput": "One way, Mpps", "both": "Both ways, sum, Mpps", "latency": "Round trip over two hops, microseconds"}
    for name, title in titles.items():
        if name in report:
            console.print(table(title, report[name]))
    if "attach" in report:
        console.print(table("Attachment to a server port, milliseconds", {"median": report["attach"]}))
    if "testpmd" in report:
        rows = report["testpmd"]
        console.print(table("dpdk-testpmd as back-end: Mpps", {key: rows[key] for key in ("static", "copy")}))
        console.print(table("dpdk-testpmd as back-end: round trip, microseconds", rows["latency"]))
    console.print(report["machine"])


def table(title: str, rows: dict[str, dict[str, float]]) -> Table:
    """A row per name, a column per figure."""
    shown = Table(title=title, title_justify="left")
    shown.add_column("")
    for column in next(iter(rows.values())):
        shown.add_column(column, justify="right")
    for name, row in rows.items():
        shown.add_row(name, *(f"{value}" for value in row.values()))
    return shown


def _output(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=RUN_SECONDS).stdout


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter runs")
    parser.add_argument("names", nargs="*", metavar="NAMES", help=", ".join(MEASURES))
    options = parser.parse_args()
    if unknown := set(options.names) - set(MEASURES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(MEASURES)}")
    plan = Plan(2, 0.5, 5_000, 30) if options.quick else Plan(7, 2.0, 50_000, 200)
    report = measure(options.names or list(MEASURES), plan)
    return tell(report, options.json, show)


if __name__ == "__main__":
    sys.exit(main())
