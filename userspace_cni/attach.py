"""Applies, undoes and checks the steps of one attachment, with its record and the locks of what it shares.

Knows no switch and no file system: drivers do. The caller holds the container's lock; the lock of a shared resource is taken
here and nowhere else, one at a time. Whatever dies in between leaves a record and a list of holders from which the same
functions go on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from userspace_cni.deadline import Deadline
from userspace_cni.errors import Drift, NameTaken, UserspaceError
from userspace_cni.journal import Journal, Shared
from userspace_cni.log import say
from userspace_cni.records import Record
from userspace_cni.steps import Resource, Step

S_contra = TypeVar("S_contra", bound=Step, contravariant=True)


class Driver(Protocol[S_contra]):
    """Knows one type of step. Every method is idempotent, and safe to call again after the process died inside it.

    All raise only errors of `userspace_cni.errors`.
    """

    def apply(self, step: S_contra, deadline: Deadline) -> None:
        """Make it true. Raises Unavailable for what may pass by itself, a StepFailed otherwise."""
        ...

    def undo(self, step: S_contra, deadline: Deadline) -> None:
        """Remove what `apply` made, and nothing else. What is already absent is fine."""
        ...

    def check(self, step: S_contra, deadline: Deadline) -> list[Drift]:
        """Every difference between the step and reality, each with expected and found. Changes nothing."""
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
    for step in record.steps:
        deadline.require(f"applying step '{step.kind}'")
        if step.resource:
            _hold(record.key, step, step.resource, drivers, journal, deadline)
        else:
            drivers.driver(step).apply(step, deadline)


def undo_steps(record: Record, drivers: Drivers, journal: Journal, deadline: Deadline) -> list[Failure]:
    """Undo every step in reverse, each on its own, and drop the record when all succeeded.

    Otherwise the record stays in state `deleting` with just the steps that failed, and these are returned with their errors.
    """
    failures: list[Failure] = []
    for step in reversed(record.steps):
        turn = deadline.half()  # a switch that hangs must not keep the addresses
        try:
            if step.resource:
                _release(record.key, step, step.resource, drivers, journal, turn)
            else:
                drivers.driver(step).undo(step, turn)
        except UserspaceError as error:
            say("warning", f"undoing step '{step.kind}' failed", error=error)
            failures.append(Failure(step, error))
    if failures:
        journal.write(record.to("deleting", steps=tuple(failure.step for failure in reversed(failures))))
    else:
        journal.drop(record)
    return failures


def check_steps(record: Record, drivers: Drivers, deadline: Deadline) -> list[Drift]:
    """Every drift of every step."""
    return [drift for step in record.steps for drift in drivers.driver(step).check(step, deadline)]


def adopt(resource: str, journal: Journal, deadline: Deadline) -> None:
    """Make a shared resource ours to remove: whoever made it has gone, and left it to its holders."""
    with journal.resource_lock(resource, deadline):
        shared = journal.shared(resource)
        if shared:
            journal.write_shared(resource, Shared(True, shared.holders))


def held_by(key: str, journal: Journal) -> tuple[Step, ...]:
    """The shared steps that an attachment holds by the resources' own lists: what is known when its record is lost."""
    return tuple(shared.holders[key] for _, shared in journal.resources() if key in shared.holders)


def _hold(key: str, step: Step, resource: Resource, drivers: Drivers, journal: Journal, deadline: Deadline) -> None:
    driver = drivers.driver(step)
    with journal.resource_lock(resource.key, deadline):
        shared = journal.shared(resource.key)
        if shared is None:
            shared = Shared(made=resource.exclusive or not driver.present(step))
        others = shared.without_holder(key)
        if resource.exclusive and others.holders:
            holder = next(iter(others.holders))
            raise NameTaken(f"{resource.key} is in use by the attachment {holder}", "give 'host.vhost.socketfile' another name")
        # the holder is durable before the thing exists: whoever finds the thing finds who it is for
        journal.write_shared(resource.key, others.with_holder(key, step))
        driver.apply(step, deadline)


def _release(key: str, step: Step, resource: Resource, drivers: Drivers, journal: Journal, deadline: Deadline) -> None:
    with journal.resource_lock(resource.key, deadline):
        shared = journal.shared(resource.key)
        if shared is None or key not in shared.holders:
            return
        others = shared.without_holder(key)
        if not others.holders and others.made:
            drivers.driver(step).undo(step, deadline)
        journal.write_shared(resource.key, others)
