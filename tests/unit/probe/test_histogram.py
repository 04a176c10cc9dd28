"""Percentiles and buckets of measured times."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from userspace_cni.probe.histogram import (
    ROWS_MAX,
    Bucket,
    Spread,
    buckets,
    format_range,
    format_time,
    percentile,
    spread,
)


def test_percentiles_are_times_that_were_measured() -> None:
    """The nearest-rank percentile: never between two times, and never beyond the largest."""
    assert spread(range(1, 101)) == Spread(1, 50, 90, 99, 100, 50.5)
    assert spread([7]) == Spread(7, 7, 7, 7, 7, 7.0)
    assert [percentile([10, 20], share) for share in (0.0, 0.5, 0.51, 1.0)] == [10, 10, 20, 20]


def test_a_mode_and_its_outliers_are_both_seen() -> None:
    """The bulk has narrow buckets; a time a thousand times as long has one of a whole power of ten."""
    found = buckets([1600] * 500 + [1700] * 490 + [2_500_000])
    assert found[:2] == [Bucket(1600, 1700, 500), Bucket(1700, 1800, 490)]
    assert found[-1] == Bucket(1_000_000, 10_000_000, 1)
    assert len(found) == 6


def test_no_times_have_no_buckets() -> None:
    """Nothing was measured."""
    assert buckets([]) == []


@given(st.lists(st.integers(min_value=0, max_value=10**12), min_size=1))
def test_every_time_is_in_one_bucket(times: list[int]) -> None:
    """Buckets have no gap, hold all the times, begin and end with one, and are few, whatever the times are."""
    found = buckets(times)
    assert sum(bucket.count for bucket in found) == len(times)
    assert all(bucket.start < bucket.end for bucket in found)
    assert all(one.end == other.start for one, other in pairwise(found))
    assert found[0].count
    assert found[-1].count
    assert len(found) <= ROWS_MAX + 10
    for bucket in found[1:]:
        assert bucket.count == sum(bucket.start <= time < bucket.end for time in times)


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (5, "5.00 ns"),
        (950, "950 ns"),
        (999.6, "1.00 µs"),
        (1640, "1.64 µs"),
        (12_345, "12.3 µs"),
        (2.5e6, "2.50 ms"),
        (3e9, "3.00 s"),
    ],
)
def test_a_time_has_three_digits(nanoseconds: float, text: str) -> None:
    """The unit is the largest of which it is at least one."""
    assert format_time(nanoseconds) == text


def test_a_range_has_one_unit() -> None:
    """Both edges have the unit of the upper one."""
    assert format_range(Bucket(950, 1000, 1)) == "0.95-1.00 µs"
    assert format_range(Bucket(100_000, 1_000_000, 1)) == "0.10-1.00 ms"
