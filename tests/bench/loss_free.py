"""The fastest rate at which no frame is lost, found as RFC 2544 (26.1) describes: by a binary search over trials. Pure.

What differs from RFC 2544, because a shared virtual machine takes its processors away for longer than a ring of 256 frames lasts,
so that no rate at all would pass a trial of 60 s: a trial is short, and a rate passes if one of a few trials at it does. So the
figure says what the two programs can carry while both are running, and not what this machine carries for a minute.

A frame is lost if it was sent and did not come, or if it fell due and the port did not take it in the trial's time: a port that
takes fewer frames than it is offered loses none on the way, but does not carry the rate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

TRIAL_S: Final = 0.04
"""At most a tenth of a second, in which our generator does not return to Python, where nothing receives."""
TRIES: Final = 5
RESOLUTION: Final = 0.02
"""Of the highest rate that is tried."""
_LATE: Final = 1.005
"""How much longer than its time a trial may take: bursts are sent as a whole, and the last one may wait for room."""


class Trial(NamedTuple):
    """What came of `asked` frames a second for `due_s` seconds, which took `took_s`."""

    asked: float
    due_s: float
    sent: int
    received: int
    took_s: float

    @property
    def lost(self) -> int:
        return max(0, self.sent - self.received)

    @property
    def is_loss_free(self) -> bool:
        return not self.lost and self.took_s <= self.due_s * _LATE and self.sent >= int(self.asked * self.due_s)


def fastest(passes: Callable[[float], bool], most: float, resolution: float = RESOLUTION) -> float:
    """The highest rate up to `most` that passes, to `resolution` of `most`; 0 if none that was tried does.

    It takes for granted that whatever is slower than a rate that passes would pass, too.
    """
    low, high = 0.0, most
    if passes(most):
        return most
    while high - low > resolution * most:
        middle = (low + high) / 2
        if passes(middle):
            low = middle
        else:
            high = middle
    return low


def loss_free_rate(trial: Callable[[float], Trial], most: float, tries: int = TRIES) -> float:
    """Frames a second."""
    return fastest(lambda rate: any(trial(rate).is_loss_free for _ in range(tries)), most)
