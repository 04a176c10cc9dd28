"""On which cores a measurement runs, and whether it had them: figures of a core that was shared are the scheduler's.

A generator that polls beside a polling thread of the switch takes half of its time, so the calling thread stays off the cores of
these as long as there is another one. What is not told by proc(5) here (a container without the host's processes) is left out.
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
"""What the name of its process begins with; Debian's has `-dpdk` behind it, as much of that as there is room for."""
BUSY_ENOUGH: Final = 0.95
"""Of its wall time a polling thread with a core of its own is on it."""
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
        """The part (0 to 1) of the time measured in which the thread was on a core; 1.0 before anything was measured."""
        return min(1.0, self.cpu_s / self.wall_s) if self.wall_s > 0 else 1.0

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Count what the thread does inside."""
        wall, cpu = time.monotonic(), time.thread_time()
        try:
            yield
        finally:
            self.wall_s += time.monotonic() - wall
            self.cpu_s += time.thread_time() - cpu
            self.look()

    def look(self) -> None:
        """Remember the core on which the thread is."""
        with suppress(OSError, IndexError, ValueError):
            fields = Path("/proc/thread-self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            self.used.add(int(fields[_PROCESSOR]))

    def warnings(self) -> list[str]:
        """Why the figures may be the scheduler's, one sentence each."""
        told = []
        if self.polling and self.usable <= self.polling:
            told.append(
                f"the switch polls on every core that the generator may use ({_listed(self.usable)}): "
                "these figures measure the scheduler"
            )
        if self.busy < BUSY_ENOUGH:
            told.append(f"the generator had a core for {self.busy:.0%} of the time: these figures measure the scheduler too")
        return told


@contextmanager
def kept() -> Iterator[Cores]:
    """While inside, the calling thread stays off the cores of polling threads, unless it may use no other."""
    allowed = frozenset(os.sched_getaffinity(0))
    polling = polling_cores()
    chosen = allowed - polling or allowed
    try:
        if chosen != allowed:
            os.sched_setaffinity(0, chosen)
        yield Cores(chosen, polling)
    finally:
        with suppress(OSError):  # taken away meanwhile
            os.sched_setaffinity(0, allowed)


def polling_cores(proc: Path = PROC) -> frozenset[int]:
    """Cores of the polling threads of every switch that is seen from here."""
    found = set()
    for process in switches(proc):
        with suppress(OSError):  # it has ended
            found |= {int(match[1]) for thread in (process / "task").iterdir() if (match := _POLLING.match(_name(thread)))}
    return frozenset(found)


def switches(proc: Path = PROC) -> list[Path]:
    """The directories in proc(5) of every ovs-vswitchd that is seen from here."""
    return [process for process in proc.iterdir() if process.name.isdigit() and _name(process).startswith(SWITCH)]


def _name(task: Path) -> str:
    try:
        return (task / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _listed(cores: frozenset[int]) -> str:
    return ", ".join(map(str, sorted(cores)))
