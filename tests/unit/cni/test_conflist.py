"""A list of plugins in a file: an invalid one is refused by name, and only the mark says whose file it is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from userspace_cni.base.errors import BadRequest
from userspace_cni.cni.conflist import LARGEST, MARK, mark, plugins_of, read_list, require_name, store_of

LIST: dict[str, Any] = {"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "userspace"}]}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b'{"name": "a", "name": "b"}', "given twice"),
        (b"[" * 200 + b"]" * 200, "nested deeper"),
        (b"[]", "not a list of plugins"),
        (b'{"type": "userspace"}', "not a list of plugins"),
        (b'{"plugins": []}', "not a list of plugins"),
        (b'{"plugins": {}}', "not a list of plugins"),
        (b'{"plugins": [1]}', r"plugins\[0\] has no 'type'"),
        (b'{"plugins": [{"type": "a"}, {"type": ""}]}', r"plugins\[1\] has no 'type'"),
        (json.dumps({**LIST, MARK: "x"}).encode(), MARK),
        (b'{"plugins": [{"type": "a"}]}'.ljust(LARGEST.octets + 1), "too large"),
        (b'{"plugins": [' + b"{}," * LARGEST.marks + b"{}]}", "too large"),
    ],
)
def test_what_is_no_list(text: bytes, why: str) -> None:
    """Refused, with the file's name."""
    with pytest.raises(BadRequest, match=why) as refused:
        read_list(text, "file x")
    assert str(refused.value).startswith("file x: ")


@pytest.mark.parametrize(
    "name", ["", ".conflist", "a.conf", "a.json", "a b.conflist", "../a.conflist", ".a.conflist", "a" * 101 + ".conflist"]
)
def test_names_that_no_file_has(name: str) -> None:
    """A name that a runtime would not read, or that leads elsewhere, is refused."""
    with pytest.raises(BadRequest, match=r"must end with \.conflist"):
        require_name(name, "setting")


def test_the_mark() -> None:
    """Only the mark is added; a text without it, or of another form, is another program's."""
    assert require_name("10-net.conflist", "") == "10-net.conflist"
    text = mark(read_list(json.dumps(LIST).encode(), ""), "c0ffee")
    assert json.loads(text) == {**LIST, MARK: "c0ffee"}
    assert store_of(text.encode()) == "c0ffee"
    others = [json.dumps(LIST), "", "[]", "{", f'{{"{MARK}": 1}}', "[" * 100_000, text + " " * 2 * LARGEST.octets]
    assert [store_of(each.encode()) for each in others] == [""] * len(others)
    assert store_of(b"\xff") == ""


def test_what_plugins_inherit() -> None:
    """Plugins get name and version of the list; of several versions the newest that this plugin knows."""
    assert list(plugins_of(LIST, {})) == [(0, {"type": "userspace", "cniVersion": "1.0.0", "name": "net"})]
    several = {"cniVersions": ["0.4.0", "1.1.0", "9"], "plugins": [{"type": "a"}, 1, {"type": "b"}]}
    assert list(plugins_of(several, {"name": "n"})) == [
        (0, {"type": "a", "cniVersion": "1.1.0", "name": "n"}),
        (2, {"type": "b", "cniVersion": "1.1.0", "name": "n"}),
    ]


def test_what_would_not_be_known_again() -> None:
    """A list longer than what is read of its file is refused; letters of any alphabet are accepted."""
    deep: Any = 1
    for _ in range(90):
        deep = [deep]
    with pytest.raises(BadRequest, match="more than"):
        mark({**LIST, "args": [deep] * 100}, "c0ffee")
    assert store_of(mark({**LIST, "args": "ж" * 60_000}, "c0ffee").encode()) == "c0ffee"
