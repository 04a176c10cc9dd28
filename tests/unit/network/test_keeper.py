"""The thread that keeps the node's own network: when it reconciles, whom it informs, and that nothing ends it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.lab.node.world import World
from tests.lab.switch.switch import wait_until
from userspace_cni.attachment.records import Record
from userspace_cni.attachment.specs import Spec, Specs, SpecStatus
from userspace_cni.attachment.steps import Step
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import InvalidConfig, Unavailable
from userspace_cni.network import network_keeper as keeping
from userspace_cni.network.network_keeper import Keeper

HOUR_S = 3600.0


class Kept:
    """A keeper of one spec, which the test makes fail or not."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.problem = ""
        self.broken: Exception | None = None
        self.due = False
        self.looks = 0
        self.told: list[Sequence[SpecStatus]] = []
        self.go = threading.Event()
        self.go.set()
        self.keeper = Keeper(Specs(World(directory)), self._desired, HOUR_S, due=self._is_due, told=self.told.append)
        stack.callback(self.keeper.stop)
        stack.callback(self.go.set)

    def _desired(self) -> tuple[Sequence[Spec], frozenset[str]]:
        if self.broken:
            raise self.broken
        return [Spec("wire", "line", "settings", "", self._plan)], frozenset({"settings"})

    def _plan(self, _record: Record | None) -> tuple[Step, ...]:
        self.looks += 1
        self.go.wait(60)
        if self.problem:
            raise InvalidConfig(self.problem)
        return ()

    def _is_due(self) -> bool:
        due, self.due = self.due, False
        return due

    def wait(self, looks: int) -> None:
        wait_until(lambda: self.looks >= looks, what=f"{looks} looks")


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kept]:
    """One whose thread runs, looks often, and has reconciled once."""
    monkeypatch.setattr(keeping, "BEAT_S", 0.02)
    with ExitStack() as stack:
        kept = Kept(tmp_path, stack)
        kept.keeper.start()
        kept.wait(1)
        yield kept


def test_when_it_reconciles(kept: Kept) -> None:
    """It reconciles at its start, on request, and when something is due; each time it reports the specs' statuses."""
    kept.keeper.ask()
    kept.wait(2)
    kept.due = True
    kept.wait(3)
    wait_until(lambda: len(kept.told) == 3, what="three tellings")
    kept.problem = "no"
    kept.keeper.ask()
    wait_until(lambda: len(kept.told) == 4, what="another telling")
    assert [[each.problem for each in statuses] for statuses in kept.told] == [[""], [""], [""], ["no"]]
    assert kept.keeper.statuses == kept.told[-1]


def test_asking_does_not_hurry_what_fails_and_people_do(kept: Kept) -> None:
    """A spec that failed a moment ago waits for its time, unless a person asks."""
    kept.problem = "no"
    kept.keeper.reconcile(Deadline.after(60))
    kept.keeper.reconcile(Deadline.after(60))
    assert kept.looks >= 3
    looks = kept.looks
    kept.keeper.ask()
    kept.problem = ""
    [status] = kept.keeper.reconcile(Deadline.after(60))
    assert status.holds
    assert kept.looks > looks


def test_a_round_is_awaited(kept: Kept) -> None:
    """A caller waits for a round that began after its request, or is told that its time is over."""
    kept.go.clear()
    kept.keeper.ask()
    kept.wait(2)
    with pytest.raises(Unavailable):
        kept.keeper.reconcile(Deadline.after(0.05))
    kept.go.set()
    kept.keeper.reconcile(Deadline.after(60))
    assert kept.looks >= 3


def test_no_error_ends_it(kept: Kept, capsys: pytest.CaptureFixture[str]) -> None:
    """An unreadable source leaves everything as it is; the same error is logged once, and reported to each caller."""
    kept.broken = ZeroDivisionError("oh")
    for _ in range(2):
        with pytest.raises(Unavailable, match="oh"):
            kept.keeper.reconcile(Deadline.after(60))
    assert (kept.keeper.alive, [each.problem for each in kept.keeper.statuses]) == (True, [""])
    assert capsys.readouterr().err.count("a round of keeping") == 1
    looks = kept.looks
    kept.broken = None
    kept.wait(looks + 1)  # without another request: the failed round has not done what it was asked for
    wait_until(lambda: not kept.keeper.problem, what="no problem")


def test_stopping(kept: Kept) -> None:
    """It begins no further round, and a caller that waits is released."""
    kept.keeper.stop()
    wait_until(lambda: not kept.keeper.alive, what="the end of the thread")
    with pytest.raises(Unavailable):
        kept.keeper.reconcile(Deadline.after(60))


def test_it_sleeps_where_there_is_nothing_to_ask_for(tmp_path: Path) -> None:
    """Once it has looked whether there is, until the tick; otherwise it asks once a second."""
    asked: list[bool | None] = [None, None, None, False]
    keeper = Keeper(Specs(World(tmp_path)), lambda: ((), frozenset()), HOUR_S, due=lambda: asked.pop(0), told=lambda _: None)
    waits = [keeper._round() for _ in range(4)]
    assert [waits[0], waits[3]] == [keeping.BEAT_S] * 2
    assert all(keeping.BEAT_S < each <= HOUR_S for each in waits[1:3])
