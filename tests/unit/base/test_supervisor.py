"""One object knows which threads live: it starts them, stops them in an order, and reports the dead."""

from __future__ import annotations

import threading
from threading import TIMEOUT_MAX, Event

import pytest

from tests.lab.switch.switch import wait_until
from userspace_cni.base.errors import Unavailable
from userspace_cni.base.loops import Loop
from userspace_cni.base.supervisor import Supervisor


class Part:
    """One or several threads. `happened` records what becomes of it, and the limit for its end, if there is one."""

    def __init__(self, name: str, happened: list[str]) -> None:
        self.name = name
        self.allowed_s = TIMEOUT_MAX
        self.trouble: list[str] = []
        self._happened = happened

    def start(self) -> None:
        if self.trouble:
            raise Unavailable(self.trouble[0], "")
        self._happened.append(f"{self.name} starts")

    def stop(self, within_s: float = TIMEOUT_MAX) -> None:
        """Stop it, which uses up all the time that there is."""
        self.allowed_s = within_s
        if within_s < 1.0:
            Event().wait(within_s)
        self._happened.append(f"{self.name} ends")

    def problems(self) -> list[str]:
        return self.trouble


class Mortal(Loop):
    """Dies in its first round, or hangs in it until `over`."""

    limit_s = 0.01
    late = "the work has not come to an end"

    def __init__(self, dies: BaseException | None = None) -> None:
        super().__init__("mortal", "works")
        self.over = Event()
        self._dies = dies

    def _round(self) -> None:
        if self._dies:
            raise self._dies
        self.over.wait(60)


def test_the_last_one_is_stopped_first() -> None:
    """Threads are stopped in the reverse order of their start, some only after all others.

    Parts may be supervisors themselves.
    """
    happened: list[str] = []
    first, second, third, fourth = (Part(name, happened) for name in ("first", "second", "third", "fourth"))

    class Both(Supervisor):
        def start(self) -> None:
            self.begin(second, third)

    whole = Supervisor()
    whole.begin(first, Both(), fourth)
    whole.stop(but=(first,))
    assert happened[4:] == ["fourth ends", "third ends", "second ends"]
    whole.stop()
    whole.stop()
    assert happened[7:] == ["first ends"]


def test_all_ends_share_the_time() -> None:
    """When one has used it up, the others are told to end all the same, and are not awaited."""
    happened: list[str] = []
    parts = [Part(str(number), happened) for number in range(3)]
    whole = Supervisor()
    whole.begin(*parts)
    whole.stop(0.1)
    assert happened[3:] == ["2 ends", "1 ends", "0 ends"]
    assert 0.0 < parts[2].allowed_s <= 0.1
    assert [each.allowed_s for each in parts[:2]] == [0.0, 0.0]


def test_what_was_never_begun_is_no_problem() -> None:
    """A thread that was never started, or could not be, is no problem; those before it are known and can be stopped."""
    happened: list[str] = []
    good, bad, later = (Part(name, happened) for name in ("good", "bad", "later"))
    bad.trouble = ["there is no room"]
    whole = Supervisor()
    with pytest.raises(Unavailable):
        whole.begin(good, bad, later)
    assert whole.problems() == []
    good.trouble = ["it is dead"]
    assert whole.problems() == ["it is dead"]
    whole.stop()
    assert happened == ["good starts", "good ends"]


def test_a_thread_that_dies_is_told_in_one_way(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Its death is logged at once, and reported to callers as long as it is not stopped, because it is permanent."""
    monkeypatch.setattr(threading, "excepthook", lambda _: None)  # pytest's would say that the test has failed
    whole = Supervisor()
    thread = Mortal(SystemExit())
    whole.begin(thread)
    wait_until(lambda: not thread.alive)
    assert whole.problems() == ["the thread that works is dead"]
    assert 'level=error msg="the thread that works is dead"' in capsys.readouterr().err
    thread.stop()
    assert whole.problems() == []


def test_a_round_that_takes_too_long_is_a_problem() -> None:
    """It is a problem until it ends; a thread that pauses is none."""
    whole = Supervisor()
    thread = Mortal()
    whole.begin(thread)
    wait_until(lambda: whole.problems() == ["the work has not come to an end for 0 s"])
    thread.over.set()
    wait_until(lambda: whole.problems() == [])
    whole.stop()
