"""What the strict reader of JSON refuses: always, or if its caller asks for it."""

from __future__ import annotations

import json
import math
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from userspace_cni.pod.strict_json import JsonReader, once

STRICTEST = JsonReader(once, digits_max=4, deepest=3)


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "-Infinity", "1e999", "-1e999", "", "{", "[" * 100_000, "1 2", "\ufeff1"])
def test_what_is_always_refused(text: str) -> None:
    """What is not one JSON value, and numbers that no float holds, are a ValueError for every reader."""
    with pytest.raises(ValueError, match=r"\S"):
        JsonReader().read(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"a": 1, "a": 2}', "key 'a' is given twice"),
        ("12345", "not a JSON number"),
        ('["\\ud800"]', "surrogate"),
        ('{"\\ud800": 1}', "surrogate"),
        ('["\ud800"]', "surrogate"),
        ("[[[1]]]", "nested deeper than 3"),
    ],
)
def test_what_is_refused_where_a_reader_says_so(text: str, why: str) -> None:
    """A repeated key, long numbers, half surrogate pairs and depth are refused only by a reader that asks for it."""
    JsonReader().read(text)
    with pytest.raises(ValueError, match=why):
        STRICTEST.read(text)
    with pytest.raises(ValueError, match=why):
        list(STRICTEST.stream(f" 1 {text}"))


def test_many_brackets_are_not_deep() -> None:
    """Objects side by side, and brackets in strings, count for nothing."""
    assert STRICTEST.read('{"a": [1], "b": [2], "c": "[{[{"}') == {"a": [1], "b": [2], "c": "[{[{"}


def test_a_stream_is_its_values() -> None:
    """Values may follow one another with or without white space, and none at all is none."""
    assert list(JsonReader().stream('1{"a": []}\n[2]\t')) == [1, {"a": []}, [2]]
    assert list(JsonReader().stream(" \r\n")) == []


@given(st.text() | st.recursive(st.none() | st.integers() | st.floats() | st.text(), st.lists).map(json.dumps))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Nothing but ValueError is raised, and what is read can be written and read again."""
    with suppress(ValueError):
        value = STRICTEST.read(text)
        assert not (isinstance(value, float) and not math.isfinite(value))
        assert STRICTEST.read(json.dumps(value, allow_nan=False)) == value
