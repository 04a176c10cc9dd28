"""Applies, undoes and checks the steps of one attachment, with its record and the locks of what it shares.

Knows no switch and no file system: drivers do. The caller holds the container's lock; the lock of a shared place is taken
here and nowhere else, one at a time. Whatever dies in between leaves a record and a list of holders from which the same
functions go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol, TypeVar

from userspace_cni.attachment.drift import Drift
from userspace_cni.attachment.journal import Journal, Shared, keys_of
from userspace_cni.attachment.records import Record
from userspace_cni.attachment.steps import Directory, Resource, Step
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import NameTaken, UserspaceError
from userspace_cni.base.log import say
from userspace_cni.base.stages import Stage, stage

S_contra = TypeVar("S_contra", bound=Step, contravariant=True)
Rest = Callable[[], None]
"""What remains to be awaited of a step that was begun. Raises as `apply` does."""


class Driver(Protocol[S_contra]):
    """Knows one type of step. Every method is idempotent, and safe to call again after the process died inside it.

    All raise only errors of `userspace_cni.base.errors`.
    """

    def apply(self, step: S_contra, deadline: Deadline) -> Rest | None:
        """Make it true, or begin to and return what remains: steps that do not depend on it go on meanwhile.

        Raises Unavailable for what may pass by itself, a StepFailed otherwise.
        """
        ...

    def undo(self, step: S_contra, deadline: Deadline) -> None:
        """Remove what `apply` made, and nothing else. What is already absent is fine."""
        ...

    def check(self, step: S_contra, deadline: Deadline) -> list[Drift]:
        """Every difference between the step and reality. Changes nothing."""
        ...

    def present(self, step: S_contra) -> bool:
        """Whether the thing behind a shared step exists before anybody of ours holds it (then it is not ours to remove)."""
        ...


class Drivers(Protocol):
    """The driver of each step."""

    def driver(self, step: Step) -> Driver[Any]:
        """The driver that knows this type of step."""
        ...


@dataclass(frozen=True)
class Failure:
    """A step that could not be undone, and why."""

    step: Step
    error: UserspaceError


def apply_steps(record: Record, drivers: Drivers, journal: Journal, deadline: Deadline) -> None:
    """Make every step of the record true, in order; the first error ends it. The record must already hold the steps."""
    settle(begin_steps(record, record.steps, drivers, journal, deadline))


def begin_steps(record: Record, steps: Iterable[Step], drivers: Drivers, journal: Journal, deadline: Deadline) -> list[Rest]:
    """Begin to make these steps of the record true, in order, and return what remains to be awaited (see `settle`).

    What is shared is entered in its place's list of holders first, also when it is made again after it was lost.
    """
    rests: list[Rest] = []
    held: set[str] = set()
    for place, run in _by_place(steps):
        if any(step.after_rest for step in run):
            settle(rests)
        # what is this attachment's alone needs no lock once the list of holders says so
        with _in_place("" if place in held and _all_exclusive(run) else place, journal, deadline):
            if place and place not in held:
                record = _hold(record, place, drivers, journal)
                held.add(place)
            for step in run:
                deadline.require(f"applying step '{step.kind}'")
                with stage(_stage(step)):
                    rest = drivers.driver(step).apply(step, deadline)
                if rest:
                    rests.append(rest)
    return rests


def settle(rests: list[Rest]) -> None:
    """Await what was begun. The list is empty then."""
    while rests:
        with stage("ovs"):
            rests.pop(0)()


def undo_steps(record: Record, drivers: Drivers, journal: Journal, deadline: Deadline) -> list[Failure]:
    """Undo every step in reverse, each on its own, and drop the record when all succeeded.

    Otherwise the record stays in state `deleting` with just the steps that failed, and these are returned with their errors.
    Raises RecordRefused when that cannot be recorded.
    """
    failures: list[Failure] = []
    runs = _by_place(record.steps[::-1])
    for number, (place, steps) in enumerate(runs):
        last = place not in {later for later, _ in runs[number + 1 :]}
        failures += _undo_run(record, _Run(place, steps, last=last), failures, drivers, journal, deadline)
    if failures:
        failed = {id(failure.step) for failure in failures}
        journal.keep(record.to("deleting", steps=tuple(step for step in record.steps if id(step) in failed)))
    else:
        journal.drop(record)
    return failures


def check_steps(record: Record, drivers: Drivers, deadline: Deadline) -> list[Drift]:
    """Every drift of every step."""
    return [drift for step in record.steps for drift in drivers.driver(step).check(step, deadline)]


def adopt(thing: Resource, journal: Journal, deadline: Deadline) -> None:
    """Make a shared thing ours to remove: its maker has gone, and left it to its holders."""
    with journal.place_lock(thing.place, deadline):
        journal.adopt(thing)


def foresee(record: Record, drivers: Drivers, journal: Journal) -> tuple[Record, list[str]]:
    """The record with what it will have made, as far as can be said before its places are locked; and who holds what is to be
    this attachment's alone, by record key."""
    made: set[str] = set()
    rivals: dict[str, None] = {}
    for place in {_place(step) for step in record.steps} - {""}:
        mine = _in(place, record.steps)
        shared = journal.shared(place) or Shared()
        made |= _made(mine, shared, drivers)
        others = shared.without_holder(record.key)
        rivals |= dict.fromkeys(others.needs(step.resource.key) for step in mine if step.resource and step.resource.exclusive)
    return record.to(record.state, made=tuple(sorted(made))), [key for key in rivals if key]


def held_by(key: str, journal: Journal) -> tuple[Step, ...]:
    """The shared steps that an attachment holds by the places' own lists: what is known when its record is lost."""
    return tuple(step for _, shared in journal.places() for step in shared.holders.get(key, ()))


