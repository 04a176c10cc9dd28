"""What holds for any key, any JSON value and any garbage, not only for chosen examples."""

from __future__ import annotations

import contextlib
import math
import os
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from localdb import Store, StoreError
from localdb.names import encode_name
from localdb.record_format import SPLIT_PAIR, decode_record, encode_record
from localdb.store_errors import Foreign, Newer

if TYPE_CHECKING:
    from pathlib import Path

# Lone surrogates included; a split pair is refused by put and tested by name.
TEXT = st.text(st.characters(exclude_categories=())).filter(lambda text: not SPLIT_PAIR.search(text))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
    max_leaves=20,
)
VALUE = st.dictionaries(TEXT, JSON, max_size=5)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Return a store that does not flush: nothing here is about power cuts, and a flush per example costs seconds."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    return Store(tmp_path / "root", tmp_path / "locks", warn=lambda _: None)


def same(left: object, right: object) -> bool:
    """Compare like ==, but tell True from 1, 1 from 1.0 and 0.0 from -0.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float) and isinstance(right, float):
        return left == right and math.copysign(1, left) == math.copysign(1, right)
    return bool(left == right)


@given(TEXT, TEXT, VALUE)
def test_any_record_round_trips(store: Store, collection: str, key: str, value: dict[str, Any]) -> None:
    """Whatever the collection, the key and the value, get and items return exactly that value, and drop removes it."""
    assume(collection not in ("quarantine", "identity"))
    store.put(collection, key, value)
    found = store.get(collection, key)
    assert same(found, value)
    assert [item for item in store.items(collection) if item[0] == key] == [(key, value)]
    store.drop(collection, key)
    assert store.get(collection, key) is None


@settings(max_examples=100)
@given(TEXT | st.text("%~.2Ea", max_size=4), TEXT | st.text("%~.2Ea", max_size=4))
def test_file_names_are_injective_and_safe(one: str, other: str) -> None:
    """Two keys share a file name only when they are the same key, and no name is hidden, long or more than a name."""
    first, second = encode_name(one, ".json"), encode_name(other, ".json")
    assert (first == second) == (one == other)
    assert "/" not in first
    assert not first.startswith(".")
    assert len(first.encode("ascii")) <= 200


@given(st.binary(max_size=200))
def test_garbage_in_a_file_never_raises(store: Store, garbage: bytes) -> None:
    """Any bytes in a record's place make get and items say it is absent, never fail, and never touch its neighbour."""
    store.put("c", "good", {"n": 1})
    place = store.root / "c" / "k.json"
    place.write_bytes(garbage)
    assert store.get("c", "k") is None
    place.write_bytes(garbage)
    assert store.items("c") == [("good", {"n": 1})]


@settings(max_examples=100)
@given(st.binary() | JSON.map(lambda value: encode_record("k", {"v": value})[:-3]))
def test_garbage_is_only_ever_foreign_or_newer(garbage: bytes) -> None:
    """Decoding has no other failure than the two the store knows what to do with."""
    with contextlib.suppress(Foreign, Newer):
        decode_record(garbage)


@settings(max_examples=100)
@given(JSON, st.sampled_from(["schema", "key", "value"]))
def test_an_envelope_of_odd_parts_never_raises(store: Store, part: object, where: str) -> None:
    """A well-formed envelope with anything in one of its fields is a record, foreign, or newer; nothing else happens."""
    envelope: dict[str, Any] = {"schema": 1, "key": "k", "value": {}, where: part}
    place = store.root / "c" / "k.json"
    store.put("c", "k", {})
    place.write_bytes(encode_record("", envelope).removeprefix(b'{"key": "", "schema": 1, "value": ').removesuffix(b"}\n"))
    newer = where == "schema" and type(part) is int and part > 1
    for use in (store.get, lambda collection, _: store.items(collection)):
        try:
            use("c", "k")
        except StoreError:
            assert newer
    assert place.exists() >= newer


@given(VALUE.filter(bool), st.data())
def test_every_prefix_of_a_record_is_foreign(value: dict[str, Any], data: st.DataObject) -> None:
    """A record cut off at any byte before its closing brace is recognised as torn."""
    whole = encode_record("k", value)
    cut = data.draw(st.integers(0, len(whole) - 2))
    with pytest.raises(Foreign):
        decode_record(whole[:cut])
