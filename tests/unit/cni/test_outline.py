"""How large a network may be: what ADD refuses before it is decoded, and what DEL still finds in it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from userspace_cni.base.errors import InvalidConfig, Undecodable
from userspace_cni.cni.outline import LATER, NEW, WORDS, read_outline
from userspace_cni.cni.request import Verb, read_network, version_of

WHOLE = {"cniVersion": "1.1.0", "name": "n", "type": "userspace"}
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=20,
)

MEMBERS = st.dictionaries(st.text() | st.sampled_from(WORDS), VALUES, max_size=6)


def padded(octets: int, **keys: Any) -> bytes:
    """A configuration of so many bytes."""
    text = json.dumps({**WHOLE, **keys, "args": ""})
    return text.replace('"args": ""', f'"args": "{"x" * (octets - len(text))}"').encode()


@pytest.mark.parametrize(("verb", "most"), [("ADD", NEW), ("STATUS", NEW), ("CHECK", LATER), ("GC", LATER)])
def test_the_largest_configuration(verb: Verb, most: Any) -> None:
    """A configuration of that size is read; one with a byte more is refused with 7, sizes and remedy, whatever is in it."""
    assert read_network(padded(most.octets), verb).name == "n"
    for larger in (padded(most.octets + 1), b"{" + b"x" * most.octets):
        with pytest.raises(InvalidConfig) as refused:
            read_network(larger, verb)
        assert refused.value.code == 7
        assert f"{most.octets + 1} bytes" in refused.value.message
        assert f"at most {most.octets} bytes" in refused.value.details


@pytest.mark.parametrize(("verb", "most"), [("ADD", NEW), ("CHECK", LATER)])
def test_the_most_values(verb: Verb, most: Any) -> None:
    """A certain number of braces, brackets and commas is accepted, one more is
    refused: short values take more memory than their text.
    """
    held = most.marks - 2 * len(WHOLE) + 2
    text = json.dumps({**WHOLE, "a": []}).replace("[]", "[" + ",".join(["1"] * held) + "]")
    over = text.count(",") + text.count("[") + text.count("{") - most.marks
    at_most = text.replace("1," * over, "", 1).encode() if over >= 0 else text.replace("[1", "[" + "1," * -over + "1").encode()
    assert read_network(at_most, verb).name == "n"
    with pytest.raises(InvalidConfig, match=f"{most.marks + 1} braces, brackets and commas"):
        read_network(at_most.replace(b"[1", b"[1,1"), verb)


@pytest.mark.parametrize("octets", [NEW.octets + 1, LATER.octets + 1, 4 << 20])
def test_del_of_what_add_refuses(octets: int) -> None:
    """DEL knows name, version and type of a network of any size, and an error about it has its version."""
    network = read_network(padded(octets, ipam={"type": "static"}), "DEL")
    assert (network.name, network.version, network.raw["type"]) == ("n", "1.1.0", "userspace")
    assert version_of(padded(octets, cniVersion="0.4.0")) == "0.4.0"


@given(members=MEMBERS, ascii_=st.booleans(), indent=st.none() | st.just(2))
def test_an_outline_is_what_the_parser_finds(members: dict[str, Any], ascii_: bool, indent: int | None) -> None:
    """The outline has the object's top-level keys with text values, however deep the same words occur elsewhere."""
    text = json.dumps(members, ensure_ascii=ascii_, indent=indent)
    found = {word: value for word, value in members.items() if word in WORDS and isinstance(value, str) and len(value) < 80}
    told = read_outline(f" {text}\n".encode("utf-8", "surrogatepass"))
    assert {word: value for word, value in told.items() if value or word in found} == found


def test_the_last_of_two_counts() -> None:
    """As in the parser, the last of two keys counts, and a key may be written with escapes."""
    assert read_outline(rb'{"name":"a","\u006eame":"b"}') == {"name": "b"}


@pytest.mark.parametrize("text", [b"", b"[]", b'"name"', b"{", b'{"name":"a"', b'{"a":[}', b'{"name":"a"}}', b'{"a":"', b"{}x"])
def test_what_is_no_object(text: bytes) -> None:
    """A text that does not end as it began has no outline: 6."""
    with pytest.raises(Undecodable):
        read_outline(text)