def _by_place(steps: Iterable[Step]) -> list[tuple[str, list[Step]]]:
    """Runs of steps in the same shared place; "" for those that share nothing."""
    return [(place, list(run)) for place, run in groupby(steps, key=_place)]


def _place(step: Step) -> str:
    return step.resource.place if step.resource else ""


def _in(place: str, steps: Iterable[Step]) -> tuple[Step, ...]:
    return tuple(step for step in steps if _place(step) == place)


def _all_exclusive(steps: Iterable[Step]) -> bool:
    return all(step.resource and step.resource.exclusive for step in steps)


def _in_place(place: str, journal: Journal, deadline: Deadline) -> AbstractContextManager[object]:
    return journal.place_lock(place, deadline) if place else nullcontext()


def _stage(step: Step) -> Stage:
    return {"port": "ovs", "lease": "ipam", "legacy-record": "ovs"}.get(step.kind, "pod")  # type: ignore[return-value]


def _hold(record: Record, place: str, drivers: Drivers, journal: Journal) -> Record:
    """Enter all steps that the attachment has in the place before the first of their things exists; the record as it is then.

    So the list tells of each thing for which attachments it is. What we are to have made is recorded durably, if it is not what
    was foreseen.
    """
    mine = _in(place, record.steps)
    shared = journal.shared(place) or Shared()
    if shared.holders.get(record.key) == mine:
        return record
    if not shared.holders and any(isinstance(step, Directory) and step.create for step in mine):
        _require_apart(place, journal)
    others = shared.without_holder(record.key)
    for thing in (step.resource for step in mine):
        holder = others.needs(thing.key) if thing and thing.exclusive else ""
        if thing and holder:
            raise NameTaken(
                f"{thing.key} is in use by the attachment {holder}",
                "a DEL of that one is missing, or 'host.vhost.socketfile' has to be another name",
            )
    made = _made(mine, shared, drivers)
    if made != keys_of(mine).intersection(record.made):
        record = record.to(record.state, made=tuple(sorted(made.union(record.made) - (keys_of(mine) - made))))
        journal.write(record)
    journal.write_shared(place, others.with_holder(record.key, mine, made))
    return record


def _made(mine: tuple[Step, ...], shared: Shared, drivers: Drivers) -> set[str]:
    """Which things of a place's steps are, or will be, made by us: by key."""
    return {
        step.resource.key
        for step in mine
        if step.resource
        and (
            step.resource.key in shared.made
            or (not shared.needs(step.resource.key) and (step.resource.exclusive or not drivers.driver(step).present(step)))
        )
    }


def _require_apart(place: str, journal: Journal) -> None:
    """Raise NameTaken for a place in a directory that we made for another attachment: it is that one's alone, and could never be
    removed with it."""
    above = place.rpartition("/")[0]
    while above:
        shared = journal.shared(above)
        if shared and Directory(above, above).resource.key in shared.made:
            raise NameTaken(
                f"{place} is in a directory that was made for the attachment {next(iter(shared.holders))}",
                "'sharedDir' has to be a directory that is no other attachment's",
            )
        above = above.rpartition("/")[0]


def _is_ours_to_undo(key: str, step: Step, shared: Shared | None) -> bool:
    """Whether the attachment is the last holder of a thing that we made."""
    if shared is None or key not in shared.holders or step.resource is None:
        return False
    thing = step.resource.key
    return thing in shared.made and not shared.without_holder(key).needs(thing)


@dataclass(frozen=True)
class _Run:
    """Steps to be undone one after the other in one place; `last`: no more of the attachment's steps are in it."""

    place: str
    steps: list[Step]
    last: bool


def _undo_run(
    record: Record, run: _Run, before: list[Failure], drivers: Drivers, journal: Journal, deadline: Deadline
) -> list[Failure]:
    """Undo the steps of a run, each on its own, and leave the place's list of holders after its last one.

    Each step has half of the time left: a switch that hangs must not keep the addresses.
    """
    failures: list[Failure] = []
    try:
        # what is this attachment's alone, by the list of holders, needs no lock before that list is left
        with _in_place(run.place if run.last or not _all_exclusive(run.steps) else "", journal, deadline.half()):
            shared = journal.shared(run.place) if run.place else None
            for step in run.steps:
                if run.place and not _is_ours_to_undo(record.key, step, shared):
                    continue
                inside = _inside(step, before + failures)
                failures += [Failure(step, inside.error)] if inside else _undo(step, drivers, deadline.half())
            if shared and run.last:
                _let_go(record, run.place, shared, [failure.step for failure in before + failures], journal)
    except UserspaceError as error:
        return [Failure(step, error) for step in run.steps]
    return failures


def _inside(step: Step, failures: Iterable[Failure]) -> Failure | None:
    """What lies in the step's thing and could not be undone."""
    if not step.holds_others:
        return None
    return next((failure for failure in failures if _place(failure.step) == _place(step)), None)


def _undo(step: Step, drivers: Drivers, deadline: Deadline) -> list[Failure]:
    try:
        with stage(_stage(step)):
            drivers.driver(step).undo(step, deadline)
    except UserspaceError as error:
        say("warning", f"undoing step '{step.kind}' failed", error=error)
        return [Failure(step, error)]
    return []


def _let_go(record: Record, place: str, shared: Shared, failed: list[Step], journal: Journal) -> None:
    """Leave the list of holders, but for the steps that failed, after their things have gone."""
    if record.key not in shared.holders:
        return
    left = tuple(step for step in record.steps if _place(step) == place and any(step is each for each in failed))
    others = shared.without_holder(record.key)
    made = {step.resource.key for step in left if step.resource} & shared.made
    journal.write_shared(place, others.with_holder(record.key, left, made) if left else others)
