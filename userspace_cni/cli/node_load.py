"""How busy this node is: how long commands wait for an answer, and what they say if none comes.

A node whose CPUs are all busy answers late although agent and switch are well. So commands multiply their wait by the number of
processes per CPU, and report the load instead of a fault.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LONGER_MAX: Final = 10.0
"""How many times longer is waited at most."""
_BUSY: Final = 2.0
"""Processes for each CPU from which on a node is called busy."""
_LOAD: Final = Path("/proc/loadavg")


@dataclass(frozen=True)
class NodeLoad:
    """How many processes want a CPU, now or in the last minute, whichever is more; and how many CPUs they have."""

    processes: float
    cpus: int

    @property
    def is_busy(self) -> bool:
        """Whether answers may be late for no other reason."""
        return self.processes >= _BUSY * self.cpus

    def patience(self, seconds: float) -> float:
        """How long is waited for what takes `seconds` at most on an idle node."""
        return seconds * min(max(self.processes / self.cpus, 1.0), LONGER_MAX)

    def __str__(self) -> str:
        return f"the node is busy: {self.processes:.0f} processes for {self.cpus} CPUs"


def look() -> NodeLoad:
    """The load now; none where the kernel does not tell. CPUs that are isolated for polling threads do not count."""
    cpus = len(os.sched_getaffinity(0))
    try:
        words = _LOAD.read_text().split()
        return NodeLoad(max(float(words[0]), float(words[3].partition("/")[0])), cpus)
    except (OSError, ValueError, IndexError):
        return NodeLoad(0.0, cpus)
