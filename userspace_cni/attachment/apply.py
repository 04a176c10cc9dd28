"""Applies and undoes the steps of one attachment, with its record and the locks of what it shares.

A `Turn` belongs to one caller: it holds the attachment's lock, so no other process changes the record until it ends. Every apply
and undo of a recorded attachment is a method of a turn: verbs, cleanup and reconciliation take a turn, read the record again,
decide and act. A verb waits for its turn with the attachment that it was called for; other callers do not wait.

This module knows no switch and no file system: drivers do. The lock of a shared place is taken here and nowhere else, one at a
time. A process that dies in between leaves a record and a list of holders, from which a later turn goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Final

from userspace_cni.attachment.journal import Journal
from userspace_cni.attachment.records import Record, encode_complete, record_key
from userspace_cni.attachment.shared_holders import SharedHolders, keys_of
from userspace_cni.attachment.steps import Rest, SharedResource, Step, StillTaken
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import NameTaken, UserspaceError
from userspace_cni.base.log import say, timed
from userspace_cni.base.stages import stage

if TYPE_CHECKING:
    from userspace_cni.attachment.attachment_store import AttachmentStore
    from userspace_cni.attachment.node import DriverOf

_BACK_S: Final = 2.0


@dataclass(frozen=True)
class Failure:
    """A step that could not be undone, and why."""

    step: Step
    error: UserspaceError


@contextmanager
def await_turn(container_id: str, ifname: str, store: AttachmentStore, driver: DriverOf, deadline: Deadline) -> Iterator[Turn]:
    """Take a turn as soon as no other call has one. Raises Unavailable at the deadline."""
    key = record_key(container_id, ifname)
    with store.journal.turn_lock(key, deadline) as lock:
        yield Turn(key, store.journal, driver, lock.share)


@contextmanager
def try_turn(container_id: str, ifname: str, store: AttachmentStore, driver: DriverOf) -> Iterator[Turn | None]:
    """Take a turn at once; None while another call works on the attachment: the work is left to that call."""
    key = record_key(container_id, ifname)
    lock = store.journal.try_turn_lock(key)
    if lock is None:
        yield None
        return
    with lock:
        yield Turn(key, store.journal, driver, lock.share)


@dataclass(frozen=True)
class _UndoGroup:
    """Steps to be undone one after the other in one place; `last`: no later run of the attachment is in this place."""

    place: str
    steps: list[Step]
    last: bool


class Turn:
    """A turn with the attachment `key`. It must not be used after its end.

    `share_lock` gives a descriptor for a child process; the lock stays taken as long as that process lives.
    """

    def __init__(self, key: str, journal: Journal, driver: DriverOf, share_lock: Callable[[], int]) -> None:
        self._key = key
        self._journal = journal
        self._driver = driver
        self.share_lock = share_lock

    def read(self) -> Record | None:
        """The record as it is now; None when there is none."""
        return self._journal.read_key(self._key)

    def foresee(self, record: Record) -> tuple[Record, list[str]]:
        """The record with what it will have made, as far as that is known before its places are locked; and the record keys of
        the attachments that hold what is to be this attachment's alone."""
        made: set[str] = set()
        rivals: dict[str, None] = {}
        for place in {_place(step) for step in record.steps} - {""}:
            mine = _in(place, record.steps)
            shared = self._journal.read_shared(place) or SharedHolders()
            made |= _made(mine, shared, self._driver)
            held = shared.without_holder(record.key).find_holders()
            rivals |= dict.fromkeys(held.get(step.resource.key, "") for step in mine if step.resource and step.resource.exclusive)
        return record.to(record.state, made=tuple(sorted(made))), [key for key in rivals if key]

    def begin(self, record: Record, steps: Iterable[Step], deadline: Deadline, *, again: bool = False) -> list[Rest]:
        """Begin to apply these steps of the record, in order; returns the pending rests, for this turn or another.

        The record with these steps is written already. The first error ends it. The attachment is first entered in the list of
        holders of each shared thing, also when that is made again. `again`: a repair; it does not wait for things that only
        other programs make.
        """
        rests: list[Rest] = []
        held: set[str] = set()
        for place, run in _by_place(steps):
            if run[0].from_switch:
                self.settle(rests)
            # a thing that is this attachment's alone needs no lock once the list of holders names it
            with _in_place("" if place in held and _all_exclusive(run) else place, self._journal, deadline):
                if place and place not in held:
                    record = _hold(record, place, self._journal, self._driver)
                    held.add(place)
                for step in run:
                    deadline.require(f"applying step '{step.kind}'")
                    with stage(step.stage), timed("applied a step", step=step.kind, what=partial(_summary, step)):
                        driver = self._driver(step)
                        rest = (driver.make_again if again else driver.apply)(step, deadline)
                    if rest:
                        rests.append(partial(_awaited, step, rest))
        return rests

    def put_back(self, steps: Iterable[Step], deadline: Deadline) -> list[Rest]:
        """Put back what others have changed of things that are there; returns what remains to be awaited."""
        rests: list[Rest] = []
        for place, run in _by_place(steps):
            with _in_place(place, self._journal, deadline):
                for step in run:
                    with stage(step.stage):
                        rest = self._driver(step).put_back(step, deadline)
                    rests += [rest] if rest else []
        return rests

    def settle(self, rests: list[Rest]) -> None:
        """Await what was begun, and empty the list."""
        while rests:
            with stage("ovs"):
                rests.pop(0)()

    def remove(self, record: Record, deadline: Deadline) -> list[Failure]:
        """Record that the attachment is being deleted, undo every step in reverse, each on its own, and drop the record.

        Steps that cannot be undone, and those that they keep, stay in the record, in state `deleting`, and are returned with
        their errors. Raises RecordRefused when that cannot be recorded, and, with nothing undone, when a living attachment cannot
        be marked as being deleted: reconciliation would make its lost steps again, without holders.
        """
        if record.state != "deleting":
            record = self._journal.mark_deleting(record)
        failures: list[Failure] = []
        runs = _by_place(record.steps[::-1])
        for number, (place, steps) in enumerate(runs):
            last = place not in {later for later, _ in runs[number + 1 :]}
            failures += self._undo_run(record, _UndoGroup(place, steps, last=last), failures, deadline)
        if failures:
            failed = {id(failure.step) for failure in failures}
            self._journal.keep(record.to("deleting", steps=tuple(step for step in record.steps if id(step) in failed)))
        else:
            self._journal.drop(record)
        return failures

    def amend(self, record: Record, steps: tuple[Step, ...], deadline: Deadline) -> None:
        """Give a living attachment these steps in the place of its own, and record them.

        A step that has changed is applied over what is there; one whose thing the attachment no longer has is undone. What
        amends here never leaves a thing that the recorded steps do not lead to: a changed property of a port or link goes with
        it. So the record is written afterwards: after a death in between, the next comparison with the pod finds it unchanged and
        does this again. Raises UserspaceError, after what was done by then was put back as far as that can be done now.
        """
        changed = record.to(record.state, steps=steps)
        try:
            self._replace(record, steps, deadline)
        except UserspaceError:
            with suppress(UserspaceError):
                self._replace(changed, record.steps, Deadline.after(_BACK_S))
            raise
        self._journal.write(changed)

    def converge(self, record: Record, steps: tuple[Step, ...], deadline: Deadline) -> None:
        """Change a node attachment from the steps of its record to these.

        `record` is the record to reach, with the steps that the attachment may have now, none for a new one. Before the first
        effect it is written with the old and the new steps, after the last with the new ones alone. A crash in between leaves a
        record that names everything, and the steps of the last complete state. Steps that only the record has are undone first:
        a NIC can be in one port only, and addresses must leave a bridge before anything else of it changes. A step that is
        there already is applied again only if the record is not `ready`. Raises UserspaceError.
        """
        added = [step for step in steps if record.state != "ready" or step not in record.steps]
        self._journal.write(record.to("applying", steps=_together(record.steps, steps), result=encode_complete(record.complete)))
        for step in reversed(_gone(record.steps, steps)):
            deadline.require(f"undoing step '{step.kind}'")
            with stage(step.stage):
                self._driver(step).undo(step, deadline)
        self.settle(self.begin(record.to("applying", steps=steps), added, deadline))
        done = record.to("applying", steps=steps, result=encode_complete(steps))
        self._journal.write(done)  # steps before state: a record in `ready` must not name undone steps
        self._journal.advance(done.to("ready", result=None))

    def _replace(self, record: Record, steps: tuple[Step, ...], deadline: Deadline) -> None:
        """Apply those of the steps that are not the record's, and undo what only the record has. What other programs are to make
        of a living attachment's things is not awaited."""
        self.settle(self.begin(record, [step for step in steps if step not in record.steps], deadline, again=True))
        for step in _gone(record.steps, steps):
            self._driver(step).undo(step, deadline)

    def undo_some(self, steps: Iterable[Step], wanted: Callable[[Step], bool], deadline: Deadline) -> None:
        """Undo the shared steps for which `wanted`, called under their place's lock, says so. The record and its holders stay."""
        for place, run in _by_place(steps):
            with _in_place(place, self._journal, deadline):
                for step in filter(wanted, run):
                    self._driver(step).undo(step, deadline)

    def undo_unrecorded(self, step: Step, deadline: Deadline) -> list[Failure]:
        """Undo a step that is in no record and is not recorded: a failure is returned, and a repeated call tries again."""
        try:
            self._driver(step).undo(step, deadline)
        except UserspaceError as error:
            return [Failure(step, error)]
        return []

    def _undo_run(self, record: Record, run: _UndoGroup, before: list[Failure], deadline: Deadline) -> list[Failure]:
        """Undo the steps of a run, each on its own, and leave the place's list of holders after its last run.

        Each step has half of the time left: a switch that hangs must not keep the addresses from being released.
        """
        failures: list[Failure] = []
        try:
            # a thing that the list gives to this attachment alone needs no lock before the attachment leaves the list
            with _in_place(run.place if run.last or not _all_exclusive(run.steps) else "", self._journal, deadline.half()):
                shared = self._journal.read_shared(run.place) if run.place else None
                for step in run.steps:
                    if run.place and not _is_ours_to_undo(record.key, step, shared):
                        continue
                    kept = _kept_by(step, before + failures)
                    failures += [Failure(step, kept.error)] if kept else self._undo(step, deadline.half())
                if shared and run.last:
                    _leave_place(record, run.place, shared, [failure.step for failure in before + failures], self._journal)
        except UserspaceError as error:
            return [Failure(step, error) for step in run.steps]
        return failures

    def _undo(self, step: Step, deadline: Deadline) -> list[Failure]:
        try:
            with stage(step.stage), timed("undid a step", step=step.kind, what=partial(_summary, step)):
                self._driver(step).undo(step, deadline)
        except UserspaceError as error:
            say("warning", f"undoing step '{step.kind}' failed", error=error)
            return [Failure(step, error)]
        return []


