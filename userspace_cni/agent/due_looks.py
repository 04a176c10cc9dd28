"""Schedules checks of changed things: soon, together with other changes of that moment, and less and less often for a thing
that keeps changing. So a storm of changes costs a bounded part of a processor, and two programs that correct each other do not
do so without pause. It must not check anything itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from userspace_cni.base.back_off import BackOff

T = TypeVar("T")

SETTLE_S: Final = 0.2
"""From a change to the check: the changes of one command come in several messages."""
FIRST_S: Final = 1.0
"""Between the first two checks of one thing. Grows while it changes again within twice the last pause."""
REST: Final = 4
"""After a check, this multiple of its duration passes before the next one: checks take at most a fifth of a processor."""


class DueLooks(Generic[T]):
    """The things to check. `most_s`: the longest pause between two checks of a thing that keeps changing.

    The caller needs a lock.
    """

    def __init__(self, most_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._pauses = BackOff(FIRST_S, most_s)
        self._clock = clock
        self._due: dict[T, float] = {}
        self._looked: dict[T, tuple[float, float]] = {}
        self._rest_until = 0.0

    def note(self, *things: T) -> bool:
        """These have changed; whether the next look is earlier for that than it was."""
        now, before = self._clock(), self.seconds()
        for each in things:
            at, pause_s = self._looked.get(each, (0.0, 0.0))
            self._due.setdefault(each, max(now + SETTLE_S, at + pause_s))
        after = self.seconds()
        return after is not None and (before is None or after < before)

    def seconds(self) -> float | None:
        """Until the next look; None when nothing is to be looked at."""
        return max(0.0, self._rest_until - self._clock(), min(self._due.values()) - self._clock()) if self._due else None

    def take(self) -> frozenset[T]:
        now = self._clock()
        if now < self._rest_until:
            return frozenset()
        taken = frozenset(each for each, due in self._due.items() if due <= now)
        self._due = {each: due for each, due in self._due.items() if each not in taken}
        self._looked = {each: (at, pause_s) for each, (at, pause_s) in self._looked.items() if now - at <= 2 * pause_s}
        for each in taken:
            _, pause_s = self._looked.get(each, (0.0, 0.0))
            self._looked[each] = now, self._pauses.after(pause_s)
        return taken

    def took(self, seconds: float) -> None:
        """The look at what was taken has taken so long."""
        self._rest_until = self._clock() + REST * seconds
