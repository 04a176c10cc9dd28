"""The time that is left, handed down to everything that waits.

One monotonic instant, never a duration passed along: nested waits together never take longer than the outermost may.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Final, Self

_LONGEST_MS: Final = 2**31 - 1


@dataclass(frozen=True)
class Instant:
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
        """The timeout for poll(2), rounded up so that it does not return early; None: forever, also when poll cannot count it."""
        left = self.remaining() * 1000
        return None if left >= _LONGEST_MS else math.ceil(left)

    def within(self, seconds: float) -> Self:
        return type(self)(min(self.at, time.monotonic() + seconds))

    def half(self) -> Self:
        """Half of the time left: for the first of two steps that both need time."""
        return self.within(self.remaining() / 2)
