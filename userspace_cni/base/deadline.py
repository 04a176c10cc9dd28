"""The time a verb has left, handed down to everything that waits.

One monotonic instant, never a duration passed along: nested waits can not add up to more than the verb was given.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from userspace_cni.base.errors import Unavailable


@dataclass(frozen=True)
class Deadline:
    """An instant of CLOCK_MONOTONIC, in seconds."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """The instant `seconds` from now."""
        return cls(time.monotonic() + seconds)

    def remaining(self) -> float:
        """Seconds left; 0.0 when it has passed."""
        return max(0.0, self.at - time.monotonic())

    def within(self, seconds: float) -> Deadline:
        """The earlier of this deadline and `seconds` from now."""
        return Deadline(min(self.at, time.monotonic() + seconds))

    def half(self) -> Deadline:
        """Half of the time left: for one of several things that must all have their turn."""
        return self.within(self.remaining() / 2)

    def require(self, what: str) -> float:
        """Seconds left, or Unavailable naming `what` when there are none."""
        left = self.remaining()
        if left <= 0:
            raise Unavailable(f"{what}: out of time", "the verb's deadline (setting deadline_s) has passed")
        return left
