"""Decides when something is tried again that did not last: at once the first time, then less and less often.

Of a port that ovs-vswitchd could not open each try makes it go through all of its ports, and it tries again by itself with every
change of its configuration. What another program changes is put back without a fight. Must not say whether a try has succeeded:
only a look at the thing tells.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from userspace_cni.base.back_off import BackOff

FIRST_S: Final = 30.0
"""Between the first try, which is made at once, and the second; the pause doubles with each try."""
LAST_S: Final = 3600.0


@dataclass(frozen=True)
class _Tried:
    who: str
    at: float
    pause_s: float


class Retries:
    """The tries by key, as a port's name. They count for one who is asked: another ovs-vswitchd starts from zero. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._tried: dict[str, _Tried] = {}

    def is_due(self, key: str, who: str = "") -> bool:
        with self._lock:
            tried = self._tried.get(key)
            return tried is None or tried.who != who or self._clock() - tried.at >= tried.pause_s

    def note_try(self, key: str, who: str = "") -> float:
        """Record a try; the seconds until the next one."""
        with self._lock:
            before = self._tried.get(key)
            again = before is not None and before.who == who
            pause_s = BackOff(FIRST_S, LAST_S).after(before.pause_s if before and again else 0.0)
            self._tried[key] = _Tried(who, self._clock(), pause_s)
            return pause_s

    def forget(self, key: str) -> None:
        """Start from zero when it is needed again."""
        with self._lock:
            self._tried.pop(key, None)

    def keep(self, needed: set[str]) -> None:
        """Forget all keys but these: what is not needed now starts from zero when it is needed again."""
        with self._lock:
            self._tried = {key: tried for key, tried in self._tried.items() if key in needed}

    def keep_recent(self, needed: set[str]) -> None:
        """Forget all keys but these, and but those that are not due: what is needed again within its pause goes on waiting."""
        with self._lock:
            now = self._clock()
            recent = {key for key, tried in self._tried.items() if now - tried.at < tried.pause_s}
            self._tried = {key: tried for key, tried in self._tried.items() if key in needed or key in recent}
