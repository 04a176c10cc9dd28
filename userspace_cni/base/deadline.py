"""How long something may take: the deadline of `linux`, which knows what bounds it, and the error once it has passed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Self

from userspace_cni.base.errors import Unavailable
from userspace_cni.linux import instant


@dataclass(frozen=True)
class Deadline(instant.Instant):
    """An instant of CLOCK_MONOTONIC, in seconds; `require` raises once it has passed.

    `seconds`: how much time there was when it was made; `setting`: the one that says so, "" where none does.
    """

    seconds: float = field(default=math.inf, compare=False)
    setting: str = field(default="", compare=False)

    @classmethod
    def after(cls, seconds: float | None, setting: str = "") -> Self:
        """The instant `seconds` from now, because the setting says so; None: never."""
        return replace(super().after(seconds), seconds=math.inf if seconds is None else seconds, setting=setting)

    def within(self, seconds: float) -> Self:
        """The earlier of this one and `seconds` from now, with what bounds it."""
        other = type(self).after(seconds)
        return other if other.at < self.at else self

    def half(self) -> Self:
        """Half of the time left, bounded by the same setting: for the first of two steps that both need time."""
        return replace(super().half(), setting=self.setting)

    def require(self, what: str) -> float:
        """Seconds left, or Unavailable naming `what` when there are none."""
        left = self.remaining()
        if left <= 0:
            raise self.passed(what)
        return left

    def passed(self, what: str) -> Unavailable:
        """The error for `what`, which has not ended in time; it names the time that there was and the setting that bounds it."""
        source = f" (setting {self.setting})" if self.setting else ""
        return Unavailable(f"{what}: out of time", f"the {round(self.seconds, 1):g} s that it may take{source} have passed")
