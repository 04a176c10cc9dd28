"""Repeated log lines: the first is written at once, later ones now and then with their count, and what is kept is limited."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping

import pytest

from userspace_cni.base import repeats
from userspace_cni.base.errors import StepFailed, Unavailable
from userspace_cni.base.log import about, bind, limit_repeats, say
from userspace_cni.base.loops import Loop
from userspace_cni.base.repeats import PAUSE_MAX_S, PAUSE_MIN_S, REASONS_MAX, SUBJECTS_MAX, Repeats

POD: Mapping[str, str] = {"pod": "blue/web", "container": "c0ffee", "interface": "net1"}


class Clock:
    """A time that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.repeats = Repeats(lambda: self.now)

    def written(
        self, message: str = "it failed", after_s: float = 0.0, pod: Mapping[str, str] = POD, **facts: object
    ) -> int | None:
        """How many lines were left out before this one; None if this one is left out, too."""
        self.now += after_s
        return self.repeats.count_left_out(pod, message, facts)


@pytest.fixture
def clock() -> Clock:
    """A time, before any line."""
    return Clock()


def test_repeats_are_counted(clock: Clock) -> None:
    """The first is written at once, the next one after the pause with the count of those between; then the pause is doubled."""
    assert clock.written() == 0
    assert [clock.written(after_s=1) for _ in range(5)] == [None] * 5
    assert clock.written(after_s=PAUSE_MIN_S) == 5
    assert clock.written(after_s=PAUSE_MIN_S) is None
    assert clock.written(after_s=PAUSE_MIN_S) == 1


def test_the_pause_has_an_end(clock: Clock) -> None:
    """A failure in every round for days is written once an hour; one that did not occur for an hour is new."""
    written = [clock.written(after_s=10) for _ in range(6 * 24 * 360)]
    lines = [at for at, left_out in enumerate(written) if left_out is not None]
    assert 24 * 6 <= len(lines) <= 24 * 6 + 10
    assert sum(left_out + 1 for left_out in written if left_out is not None) == lines[-1] + 1
    assert clock.written(after_s=PAUSE_MAX_S) is not None
    assert clock.written(after_s=PAUSE_MIN_S) == 0


def test_what_a_tenant_writes_is_no_reason(clock: Clock) -> None:
    """Errors with other texts are repeats; errors of another class, step or pod are not, nor those about no pod."""
    assert clock.written(error=Unavailable("a")) == 0
    assert clock.written(error=Unavailable("b")) is None
    assert clock.written(error=StepFailed("b")) == 0
    assert clock.written(problem="a") == 0
    assert clock.written(problem="b") is None
    assert clock.written(step="port", error=Unavailable("a")) == 0
    assert [clock.written(pod={}, error=Unavailable(text)) for text in "aab"] == [0, None, 0]
    assert clock.written(pod={**POD, "interface": "net2"}, error=Unavailable("a")) == 0


def test_all_of_it_is_bounded(clock: Clock) -> None:
    """The number of lines and of kept entries is limited, for any number of messages per pod and of pods."""
    said = [clock.written(f"message {number}") for number in range(10_000)]
    assert sum(each is not None for each in said) == REASONS_MAX + 1
    assert len(clock.repeats) == REASONS_MAX + 1
    assert clock.written("another one", after_s=PAUSE_MIN_S) == 10_000 - REASONS_MAX - 1
    for number in range(2 * SUBJECTS_MAX):
        clock.written(pod={"pod": f"blue/{number}"})
    assert len(clock.repeats) <= SUBJECTS_MAX + REASONS_MAX


def test_a_full_pod_has_room_again(clock: Clock) -> None:
    """Reasons that did not occur for an hour make room for others."""
    for number in range(100):
        clock.written(f"message {number}")
    assert [clock.written(f"new {number}", after_s=PAUSE_MAX_S / 2) for number in range(4)][-1] == 0


def test_entries_go_with_their_pod(clock: Clock) -> None:
    """Entries are kept only for pods that are kept, and for those about no pod."""
    gone = {"pod": "", "container": "gone", "interface": "net1"}
    for subject in (POD, {"container": "gone", "interface": "net1"}, {}):
        clock.written(pod=subject)
    clock.repeats.keep([{**POD, "network": ""}])
    assert len(clock.repeats) == 2
    assert clock.written() is None
    clock.repeats.keep([gone])
    assert (len(clock.repeats), clock.written()) == (1, 0)


def test_in_the_log(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    """Values are shortened and the count is a field of the line; neither applies elsewhere, nor at a level below information."""
    with limit_repeats(clock.repeats), bind("debug"), about(POD):
        for number in range(3):
            say("warning", "it failed", error=f"{number}: " + "x" * 10_000)
            say("debug", "looked at it")
        clock.now += PAUSE_MIN_S
        say("warning", "it failed", error="once more")
    say("warning", "it failed", error="x" * 3000)
    first, *rest = capsys.readouterr().err.splitlines()
    assert len(first) < 1300
    assert 'error="0: xxx' in first
    assert next(line for line in rest if "looked" not in line).endswith('error="once more" repeated=2')
    assert sum("looked" in line for line in rest) == 3
    assert re.search("error=x{3000}", rest[-1])


def test_each_thread_that_stays_counts(capsys: pytest.CaptureFixture[str]) -> None:
    """A permanent thread whose rounds all fail does not fill the log."""
    done = threading.Event()

    class Failing(Loop):
        def _round(self) -> None:
            for number in range(1000):
                say("error", "a round failed", error=f"for reason {number % 3}")
            done.set()

    loop = Failing("failing", "failing")
    loop.start()
    assert done.wait(60)
    assert capsys.readouterr().err.count("a round failed") == 3


def test_a_problem_that_returns_soon_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A problem that ends and returns is a repeat: it is written when that is due.

    Otherwise, where only beginnings are written, the log would never say that the problem exists.
    """
    monkeypatch.setattr(repeats, "PAUSE_MIN_S", 0.3)
    done = threading.Event()

    class Flapping(Loop):
        def _round(self) -> None:
            for problem in ("it is away", ""):
                self._note(problem)
            until = time.monotonic() + 30
            while not self._noted and time.monotonic() < until:
                self._note("it is away")
                self._rest(0.01)
            for _ in range(100):
                self._note("it is away")
            done.set()

    loop = Flapping("flapping", "flapping")
    loop.start()
    assert done.wait(40)
    first, second = capsys.readouterr().err.splitlines()
    assert "repeated" not in first
    assert re.search(r"it is away.* repeated=\d+$", second)
