"""Specs of the node itself are met, changed, refused and undone, with a death at every point of that."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.lab.node.world import MemorySwitch, World
from userspace_cni.attachment.drift import Drift
from userspace_cni.attachment.journal import Journal
from userspace_cni.attachment.records import Record
from userspace_cni.attachment.specs import LOOK_MAX_S, KeepsLess, Spec, Specs, SpecStatus, key_of, undo
from userspace_cni.attachment.steps import Driver, SharedReads, Step, StillTaken
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import InvalidConfig, RecordRefused, StepFailed, Unavailable

KIND, SOURCE = "wire", "settings"


class Killed(BaseException):
    """The process dies here: nothing catches it."""


@dataclass(frozen=True)
class Pole(Step):
    """A pole, on which others hang. `paint` may change; `marks` are as rows have them."""

    kind: ClassVar[str] = "pole"
    place: str
    paint: str = ""
    marks: Mapping[str, Any] = field(default_factory=dict)

    @property
    def thing(self) -> str:
        return self.place

    @property
    def summary(self) -> str:
        return f"a pole at {self.place}"


@dataclass(frozen=True)
class Wire(Step):
    """A wire that hangs on a pole, and must be taken down before that is."""

    kind: ClassVar[str] = "wire"
    keeps_earlier: ClassVar[bool] = True
    pole: str
    number: int

    @property
    def thing(self) -> str:
        return str(self.number)


Things = frozenset[str]


def things(*steps: Step) -> Things:
    return frozenset(map(repr, steps))


@dataclass
class Site(World):
    """A node with poles and wires. `moment` is called before and after each effect and each write of a record."""

    stand: dict[tuple[str, str], Step] = field(default_factory=dict)
    failing: dict[str, Exception] = field(default_factory=dict)
    """The steps that exist, by their text."""
    stuck: set[str] = field(default_factory=set)
    """Kinds of steps that cannot be undone now."""
    taken: set[str] = field(default_factory=set)
    """Steps, as text, that still use what earlier ones made."""
    moment: Callable[[str], None] = lambda _: None
    effects: list[str] = field(default_factory=list)

    @property
    def journal(self) -> Journal:
        return _Noting(self)

    def driver(self, step: Step) -> Driver[Any]:
        return _Builder(self)

    def steps(self) -> Things:
        return things(*self.stand.values())


class _Noting(Journal):
    def __init__(self, site: Site) -> None:
        super().__init__(f"{site.directory}/state", str(site.directory), print, site.boot_id)
        self._site = site

    def _put_state(self, *arguments: Any) -> None:
        self._site.moment("before a state")
        super()._put_state(*arguments)
        self._site.moment("after a state")

    def write(self, record: Record) -> None:
        super().write(record)
        self._site.moment("after a record")

    def drop(self, record: Record) -> None:
        self._site.moment("before the record is dropped")
        super().drop(record)
        self._site.moment("after the record is dropped")


@dataclass
class _Builder(Driver[Step]):
    site: Site

    def apply(self, step: Step, deadline: Deadline) -> None:
        """Put it up; a wire needs its pole."""
        self.site.moment(f"before {step.kind}")
        if error := self.site.failing.get(repr(step)):
            raise error
        if isinstance(step, Wire):
            assert ("pole", step.pole) in self.site.stand, "a wire without a pole"
        self.site.stand[step.kind, step.thing] = step
        self.site.effects.append(f"+{step.kind}")
        self.site.moment(f"after {step.kind}")

    def undo(self, step: Step, deadline: Deadline) -> None:
        """Take it down; a pole after its wires."""
        self.site.moment(f"before no {step.kind}")
        if repr(step) in self.site.taken:
            raise StillTaken("a bird sits on it")
        if step.kind in self.site.stuck:
            raise Unavailable(f"the {step.kind} cannot be reached")
        if isinstance(step, Pole):
            wires = [each for each in self.site.stand.values() if isinstance(each, Wire) and each.pole == step.place]
            assert not wires, "a pole is taken down under its wires"
        self.site.stand.pop((step.kind, step.thing), None)
        self.site.effects.append(f"-{step.kind}")
        self.site.moment(f"after no {step.kind}")

    def check(self, step: Step, deadline: Deadline) -> list[Drift]:
        return []

    def is_lost(self, step: Step, seen: SharedReads, deadline: Deadline) -> bool:
        return self.site.stand.get((step.kind, step.thing)) != step


OLD = (Pole("a"), Pole("b", "red", {"of": ["x", "y"]}), Wire("a", 1), Wire("b", 2))
NEW = (Pole("b", "blue"), Pole("c"), Wire("b", 2), Wire("c", 3))


def spec(*steps: Step, name: str = "line", source: str = SOURCE, error: Exception | None = None) -> Spec:
    """A spec with these steps; with an error, a refused one."""

    def plan(_record: Record | None) -> tuple[Step, ...]:
        if error:
            raise error
        return steps

    return Spec(KIND, name, source, "a test", plan, content=(steps, str(error)))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def reconcile(site: Site, *desired: Spec, complete: tuple[str, ...] = (SOURCE,)) -> dict[str, SpecStatus]:
    """One round in a new process; the status of each by name."""
    return {each.name: each for each in Specs(site).reconcile(desired, complete)}


def only(site: Site) -> Record:
    [record] = site.journal.node_records()
    return record


def test_a_spec_is_met_kept_changed_and_undone(site: Site) -> None:
    """It is applied in order; a second time nothing is done; a changed one is amended, and a removed one undone."""
    assert reconcile(site, spec(*OLD))["line"].holds
    assert (site.steps(), only(site).state, only(site).steps) == (things(*OLD), "ready", OLD)
    site.effects.clear()
    assert reconcile(site, spec(*OLD))["line"].holds
    assert site.effects == []
    assert reconcile(site, spec(*NEW))["line"].steps == NEW
    assert site.effects == ["-wire", "-pole", "+pole", "+pole", "+wire"]
    assert site.steps() == things(*NEW)
    assert reconcile(site) == {}
    assert (site.steps(), site.journal.node_records(), site.journal.records()) == (things(), [], [])


def test_what_is_lost_is_made_again(site: Site) -> None:
    """A step that is gone is applied again, and nothing else."""
    reconcile(site, spec(*OLD))
    site.effects.clear()
    del site.stand["wire", "2"]
    assert reconcile(site, spec(*OLD))["line"].holds
    assert (site.effects, site.steps()) == (["+wire"], things(*OLD))


def test_unknown_keeps(site: Site) -> None:
    """What an unreadable source asked for stays, and is made again when lost; a spec that was never met completely is undone."""
    reconcile(site, spec(*OLD, source="objects"))
    del site.stand["wire", "2"]
    status = reconcile(site)["line"]
    assert (status.holds, status.source, status.said_by, site.steps()) == (True, "objects", "", things(*OLD))
    assert reconcile(site, complete=("objects",)) == {}
    assert site.steps() == things()


def test_a_refused_spec_keeps_what_it_has(site: Site) -> None:
    """A refused spec reports why and keeps what it had; the others are met."""
    reconcile(site, spec(*OLD))
    found = reconcile(site, spec(error=InvalidConfig("no such colour")), spec(Pole("z"), name="other"))
    assert (found["line"].problem, found["other"].holds) == ("no such colour", True)
    assert site.steps() == things(*OLD, Pole("z"))


def test_a_spec_that_keeps_less(site: Site) -> None:
    """Steps whose device is lost are undone, the rest stays, and the reason is reported; without former steps nothing is made."""
    less = spec(error=KeepsLess("it is away", "", OLD[:2]))
    assert reconcile(site, less)["line"].problem == "it is away"
    assert (site.steps(), site.journal.node_records()) == (things(), [])
    reconcile(site, spec(*OLD))
    found = reconcile(site, less)["line"]
    assert (found.problem, found.steps, site.steps()) == ("it is away", OLD[:2], things(*OLD[:2]))
    site.effects.clear()
    assert reconcile(site, less)["line"].problem == "it is away"
    assert site.effects == []
    assert reconcile(site, spec(*OLD))["line"].holds
    assert site.steps() == things(*OLD)


def test_a_bug_in_one_spec_leaves_the_others(site: Site) -> None:
    """An unexpected exception of a plan is a problem of its own spec only."""
    found = reconcile(site, spec(error=ZeroDivisionError("oh")), spec(Pole("z"), name="other"))
    assert ("ZeroDivisionError" in found["line"].problem, found["other"].holds) == (True, True)


@pytest.mark.parametrize("error", [ValueError("many"), Unavailable("no answer"), RecordRefused("the disk is full")])
def test_rows_that_cannot_be_recorded_again_leave_the_others(
    site: Site, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Of two specs without a record that rows name, one cannot be looked at: the other is recorded, and what is desired, met."""

    def left_of(_: MemorySwitch, kind: str, name: str, deadline: Deadline) -> tuple[Step, ...]:
        if name == "a":
            raise error
        return (Pole(name),) if name == "b" else ()

    rows = frozenset({(KIND, "a"), (KIND, "b")})
    monkeypatch.setattr(MemorySwitch, "specs_in_rows", lambda *_: rows)
    monkeypatch.setattr(MemorySwitch, "left_of", left_of)
    site.stand["pole", "b"] = Pole("b")
    found = reconcile(site, spec(Pole("z"), name="other"))
    assert {name: each.problem for name, each in found.items()} == {"b": "", "other": ""}
    assert site.steps() == things(Pole("b"), Pole("z"))


