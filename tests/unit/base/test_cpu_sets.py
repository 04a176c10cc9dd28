"""Sets of CPUs as kernel and switch write them."""

from __future__ import annotations

from hypothesis import given
from hypothesis.strategies import frozensets, integers

from userspace_cni.base.cpu_sets import as_list, as_mask, read_list, read_mask


@given(frozensets(integers(0, 300)))
def test_what_is_written_is_read(cpus: frozenset[int]) -> None:
    """Both forms hold the whole set."""
    assert read_list(as_list(cpus)) == cpus
    assert read_mask(as_mask(cpus)) == cpus


def test_forms() -> None:
    """Ranges are joined; text of other programs that is no list or mask is none."""
    assert (as_list({3, 1, 2, 9}), as_mask({1, 8})) == ("1-3,9", "0x102")
    assert (read_list(" (null)\n"), read_list("0-3:2/4"), read_list("0-99999999")) == (
        frozenset(),
        frozenset(range(4)),
        frozenset(),
    )
    assert (read_mask("cores"), read_mask('"0x3"'), read_mask("")) == (None, frozenset({0, 1}), None)
