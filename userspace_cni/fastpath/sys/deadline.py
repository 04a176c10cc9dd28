"""The time that is left, handed down to everything that waits.

One monotonic instant, never a duration passed along: nested waits cannot add up to more than the first was given.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Final, Self

_LONGEST_MS: Final = 2**31 - 1


@dataclass(frozen=True)
class Deadline:
    """An instant of CLOCK_MONOTONIC in seconds; `inf` never comes."""

    at: float

    @classmethod
    def after(cls, seconds: float | None) -> Self:
        """The instant `seconds` from now; None: never."""
        return cls(math.inf if seconds is None else time.monotonic() + seconds)

    def remaining(self) -> float:
        """Seconds left; 0.0 when it has passed."""
        return max(0.0, self.at - time.monotonic())

    def milliseconds(self) -> int | None:
        """What poll(2) may wait, rounded up so that it does not return early; None: forever, as is what poll cannot count."""
        left = self.remaining() * 1000
        return None if left >= _LONGEST_MS else math.ceil(left)

    def within(self, seconds: float) -> Self:
        """The earlier of this one and `seconds` from now."""
        return type(self)(min(self.at, time.monotonic() + seconds))

    def half(self) -> Self:
        """Half of the time left: for one of several things that must all have their turn."""
        return self.within(self.remaining() / 2)
