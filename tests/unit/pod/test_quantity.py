"""Amounts as Kubernetes writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from userspace_cni.pod.quantity import amount


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [
        ("0", 0), ("1", 1), (5, 5), ("+1", 1), ("1Ki", 1024), ("2Mi", 2 << 20), ("1.5Gi", 3 << 29), (".5Ki", 512), ("1.", 1),
        ("64M", 64_000_000),
        ("1k", 1000),
        ("500m", 1), ("1500m", 2), ("1e3", 1000), ("1E3", 1000), ("1E", 10**18), ("1Ei", 1 << 60), ("12e-1", 2), ("0.1n", 1),
    ],
)  # fmt: skip
def test_amounts(text: str | int, bytes_: int) -> None:
    """Binary and decimal suffixes, exponents and fractions, rounded up to whole units."""
    assert amount(text) == bytes_


@pytest.mark.parametrize(
    "text",
    ["", " 1", "1 Gi", "1gi", "Gi", "-1", "1KiB", "1e400", "1" * 30, "0x10", "\u0661", None, True, 1.5, -1, 1 << 70],
)
def test_what_is_no_amount(text: object) -> None:
    """Everything else is none, of whatever type."""
    assert amount(text) is None


@given(st.text(alphabet="0123456789.+-eEiKMGTPEnumk ", max_size=12))
def test_any_text(text: str) -> None:
    """Any text is an amount that is not negative, or none."""
    found = amount(text)
    assert found is None or found >= 0
