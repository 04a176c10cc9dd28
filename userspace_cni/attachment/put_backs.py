"""Changes of a living attachment by other programs, and when they are put back.

A changed attachment still works, unlike a lost one, and the other program may change it again. So a change is put back at once,
and then less and less often: two programs must not fight in every pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from userspace_cni.attachment.apply import Turn, try_turn
from userspace_cni.attachment.drift import Drift, sentence
from userspace_cni.attachment.records import Record
from userspace_cni.attachment.steps import SharedReads, Step
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import StepFailed
from userspace_cni.base.log import say
from userspace_cni.base.notices import PORT_CHANGED
from userspace_cni.base.retries import Retries

if TYPE_CHECKING:
    from userspace_cni.attachment.node import DriverOf, Node

LOOK_S: Final = 5.0
PUT_BACK_S: Final = 5.0
_WORDS_MAX: Final = 600
_REMEDY: Final = "which program writes it? userspace-cni check shows what differs"


@dataclass(frozen=True)
class Change:
    """A step of a living attachment, and what differs of its thing."""

    step: Step
    drifts: tuple[Drift, ...]


def changes_of(steps: Iterable[Step], seen: SharedReads, driver: DriverOf, deadline: Deadline) -> tuple[Change, ...]:
    """What differs of these steps, and can be put back. Raises UserspaceError."""
    found = (Change(step, tuple(driver(step).find_changes(step, seen, deadline))) for step in steps)
    return tuple(change for change in found if change.drifts)


def words(found: Iterable[Change]) -> str:
    text = "; ".join(sentence(drift) for change in found for drift in change.drifts)
    return text if len(text) <= _WORDS_MAX else f"{text[: _WORDS_MAX - 1]}…"


def key_of(record: Record, step: Step) -> str:
    """The key of a step of an attachment among the tries."""
    return f"{record.key} {step.kind} {step.thing}"


def early(record: Record, found: Iterable[Change], tries: Retries) -> tuple[Change, ...]:
    """The changes that another program made again shortly after they were put back: they wait."""
    return tuple(change for change in found if not tries.is_due(key_of(record, change.step)))


def forget_same(record: Record, found: Iterable[Change], tries: Retries) -> None:
    """Reset the back-off of steps that have stayed unchanged for its whole pause."""
    for step in (step for step in record.steps if not any(step == change.step for change in found)):
        if tries.is_due(key_of(record, step)):
            tries.forget(key_of(record, step))


def restore(record: Record, steps: Iterable[Step], node: Node, tries: Retries, report: Callable[[str], None]) -> None:
    """Put back what others have changed of these steps of a pod's attachment, tell the pod, and report each action by name.

    Raises UserspaceError, StepFailed for what was put back a short while ago, too. While another call works on the attachment
    nothing is done.
    """
    with try_turn(record.container_id, record.ifname, node.store, node.driver) as turn:
        if turn is None or turn.read() != record:
            return
        # under the lock: a call may have changed the attachment, and its record, a moment ago
        now = changes_of(steps, SharedReads(node.switch.list_owned(Deadline.after(LOOK_S))), node.driver, Deadline.after(LOOK_S))
        waits = early(record, now, tries)
        if due := [change for change in now if change not in waits]:
            put_back(turn, record, due, tries, Deadline.after(PUT_BACK_S))
            for change in due:
                report(f"put-back-{change.step.kind}")
            require_same(due, SharedReads(node.switch.list_owned(Deadline.after(LOOK_S))), node.driver, Deadline.after(LOOK_S))
            text = f"changes of this interface by another program were put back: {words(due)}"
            node.pods.tell(record.recipient, (PORT_CHANGED.finding(text),))
        if waits:
            raise waiting(waits)


def put_back(turn: Turn, record: Record, found: Sequence[Change], tries: Retries, deadline: Deadline) -> None:
    """Put these things back, and wait until that is done. Raises UserspaceError."""
    for change in found:
        pause_s = tries.note_try(key_of(record, change.step))
        what = words([change])
        say("warning", "putting back what another program has changed", step=change.step.kind, changed=what, not_again_s=pause_s)
    turn.settle(turn.put_back([change.step for change in found], deadline))


def require_same(found: Iterable[Change], seen: SharedReads, driver: DriverOf, deadline: Deadline) -> None:
    """Raise StepFailed for what differs although it was put back a moment ago."""
    if left := changes_of([change.step for change in found], seen, driver, deadline):
        raise StepFailed(f"what was put back differs again: {words(left)}", _REMEDY)


def waiting(found: Iterable[Change]) -> StepFailed:
    return StepFailed(f"another program has changed again what was put back: {words(found)}", _REMEDY)
