"""What the switch says of its polling threads, which move the frames: how busy each is, and with the queues of which ports. Pure.

Commands show it and findings judge it; `switch/polling_threads` reads it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class PolledQueue:
    """A receive queue of a port, and the thread's time that it took.

    `enabled`: whether the other end uses it. `share`: percent of all the thread's time in the latest period, asleep or not; None
    until the switch has measured one.
    """

    port: str
    number: int
    enabled: bool
    share: int | None


@dataclass(frozen=True)
class PollingThread:
    """One polling thread. Its figures count from its start, or from `pmd-stats-clear`: `seconds` ago.

    `isolated`: it has only the queues that were given to it by name. `busy_cycles` and `idle_cycles` together are all that it was
    not asleep; `exact`: they were counted, else calculated from shares of a tenth of a percent, so that two readings cannot be
    compared. An iteration is busy when it found a frame. `slept_s`: asleep because there was nothing to do. `overhead`: percent
    of its time in the latest period that was work of no queue; None until there was one.
    """

    core: int
    numa: int
    seconds: float = 0.0
    iterations: int = 0
    busy_iterations: int = 0
    sleep_iterations: int = 0
    busy_cycles: int = 0
    idle_cycles: int = 0
    exact: bool = False
    slept_s: float = 0.0
    packets_received: int = 0
    packets_sent: int = 0
    isolated: bool = False
    overhead: int | None = None
    queues: tuple[PolledQueue, ...] = ()

    @property
    def idle_iterations(self) -> int:
        return self.iterations - self.busy_iterations

    @property
    def load(self) -> float | None:
        """The part of its time (0 to 1) that was work, since its figures began; None before it has run."""
        return _load(self.busy_cycles, self.idle_cycles, self.slept_s, self.seconds)

    @property
    def recent_load(self) -> float | None:
        """The part of its time (0 to 1) that was work in the latest period, None until there was one.

        It is summed up of whole percents, each rounded down: with many queues it says too little.
        """
        shares = [queue.share for queue in self.queues]
        if self.overhead is None or None in shares:
            return None
        return min(1.0, (self.overhead + sum(filter(None, shares))) / 100)

    def load_since(self, former: PollingThread) -> float | None:
        """The part of its time (0 to 1) that was work since that reading of it; None where that cannot be told from the two."""
        slept, seconds = self.slept_s - former.slept_s, self.seconds - former.seconds
        busy, idle = self.busy_cycles - former.busy_cycles, self.idle_cycles - former.idle_cycles
        if not (self.exact and former.exact) or min(busy, idle, slept) < 0:
            return None
        return _load(busy, idle, slept, seconds)


class PollingReading(NamedTuple):
    """The polling threads by NUMA node and core, none where the switch has no bridge of the userspace datapath; and the seconds
    of the period in which shares were measured, 0 where the switch does not say."""

    threads: tuple[PollingThread, ...]
    period_s: int


def shares_by_port(threads: Iterable[PollingThread]) -> dict[str, dict[int, int | None]]:
    """For each port the cores that poll its queues, with the percent of the core's time that they took, None while unknown."""
    found: dict[str, dict[int, int | None]] = {}
    for thread in threads:
        for queue in thread.queues:
            by_core = found.setdefault(queue.port, {})
            share = by_core.get(thread.core, 0)
            by_core[thread.core] = None if share is None or queue.share is None else share + queue.share
    return found


def _load(busy: int, idle: int, slept: float, seconds: float) -> float | None:
    used = busy + idle
    if seconds <= 0 or used <= 0:
        return None
    return busy / used * max(0.0, 1 - slept / seconds)
