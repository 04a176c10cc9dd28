"""When the kernel has no more threads, descriptors or locks, a verb answers "try
again later", a retry succeeds, and no answer is "a bug".
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cni.spec import succeeded
from tests.lab.node import inside
from tests.lab.node.node import Node
from tests.lab.node.scarce import scarce
from userspace_cni.cni.call import CniAnswer

THREADS = RuntimeError("can't start new thread")
LOCKS = OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
DESCRIPTORS = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
NOT_TOLD = OSError(errno.EIO, os.strerror(errno.EIO))
AGAIN = (0, 11, 50)
"""The codes that are right: success, try again later, and STATUS's "not ready"."""
MOST = 200


def call(node: Node, verb: str, sandbox: str, stdin: dict[str, Any]) -> tuple[dict[str, str], bytes]:
    return node.variables(verb, sandbox), json.dumps(stdin).encode()


def answers(
    node: Node, verb: str, sandbox: str, error: Exception, only: frozenset[str], every: int = 1
) -> Iterator[tuple[str, CniAnswer]]:
    """The answers to the verb, called again and again with one kernel call failing, each time the next one, until none is left to
    fail.

    Before each call there is an attachment, except for ADD, and after the next DEL there is nothing: it undoes what a failed call
    left.
    """
    network = node.network("1.0.0", ipam=node.host_local())
    for at in range(1, MOST, every):
        stdin = network
        if verb in ("CHECK", "DEL", "GC"):
            stdin = {**network, "prevResult": succeeded(node.run("ADD", network, sandbox))}
        if verb in ("STATUS", "GC"):
            stdin = {**network, "cniVersion": "1.1.0", "cni.dev/valid-attachments": []}
        environ, raw = call(node, verb, sandbox, stdin)
        with scarce(at, error, only) as scarcity:
            answer = inside.answer(environ, raw, inside.Trip())
        if len(scarcity.made) >= at:
            yield f"{verb}, {scarcity.made[at - 1]} number {at}", answer
        succeeded(node.run("DEL", network, sandbox))
        if len(scarcity.made) < at:
            return
    raise AssertionError(f"{verb} makes more than {MOST} calls")


@pytest.mark.parametrize("verb", ["ADD", "DEL", "CHECK", "GC", "STATUS"])
@pytest.mark.parametrize(
    ("error", "only"),
    [(THREADS, "_start_new_thread"), (LOCKS, "flock"), (NOT_TOLD, "eventfd_write")],
    ids=["threads", "locks", "wake"],
)
def test_used_up_during_a_verb(node: Node, sandbox: str, verb: str, error: Exception, only: str) -> None:
    """Any thread or lock of a verb may be refused, and so may the signal to the session's thread."""
    node.settings["USERSPACE_CNI_DEADLINE_S"] = "5"
    for what, answer in answers(node, verb, sandbox, error, frozenset({only})):
        assert answer.error in AGAIN, (what, answer)
    assert node.leftovers() == {}


@pytest.mark.parametrize("verb", ["ADD", "CHECK", "STATUS"])
def test_descriptors_used_up(node: Node, sandbox: str, verb: str) -> None:
    """Any descriptor of a verb may be refused; the test tries every third."""
    node.settings["USERSPACE_CNI_DEADLINE_S"] = "5"
    calls = frozenset({"open", "pipe", "socket", "eventfd", "scandir", "listdir"})
    for what, answer in answers(node, verb, sandbox, DESCRIPTORS, calls, every=3):
        assert answer.error in AGAIN, (what, answer)
    assert node.leftovers() == {}


def test_a_session_that_could_not_be_woken_goes_on(node: Node, sandbox: str) -> None:
    """An ADD that cannot wake the session's thread is undone at once over the same session, and not at a deadline."""
    network = node.network()
    environ, raw = call(node, "ADD", sandbox, network)
    with scarce(1, NOT_TOLD, frozenset({"eventfd_write"})) as scarcity:
        answer = inside.answer(environ, raw, inside.Trip())
    assert scarcity.made[0] == "eventfd_write"
    assert answer.error == 11
    assert b"not undone yet" not in answer.output
    assert node.leftovers() == {}


def test_a_session_that_cannot_be_told(node: Node, sandbox: str, capfd: pytest.CaptureFixture[str]) -> None:
    """The eventfd of the session with OVSDB is one of the descriptors: without it there is an answer, and no traceback."""
    environ, raw = call(node, "ADD", sandbox, node.network())
    with scarce(1, DESCRIPTORS, frozenset({"eventfd"})):
        answer = inside.answer(environ, raw, inside.Trip())
    assert answer.error == 11
    assert node.leftovers() == {}
    assert "Traceback" not in capfd.readouterr().err
