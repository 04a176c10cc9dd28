"""A new type of step takes only the type and its driver, both here: all code that handles steps handles it, too."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner

from tests.lab.node.calls import call_plugin
from tests.lab.node.world import World
from userspace_cni.attachment.apply import await_turn
from userspace_cni.attachment.drift import Drift
from userspace_cni.attachment.listing import limits_of
from userspace_cni.attachment.reconcile import Reconciliation
from userspace_cni.attachment.records import Record
from userspace_cni.attachment.specs import SpecStatus
from userspace_cni.attachment.steps import Driver, SharedReads, SharedResource, Step
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import StepFailed, Unavailable
from userspace_cni.base.limits import UNLIMITED, Limits, Rate
from userspace_cni.base.settings import Settings
from userspace_cni.base.stages import Stage, collect
from userspace_cni.cli.main import userspace_cni
from userspace_cni.cli.site import Site
from userspace_cni.network.dry_run import would_do
from userspace_cni.node.state import status

CONTAINER = "c0ffee0123456789"
DIMMED = Rate(1000, 8000)
STDIN = b'{"cniVersion":"1.1.0","name":"n","type":"userspace"}'


@dataclass(frozen=True)
class Lamp(Step):
    """A lamp in a room, lit by a secret word. In the attic it limits what the pod sends."""

    kind: ClassVar[str] = "lamp"
    stage: ClassVar[Stage] = "ipam"
    postponable: ClassVar[bool] = True
    abridged: ClassVar[tuple[str, ...]] = ("secret",)
    room: str
    secret: str

    @property
    def resource(self) -> SharedResource:
        """One lamp, however many need its light."""
        return SharedResource(self.room, f"lamp:{self.room}")

    @property
    def limits(self) -> Limits:
        return Limits(from_pod=DIMMED) if self.room == "attic" else UNLIMITED

    @property
    def reported(self) -> Mapping[str, Any]:
        return {"interface": self.room}

    @property
    def summary(self) -> str:
        return f"a lamp in {self.room}"


@dataclass
class LampDriver(Driver[Lamp]):
    """Lamps. `looks` counts how often all of them were looked at."""

    lit: set[str] = field(default_factory=set)
    stuck: bool = False
    looks: int = 0

    def apply(self, step: Lamp, deadline: Deadline) -> None:
        self.lit.add(step.room)

    def undo(self, step: Lamp, deadline: Deadline) -> None:
        if self.stuck:
            raise Unavailable("the switch on the wall does not answer")
        self.lit.discard(step.room)

    def describe_effects(self, step: Lamp) -> tuple[Sequence[str], Sequence[str]]:
        return ("there is light",), ("there is none",)

    def check(self, step: Lamp, deadline: Deadline) -> list[Drift]:
        return [] if step.room in self.lit else [Drift(f"lamp in {step.room}", "", "light", "darkness")]

    def is_lost(self, step: Lamp, seen: SharedReads, deadline: Deadline) -> bool:
        return step.room not in seen.once(self._look)

    def find_unseen(self, step: Lamp, netns_inode: int, deadline: Deadline) -> list[Drift]:
        """What the pod does not see of it."""
        return [Drift(f"lamp in {step.room}", "", "an open door", "a closed one")] if step.room == "cellar" else []

    def _look(self) -> frozenset[str]:
        self.looks += 1
        return frozenset(self.lit)


class House(World):
    """A node with lamps, and an attachment that has some."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, resident=True)
        self.lamps = LampDriver()

    def driver(self, step: Step) -> Driver[Any]:
        """The row for lamps; the others as they are."""
        return self.lamps if isinstance(step, Lamp) else super().driver(step)

    def call(self, verb: str, container: str = CONTAINER, stdin: bytes = STDIN) -> Any:
        environ = {"CNI_COMMAND": verb, "CNI_CONTAINERID": container, "CNI_NETNS": f"/ns/{container}", "CNI_IFNAME": "net1"}
        return call_plugin(environ, lambda: stdin, lambda: self)

    def attach(self, *rooms: str, container: str = CONTAINER) -> Record:
        """ADD of an attachment whose plan has lamps, too."""
        result = json.loads(self.call("ADD", container).output)
        lamps = tuple(Lamp(room, "abracadabra") for room in rooms)
        with await_turn(container, "net1", self.store, self.driver, Deadline.after(60)) as turn:
            record = turn.read()
            assert record
            record, rivals = turn.foresee(replace(record, steps=record.steps + lamps))
            assert not rivals
            self.journal.write(record.to("applying"))
            turn.settle(turn.begin(record, record.steps, Deadline.after(60)))
            self.journal.advance(record.to("ready", result=result))
        return record

    def cli(self, *arguments: str) -> Any:
        """The JSON of one command on this node."""
        settings = Settings(state_dir=f"{self.directory}/state", run_dir=f"{self.directory}/run")
        done = CliRunner().invoke(userspace_cni, [*arguments, "--json"], obj=Site(settings, self, apart_s=0.0))
        return json.loads(done.stdout)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    """A node after whose last DEL all lamps are out."""
    house = House(tmp_path)
    yield house
    assert house.lamps.lit == set()


