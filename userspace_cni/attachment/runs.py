"""What a command makes for a while (probe, ping, load, capture): steps in the record of its run, made and undone as those of
an attachment.

The record is written before each effect. A run that is killed leaves it: any later run, `gc` and the agent undo it, for the run's
name tells that its process has ended. A run that lives is never touched by another process.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from userspace_cni.attachment.apply import Turn, await_turn, try_turn
from userspace_cni.attachment.records import Record, run_container
from userspace_cni.attachment.run_ids import RunId
from userspace_cni.attachment.steps import Step
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import UserspaceError, combine
from userspace_cni.base.log import say
from userspace_cni.linux.closing import Closing

if TYPE_CHECKING:
    from userspace_cni.attachment.attachment_store import AttachmentStore
    from userspace_cni.attachment.node import DriverOf, Switch

CLOSE_S: Final = 5.0
"""Seconds for undoing all of a run."""
_HINT: Final = "userspace-cni gc removes it when the switch answers, and so do the next probe and the agent"


class Run(Closing):
    """One run of this process; a context manager that undoes all of it. `purpose`: what it is for, as people call it.

    For one thread at a time. Methods raise errors of `userspace_cni.base.errors`.
    """

    def __init__(self, purpose: str, store: AttachmentStore, driver: DriverOf) -> None:
        self.id = RunId.new()
        self.steps: tuple[Step, ...] = ()
        """Those that are true."""
        self._purpose = purpose
        self._store = store
        self._driver = driver
        self._container = run_container(self.id)
        self._began = False

    def add(self, steps: Iterable[Step], deadline: Deadline) -> None:
        """Make these true, too, after those before. After an error some of it may be there, and is recorded."""
        self._change((*self.steps, *steps), deadline)

    def drop(self, steps: Iterable[Step], deadline: Deadline) -> None:
        """Undo these, from the last to the first, also those of which `add` has failed. The first error ends it."""
        gone = tuple(steps)
        self._change(tuple(step for step in self.steps if step not in gone), deadline)

    def close(self) -> None:
        """Undo all of it. What cannot be undone now is logged and stays recorded; no error is raised."""
        if not self._began:
            return
        try:
            deadline = Deadline.after(CLOSE_S)
            with await_turn(self._container, self._purpose, self._store, self._driver, deadline) as turn:
                failures = turn.remove(self._record(turn), deadline)
            left = {failure.step.summary: failure.error for failure in failures}
        except UserspaceError as error:
            left = {"something": error}
        for what, why in left.items():
            say("warning", f"{what} of this {self._purpose} stays", error=why, hint=_HINT)
        self.steps = ()

    def _change(self, steps: tuple[Step, ...], deadline: Deadline) -> None:
        with await_turn(self._container, self._purpose, self._store, self._driver, deadline) as turn:
            record = self._record(turn)
            self._began = True
            turn.converge(record, steps, deadline)
        self.steps = steps

    def _record(self, turn: Turn) -> Record:
        """The record; where it was lost, and before there is one, what this process knows."""
        store, purpose = self._store, self._purpose
        boot_id, now = store.boot_id(), store.boottime_ns()
        return turn.read() or Record(
            "applying", purpose, self._container, purpose, boot_id=boot_id, boottime_ns=now, steps=self.steps
        )


def list_ended_runs(store: AttachmentStore, switch: Switch, deadline: Deadline) -> list[Record]:
    """The records of runs whose process has ended; of those whose record is lost what the node shows. Raises UserspaceError."""
    records = store.journal.run_records()
    known = {each.container_id for each in records}
    found = [each for each in records if each.run is not None and each.run.is_dead]
    for run, (purpose, steps) in switch.left_of_runs(deadline).items():
        if run.is_dead and run_container(run) not in known:
            found.append(Record("deleting", purpose, run_container(run), purpose, steps=steps))
    return sorted(found, key=lambda record: record.container_id)


def undo_ended(record: Record, store: AttachmentStore, driver: DriverOf, deadline: Deadline) -> bool:
    """Undo one that `list_ended_runs` has found, unless another process does; whether it was done here.

    Raises the errors of what stays.
    """
    with try_turn(record.container_id, record.ifname, store, driver) as turn:
        if turn is None:
            return False
        current = turn.read()
        if current is None and record.boot_id:
            return False
        failures = turn.remove(current or record, deadline)
    if failures:
        raise combine("some of what a killed run left cannot be removed now", dict.fromkeys(each.error for each in failures))
    return True