def test_a_failed_first_application_is_undone(site: Site) -> None:
    """Nothing of it stays, not even its record."""
    site.failing[repr(OLD[3])] = StepFailed("no wire left")
    assert reconcile(site, spec(*OLD))["line"].problem == "no wire left"
    assert (site.steps(), site.journal.node_records()) == (things(), [])


def test_a_failed_change_goes_back(site: Site) -> None:
    """The former state is restored and recorded; the next try is a change again."""
    reconcile(site, spec(*OLD))
    site.failing[repr(NEW[3])] = StepFailed("no wire left")
    assert reconcile(site, spec(*NEW))["line"].problem == "no wire left"
    assert (site.steps(), only(site).state, only(site).steps) == (things(*OLD), "ready", OLD)
    site.failing.clear()
    assert reconcile(site, spec(*NEW))["line"].holds
    assert site.steps() == things(*NEW)


def test_a_change_that_gets_no_answer_goes_on_forward(site: Site) -> None:
    """When the switch is silent, what was removed from it is not restored; the next round continues the change."""
    reconcile(site, spec(*OLD))
    site.failing[repr(NEW[1])] = Unavailable("it is silent")
    assert not reconcile(site, spec(*NEW))["line"].holds
    assert (repr(Wire("a", 1)) in site.steps(), only(site).state) == (False, "applying")
    site.failing.clear()
    assert reconcile(site, spec(*NEW))["line"].holds
    assert site.steps() == things(*NEW)


