"""What differs between the records and the node: what to undo, what to make again, and what others have changed.

It decides and changes nothing; `reconcile` acts on what it finds. In doubt an attachment is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from userspace_cni.attachment import cleanup, runs
from userspace_cni.attachment.cleanup import is_unfinished
from userspace_cni.attachment.last_looks import LastLooks
from userspace_cni.attachment.node import Marks
from userspace_cni.attachment.put_backs import Change, changes_of
from userspace_cni.attachment.records import Record, record_key
from userspace_cni.attachment.steps import PortRef, SharedReads, Step
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import UserspaceError
from userspace_cni.base.log import about, say

if TYPE_CHECKING:
    from userspace_cni.attachment.node import Node

LOOK_S: Final = 5.0
"""Seconds for listing the switch's ports."""
CHECK_S: Final = 2.0
"""Seconds for looking at one step."""

T = TypeVar("T")
_UNCHANGED: Final[tuple[Change, ...]] = ()
Problem = Literal[
    "unfinished", "rebooted", "sandbox-gone", "namespace-gone", "lost", "changed", "record-lost", "foreign", "dead-test"
]
"""unfinished: ADD or DEL died before its end. rebooted: made in an earlier boot. sandbox-gone: no DEL will come any more.
namespace-gone: the sandbox is gone, and whether its pod is gone is not known: that shows when the kubelet removes the pod's
directory, which mounts of ours prevent. lost: parts of a living attachment are missing or dead. changed: another program has
changed a part of one. record-lost: a port of ours without record or sandbox. foreign: a port of another
installation. dead-test: the run of a command ended before it could undo what it made."""


@dataclass(frozen=True)
class Deviation:
    """One difference between the records and the node. `record`: as stored, or built from a port's marks.

    `steps`: the lost or changed ones, or those whose mounts keep the kubelet from removing the pod's directory. `changes`: what
    differs of the changed ones.
    """

    problem: Problem
    record: Record
    steps: tuple[Step, ...] = ()
    changes: tuple[Change, ...] = ()

    @property
    def needs_proof(self) -> bool:
        """Whether two passes must find it before anything is removed."""
        return self.problem in ("sandbox-gone", "namespace-gone", "record-lost")


def findings(node: Node, looks: LastLooks | None = None) -> Iterator[Deviation]:
    """Find what differs from the records, and what killed runs left. Changes nothing. Raises RecordRefused.

    While the switch cannot be asked, nothing is concluded from a missing port. `looks`: those of the last pass, None where
    everything is to be looked at.
    """
    records = node.store.journal.records()
    boot_id = node.store.boot_id()
    for record in records:
        if is_unfinished(record, boot_id):
            yield Deviation("rebooted" if record.state == "ready" else "unfinished", record)
    seen, living = see(node), cache(partial(_living, records, node))
    for record in records:
        if is_unfinished(record, boot_id):
            continue
        if not record.netns or not node.sandboxes.is_gone(record.netns):
            yield from _of_living(record, seen, looks or LastLooks(), node)
        elif (record.owner == "pod" and _is_pod_gone(record.pod_uid, node)) or _interface(record) in living():
            # the last: it is in another sandbox, and a pod has one at a time
            yield Deviation("sandbox-gone", record)
        # nothing is made again for this sandbox: another sandbox of the pod has an ADD of its own
        elif mounted := select(record, record.steps, lambda step: _has_idle_mount(step, record.key, seen, node)):  # noqa: B023 - called at once
            yield Deviation("namespace-gone", record, mounted)
    yield from _without_record({record.key for record in records}, seen.ports or {}, node)
    if seen.ports is not None:
        yield from _of_runs(node)


def _of_living(record: Record, seen: SharedReads, looks: LastLooks, node: Node) -> Iterator[Deviation]:
    """What is lost or changed of an attachment whose sandbox is there."""
    failures, due = seen.failures, looks.list_due(record, seen, node.driver)
    if not due:
        return
    if lost := select(record, due, lambda step: is_lost(step, seen, node)):
        yield Deviation("lost", record, lost)
    kept = [step for step in due if not any(step is each for each in lost)]
    if changed := _changes(record, kept, seen, node):
        yield Deviation("changed", record, tuple(each.step for each in changed), changed)
    if lost or changed or seen.failures != failures:
        looks.forget(record)


def _of_runs(node: Node) -> Iterator[Deviation]:
    for record in runs.list_ended_runs(node.store, node.switch, Deadline.after(LOOK_S)):
        yield Deviation("dead-test" if record.boot_id else "record-lost", record)


