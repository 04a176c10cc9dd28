"""Decides when ovs-vswitchd is asked again to open a port that it could not open.

Not in every pass of reconciliation: each request makes it go through all of its ports, and it tries again by itself with every
change of its configuration. Must not say whether a port is open: only the switch knows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

FIRST_S: Final = 30.0
"""Between the first try, which is made at once, and the second; the pause doubles with each try."""
LAST_S: Final = 3600.0


@dataclass(frozen=True)
class _Tried:
    daemon: str
    at: float
    pause_s: float


class Retries:
    """The tries by port. They count for one daemon: another ovs-vswitchd starts from zero. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._tried: dict[str, _Tried] = {}

    def due(self, port: str, daemon: str) -> bool:
        """Whether the port may be tried now."""
        with self._lock:
            tried = self._tried.get(port)
            return tried is None or tried.daemon != daemon or self._clock() - tried.at >= tried.pause_s

    def tried(self, port: str, daemon: str) -> None:
        """Record a try."""
        with self._lock:
            before = self._tried.get(port)
            again = before is not None and before.daemon == daemon
            pause_s = min(LAST_S, before.pause_s * 2) if before and again else FIRST_S
            self._tried[port] = _Tried(daemon, self._clock(), pause_s)

    def forget(self, port: str) -> None:
        """Start from zero when the port fails again: it is open, or gone."""
        with self._lock:
            self._tried.pop(port, None)

    def keep(self, closed: set[str]) -> None:
        """Forget all ports but `closed`: a port that is open or gone starts from zero when it fails again."""
        with self._lock:
            self._tried = {port: tried for port, tried in self._tried.items() if port in closed}
