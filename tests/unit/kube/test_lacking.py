"""When a thing that a list lacks counts as gone. The tests set clock and versions."""

from __future__ import annotations

import math

import pytest

from userspace_cni.kube.lacking import MissingObjects


class Lists:
    """A collection with the things a and b. The test says when its lists come, and with which versions."""

    def __init__(self) -> None:
        self.now = 100.0
        self.known = {"a", "b"}
        self.lacking = MissingObjects(10.0, lambda: self.now)

    def come(self, at: float, version: str, *keys: str, asked_at: float | None = None) -> set[str]:
        """A list with these things arrives; what is gone by it."""
        self.now = at
        gone = self.lacking.note_list(self.known, set(keys), version, at if asked_at is None else asked_at)
        self.known = self.known - gone | set(keys)
        return {str(each) for each in gone}


@pytest.mark.parametrize("left", [(), ("b",)], ids=["all", "one of many"])
def test_gone_is_what_two_lists_lack(left: tuple[str, ...]) -> None:
    """The second list counts if it was requested ten seconds after the first one came and has a later version."""
    lists = Lists()
    assert lists.come(100, "7", *left) == set()
    assert lists.come(105, "8", *left) == set()
    assert lists.come(112, "9", *left, asked_at=109) == set()
    assert lists.come(122, "10", *left, asked_at=110) == {"a", "b"} - set(left)


def test_the_same_version_is_the_same_answer() -> None:
    """A repeated version proves nothing. An older one means that the server went back, and the count begins anew with it."""
    lists = Lists()
    for at in (100, 120, 140, 160):
        assert lists.come(at, "7", "b") == set()
    assert lists.come(180, "6", "b") == set()
    assert lists.come(189, "7", "b") == set()
    assert lists.come(190, "7", "b") == {"a"}


def test_versions_that_are_no_numbers() -> None:
    """Of two versions that are no numbers, a different one counts as later."""
    lists = Lists()
    assert lists.come(100, "x", "b") == set()
    assert lists.come(110, "x", "b") == set()
    assert lists.come(120, "w", "b") == {"a"}


def test_what_is_there_again_begins_anew() -> None:
    """A thing that a list or an event shows again no longer counts as missing."""
    lists = Lists()
    lists.come(100, "1", "b")
    lists.come(111, "2", "a", "b")
    assert lists.come(122, "3", "b") == set()
    lists.lacking.note_event("a")
    assert lists.come(133, "4", "b") == set()
    assert lists.come(144, "5", "b") == {"a"}


def test_what_there_was_before() -> None:
    """A thing that no list of this process had counts as absent from the second list on."""
    lists = Lists()
    assert not lists.lacking.confirmed
    lists.come(100, "1", "a", "b")
    lists.come(105, "2", "a", "b")
    assert not lists.lacking.confirmed
    lists.come(110, "3", "a", "b")
    assert lists.lacking.confirmed


def test_when_the_next_list_is_due() -> None:
    """The next list is due ten seconds after the first one that lacks something, and later if its version was no later one.

    No list is due when nothing is to be confirmed. A failed list delays the next one.
    """
    lists = Lists()
    assert lists.lacking.due == math.inf
    lists.come(100, "1", "a", "b")
    assert lists.lacking.due == 110
    lists.come(105, "1", "a", "b")
    assert lists.lacking.due == 110
    pauses = []
    for _ in range(5):
        at = lists.lacking.due
        lists.come(at, "1", "a", "b")
        pauses.append(lists.lacking.due - at)
    assert pauses == [10, 20, 40, 60, 60]
    lists.come(lists.lacking.due, "2", "a", "b")
    assert lists.lacking.due == math.inf
    lists.come(lists.now + 1, "3", "a")
    assert lists.lacking.due == lists.now + 10
    lists.now = lists.lacking.due
    assert lists.lacking.is_due
    lists.lacking.put_off()
    assert (lists.lacking.is_due, lists.lacking.due) == (False, lists.now + 10)