def sandbox_is_gone(marks: Marks, node: Node) -> bool:
    """Whether the sandbox that the marks `boot-id`, `netns` and `pod-uid` name is proven gone."""
    if marks.get("boot-id", "") not in ("", node.store.boot_id()):
        return True
    netns = marks.get("netns", "")
    return bool(netns) and node.sandboxes.is_gone(netns) and _is_pod_gone(marks.get("pod-uid", ""), node)


def _is_pod_gone(uid: str, node: Node) -> bool:
    return not uid or node.pods.is_gone(uid)


def _interface(record: Record) -> tuple[str, str, str]:
    """The interface of a pod, which may be in several sandboxes."""
    return record.pod_uid, record.network, record.ifname


def _living(records: Iterable[Record], node: Node) -> frozenset[tuple[str, str, str]]:
    """The interfaces that pods have in a sandbox whose namespace is there."""
    ready = (each for each in records if each.pod_uid and each.netns and not is_unfinished(each, node.store.boot_id()))
    return frozenset(_interface(each) for each in ready if not node.sandboxes.is_gone(each.netns))


def select(record: Record, steps: Iterable[Step], wanted: Callable[[Step], bool]) -> tuple[Step, ...]:
    """Those of the attachment's steps for which `wanted` is true; log lines of `wanted` name the attachment."""
    with about(record.subject):
        return tuple(step for step in steps if wanted(step))


def see(node: Node) -> SharedReads:
    """A look that begins now. Never fails."""
    try:
        return SharedReads(node.switch.list_owned(Deadline.after(LOOK_S)))
    except UserspaceError as error:
        say("warning", "the switch cannot be looked at", error=error)
        return SharedReads()


def is_lost(step: Step, seen: SharedReads, node: Node) -> bool:
    """Whether the thing must be made again; False, and a log line, when that cannot be seen."""
    return _ask(step, seen, lambda: node.driver(step).is_lost(step, seen, Deadline.after(CHECK_S)), False)


def _changes(record: Record, steps: Iterable[Step], seen: SharedReads, node: Node) -> tuple[Change, ...]:
    """What others have changed of the attachment's steps, as far as that can be seen."""

    def look(step: Step) -> tuple[Change, ...]:
        return changes_of([step], seen, node.driver, Deadline.after(CHECK_S))

    with about(record.subject):
        return sum((_ask(step, seen, partial(look, step), _UNCHANGED) for step in steps), _UNCHANGED)


def _has_idle_mount(step: Step, key: str, seen: SharedReads, node: Node) -> bool:
    """Whether the step has a mount which only sandboxes hold that are gone."""
    return _ask(step, seen, lambda: node.driver(step).is_mounted(step, seen), False) and not is_needed(step, key, node)


def is_needed(step: Step, key: str, node: Node) -> bool:
    """Whether the thing behind the step has a holder beside `key` whose namespace is not gone. Raises RecordRefused."""
    thing = step.resource
    shared = node.store.journal.read_shared(thing.place) if thing else None
    if thing is None or shared is None:
        return False
    for other, steps in shared.without_holder(key).holders.items():
        if any(each.resource and each.resource.key == thing.key for each in steps):
            record = node.store.journal.read_key(other)
            if record is None or not record.netns or not node.sandboxes.is_gone(record.netns):
                return True
    return False


def _ask(step: Step, seen: SharedReads, question: Callable[[], T], otherwise: T) -> T:
    """The answer to the question; `otherwise`, and one log line for each reason, when it fails."""
    try:
        return question()
    except UserspaceError as error:
        if seen.is_new(error):
            say("warning", f"step '{step.kind}' cannot be looked at", error=error)
        return otherwise


def _without_record(recorded: set[str], ports: Mapping[str, Marks], node: Node) -> Iterator[Deviation]:
    store = node.store.journal.identity()
    for name, marks in ports.items():
        container_id, ifname = marks.get("container-id", ""), marks.get("ifname", "")
        if record_key(container_id, ifname) in recorded:
            continue
        port = PortRef(name, marks=marks)
        record = Record("deleting", marks.get("network", ""), container_id, ifname, netns=marks.get("netns", ""), steps=(port,))
        if marks.get("store") != store:
            yield Deviation("foreign", record)
        elif sandbox_is_gone(marks, node):
            yield Deviation(
                "record-lost",
                record.to("deleting", steps=cleanup.traces(container_id, ifname, [port], node.store, node.sandboxes)),
            )
