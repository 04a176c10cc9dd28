"""The base of permanent threads: when rounds begin, what a failure means, and how a thread ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from tests.lab.switch.switch import wait_until
from userspace_cni.base.back_off import BackOff
from userspace_cni.base.errors import Unavailable
from userspace_cni.base.loops import Loop, TryAgain

LONG_S = 600.0
"""A pause so long that no test waits for its end."""


class Counter(Loop):
    """Counts its rounds. `work` is what each does; `began`: when."""

    failing = "it cannot be counted: "

    def __init__(self, work: Callable[[], float | None] = lambda: None) -> None:
        super().__init__("counter", "counting")
        self.work = work
        self.began: list[float] = []
        self.ends = 0

    def _round(self) -> float | None:
        self.began.append(time.monotonic())
        return self.work()

    def _end(self) -> None:
        self.ends += 1

    def had(self, rounds: int) -> None:
        """Wait for so many rounds."""
        wait_until(lambda: len(self.began) >= rounds, what=f"{rounds} rounds")


@pytest.fixture
def counter() -> Counter:
    """A loop whose rounds, after the first, have to be requested."""
    return Counter()


def test_a_round_comes_at_the_start_when_it_is_asked_for_and_when_its_time_has_come(counter: Counter) -> None:
    """Between these there is no round, and after the end none can be requested."""
    counter.start()
    counter.had(1)
    counter.ask()
    counter.had(2)
    counter.work = lambda: 0.05
    counter.ask()
    counter.had(6)
    counter.work = lambda: LONG_S
    counter.stop()
    wait_until(lambda: not counter.alive)
    had = len(counter.began)
    counter.ask()
    assert not counter.await_round(0.0)
    assert (len(counter.began), counter.ends) == (had, 1)


def test_what_is_asked_for_amid_a_round_is_another_round(counter: Counter) -> None:
    """The running round may have looked too early; a caller waits for the next one."""
    going, begun = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        going.wait(60)

    counter.work = work
    counter.start()
    assert begun.wait(60)
    waited: list[bool] = []
    thread = threading.Thread(target=lambda: waited.append(counter.await_round(60)))
    thread.start()
    wait_until(lambda: counter._asked)
    assert not counter.await_round(0.0)
    going.set()
    thread.join(60)
    counter.stop()
    assert waited == [True]
    assert len(counter.began) >= 2


def test_a_round_that_did_not_serve_is_not_what_was_waited_for(counter: Counter) -> None:
    """A caller goes on waiting until a round succeeds."""

    def work() -> None:
        counter._served = len(counter.began) > 3
        counter.ask()

    counter.work = work
    counter.start()
    assert counter.await_round(60)
    counter.stop()
    assert len(counter.began) > 3


def test_rounds_are_apart_but_urged_ones(counter: Counter) -> None:
    """A requested round waits, however often it is requested; an urgent one does not."""
    counter.apart_s = LONG_S
    counter.start()
    counter.had(1)
    counter.ask()
    assert not counter.await_round(0.1)
    counter.urge()
    counter.had(2)
    assert len(counter.began) == 2
    counter.stop()


def test_what_is_told_within_a_moment_is_one_round(counter: Counter) -> None:
    """A round begins a moment after its request, and has everything that was reported until then."""
    counter.first_s, counter.settle_s = None, 0.3
    counter.start()
    for _ in range(20):
        counter.ask()
        time.monotonic()
    counter.had(1)
    assert not counter._asked
    counter.stop()
    assert len(counter.began) == 1


def test_a_failure_is_said_once_and_rested_after(counter: Counter, capsys: pytest.CaptureFixture[str]) -> None:
    """Pauses grow, whatever is requested meanwhile, and no error ends the thread. After a success there is no problem."""
    counter.back_off = BackOff(0.02, 0.16)

    def fail() -> None:
        counter.ask()
        raise Unavailable("it is away", "look at it")

    counter.work = fail
    counter.start()
    counter.had(5)
    assert counter.problem == "it is away; look at it"
    pauses = [after - before for before, after in zip(counter.began, counter.began[1:], strict=False)]
    assert all(pause >= expected for pause, expected in zip(pauses, (0.02, 0.04, 0.08, 0.16), strict=False))

    def fail_otherwise() -> None:
        raise ValueError("not thought of")

    counter.work = fail_otherwise
    wait_until(lambda: "ValueError" in counter.problem)
    counter.work = lambda: None
    wait_until(lambda: not counter.problem)
    assert counter.alive
    counter.stop()
    [line] = capsys.readouterr().err.splitlines()
    assert "level=warning" in line
    assert "it cannot be counted: it is away" in line


def test_an_error_that_nothing_expects_is_an_error_in_the_log(counter: Counter, capsys: pytest.CaptureFixture[str]) -> None:
    """An unexpected exception is logged as an error with its type."""

    def fail() -> None:
        raise ValueError("7")

    counter.work = fail
    counter.start()
    wait_until(lambda: counter.problem == "ValueError: 7")
    counter.stop()
    assert "level=error" in capsys.readouterr().err


def test_what_is_tried_again_in_silence(counter: Counter, capsys: pytest.CaptureFixture[str]) -> None:
    """A silent retry has the same pauses; the problem that the round itself has set stays."""
    counter.back_off = BackOff(0.01, 0.02)

    def fail() -> None:
        counter.problem = "not yet"
        raise TryAgain

    counter.work = fail
    counter.start()
    counter.had(3)
    counter.stop()
    assert counter.problem == "not yet"
    assert capsys.readouterr().err == ""


def test_a_stop_waits_for_the_last_thing_that_is_done(counter: Counter, capsys: pytest.CaptureFixture[str]) -> None:
    """A stop waits for the final work, even during a long pause; if that fails, it is reported."""
    counter.end_s, counter.apart_s = 60.0, LONG_S

    def end() -> None:
        raise Unavailable("the disk is full", "df")

    counter._end = end  # type: ignore[method-assign]
    counter.start()
    counter.had(1)
    counter.stop()
    assert not counter.alive
    assert "the disk is full" in capsys.readouterr().err


def test_the_pauses_of_a_back_off() -> None:
    """They double from the first to the longest, and stay there."""
    pauses = [0.0]
    for _ in range(5):
        pauses.append(BackOff(1.0, 6.0).after(pauses[-1]))
    assert pauses == [0.0, 1.0, 2.0, 4.0, 6.0, 6.0]
