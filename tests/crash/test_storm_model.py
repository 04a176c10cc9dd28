"""The model of a storm can fail: it finds what leaked, what was lost, and answers that cannot be true."""

from __future__ import annotations

import random

import pytest

from tests.crash.storm_faults import DEALT, deal
from tests.crash.storm_model import ABSENT, ATTACHED, EITHER, KILLED, Belongings, Call, Model, Name, Presences

ONE = Name("c0ffee" * 10 + "0123", "net1")
TWO = Name("decade" * 10 + "0123", "net1")
PORT, MOUNT, SOCKET = "port c0ffeec0ffee-net1 on br-a", "mount /short/one", "socket /pods/c0ffeec0ffee-net1"
BRIDGE = "bridge br-a"
THEIRS = "port decadedecade-net1 on br-a"
BELONGINGS = {
    ONE: Belongings(frozenset({PORT, MOUNT, BRIDGE}), frozenset({SOCKET})),
    TWO: Belongings(frozenset({THEIRS, BRIDGE})),
}
ADD, DEL = ("ADD", 0), ("DEL", 0)


def model(*answers: tuple[str, int], name: Name = ONE) -> Model:
    """A model with these calls, one after the other; no answer was impossible."""
    made = Model()
    for number, answer in enumerate(answers):
        assert made.called(name, call(*answer, number)) == []
    return made


def call(verb: str, code: int, at: float = 0.0, lasts: float = 0.5) -> Call:
    return Call(verb, code, at, at + lasts)  # type: ignore[arg-type]


def judged(made: Model, *found: str) -> list[str]:
    return [violation.what for violation in made.judge(BELONGINGS, frozenset(), frozenset(found), {})]


@pytest.mark.parametrize(
    ("answers", "presences"),
    [
        ([], ABSENT),
        ([ADD], ATTACHED),
        ([("ADD", 11)], ABSENT),
        ([("ADD", KILLED)], EITHER),
        ([ADD, ("ADD", 101)], ATTACHED),
        ([ADD, ("ADD", 11)], ATTACHED),
        ([ADD, ("ADD", KILLED)], ATTACHED),
        ([ADD, DEL], ABSENT),
        ([ADD, ("DEL", 11)], EITHER),
        ([ADD, ("DEL", KILLED)], EITHER),
        ([ADD, ("DEL", 11), ("ADD", 101)], EITHER),
        ([ADD, ("DEL", 11), DEL], ABSENT),
        ([("DEL", 11)], ABSENT),
        ([("ADD", KILLED), ("ADD", 101)], EITHER),
        ([("ADD", KILLED), ADD], ATTACHED),
        ([("ADD", KILLED), DEL, ADD], ATTACHED),
        ([ADD, ("GC", 0)], EITHER),
        ([ADD, ("CHECK", 103)], ATTACHED),
    ],
)
def test_what_answers_promise(answers: list[tuple[str, int]], presences: Presences) -> None:
    """Each answer commits the system; a call without an answer commits it to nothing."""
    assert model(*answers).presences(ONE) == presences


@pytest.mark.parametrize("answers", [[ADD, ADD], [("ADD", 101)], [ADD, DEL, ("ADD", 101)]])
def test_a_lying_answer(answers: list[tuple[str, int]]) -> None:
    """An impossible answer is reported with the history of the attachment."""
    made = model(*answers[:-1])
    found = made.called(ONE, call(*answers[-1], len(answers)))
    assert [violation.names for violation in found] == [(ONE,)]
    assert "cannot be true" in found[0].what
    assert f"ADD   error {answers[-1][1]}" in found[0].history or "ADD   success" in found[0].history


def test_a_bug_by_its_own_word() -> None:
    """Code 999 is a violation for every verb."""
    assert "999" in Model().called(ONE, call("CHECK", 999))[0].what


@pytest.mark.parametrize(
    ("calls", "presences"),
    [
        ([call("ADD", 0), call("ADD", 101)], ATTACHED),
        ([call("ADD", 0), call("DEL", 0)], EITHER),
        ([call("DEL", 0), call("DEL", 0)], ABSENT),
        ([call("ADD", 0), call("DEL", 11)], EITHER),
        ([call("ADD", 0, at=0), call("DEL", 0, at=2)], ABSENT),
    ],
)
def test_calls_at_the_same_time(calls: list[Call], presences: Presences) -> None:
    """Calls that overlap may have taken effect in every order that their times allow."""
    made = Model()
    assert made.called(ONE, *calls) == []
    assert made.presences(ONE) == presences


