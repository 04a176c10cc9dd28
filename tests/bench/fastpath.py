"""What the fast path carries, beside a loop of DPDK that does the same through the same two ports of the same switch.

`python tests/bench/fastpath.py [--json] [--quick] [--switch NAME]... [NAMES...]`, as root, on a machine that does nothing else.
It measures, by name; all by default:

    throughput   one way: 64, 512 and 1518 bytes in bursts of 32, 8 and 1, with each of the ten paths of DPDK's test suite,
                 and with each of our rings. Both copy each frame into its buffer. Eight bytes of each received frame are
                 compared; in the first column they are not, and there are Python and our loop with buffers filled once
    both         the same both ways at once
    queues       two queue pairs for each port, on the switch's one polling thread, one way and both ways
    lossless     the fastest rate without loss, by a binary search as RFC 2544 describes it; loss_free.py says what counts
    latency, attach, testpmd     round trips, attachments, and another back-end; with the installed switch alone

The first four are measured with each Open vSwitch at hand, or with those that --switch names: that of this machine, and those of
other releases of Debian, which are unpacked where they are missing. The loop of DPDK is compiled with the installed DPDK.

On a machine that is shared, averages of whole runs tell of the scheduler. So a rate is that of windows of one millisecond of the
receiver's count, of which the 95th percentile is the plateau that is reached while both threads are on their cores. A ratio is
that of the medians, of turns in which the processors were equally far apart (placement.py).
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

from tests.bench.dpdk_paths import DPDK_PATHS, build, dpdk_version
from tests.bench.fastpath_tables import show
from tests.bench.frame_runs import QUEUE_CASES, Case, cases_of, percentile
from tests.bench.our_loads import RINGS, Ends, OurLoop, frame_of
from tests.bench.path_comparison import MORE_TURNS, Comparison, Plan
from tests.bench.report import arguments, machine, tell
from tests.bench.switch_pair import BRIDGE, INSTALLED, SWITCHES, SwitchPair, switch_pair
from tests.lab.switch.switch import Switch, wait_until
from userspace_cni.fastpath.rings.generator import bounce
from userspace_cni.fastpath.vhost.front_end import FrontEnd

ON_EACH: Final = ("throughput", "both", "queues", "lossless")
ON_ONE: Final = ("latency", "attach")
MEASURES: Final = (*ON_EACH, *ON_ONE, "testpmd")
FRAME: Final = frame_of(64)
RUN_SECONDS: Final = 60


class Effort(NamedTuple):
    """How much is measured beside the comparison."""

    echoes: int
    attachments: int


def say(began: float) -> Callable[[str], None]:
    """What tells on stderr what begins, and when."""

    def told(text: str) -> None:
        sys.stderr.write(f"{time.monotonic() - began:5.0f} s: {text}\n")

    return told


def on_switch(pair: SwitchPair, program: Path, names: Sequence[str], plan: Plan, told: Callable[[str], None]) -> dict[str, Any]:
    """What is measured with each switch."""
    comparison = Comparison(pair, program, plan, told)
    found: dict[str, Any] = {"versions": pair.versions, "core": pair.core}
    ways = [way for way, name in ((1, "throughput"), (2, "both")) if name in names]
    if ways:
        rows = comparison.throughput([case for way in ways for case in cases_of(way)])
        found |= {"both" if way == 2 else "throughput": [row for row in rows if row["ways"] == way] for way in ways}
    if "queues" in names:
        rows = comparison.throughput(QUEUE_CASES, 2)
        found |= {"queues both" if ways == 2 else "queues": [row for row in rows if row["ways"] == ways] for ways in (1, 2)}
    if "lossless" in names:
        found["lossless"] = comparison.loss_free()
    return {**found, "turns": comparison.turns, "taken": comparison.taken}


def latency(ends: Ends, echoes: int) -> dict[str, Any]:
    """Round trips over two hops, microseconds."""
    rows = {}
    for name, sleep, count in (("polling", False, echoes), ("sleeping", True, echoes // 10)):
        found = bounce(ends.a[0], ends.b[0], count, frame=FRAME, sleep=sleep)
        if not found.nanoseconds:
            raise RuntimeError(f"no frame came back: {found.lost} were lost")
        shares = {"min": 0.0, "p50": 0.5, "p90": 0.9, "p99": 0.99}
        rows[name] = {key: round(percentile(found.nanoseconds, share) / 1000, 2) for key, share in shares.items()}
        rows[name]["lost"] = found.lost
    return rows


def attachments(switch: Switch, count: int) -> dict[str, float]:
    """Milliseconds of `FrontEnd.connect` to a `dpdkvhostuser` port that has been there for a while, and of `close`."""
    switch.vsctl("add-port", BRIDGE, "server", "--", "set", "Interface", "server", "type=dpdkvhostuser")
    attach, detach = [], []
    for number in range(count + 2):
        began = time.perf_counter()
        front_end = FrontEnd.connect(f"{switch.rundir}/server")
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


def independent(directory: Path, core: int, plan: Plan, effort: Effort) -> dict[str, Any]:
    """The same against another back-end."""
    os.sched_setaffinity(0, set(range(os.cpu_count() or 1)))
    with testpmd(directory, core) as paths, ExitStack() as stack:
        os.sched_setaffinity(0, {core})
        ends = Ends(*(stack.enter_context(FrontEnd.connect(path)).pairs for path in paths))
        wait_until(
            lambda: bounce(ends.a[0], ends.b[0], 1, frame=FRAME, timeout_s=0.05).lost == 0, what="a frame through dpdk-testpmd"
        )
        rows: dict[str, Any] = {"latency": latency(ends, effort.echoes)}
        for name, copy in (("static", False), ("copy", True)):
            found = OurLoop(ends).run(Case(touch=False), plan.seconds, copy=copy)
            rows[name] = {"plateau": round(found.plateau, 2), "average": round(found.rate / 1e6, 2)}
    return rows


def measure(names: Sequence[str], switches: Sequence[str], plan: Plan, effort: Effort) -> dict[str, Any]:
    """The report."""
    told = say(time.monotonic())
    report: dict[str, Any] = {"machine": machine(), "rounds": plan.rounds, "DPDK of the loop": dpdk_version(), "switches": {}}
    with TemporaryDirectory(prefix="uc-") as path:
        directory = Path(path)
        core = min(os.sched_getaffinity(0))
        program = build(directory)
        if set(names) & set(ON_EACH):
            for name in switches:
                told(f"Open vSwitch: {name}")
                with switch_pair(name, directory) as pair:
                    report["switches"][name] = on_switch(pair, program, names, plan, told)
        if set(names) & set(ON_ONE):
            told("round trips and attachments")
            with switch_pair(INSTALLED, directory) as pair:
                core = pair.core
                if "latency" in names:
                    report["latency"] = {}
                    for name, options in RINGS.items():
                        with pair.attached(options) as ends:
                            report["latency"] |= {f"{name}, {how}": row for how, row in latency(ends, effort.echoes).items()}
                if "attach" in names:
                    report["attach"] = attachments(pair.switch, effort.attachments)
        if "testpmd" in names:
            told("dpdk-testpmd")
            report["testpmd"] = independent(directory, core, plan, effort)
    return report


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--rounds", type=int, help="rounds of the comparison")
    parser.add_argument(
        "--more-turns",
        type=int,
        default=MORE_TURNS,
        help="at most so many more, for those that had none that counts",
    )
    parser.add_argument("--switch", action="append", choices=SWITCHES, help="only this Open vSwitch; may be given again")
    parser.add_argument("--path", action="append", metavar="WORDS", help="only DPDK's paths with these words in their names")
    parser.add_argument("names", nargs="*", metavar="NAMES", help=", ".join(MEASURES))
    options = parser.parse_args()
    if unknown := set(options.names) - set(MEASURES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(MEASURES)}")
    paths = [path for path in DPDK_PATHS if not options.path or any(words in path.name for words in options.path)]
    if not paths:
        parser.error(f"no such path; there are {', '.join(path.name for path in DPDK_PATHS)}")
    rounds, seconds = (1, 0.05) if options.quick else (3, 0.12)
    plan = Plan(options.rounds or rounds, seconds, paths, options.more_turns)
    effort = Effort(5_000, 30) if options.quick else Effort(50_000, 200)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the switch, which polls, ends with it
    report = measure(options.names or MEASURES, options.switch or SWITCHES, plan, effort)
    return tell(report, options.json, show)


if __name__ == "__main__":
    sys.exit(main())
