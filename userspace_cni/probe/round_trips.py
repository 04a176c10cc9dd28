"""Measures how long frames take from one endpoint through the switch to the other, and back."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from userspace_cni.probe import histogram
from userspace_cni.probe.cores import Cores
from userspace_cni.probe.ending import EndingSignals
from userspace_cni.probe.endpoints import Endpoint, Pair

TIMEOUT_S: Final = 0.5
"""A frame that is not back after this time is lost."""
SLICE: Final = 2000
SLICE_S: Final = 0.2
"""Round trips, and seconds, at most between two checks of signals and of the connections."""
RESTING_NS: Final = 200_000
"""A polling thread that is awake takes some microseconds; one that sleeps took one or two milliseconds."""
LOST_IN_A_ROW: Final = 5
"""After so many lost frames in a row the way counts as cut: the loop in C ends then too."""


@dataclass
class Echo:
    """The figures so far. `foreign`: frames of others that came to these ports. `problem`: why it ended early, or ""."""

    pair: tuple[Endpoint, Endpoint] | None = None
    times: array[int] = field(default_factory=lambda: array("q"))
    lost: int = 0
    in_a_row: int = 0
    foreign: int = 0
    interrupted: bool = False
    problem: str = ""

    @property
    def sent(self) -> int:
        """Round trips that are done or lost."""
        return len(self.times) + self.lost


@dataclass(frozen=True)
class PingOptions:
    """How to measure: round trips, seconds from one to the next, bytes of a frame, and whether to sleep while waiting."""

    count: int
    interval: float
    size: int
    sleep: bool


def measure(pair: Pair, way: PingOptions, echo: Echo, seat: Cores, report: Callable[[], None], ending: EndingSignals) -> None:
    """Send `way.count` frames to and fro and fill `echo`, also when it ends with an exception.

    Calls `report` before each lot of frames.
    """
    from userspace_cni.fastpath.fastpath_errors import FastPathError

    lump, due = 1, time.monotonic()
    while echo.sent < way.count and not echo.problem:
        ending.check()
        report()
        if way.interval:
            time.sleep(max(0.0, due - time.monotonic()))
            due += way.interval
        started = time.monotonic()
        try:
            with seat.measure():
                _bounce(pair, min(lump, way.count - echo.sent), way, echo)
        except FastPathError as error:
            echo.problem = pair.hung_up() or str(error)
        took = time.monotonic() - started
        if not way.interval:
            lump = min(SLICE, lump * 2) if took < SLICE_S / 2 else max(1, lump // 2) if took > SLICE_S else lump
        echo.problem = echo.problem or pair.hung_up()
        if not echo.problem and echo.in_a_row >= LOST_IN_A_ROW:
            echo.problem = pair.cut(f"{echo.in_a_row} frames in a row were lost")


def warnings(echo: Echo, way: PingOptions, seat: Cores) -> list[str]:
    """The reasons why the times may be the scheduler's, or those of a switch that sleeps."""
    reasons = [] if way.sleep or way.interval else seat.warnings()
    if echo.times and histogram.spread(echo.times).p50 >= RESTING_NS:
        reasons.append(
            "the switch's polling threads share their cores, or sleep when idle (other_config:pmd-maxsleep, pmd-sleep-max)"
        )
    return reasons


def _bounce(pair: Pair, count: int, way: PingOptions, echo: Echo) -> None:
    from userspace_cni.fastpath.rings.generator import bounce

    found = bounce(*pair.queues, count, frame=pair.frame(way.size), sleep=way.sleep, timeout_s=TIMEOUT_S)
    echo.times.extend(found.nanoseconds)
    echo.lost += found.lost
    echo.foreign += found.foreign
    echo.in_a_row = 0 if found.nanoseconds else echo.in_a_row + found.lost