def test_two_winners() -> None:
    """Of two ADDs at the same time not both can succeed."""
    assert Model().called(ONE, call("ADD", 0), call("ADD", 0))


def test_all_as_promised() -> None:
    """An attachment with all parts that must and may be there, beside an absent one, is no violation."""
    assert judged(model(ADD), PORT, MOUNT, BRIDGE) == judged(model(ADD), PORT, MOUNT, BRIDGE, SOCKET) == []
    assert judged(model()) == judged(model(ADD, DEL)) == []


def test_a_leaked_port() -> None:
    """A port after a DEL that succeeded is reported with its attachment."""
    (found,) = model(ADD, DEL).judge(BELONGINGS, frozenset({BRIDGE}), frozenset({PORT, BRIDGE}), {PORT: "ofport -1"})
    assert found.what == f"found: {PORT} (ofport -1)"
    assert found.names == (ONE,)
    assert "DEL   success" in found.history


def test_a_leaked_socket() -> None:
    """A part that may be there with an attachment may not be there without it."""
    assert judged(model(ADD, DEL), SOCKET) == [f"found: {SOCKET}"]


def test_a_lost_attachment() -> None:
    """A mount that is missing while ADD has promised it is reported."""
    assert judged(model(ADD), PORT, BRIDGE) == [f"missing: {MOUNT}"]


def test_a_thing_without_holders() -> None:
    """Reported are things that belong to no attachment, or are there twice."""
    assert judged(model(ADD), PORT, MOUNT, BRIDGE, f"{MOUNT}, 2 times") == [f"found: {MOUNT}, 2 times"]


def test_doubt_allows_and_demands_nothing() -> None:
    """Everything or nothing of an attachment may exist if its ADD was killed; of any other one nothing may."""
    made = model(("ADD", KILLED))
    assert judged(made) == judged(made, PORT, MOUNT, BRIDGE) == []
    assert judged(made, THEIRS) == [f"found: {THEIRS}"]


def test_half_an_attachment() -> None:
    """Even without an answer, a port without its mount is neither attached nor absent. Other attachments' parts do not count."""
    made = model(ADD, ("DEL", 11))
    assert judged(made, PORT, BRIDGE) == [f"half of it is left: {PORT}\n  and not: {MOUNT}"]
    assert judged(made, BRIDGE) == []


def test_a_shared_bridge() -> None:
    """A shared bridge stays as long as one of its attachments does."""
    made = model(ADD)
    made.called(TWO, call("ADD", 0))
    made.called(ONE, call("DEL", 0, at=5))
    assert judged(made, THEIRS, BRIDGE) == []
    made.called(TWO, call("DEL", 0, at=6))
    assert judged(made, BRIDGE) == [f"found: {BRIDGE}"]


def test_a_vanished_sandbox() -> None:
    """Nothing of an attachment may stay when its sandbox has vanished, even without a DEL."""
    made = model(ADD)
    made.vanished(ONE, 3.0)
    assert judged(made, PORT) == [f"found: {PORT}"]


def test_faults_are_shown_with_the_calls_around_them() -> None:
    """A history has faults that last or are near, and not one that is long over."""
    made = Model()
    made.happens("long ago", 0.0).ended = 1.0
    made.happens("just before", 8.0).ended = 9.0
    made.happens("still lasting", 3.0)
    made.called(ONE, call("ADD", 0, at=10.0))
    history = made.history(ONE)
    assert ["long ago" in history, "just before" in history, "still lasting" in history] == [False, True, True]


@pytest.mark.parametrize("seed", range(5))
def test_every_fault_has_its_turn(seed: int) -> None:
    """The first faults are of all kinds, with every seed."""
    dealt = [kind for kinds in deal(random.Random(seed), len(DEALT)) for kind in kinds]
    assert sorted(dealt) == sorted(DEALT)