def test_a_change_whose_former_part_cannot_be_undone(site: Site) -> None:
    """The new part is made only after the old part was undone."""
    reconcile(site, spec(*OLD))
    site.stuck.add("wire")
    assert "cannot be reached" in reconcile(site, spec(*NEW))["line"].problem
    assert site.steps() == things(*OLD)
    site.stuck.clear()
    assert reconcile(site, spec(*NEW))["line"].holds
    assert site.steps() == things(*NEW)


def test_a_spec_that_is_back_before_it_was_undone(site: Site) -> None:
    """What could not be undone is undone first, and then the spec is met anew."""
    reconcile(site, spec(*OLD))
    site.stuck.add("pole")
    found = reconcile(site)["line"]
    assert (found.desired, found.holds, only(site).state) == (False, False, "deleting")
    site.stuck.clear()
    assert reconcile(site, spec(*NEW))["line"].holds
    assert site.steps() == things(*NEW)


def test_a_spec_that_is_back_while_its_former_part_cannot_go(site: Site) -> None:
    """What could not be undone is used again, as when pods have ports on the bridge of an uplink that is desired again."""
    reconcile(site, spec(*OLD))
    site.stuck.add("pole")
    assert not reconcile(site)["line"].holds
    assert reconcile(site, spec(*OLD))["line"].holds
    assert (site.steps(), only(site).state) == (things(*OLD), "ready")


def test_what_would_be_lost_with_the_rest_keeps_it(site: Site) -> None:
    """Poles stay under wires that cannot be taken down, each reported once, until they can be or a person gives them up."""
    for giving_up in (False, True):
        reconcile(site, spec(*OLD))
        site.stuck.add("wire")
        assert reconcile(site)["line"].problem.count("the wire cannot be reached") == 2
        assert (site.steps(), only(site).steps) == (things(*OLD), OLD)
        if giving_up:
            site.stand = {key: each for key, each in site.stand.items() if key[0] == "pole"}
            undo(KIND, "line", site, force=True)
        else:
            site.stuck.clear()
            assert reconcile(site) == {}
        assert (site.steps(), site.journal.node_records()) == (things(), [])


