"""Which rate and burst a limit is written with, so that no two limits of a node have the same. Pure.

Newer ovn-controllers (25.03 and 26.03; 23.03 did not) call a meter after its rate and burst: limits that say the same share one
meter, as the two directions of a port or ten pods of one kind do, and have the rate together. So each gets a burst of its own, up
to a tenth more than what was asked; where those do not suffice, the rate is some kbit/s more, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from itertools import count
from typing import Final, NamedTuple

from userspace_cni.base.limits import Rate

_KBIT: Final = 1000
_KBIT_MAX: Final = 2**32 - 1
"""What a row can say."""
_LIMITS_MAX: Final = 10_000
"""Limits of one node: a shape that would be a later one's was written by someone else."""
_SPARE: Final = 10
"""A burst may be larger by one part in so many."""


class MeterShape(NamedTuple):
    """Rate in kbit/s, burst in kbit."""

    rate: int
    burst: int


class MeterShapes:
    """For one thread. A limit is known by a key."""

    def __init__(self) -> None:
        self._held: dict[Hashable, tuple[frozenset[str], MeterShape]] = {}
        self._taken: dict[str, Counter[MeterShape]] = {}

    def take(self, key: Hashable, nodes: frozenset[str], asked: Rate, has: MeterShape | None) -> MeterShape:
        """The shape of this limit on these nodes. `has`: that which it has and may keep, if no other limit there has it."""
        self.release(key)
        found = has if has is not None and self._is_free(has, nodes) else None
        shape = found or next(each for each in _list_shapes(asked) if self._is_free(each, nodes) or each.rate == _KBIT_MAX)
        self.keep(key, nodes, shape)
        return shape

    def keep(self, key: Hashable, nodes: frozenset[str], shape: MeterShape) -> None:
        """The limit has this shape on these nodes, whatever others have."""
        self.release(key)
        self._held[key] = nodes, shape
        for node in nodes:
            self._taken.setdefault(node, Counter())[shape] += 1

    def release(self, key: Hashable) -> None:
        """The limit is none any more."""
        nodes, shape = self._held.pop(key, (frozenset[str](), MeterShape(0, 0)))
        for node in nodes:
            taken = self._taken[node]
            taken[shape] -= 1
            if not taken[shape]:
                del taken[shape]
            if not taken:
                del self._taken[node]

    def _is_free(self, shape: MeterShape, nodes: frozenset[str]) -> bool:
        return not any(shape in self._taken.get(node, ()) for node in nodes)


def is_shape_of(shape: MeterShape, asked: Rate) -> bool:
    """Whether the shape could have been chosen for what is asked, on a node with fewer limits than there can be."""
    first, bursts = _first(asked)
    return first.burst <= shape.burst < first.burst + bursts and 0 <= (shape.rate - first.rate) * bursts < _LIMITS_MAX


def _list_shapes(asked: Rate) -> Iterator[MeterShape]:
    """In the order in which they are chosen."""
    first, bursts = _first(asked)
    for number in count():
        yield MeterShape(min(first.rate + number // bursts, _KBIT_MAX), min(first.burst + number % bursts, _KBIT_MAX))


def _first(asked: Rate) -> tuple[MeterShape, int]:
    """The nearest shape, and how many bursts there are."""
    shape = MeterShape(*(min(max(1, bits // _KBIT), _KBIT_MAX) for bits in (asked.rate, asked.burst)))
    return shape, max(1, shape.burst // _SPARE)
