"""A pass looks only at what may have changed since the last one; what found something, or failed, is looked at again."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from tests.lab.node.world import World
from tests.lab.switch.switch import wait_until
from tests.unit.attachment.test_reconcile import Agent
from userspace_cni.attachment import last_looks
from userspace_cni.attachment.drift import Drift
from userspace_cni.attachment.last_looks import LastLooks
from userspace_cni.attachment.records import Record
from userspace_cni.attachment.steps import Driver, OvsPort, PodMount, PodNote, SharedReads, SocketFile, Step
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import DirectoryRefused


class Plain(Driver[Step]):
    """A driver that can find nothing."""

    def apply(self, step: Step, deadline: Deadline) -> None: ...

    def undo(self, step: Step, deadline: Deadline) -> None: ...

    def check(self, step: Step, deadline: Deadline) -> list[Drift]:
        return []


class Signed(Plain):
    """A driver whose signs the test says, by the kind of step."""

    def __init__(self) -> None:
        self.now: dict[str, object] = {}

    def is_lost(self, step: Step, seen: SharedReads, deadline: Deadline) -> bool:
        return False

    def signs(self, step: Step, seen: SharedReads, before: object) -> object:
        sign = self.now.get(step.kind, 0)
        if isinstance(sign, Exception):
            raise sign
        return sign


class Looked:
    """Two steps of which something can be found and one of which not, and the passes over them."""

    record: Record

    def __init__(self) -> None:
        self.looks = LastLooks()
        self.signed, self.plain = Signed(), Plain()
        self.record = Record("ready", "n", "c0ffee", "net1", steps=(SocketFile("/d", "/", "s"), PodMount("/s", "/", "/t"), NOTE))

    def due(self, *, whole: bool = False) -> list[str]:
        """The steps to be looked at in the next pass."""
        self.looks.begin(whole=whole)
        return [step.kind for step in self.looks.list_due(self.record, SharedReads(), self.driver)]

    def write(self) -> None:
        """The record is another one, if of the same attachment."""
        self.record = self.record.to("ready")

    def driver(self, step: Step) -> Driver[Step]:
        return self.plain if step is NOTE else self.signed


NOTE = PodNote("ns", "pod", "uid", "c0ffee", "net1", "{}", "/p")
BOTH = ["socket-file", "pod-mount"]


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> Looked:
    monkeypatch.setattr(last_looks, "EVERY", 1_000_000)
    found = Looked()
    assert found.due() == BOTH
    return found


def test_what_has_not_changed_is_not_looked_at_again(looked: Looked) -> None:
    """Only the step whose sign has changed is looked at, once; a step of which nothing can be found never."""
    assert looked.due() == []
    looked.signed.now["pod-mount"] = 1
    assert [looked.due(), looked.due()] == [["pod-mount"], []]


@pytest.mark.parametrize("sign", [None, DirectoryRefused("no")])
def test_a_sign_that_cannot_be_had(looked: Looked, sign: object) -> None:
    """The step is looked at until there is a sign again, and once more then."""
    looked.signed.now["pod-mount"] = sign
    assert [looked.due(), looked.due()] == [["pod-mount"]] * 2
    looked.signed.now["pod-mount"] = 0
    assert [looked.due(), looked.due()] == [["pod-mount"], []]


AGAIN: dict[str, Callable[[Looked], object]] = {
    "something was found": lambda looked: looked.looks.forget(looked.record),
    "the record was written": Looked.write,
    "a pass has not met it": lambda looked: looked.looks.begin(whole=False),
}


@pytest.mark.parametrize("what", AGAIN)
def test_all_of_it_is_looked_at_again(looked: Looked, what: str) -> None:
    """When something was found, the record was written, or nothing is known of the last pass."""
    assert looked.due() == []
    AGAIN[what](looked)
    assert [looked.due(), looked.due()] == [BOTH, []]


def test_a_person_asks_for_it(looked: Looked) -> None:
    """A pass that was asked for looks at everything."""
    assert [looked.due(), looked.due(whole=True), looked.due()] == [[], BOTH, []]


def test_once_in_so_many_passes_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if no sign has changed: attachments take turns."""
    monkeypatch.setattr(last_looks, "EVERY", 4)
    one, other = Looked(), Looked()
    other.record = one.record.to("ready", ifname="net2")
    passes = [[bool(each.due()) for _ in range(13)] for each in (one, other)]
    for each in passes:
        whole = [number for number, looked in enumerate(each) if looked and number]
        assert [after - before for before, after in pairwise(whole)] == [4] * (len(whole) - 1)
        assert len(whole) >= 2
    assert passes[0] != passes[1]


def test_a_pass_of_the_tick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reconciliation asks nothing of a driver whose signs are the same, and finds what has changed with them."""
    monkeypatch.setattr(last_looks, "EVERY", 1_000_000)
    agent = Agent(tmp_path)
    looks: list[str] = []

    class Seen(type(agent.world.driver(agent.port))):  # type: ignore[misc]
        def signs(self, step: Step, seen: SharedReads, before: object) -> object:
            return step.name in (seen.ports or {}) if isinstance(step, OvsPort) else ()

        def is_lost(self, step: Step, *given: object) -> bool:
            looks.append(step.kind)
            return bool(super().is_lost(step, *given))

    driver = Seen(agent.world)
    monkeypatch.setattr(World, "driver", lambda *_: driver)
    monkeypatch.setattr(World, "journal", agent.world.journal)  # the same for all passes, as an agent's
    agent.reconciliation.run(whole=False)
    assert "port" in looks

    def quiet() -> bool:
        """Files of records that are a few ticks old are not trusted yet, and each reading makes another record."""
        looks.clear()
        agent.reconciliation.run(whole=False)
        return not looks

    wait_until(quiet, what="a pass that looks at nothing")
    agent.world.true.discard(f"port:{agent.port.name}")
    agent.reconciliation.run(whole=False)
    assert (looks, agent.actions) == (["port"], ["again-port"])
