"""The parser of OVSDB messages."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from userspace_cni.ovsdb.json_parser import Parser

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
MESSAGES = st.lists(st.dictionaries(st.text(), JSON, max_size=4), min_size=1, max_size=4)


def parse(pieces: list[str]) -> list[Any]:
    """All messages of a stream that comes in pieces, as ovs.jsonrpc reads them."""
    found, parser = [], Parser()
    for piece in pieces:
        rest = piece
        while rest:
            rest = rest[parser.feed(rest) :]
            if parser.is_done():
                found.append(parser.finish())
                parser = Parser()
    return found


@given(MESSAGES, st.booleans(), st.integers(1, 50), st.sampled_from(["", " ", "\n"]))
def test_messages_are_found_however_they_are_cut(messages: list[Any], ascii_only: bool, size: int, between: str) -> None:
    """Pieces of any size, with braces, quotes and backslashes in strings, give the messages that were sent."""
    stream = between.join(json.dumps(message, ensure_ascii=ascii_only) for message in messages)
    assert parse([stream[start : start + size] for start in range(0, len(stream), size)]) == messages


@pytest.mark.parametrize("garbage", ["HTTP/1.1 400", "[1]", "1", "}", '"x"', "  null"])
def test_garbage_is_an_error_at_once(garbage: str) -> None:
    """Anything but an object is an error string, which ovs.jsonrpc takes for a protocol error."""
    assert [type(answer) for answer in parse([garbage])] == [str]


@pytest.mark.parametrize("garbage", ["{]}", "{1:2}", '{"a":tru}', '{"a" 1}'])
def test_a_malformed_object_is_an_error(garbage: str) -> None:
    """Balanced braces around nonsense are an error string too."""
    assert [type(answer) for answer in parse([garbage])] == [str]


def test_an_unfinished_object_waits_for_more() -> None:
    """Nothing is concluded from half a message."""
    parser = Parser()
    assert parser.feed('{"a": "}') == 8
    assert not parser.is_done()


def test_messages_that_came_together_are_told_apart() -> None:
    """Of several messages in one piece, of which the last is cut off, each is given as soon as it is whole."""
    messages: list[Any] = [{"a": {"b": "}{"}}, {}, {"c": [{"d": 'e"'}]}]
    stream = "".join(map(json.dumps, messages))
    assert parse([stream + '{"f": {"g"', ": 1}", "}"]) == [*messages, {"f": {"g": 1}}]