def test_what_is_still_taken_keeps_all_that_was_before_it(site: Site) -> None:
    """A step in use keeps all earlier steps, also its own to be undone, and also for a person, until it is free."""
    line = (Pole("a"), Wire("a", 1), Wire("a", 2))
    reconcile(site, spec(*line))
    site.taken.add(repr(line[2]))
    assert reconcile(site)["line"].problem == "a bird sits on it"
    with pytest.raises(StillTaken, match="a bird"):
        undo(KIND, "line", site, force=True)
    assert (site.steps(), only(site).steps) == (things(*line), line)
    site.taken.clear()
    assert reconcile(site) == {}
    assert (site.steps(), site.journal.node_records()) == (things(), [])


def test_another_boot_looks_afresh(site: Site) -> None:
    """The plan gets the other boot's record; existing things stay and missing ones are applied.

    Nothing is done until the spec is known.
    """
    reconcile(site, spec(*OLD, source="objects"))
    site.boot = "boot-2"
    for key in (("wire", "1"), ("wire", "2")):
        del site.stand[key]
    assert "since the node was started" in reconcile(site)["line"].problem
    assert site.steps() == things(*OLD[:2])
    boots = []

    def plan(record: Record | None) -> tuple[Step, ...]:
        assert record
        boots.append(record.boot_id)
        return OLD

    assert reconcile(site, Spec(KIND, "line", "objects", "", plan))["line"].holds
    assert (boots, site.steps(), only(site).boot_id) == (["boot-1"], things(*OLD), "boot-2")


def test_another_boot_that_fails_goes_back_to_what_outlived_it(site: Site) -> None:
    """A spec that cannot be met after a boot removes nothing that outlived the boot."""
    reconcile(site, spec(*OLD))
    site.boot = "boot-2"
    del site.stand["wire", "1"], site.stand["wire", "2"]
    site.failing[repr(OLD[2])] = StepFailed("no wire left")
    assert not reconcile(site, spec(*OLD))["line"].holds
    assert (site.steps(), only(site).state, only(site).steps) == (things(*OLD[:2]), "ready", OLD[:2])


def test_the_latest_is_undone_first(site: Site) -> None:
    """A wire of one spec on the pole of another is taken down before it."""
    reconcile(site, spec(Pole("a")))
    site.now = 2
    reconcile(site, spec(Pole("a")), spec(Wire("a", 1), name="another"))
    assert reconcile(site) == {}
    assert site.effects[-2:] == ["-wire", "-pole"]


def test_nothing_desired_is_nothing_recorded(site: Site) -> None:
    """A plan without steps makes no record, and undoes one."""
    assert reconcile(site, spec())["line"].holds
    assert site.journal.node_records() == []
    reconcile(site, spec(*OLD))
    assert reconcile(site, spec())["line"].holds
    assert (site.steps(), site.journal.node_records()) == (things(), [])


