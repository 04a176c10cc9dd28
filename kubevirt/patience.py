"""Bounds how long a sidecar waits for files that may never come: once in its life, for all calls together.

A start of a VM calls the sidecar three times, and all three have to fit into the 20 s of virt-handler's call. Some files stay
empty (KubeVirt before 1.8 with a CNI that has no device-info), and each call would wait for them. So the clock of each kind of
absence starts when a call meets it first, runs on between calls, and is shared by simultaneous calls. After its end no call
waits, but each still looks once, and so finds what came later.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

PATIENCE_S: Final = 5.0


class Patience:
    """`seconds` for each kind of what is missing, from when it was missed first; for threads. `clock` counts seconds."""

    def __init__(self, seconds: float = PATIENCE_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._missed: dict[str, float] = {}
        self._lock = threading.Lock()

    def left(self, kinds: Iterable[str]) -> float:
        """Seconds for which one of these, which are missing now, is still worth waiting for; 0 or less when none is."""
        with self._lock:
            now = self._clock()
            return max((self._missed.setdefault(kind, now) + self._seconds - now for kind in kinds), default=0.0)

    def spent(self, kind: str) -> float:
        """Seconds since that was missed first; 0 if it never was."""
        with self._lock:
            now = self._clock()
            return now - self._missed.get(kind, now)
