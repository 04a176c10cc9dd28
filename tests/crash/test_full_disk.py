"""The disk of the state directory is full or read-only: ADD fails with a clear error and leaves nothing, DEL works."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cni.spec import read_only, switch_of
from tests.crash.victims import Victim
from tests.lab.node.disks import fill, small_disk
from tests.lab.node.node import Node
from userspace_cni.cni.call import CniAnswer

NEEDED = 16
"""Number of free pages with which an ADD succeeds."""


def left(victim: Victim) -> dict[str, Any]:
    """What the attachment left, without the small disk, which is itself a mount below the node's directory."""
    found = victim.leftovers()
    found["mounts"] = [point for point in found.get("mounts", []) if point != str(victim.node.state)]
    return {kind: items for kind, items in found.items() if items}


def error_of(answered: CniAnswer) -> dict[str, Any]:
    assert answered.code == 1
    error: dict[str, Any] = json.loads(answered.output)
    return error


@pytest.mark.parametrize("mode", ["client", "server"])
def test_add_on_a_disk_that_fills_up(node: Node, sandbox: str, mode: str) -> None:
    """Whichever write finds no room: ADD answers 109 naming directory and reason, and leaves nothing; with room it succeeds."""
    victim = Victim(node, sandbox, mode)
    failed = 0
    with small_disk(node.state) as filler:
        for free in range(NEEDED + 1):
            fill(filler, free)
            answered = victim.call("ADD")
            if answered.code:
                failed += 1
                error = error_of(answered)
                assert error["code"] == 109, error
                assert "No space left on device" in f"{error['msg']} {error['details']}"
                assert str(node.state) in f"{error['msg']} {error['details']}"
            else:
                assert victim.call("DEL") == CniAnswer(0, b"")
            assert left(victim) == {}, free
        assert NEEDED > failed > 1


@pytest.mark.parametrize("mode", ["client", "server"])
def test_del_on_a_full_disk(node: Node, sandbox: str, mode: str) -> None:
    """DEL needs no room: everything is removed, the records with it."""
    victim = Victim(node, sandbox, mode)
    with small_disk(node.state) as filler:
        assert victim.call("ADD").code == 0
        fill(filler, 0)
        assert victim.call("DEL") == CniAnswer(0, b"")
        assert left(victim) == {}


def test_add_in_a_directory_that_takes_no_writes(node: Node, sandbox: str) -> None:
    """A read-only state directory: 109 naming it, and nothing was done."""
    victim = Victim(node, sandbox)
    node.state.mkdir()
    with read_only(node.state):
        error = error_of(victim.call("ADD"))
    assert error["code"] == 109
    assert "Read-only file system" in f"{error['msg']} {error['details']}"
    assert victim.leftovers() == {}


def test_del_in_a_directory_that_takes_no_writes(node: Node, sandbox: str) -> None:
    """DEL removes what it can and answers 11, for its record stays; as soon as that can be written another DEL ends it."""
    victim = Victim(node, sandbox)
    assert victim.call("ADD").code == 0
    with read_only(node.state):
        assert error_of(victim.call("DEL"))["code"] == 11
        assert switch_of(node).bridges() == []
        assert "leases" not in left(victim)
    victim.delete()


@pytest.mark.parametrize("point", ["before undo config-file", "after undo port", "after undo directory"])
@pytest.mark.parametrize("how", ["DEL", "calls of others"])
def test_del_that_dies_where_its_mark_is_all_that_tells_of_it(node: Node, sandbox: str, point: str, how: str) -> None:
    """SIGKILL on a read-only state directory, whose record still says ready: the next DEL follows the mark; nothing is left."""
    victim = Victim(node, sandbox)
    assert victim.call("ADD").code == 0
    with read_only(node.state):
        victim.kill("DEL", point)
    if how == "DEL":
        victim.delete()
    else:
        victim.forget()
