"""The times at which changed things are looked at."""

from __future__ import annotations

import itertools

import pytest

from userspace_cni.agent.due_looks import FIRST_S, REST, SETTLE_S, DueLooks


class Clock:
    """A time that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def looks_of(most_s: float = 30.0) -> tuple[DueLooks[str], Clock]:
    clock = Clock()
    return DueLooks(most_s, clock), clock


def test_changes_at_one_time_share_a_look() -> None:
    """The first change sets the time of the look; each thing is looked at once, and then nothing is due."""
    looks, clock = looks_of()
    assert looks.seconds() is None
    assert looks.note("a", "b")
    clock.now += SETTLE_S / 2
    assert not looks.note("a", "c")
    assert looks.take() == frozenset()
    clock.now += SETTLE_S / 2
    assert looks.take() == {"a", "b"}
    clock.now += SETTLE_S / 2
    assert looks.take() == {"c"}
    assert looks.seconds() is None


def test_what_goes_on_changing_is_looked_at_less_often() -> None:
    """A day of constant changes costs a look every half minute; after a quiet minute the next look comes soon."""
    looks, clock = looks_of()
    looked = []
    for _ in range(24 * 3600):
        looks.note("a")
        clock.now += 1.0
        if looks.take():
            looked.append(clock.now)
    pauses = [after - before for before, after in itertools.pairwise(looked)]
    assert pauses[0] <= FIRST_S + 1.0
    assert all(pause >= 30.0 for pause in pauses[8:])
    assert len(looked) < 24 * 3600 / 30 + 8
    clock.now += 100.0
    looks.take()
    clock.now += 100.0
    looks.note("a")
    assert looks.seconds() == pytest.approx(SETTLE_S)


def test_another_thing_does_not_wait() -> None:
    """Only the thing that goes on changing is delayed."""
    looks, clock = looks_of()
    for _ in range(5):
        looks.note("a")
        clock.now += 10.0
        looks.take()
    looks.note("a", "b")
    clock.now += SETTLE_S
    assert looks.take() == {"b"}


def test_long_looks_are_followed_by_rests() -> None:
    """After a look there is a pause of a multiple of its time, so that looks take a limited share of a processor."""
    looks, clock = looks_of()
    looks.note("a")
    clock.now += SETTLE_S
    assert looks.take() == {"a"}
    looks.took(2.0)
    looks.note("b")
    assert looks.seconds() == pytest.approx(REST * 2.0)
    clock.now += SETTLE_S
    assert looks.take() == frozenset()
    clock.now += REST * 2.0
    assert looks.take() == {"b"}


def test_nothing_is_remembered_for_ever() -> None:
    """Nothing is kept of pods that come and go."""
    looks, clock = looks_of()
    for number in range(1000):
        looks.note(str(number))
        clock.now += 10.0
        looks.take()
    assert len(looks._looked) < 10
