"""The cores of a measurement, and whether it had them alone: on a shared core one measures the scheduler.

A generator that polls on the core of a polling thread of the switch takes half of that thread's time, so the calling thread stays
off these cores as long as there is another one. Threads that proc(5) does not show here (in a container) are not known.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
SWITCH: Final = "ovs-vswitchd"
"""The beginning of the process's name; Debian's continues with `-dpdk`, which proc(5) cuts."""
BUSY_ENOUGH: Final = 0.95
"""A polling thread with a core of its own is on it for this part of its wall time."""
_POLLING: Final = re.compile(r"pmd-c(\d+)")
_PROCESSOR: Final = 36
"""Place of `processor` in /proc/PID/stat (proc(5)), counted from the field after the name in parentheses."""


@dataclass
class Cores:
    """`usable`: cores that the calling thread may use now. `polling`: those of the switch's polling threads."""

    usable: frozenset[int]
    polling: frozenset[int]
    used: set[int] = field(default_factory=set)
    """Cores on which the thread was seen by `look`."""
    wall_s: float = 0.0
    cpu_s: float = 0.0

    @property
    def busy(self) -> float:
        """The part (0 to 1) of the measured time in which the thread was on a core; 1.0 before any measurement."""
        return min(1.0, self.cpu_s / self.wall_s) if self.wall_s > 0 else 1.0

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Count the thread's time within this block."""
        wall, cpu = time.monotonic(), time.thread_time()
        try:
            yield
        finally:
            self.wall_s += time.monotonic() - wall
            self.cpu_s += time.thread_time() - cpu
            self.look()

    def look(self) -> None:
        with suppress(OSError, IndexError, ValueError):
            fields = Path("/proc/thread-self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            self.used.add(int(fields[_PROCESSOR]))

    def warnings(self) -> list[str]:
        """The reasons why the figures may be the scheduler's, one sentence each."""
        reasons = []
        if self.polling and self.usable <= self.polling:
            reasons.append(
                f"the switch polls on every core that the generator may use ({_listed(self.usable)}): "
                "these figures measure the scheduler"
            )
        if self.busy < BUSY_ENOUGH:
            reasons.append(f"the generator had a core for {self.busy:.0%} of the time: these figures measure the scheduler too")
        return reasons


@contextmanager
def avoid_polling_cores() -> Iterator[Cores]:
    """Within this block the calling thread stays off the cores of polling threads, unless it may use no other."""
    allowed = frozenset(os.sched_getaffinity(0))
    polling = polling_cores()
    chosen = allowed - polling or allowed
    try:
        if chosen != allowed:
            os.sched_setaffinity(0, chosen)
        yield Cores(chosen, polling)
    finally:
        with suppress(OSError):  # the cores were taken away meanwhile
            os.sched_setaffinity(0, allowed)


def polling_cores(proc: Path = PROC) -> frozenset[int]:
    """Cores of the polling threads of every switch that `proc` shows."""
    found = set()
    for process in switches(proc):
        with suppress(OSError):  # the process has ended
            found |= {int(match[1]) for thread in (process / "task").iterdir() if (match := _POLLING.match(_name(thread)))}
    return frozenset(found)


def switches(proc: Path = PROC) -> list[Path]:
    """The directories in proc(5) of every ovs-vswitchd that `proc` shows."""
    return [process for process in proc.iterdir() if process.name.isdigit() and _name(process).startswith(SWITCH)]


def _name(task: Path) -> str:
    try:
        return (task / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _listed(cores: frozenset[int]) -> str:
    return ", ".join(map(str, sorted(cores)))
