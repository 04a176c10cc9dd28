"""Which runs can be compared on a virtual machine whose two processors are now on one core, now on two. Pure.

A hypervisor moves them without telling, every minute or so. On one core they share its caches and its units: a round trip takes a
third of the time, rates are up to twice as high, and packed rings gain more. So round trips are measured before and after each
turn of the comparison, and only turns of the more frequent placement are compared with each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

_APART: Final = 2.2
"""Round trips that differ by less are of one placement: those of the ten paths and of our rings differ by up to 1.7."""


class Turn(NamedTuple):
    """What one of those that are compared has brought, and the round trips before and after it, in microseconds."""

    whose: str
    before: float
    after: float
    found: Any


def border(turns: Iterable[Turn]) -> float:
    """The round trip that separates the two placements; above all of them if there is only one."""
    trips = [trip for turn in turns for trip in (turn.before, turn.after)]
    least, most = min(trips), max(trips)
    return math.sqrt(least * most) if most > _APART * least else math.inf


def comparable(turns: Sequence[Turn]) -> list[Turn]:
    """The turns of one placement: of that in which there is a turn of the most of them, and of two such the one with more turns.

    A turn in which the processors were moved is of neither.
    """
    between = border(turns)
    near = [turn for turn in turns if max(turn.before, turn.after) < between]
    far = [turn for turn in turns if min(turn.before, turn.after) >= between]
    return max(near, far, key=lambda some: (len({turn.whose for turn in some}), len(some)))


def trips_of(turns: Sequence[Turn]) -> list[float]:
    """The shortest and the longest of their round trips."""
    trips = [trip for turn in turns for trip in (turn.before, turn.after)]
    return [min(trips), max(trips)]
