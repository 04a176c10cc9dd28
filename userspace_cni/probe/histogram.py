"""The distribution of measured times: percentiles, and buckets that widen with the logarithm. Pure.

The bulk of the times gets narrow buckets, and the long tail above it one for each power of ten: so a dozen lines show both a mode
of microseconds and an outlier of milliseconds. Edges are preferred numbers (ISO 3), so that two similar runs have the same ones.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

ROWS_MAX: Final = 12
"""Buckets of the bulk."""
_BULK: Final = 0.98
_R40: Final = (
    *(100, 106, 112, 118, 125, 132, 140, 150, 160, 170, 180, 190, 200, 212, 224, 236, 250, 265, 280, 300),
    *(315, 335, 355, 375, 400, 425, 450, 475, 500, 530, 560, 600, 630, 670, 710, 750, 800, 850, 900, 950),
)
_SERIES: Final = (_R40, _R40[::2], _R40[::4], _R40[::8], (100, 200, 500), (100,))
"""Edges within a power of ten, in hundredths: the finest that needs few enough buckets is taken."""
_LOWEST: Final = 100
"""Nanoseconds. Shorter times count as these: no clock that we read tells them apart."""
_UNITS: Final = (("s", 1_000_000_000), ("ms", 1_000_000), ("µs", 1_000), ("ns", 1))


@dataclass(frozen=True)
class Bucket:
    """`count` times of at least `start` and less than `end` nanoseconds."""

    start: int
    end: int
    count: int


@dataclass(frozen=True)
class Spread:
    """Percentiles and mean of at least one time, in nanoseconds."""

    min: int
    p50: int
    p90: int
    p99: int
    max: int
    mean: float


def spread(times: Sequence[int]) -> Spread:
    """Percentiles of the times (nanoseconds, at least one), each a time that was measured."""
    ordered = sorted(times)
    p50, p90, p99 = (percentile(ordered, share) for share in (0.5, 0.9, 0.99))
    return Spread(ordered[0], p50, p90, p99, ordered[-1], sum(ordered) / len(ordered))


def percentile(ordered: Sequence[int], share: float) -> int:
    """The smallest of the values (ascending, at least one) that `share` of them (0 to 1) do not exceed."""
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def buckets(times: Sequence[int]) -> list[Bucket]:
    """Buckets without a gap that hold all the times (nanoseconds), from the smallest to the largest; none for no times."""
    if not times:
        return []
    ordered = [max(time, _LOWEST) for time in sorted(times)]
    edges = _edges(ordered)
    counts = [bisect_left(ordered, edge) for edge in edges]
    return [Bucket(edges[i], edges[i + 1], counts[i + 1] - counts[i]) for i in range(len(edges) - 1)]


def format_time(nanoseconds: float) -> str:
    """`1.64 µs`: three digits and a unit."""
    unit, scale = _unit(nanoseconds)
    return f"{_digits(nanoseconds / scale)} {unit}"


def format_range(bucket: Bucket) -> str:
    """`1.60-2.00 µs`: both edges in the unit of the upper one."""
    unit, scale = _unit(bucket.end)
    return f"{_digits(bucket.start / scale)}-{_digits(bucket.end / scale)} {unit}"


def _edges(ordered: Sequence[int]) -> list[int]:
    low, bulk, high = ordered[0], percentile(ordered, _BULK), ordered[-1]
    edges = next(edges for series in _SERIES if len(edges := _between(series, low, bulk)) <= ROWS_MAX + 1 or len(series) == 1)
    if high >= edges[-1]:
        edges += [edge for edge in _between(_SERIES[-1], edges[-1], high) if edge > edges[-1]]
    return edges


def _between(series: Sequence[int], low: int, high: int) -> list[int]:
    """Edges of the series, the first not above `low` and the last above `high`; none below _LOWEST."""
    edges = [_LOWEST]
    power = 1
    while edges[-1] <= high:
        edges += [value * power for value in series if value * power > edges[-1]]
        power *= 10
    first = max(0, bisect_left(edges, low + 1) - 1)
    last = bisect_left(edges, high + 1)
    return edges[first : last + 1]


def _unit(nanoseconds: float) -> tuple[str, int]:
    return next(((unit, scale) for unit, scale in _UNITS if nanoseconds >= 0.9995 * scale), _UNITS[-1])


def _digits(value: float) -> str:
    """Three significant digits without an exponent."""
    return f"{value:.{max(0, 2 - len(str(int(value))) + 1)}f}"
