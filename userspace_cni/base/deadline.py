"""The deadline of a verb: the one of `fastpath.sys`, and the error to raise once it has passed."""

from __future__ import annotations

from userspace_cni.base.errors import Unavailable
from userspace_cni.fastpath.sys import deadline


class Deadline(deadline.Deadline):
    """An instant of CLOCK_MONOTONIC, in seconds; `require` raises once it has passed."""

    def require(self, what: str) -> float:
        """Seconds left, or Unavailable naming `what` when there are none."""
        left = self.remaining()
        if left <= 0:
            raise Unavailable(f"{what}: out of time", "the verb's deadline (setting deadline_s) has passed")
        return left