def test_a_failing_spec_waits_and_a_changed_one_does_not(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each failure doubles the pause; a person's request and a changed spec are tried at once.

    The log has a problem when it is new.
    """
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    tries: list[int] = []

    def failing(said: str = "no") -> Spec:
        def plan(_record: Record | None) -> tuple[Step, ...]:
            tries.append(1)
            raise InvalidConfig(said)

        return Spec(KIND, "line", SOURCE, "", plan, content=said)

    keeper = Specs(site)
    for _ in range(200):
        keeper.reconcile([failing()], (SOURCE,))
        clock[0] = keeper.next_due
    assert (clock[0] - 100) / 200 == pytest.approx(LOOK_MAX_S, rel=0.1)
    clock[0] -= 5
    keeper.reconcile([failing()], (SOURCE,))
    assert len(tries) == 200
    keeper.reconcile([failing()], (SOURCE,), now=True)
    keeper.reconcile([failing("never")], (SOURCE,))
    assert len(tries) == 202
    assert capsys.readouterr().err.count("cannot be met") == 2


def test_what_is_urgent_goes_first(site: Site) -> None:
    """An urgent spec comes before all others, even those that are undone, and though it failed a moment ago.

    It comes again if it became urgent after it was reconciled, but only once per round.
    """
    order: list[str] = []
    urgent: set[tuple[str, str]] = set()

    def one(name: str, then: Callable[[], object] = lambda: None) -> Spec:
        def plan(_record: Record | None) -> tuple[Step, ...]:
            order.append(name)
            then()
            if name == "failing":
                raise InvalidConfig("no")
            return (Pole(name),)

        return Spec(KIND, name, SOURCE, "", plan, content=name)

    keeper = Specs(site, urgent=lambda: urgent)
    keeper.reconcile([one("gone"), one("a"), one("failing")], (SOURCE,))
    site.effects.clear()
    urgent.add((KIND, "failing"))
    specs = [one("a"), one("b", lambda: urgent.add((KIND, "a"))), one("c"), one("failing")]
    order.clear()
    found = keeper.reconcile(specs, (SOURCE,))
    assert order == ["failing", "a", "b", "a", "c"]
    assert site.effects == ["-pole", "+pole", "+pole"]
    assert [(each.name, each.holds) for each in found] == [("a", True), ("b", True), ("c", True), ("failing", False)]
    order.clear()
    urgent.clear()
    keeper.reconcile(specs, (SOURCE,))
    assert order == ["a", "b", "a", "c"]
    urgent.clear()
    urgent.add((KIND, "b"))
    order.clear()
    assert keeper.reconcile(specs[:1], (SOURCE,))
    assert (order, site.steps()) == (["a"], things(Pole("a")))


def moments(directory: Path, first: tuple[Spec, ...], last: tuple[Spec, ...]) -> int:
    """How many moments there are between the first specs and the last."""
    site = Site(directory)
    seen: list[str] = []
    reconcile(site, *first)
    site.moment = seen.append
    reconcile(site, *last)
    return len(seen)


CHANGES = {"applied": ((), (spec(*OLD),)), "changed": ((spec(*OLD),), (spec(*NEW),)), "undone": ((spec(*OLD),), ())}


def killed(directory: Path, first: tuple[Spec, ...], last: tuple[Spec, ...]) -> Iterator[Site]:
    """Nodes on which the process died at each moment of the change."""
    for number in range(moments(directory / "counted", first, last)):
        site = Site(directory / str(number))
        reconcile(site, *first)
        left = number

        def die(_moment: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed

        site.moment = die
        with pytest.raises(Killed):
            reconcile(site, *last)
        site.moment = lambda _: None
        yield site


@pytest.mark.parametrize("change", CHANGES)
def test_a_death_at_every_point(tmp_path: Path, change: str) -> None:
    """If the next process finds the spec, it is met; a refused one restores the former state; without one nothing is left.

    If the source is unknown, what exists is complete.
    """
    first, last = CHANGES[change]
    before = things(*first[0].plan(None)) if first else things()
    after = things(*last[0].plan(None)) if last else things()
    goes_on = {
        "met": ((spec(*NEW),), (SOURCE,), [things(*NEW)]),
        "refused": ((spec(error=InvalidConfig("no")),), (SOURCE,), [before, after]),
        "gone": ((), (SOURCE,), [things()]),
        "not known": ((), (), [before, after]),
    }
    for name, (desired, complete, allowed) in goes_on.items():
        for number, site in enumerate(killed(tmp_path / name.replace(" ", ""), first, last)):
            reconcile(site, *desired, complete=complete)
            assert site.steps() in allowed, (name, number)
            listed = things(*(step for record in site.journal.node_records() for step in record.steps))
            assert listed == site.steps(), (name, number)
            assert reconcile(site) == {}
            assert (site.steps(), site.journal.node_records()) == (things(), []), (name, number)


def test_a_death_at_every_point_after_which_the_node_boots(tmp_path: Path) -> None:
    """Whatever the former boot recorded, the next one meets the spec."""
    for number, site in enumerate(killed(tmp_path, *CHANGES["changed"])):
        site.boot = "boot-2"
        for key in [key for key in site.stand if key[0] == "wire"]:
            del site.stand[key]
        assert reconcile(site, spec(*NEW))["line"].holds, number
        assert site.steps() == things(*NEW), number


def test_a_key_names_its_spec(site: Site) -> None:
    """Records are found by the spec's kind and name."""
    reconcile(site, spec(*OLD))
    assert key_of(only(site)) == (KIND, "line")
