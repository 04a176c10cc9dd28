"""What the JSON Schema of networks takes is what ADD takes: documents made of the table of keys, with any value at any key.

A schema says of each key alone what it can be. So a key stands beside what the table says that it needs (`beside`). Where there
is more to say of a value than a schema can, the table has a `check`, or an `item` for those of a list; and keys of other programs
are judged by these (`standard`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from tests.lab.node.configurations import read
from userspace_cni.base.errors import UserspaceError
from userspace_cni.cni.network_keys import ANY, SAME, TABLE, Key, key_at
from userspace_cni.cni.network_schema import network_schema
from userspace_cni.consumers import CONSUMERS

JUDGE = Draft202012Validator(network_schema(CONSUMERS))
ANYTHING: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(["", ".", "..", "/", "/a/../b", "0", "ü", " ", "a\n", [], {}, [None], [1], [{}], {"a": 1}]),
    st.none() | st.booleans() | st.integers(-(2**31), 2**63) | st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
)


def around(key: Key) -> Iterator[st.SearchStrategy[Any]]:
    """Values at the edges of what the key can be, and others that it can."""
    if key.choices:
        yield st.sampled_from([*key.choices, *(f"{choice}x" for choice in key.choices), *map(str, key.choices)])
    if key.bounds:
        least, most = key.bounds
        numbers = st.sampled_from([least - 1, least, most, most + 1]) | st.integers(least, most)
        if key.kind is int:
            yield numbers
        elif key.kind is str:
            yield st.sampled_from([least, most, most + 1]).map(lambda length: "a" * length)
            yield st.sampled_from([most, most + 1]).map(lambda length: "/".ljust(length, "a"))
        else:
            yield st.sampled_from([most, most + 1]).map(lambda length: [{}] * length)
    if key.pattern:
        whole = st.from_regex(key.pattern, fullmatch=True)
        yield whole | whole.map(lambda text: f"{text}~") | whole.map(lambda text: f"~{text}")
    if key.also:
        yield st.integers(0, 2**31).map(str) | st.integers(0, 2**31)


CASES = st.sampled_from(TABLE).flatmap(lambda key: st.tuples(st.just(key), st.one_of(ANYTHING, *around(key))))


def put(document: dict[str, Any], path: str, value: Any) -> None:
    """Put the value at the path, in objects that are made where they are missing; a mirror's is in a list."""
    *places, name = path.split(".")
    held = document
    for place in places:
        held = held.setdefault(place, [{"name": "ids"}] if place == "mirrors" else {})
        held = held[0] if isinstance(held, list) else held
    held[name] = value


DIRECTIONS = {"ingress": "egress", "egress": "ingress"}
"""A mirror shows one of them at least: where one is false the other has to be said."""


def document_of(key: Key, value: Any) -> dict[str, Any]:
    """A network with that value at that key, and beside it what key and places need."""
    document: dict[str, Any] = {"cniVersion": "1.1.0", "name": "n", "type": "userspace"}
    parts = key.path.split(".")
    for length in range(1, len(parts) + 1):
        for other, needed in key_at(".".join(parts[:length])).beside.items():
            if needed != SAME or value in key.choices:
                put(document, other, {SAME: value, ANY: "static"}.get(needed, needed))
    put(document, key.path, value)
    if key.path == "addresses" and value == "unknown":
        put(document, "ovn", {})  # the addresses of a logical port alone can be unknown
    if key.place == "mirrors" and key.name in DIRECTIONS:
        put(document, f"mirrors.{DIRECTIONS[key.name]}", True)
    return document


def is_taken(document: dict[str, Any]) -> bool:
    """Whether ADD takes the network."""
    try:
        read(**document)
    except UserspaceError:
        return False
    return True


def is_beyond_a_schema(key: Key, value: Any) -> bool:
    """Whether ADD may have more to say of this value: by the table, or for how it is written. 9000.0 is an integer for JSON
    Schema, and the end that a pattern of this checker means is before a last newline, too."""
    if isinstance(value, float):
        return value.is_integer()
    if isinstance(value, str):
        return bool(key.check) or value.endswith("\n")
    return isinstance(value, list) and (bool(key.item) or key.kind is list)


@settings(max_examples=400)
@given(CASES)
def test_a_value_of_a_key(case: tuple[Key, Any]) -> None:
    """What ADD takes the schema takes, but for what is others' to judge; what ADD refuses the schema refuses, where it can."""
    key, value = case
    document = document_of(key, value)
    if is_taken(document):
        assert key.standard or JUDGE.is_valid(document)
    elif not is_beyond_a_schema(key, value):
        assert not JUDGE.is_valid(document)


def test_what_keys_need() -> None:
    """Without what the table says that it needs, a value of the key is refused: the table says no more than is so."""
    for key in (each for each in TABLE if each.beside):
        values = {"host.engine": "ovs", "container.iftype": "veth", "netem": {"limit": 1}, "serviceCIDRs": "node"}
        value = values.get(
            key.path, True if key.kind is bool else key.choices[0] if key.choices else (key.bounds or (1,))[0] or 1
        )
        assert is_taken(document_of(key, value)), key.path
        alone = {"cniVersion": "1.1.0", "name": "n", "type": "userspace"}
        put(alone, key.path, value)
        assert not is_taken(alone), key.path