def test_apply_and_undo(house: House) -> None:
    """It is made, timed in its stage, shared by two, and undone with its last holder."""
    with collect() as seconds:
        house.attach("hall")
    assert "ipam" in seconds
    house.attach("hall", container="another")
    assert house.lamps.lit == {"hall"}
    assert house.call("DEL").code == 0
    assert house.lamps.lit == {"hall"}
    assert house.call("DEL", "another").code == 0
    assert house.journal.records() == []


def test_undone_later(house: House) -> None:
    """As its type says, DEL succeeds while it cannot be undone, and the next pass undoes it."""
    house.attach("hall")
    house.lamps.stuck = True
    assert house.call("DEL").code == 0
    assert [[step.kind for step in record.steps] for record in house.journal.records()] == [["lamp"]]
    house.lamps.stuck = False
    actions: list[str] = []
    Reconciliation(house, actions.append, 0.0).run()
    assert actions == ["removed-unfinished"]


def test_reconcile(house: House) -> None:
    """What is lost is made again, and all lamps are looked at once in a pass."""
    house.attach("hall", "attic")
    house.lamps.lit.clear()
    actions: list[str] = []
    Reconciliation(house, actions.append, 0.0).run()
    assert (actions, house.lamps.lit, house.lamps.looks) == (["again-lamp", "again-lamp"], {"hall", "attic"}, 1)
    assert house.call("DEL").code == 0


def test_check(house: House) -> None:
    """The verb and the command report its drift, the command also what the pod does not see."""
    house.attach("hall", "cellar")
    house.lamps.lit.discard("hall")
    [ready] = house.journal.records()
    stdin = json.dumps({**json.loads(STDIN), "prevResult": ready.result})
    assert "lamp in hall" in house.call("CHECK", stdin=stdin.encode()).output.decode()
    drifts = house.cli("check")["drifts"]
    assert [(each["step"], each["what"], each["found"]) for each in drifts] == [
        ("lamp", "lamp in hall", "darkness"),
        ("lamp", "lamp in cellar", "a closed one"),
    ]
    assert house.call("DEL").code == 0


def test_people_are_shown_it(house: House) -> None:
    """`list` and `show` have it, with long or secret parts abridged; `gc` says what it would make again."""
    house.attach("hall")
    [listed], [shown] = house.cli("list"), house.cli("show", CONTAINER)
    assert listed["steps"][-1] == "lamp"
    assert shown["steps"][-1] == {"step": "lamp", "room": "hall", "secret": "11 characters"}
    house.lamps.lit.clear()
    [left] = house.cli("gc", "--dry-run")["found"]
    assert left["action"] == "make again: a lamp in hall"
    assert house.call("DEL").code == 0


def test_what_is_told_of_it(house: House) -> None:
    """The attachment has its limits, the node's report its facts, and a dry run says what its driver does."""
    record = house.attach("hall", "attic")
    assert limits_of(record) == Limits(from_pod=DIMMED)
    hall, attic = record.steps[-2:]
    held = SpecStatus("lamps", "all", "settings", "", "", (hall, attic))
    [told] = status([held], (), (), "")["specs"]
    assert told["interface"] == "hall"
    assert list(would_do((), (hall,), house.driver)) == [
        ("what would be done:", ["make a lamp in hall", "  there is light"]),
        ("the way back:", ["undo a lamp in hall", "  there is none"]),
    ]
    assert house.call("DEL").code == 0


def test_one_that_cannot_be_made(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error ends what is being made, and reaches the caller as it is."""

    def fail(_driver: LampDriver, step: Lamp, deadline: Deadline) -> None:
        raise StepFailed("no bulb")

    monkeypatch.setattr(LampDriver, "apply", fail)
    with pytest.raises(StepFailed, match="no bulb"):
        house.attach("hall")
    assert house.call("DEL").code == 0
