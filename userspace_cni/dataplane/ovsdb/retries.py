"""When ovs-vswitchd is asked again to open a port that it could not open.

Not in every pass of reconciliation: each time it goes through all of its ports, and by itself it tries again with every change of
its configuration. Must not be asked whether a port is open: the switch says that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

FIRST_S: Final = 30.0
"""Between the first try, which is made at once, and the second; it doubles from one to the next."""
LAST_S: Final = 3600.0


@dataclass(frozen=True)
class _Tried:
    daemon: str
    at: float
    pause_s: float


class Retries:
    """What was tried, by port and daemon: another ovs-vswitchd knows nothing of the attempts at the one before. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._tried: dict[str, _Tried] = {}

    def due(self, port: str, daemon: str) -> bool:
        """Whether it may be tried now."""
        with self._lock:
            tried = self._tried.get(port)
            return tried is None or tried.daemon != daemon or self._clock() - tried.at >= tried.pause_s

    def tried(self, port: str, daemon: str) -> None:
        """It is being tried."""
        with self._lock:
            before = self._tried.get(port)
            again = before is not None and before.daemon == daemon
            pause_s = min(LAST_S, before.pause_s * 2) if before and again else FIRST_S
            self._tried[port] = _Tried(daemon, self._clock(), pause_s)

    def keep(self, closed: set[str]) -> None:
        """Forget all but these: what is open, or gone, begins anew when it closes again."""
        with self._lock:
            self._tried = {port: tried for port, tried in self._tried.items() if port in closed}
