"""When what has changed is looked at."""

from __future__ import annotations

import itertools

import pytest

from userspace_cni.agent.pace import FIRST_S, REST, SETTLE_S, Pace


class Clock:
    """Time that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Now."""
        return self.now


def pace_of(most_s: float = 30.0) -> tuple[Pace[str], Clock]:
    """A pace, and its clock."""
    clock = Clock()
    return Pace(most_s, clock), clock


def test_changes_at_one_time_share_a_look() -> None:
    """The first one says when; each thing is looked at once, and then nothing is due."""
    pace, clock = pace_of()
    assert pace.seconds() is None
    assert pace.note("a", "b")
    clock.now += SETTLE_S / 2
    assert not pace.note("a", "c")
    assert pace.take() == frozenset()
    clock.now += SETTLE_S / 2
    assert pace.take() == {"a", "b"}
    clock.now += SETTLE_S / 2
    assert pace.take() == {"c"}
    assert pace.seconds() is None


def test_what_goes_on_changing_is_looked_at_less_often() -> None:
    """A day of changes without a pause costs a look every half a minute; a minute of quiet, and the first is soon again."""
    pace, clock = pace_of()
    looks = []
    for _ in range(24 * 3600):
        pace.note("a")
        clock.now += 1.0
        if pace.take():
            looks.append(clock.now)
    pauses = [after - before for before, after in itertools.pairwise(looks)]
    assert pauses[0] <= FIRST_S + 1.0
    assert all(pause >= 30.0 for pause in pauses[8:])
    assert len(looks) < 24 * 3600 / 30 + 8
    clock.now += 100.0
    pace.take()
    clock.now += 100.0
    pace.note("a")
    assert pace.seconds() == pytest.approx(SETTLE_S)


def test_another_thing_does_not_wait() -> None:
    """Only what goes on changing is put off."""
    pace, clock = pace_of()
    for _ in range(5):
        pace.note("a")
        clock.now += 10.0
        pace.take()
    pace.note("a", "b")
    clock.now += SETTLE_S
    assert pace.take() == {"b"}


def test_long_looks_are_followed_by_rests() -> None:
    """After a look nothing is taken for a multiple of its time, so that any number of things costs a part of a processor."""
    pace, clock = pace_of()
    pace.note("a")
    clock.now += SETTLE_S
    assert pace.take() == {"a"}
    pace.took(2.0)
    pace.note("b")
    assert pace.seconds() == pytest.approx(REST * 2.0)
    clock.now += SETTLE_S
    assert pace.take() == frozenset()
    clock.now += REST * 2.0
    assert pace.take() == {"b"}


def test_nothing_is_remembered_for_ever() -> None:
    """Things of pods that come and go leave nothing."""
    pace, clock = pace_of()
    for number in range(1000):
        pace.note(str(number))
        clock.now += 10.0
        pace.take()
    assert len(pace._looked) < 10