def _summary(step: Step) -> str:
    return step.summary


def _awaited(step: Step, rest: Rest) -> None:
    with timed("waited for a step", step=step.kind, what=partial(_summary, step)):
        rest()


def _replaces(new: Step, old: Step) -> bool:
    """Whether a step is about the thing of another one of its kind."""
    return (new.kind, new.thing) == (old.kind, old.thing)


def _gone(former: Iterable[Step], steps: Sequence[Step]) -> list[Step]:
    """The former steps that no new step replaces."""
    return [old for old in former if not any(_replaces(new, old) for new in steps)]


def _together(former: tuple[Step, ...], steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """The union of both, in an order that can be undone from the last to the first.

    A former step stays right after its predecessor; a replaced step comes right before its replacement.
    """
    together, place = list(steps), 0
    for old in former:
        if old in together:
            place = together.index(old) + 1
            continue
        replacement = next((number for number, new in enumerate(together) if _replaces(new, old)), None)
        together.insert(place if replacement is None else replacement, old)
        place = place + 1 if replacement is None else replacement + 2
    return tuple(together)


def adopt(thing: SharedResource, journal: Journal, deadline: Deadline) -> None:
    """Record that we remove a shared thing with its last holder: the program that made it has ended."""
    with journal.place_lock(thing.place, deadline):
        journal.adopt(thing)


def _by_place(steps: Iterable[Step]) -> list[tuple[str, list[Step]]]:
    """Consecutive steps grouped by shared place, "" for steps that share nothing, and by whether the switch has to be done."""
    return [(place, list(run)) for (place, _), run in groupby(steps, key=lambda step: (_place(step), step.from_switch))]


def _place(step: Step) -> str:
    return step.resource.place if step.resource else ""


def _in(place: str, steps: Iterable[Step]) -> tuple[Step, ...]:
    return tuple(step for step in steps if _place(step) == place)


def _all_exclusive(steps: Iterable[Step]) -> bool:
    return all(step.resource and step.resource.exclusive for step in steps)


def _in_place(place: str, journal: Journal, deadline: Deadline) -> AbstractContextManager[object]:
    return journal.place_lock(place, deadline) if place else nullcontext()


def _hold(record: Record, place: str, journal: Journal, driver: DriverOf) -> Record:
    """Enter all steps of the attachment in the place's list before the first of their things exists; returns the record then.

    So the list names the holders of each thing. What we are to make is recorded durably if it is not what was foreseen.
    """
    mine = _in(place, record.steps)
    shared = journal.read_shared(place) or SharedHolders()
    if shared.holders.get(record.key) == mine:
        return record
    if not shared.holders and any(step.makes_place for step in mine):
        _require_separate(place, journal)
    others = shared.without_holder(record.key)
    held = others.find_holders()
    for thing in (step.resource for step in mine):
        holder = held.get(thing.key, "") if thing and thing.exclusive else ""
        if thing and holder:
            raise NameTaken(
                f"{thing.key} is in use by the attachment {holder}",
                "its DEL is missing, or 'host.vhost.socketfile' needs another name",
            )
    made = _made(mine, shared, driver)
    if made != keys_of(mine).intersection(record.made):
        record = record.to(record.state, made=tuple(sorted(made.union(record.made) - (keys_of(mine) - made))))
        journal.write(record)
    journal.write_shared(place, others.with_holder(record.key, mine, made))
    return record


def _made(mine: tuple[Step, ...], shared: SharedHolders, driver: DriverOf) -> set[str]:
    """The keys of those things of a place's steps that we made, or will make."""
    held = shared.find_holders()
    return {
        step.resource.key
        for step in mine
        if step.resource
        and not step.resource.lent
        and (
            step.resource.key in shared.made
            or (step.resource.key not in held and (step.resource.exclusive or not driver(step).is_present(step)))
        )
    }


def _require_separate(place: str, journal: Journal) -> None:
    """Raise NameTaken for a place in a directory that we made for another attachment: while the place exists, that directory
    could not be removed with its attachment."""
    above = place.rpartition("/")[0]
    while above:
        shared = journal.read_shared(above)
        if shared and any(step.makes_place for steps in shared.holders.values() for step in _made_by_us(steps, shared)):
            raise NameTaken(
                f"{place} is in a directory that was made for the attachment {next(iter(shared.holders))}",
                "'sharedDir', or the pod's hostPath, must be a directory of no other attachment",
            )
        above = above.rpartition("/")[0]


def _made_by_us(steps: Iterable[Step], shared: SharedHolders) -> Iterator[Step]:
    return (step for step in steps if step.resource and step.resource.key in shared.made)


def _is_ours_to_undo(key: str, step: Step, shared: SharedHolders | None) -> bool:
    """Whether the attachment is the last holder of a thing that we made."""
    if shared is None or key not in shared.holders or step.resource is None:
        return False
    thing = step.resource.key
    return thing in shared.made and thing not in shared.without_holder(key).find_holders()


def _kept_by(step: Step, failures: Iterable[Failure]) -> Failure | None:
    """The failure because of which this step must stay: a later step's thing lies in this step's thing, needs it, or
    still takes what it would give back."""

    def keeps(failure: Failure) -> bool:
        later = failure.step
        inside = step.holds_others and _place(later) == _place(step)
        return inside or isinstance(failure.error, StillTaken) or (later.keeps_earlier and not step.keeps_earlier)

    return next((failure for failure in failures if keeps(failure)), None)


def _leave_place(record: Record, place: str, shared: SharedHolders, failed: list[Step], journal: Journal) -> None:
    """Take the attachment off the list of holders, except for the steps that failed."""
    if record.key not in shared.holders:
        return
    left = tuple(step for step in record.steps if _place(step) == place and any(step is each for each in failed))
    others = shared.without_holder(record.key)
    made = {step.resource.key for step in left if step.resource} & shared.made
    journal.write_shared(place, others.with_holder(record.key, left, made) if left else others)
