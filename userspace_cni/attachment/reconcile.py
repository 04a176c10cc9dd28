"""The agent's reconciliation: from records and reality to what to undo and what to make again.

It runs at start, when OVSDB is there again, on a tick and on demand. `findings` decides and changes nothing; a `Reconciliation`
acts on what was found. Doubt keeps, proof deletes: an attachment that looks complete, or a row whose record is lost, is removed
only when its sandbox is proven gone in two passes. What another call works on (its container's lock is taken) is left
alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from userspace_cni.attachment import cleanup
from userspace_cni.attachment.apply import Turn, try_turn
from userspace_cni.attachment.cleanup import Report, is_unfinished
from userspace_cni.attachment.node import DeadProbe, Marks
from userspace_cni.attachment.records import Record, record_key
from userspace_cni.attachment.steps import PortRef, Rest, Seen, Step
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import UserspaceError
from userspace_cni.base.log import about, bound, say

if TYPE_CHECKING:
    from userspace_cni.attachment.node import Node

LOOK_S: Final = 5.0
"""What listing the switch's ports may take."""
CHECK_S: Final = 2.0
"""What looking at one step may take."""
TELL_S: Final = 3600.0
"""Seconds between two lines about the same failure."""

Problem = Literal["unfinished", "rebooted", "sandbox-gone", "namespace-gone", "lost", "record-lost", "foreign"]
"""unfinished: ADD or DEL died in it. rebooted: made in an earlier boot. sandbox-gone: no DEL will ever come. namespace-gone:
the sandbox is gone and its pod not known to be; mounts of ours keep the kubelet from removing the directory by which that would
be known. lost: parts of a living attachment are missing or dead. record-lost: a port of ours without record or sandbox. foreign:
a port of another installation."""


@dataclass(frozen=True)
class Finding:
    """One thing that is not as the records say. `record`: as stored, or made up of marks.

    `steps`: those that are lost, or whose mounts are in the way.
    """

    problem: Problem
    record: Record
    steps: tuple[Step, ...] = ()

    @property
    def needs_proof(self) -> bool:
        """Whether it must be found twice before anything is removed."""
        return self.problem in ("sandbox-gone", "namespace-gone", "record-lost")


def findings(node: Node) -> Iterator[Finding | DeadProbe]:
    """Everything that is not as the records say, and what killed probes left; decides, and changes nothing. Raises RecordRefused.

    While the switch cannot be asked, nothing is concluded from a port that is not there.
    """
    records = node.journal.records()
    boot_id = node.boot_id()
    for record in records:
        if is_unfinished(record, boot_id):
            yield Finding("rebooted" if record.state == "ready" else "unfinished", record)
    seen = _see(node)
    for record in records:
        if is_unfinished(record, boot_id):
            continue
        if sandbox_is_gone({"boot-id": record.boot_id, "netns": record.netns, "pod-uid": record.pod_uid}, node):
            yield Finding("sandbox-gone", record)
        elif record.netns and node.netns_is_gone(record.netns):
            # nothing is made again for it: another sandbox of the pod has an ADD of its own
            if mounted := _those(record, lambda step: _holds_up(step, record.key, seen, node)):  # noqa: B023 - called at once
                yield Finding("namespace-gone", record, mounted)
        elif lost := _those(record, lambda step: _is_lost(step, seen, node)):
            yield Finding("lost", record, lost)
    yield from _without_record({record.key for record in records}, seen.ports or {}, node)
    if seen.ports is not None:
        yield from node.dead_probes.find(Deadline.after(LOOK_S))


def sandbox_is_gone(marks: Marks, node: Node) -> bool:
    """Whether the sandbox is proven gone, by what marks (`boot-id`, `netns`, `pod-uid`) say of it."""
    if marks.get("boot-id", "") not in ("", node.boot_id()):
        return True
    netns, uid = marks.get("netns", ""), marks.get("pod-uid", "")
    return bool(netns) and node.netns_is_gone(netns) and (not uid or node.pod_is_gone(uid))


def _those(record: Record, wanted: Callable[[Step], bool]) -> tuple[Step, ...]:
    """The steps of the attachment of which that is true; what is logged meanwhile is about it."""
    with about(record.subject):
        return tuple(step for step in record.steps if wanted(step))


def _see(node: Node) -> Seen:
    try:
        return Seen(node.owned_ports(Deadline.after(LOOK_S)))
    except UserspaceError as error:
        say("warning", "the switch cannot be looked at", error=error)
        return Seen()


def _is_lost(step: Step, seen: Seen, node: Node) -> bool:
    return _looked(step, seen, lambda: node.driver(step).lost(step, seen, Deadline.after(CHECK_S)))


def _holds_up(step: Step, key: str, seen: Seen, node: Node) -> bool:
    """Whether it is a mount that only sandboxes need which are gone."""
    return _looked(step, seen, lambda: node.driver(step).mounted(step, seen)) and not is_needed(step, key, node)


def is_needed(step: Step, key: str, node: Node) -> bool:
    """Whether the thing behind the step has a holder beside `key` whose namespace is not gone. Raises RecordRefused."""
    thing = step.resource
    shared = node.journal.shared(thing.place) if thing else None
    if thing is None or shared is None:
        return False
    for other, steps in shared.without_holder(key).holders.items():
        if any(each.resource and each.resource.key == thing.key for each in steps):
            record = node.journal.read_key(other)
            if record is None or not record.netns or not node.netns_is_gone(record.netns):
                return True
    return False


def _looked(step: Step, seen: Seen, ask: Callable[[], bool]) -> bool:
    try:
        return ask()
    except UserspaceError as error:
        if seen.is_news(error):
            say("warning", f"step '{step.kind}' cannot be looked at", error=error)
        return False


def _without_record(recorded: set[str], ports: Mapping[str, Marks], node: Node) -> Iterator[Finding]:
    store = node.journal.identity()
    for name, marks in ports.items():
        container_id, ifname = marks.get("container-id", ""), marks.get("ifname", "")
        if record_key(container_id, ifname) in recorded:
            continue
        port = PortRef(name, marks=marks)
        record = Record("deleting", marks.get("network", ""), container_id, ifname, netns=marks.get("netns", ""), steps=(port,))
        if marks.get("store") != store:
            yield Finding("foreign", record)
        elif sandbox_is_gone(marks, node):
            yield Finding("record-lost", record.to("deleting", steps=cleanup.traces(container_id, ifname, port, node)))


@dataclass(frozen=True)
class _Begun:
    """What is being made again: what remains to be awaited, and the steps that can be applied only then."""

    record: Record
    rests: list[Rest]
    later: list[Step]


class Reconciliation:
    """One pass after the other; what one suspects, a later one is certain of. For one thread.

    `report` is told each action by name. `apart_s`: seconds that have to lie between a suspicion and its proof, however often a
    pass is asked for.
    """

    def __init__(self, node: Node, report: Report, apart_s: float) -> None:
        self._node = node
        self._report = report
        self._apart_s = apart_s
        self._suspected: dict[str, float] = {}
        self._told: dict[tuple[str, str], float] = {}
        self._foreign: frozenset[str] = frozenset()

    def run(self) -> None:
        """One pass. Never fails: what could not be done is said, and is there for the next one."""
        cleanup.drain(self._node, Deadline.after(cleanup.TURN_S), self._report)
        suspected: dict[str, float] = {}
        foreign: set[str] = set()
        begun: list[_Begun] = []
        try:
            for found in findings(self._node):
                if isinstance(found, DeadProbe):
                    self._attempt(found, lambda probe=found: self._remove_probe(probe))  # type: ignore[misc]
                elif found.problem == "foreign":
                    foreign.add(found.record.key)
                elif not found.needs_proof or self._is_proven(f"{found.problem} {found.record.key}", suspected):
                    self._attempt(found.record, lambda found=found: self._act(found, begun))  # type: ignore[misc]
        except UserspaceError as error:
            say("warning", "reconciliation was cut short", error=error)
        for each in begun:
            self._attempt(each.record, lambda each=each: self._finish(each))  # type: ignore[misc]
        self._suspected = suspected
        self._tell_foreign(foreign)

    def look_at(self, port: str) -> None:
        """The connection of a port's application has just ended: free the socket's name if it has died. Never fails."""
        try:
            marks = self._node.owned_ports(Deadline.after(CHECK_S)).get(port, {})
            record = self._node.journal.read(marks.get("container-id", ""), marks.get("ifname", ""))
        except UserspaceError as error:
            say("warning", "an application that has gone is looked at later", port=port, error=error)
            return
        if record is None or is_unfinished(record, self._node.boot_id()):
            return
        seen = Seen()
        if steps := _those(record, lambda step: step.left_by_application and _is_lost(step, seen, self._node)):
            self._attempt(record, lambda: self._act(Finding("lost", record, steps), []))

    def _is_proven(self, key: str, suspected: dict[str, float]) -> bool:
        """Whether what seems to be left over seemed so in an earlier pass; the next pass will know of this one."""
        suspected[key] = self._suspected.get(key, time.monotonic())
        return key in self._suspected and time.monotonic() - suspected[key] >= self._apart_s

    def _attempt(self, left: Record | DeadProbe, act: Callable[[], None]) -> None:
        """Do it; a failure keeps no other from its turn, and is told once an hour."""
        with bound(self._node.log_level), about(left.subject):
            try:
                act()
            except UserspaceError as error:
                if self._is_news(left.key, error.message):
                    say("warning", "an attachment could not be put right now", error=error)

    def _is_news(self, key: str, message: str) -> bool:
        """Whether it has not been told for an hour: what fails in every pass would fill the log."""
        now = time.monotonic()
        self._told = {told: at for told, at in self._told.items() if now - at < TELL_S}
        news = (key, message) not in self._told
        if news:
            self._told[key, message] = now
        return news

    def _act(self, found: Finding, begun: list[_Begun]) -> None:
        """Put one thing right, if it still is what it was when it was found."""
        record, recorded = found.record, found.problem != "record-lost"
        with try_turn(record.container_id, record.ifname, self._node) as turn:
            if turn is None or turn.read() != (record if recorded else None):
                return
            if found.problem == "namespace-gone":
                self._undo_mounts(found, turn)
            elif found.problem == "lost":
                begun.append(self._make_again(found, turn))
            else:
                say("info", "removing what an attachment left", why=found.problem, state=record.state, netns=record.netns)
                if not turn.remove(record, Deadline.after(cleanup.TURN_S)):
                    self._report(f"removed-{found.problem}")

    def _remove_probe(self, probe: DeadProbe) -> None:
        """Remove it unless another process does."""
        lock = self._node.journal.try_container_lock(probe.process)
        if lock is None:
            return
        with lock:
            say("info", "removing what a killed probe left", purpose=probe.purpose)
            self._node.dead_probes.remove(probe, Deadline.after(cleanup.TURN_S))
            self._report("removed-dead-test")

    def _make_again(self, found: Finding, turn: Turn) -> _Begun:
        """Begin with it: many ports are opened by the switch at the same time."""
        first = [step for step in found.steps if not step.from_switch]
        rests = turn.begin(found.record, first, Deadline.after(cleanup.TURN_S))
        self._tell_again(first)
        return _Begun(found.record, rests, [step for step in found.steps if step.from_switch])

    def _finish(self, begun: _Begun) -> None:
        """Await what was begun, and make what waits for it. A DEL that came in between has removed it all."""
        record = begun.record
        with try_turn(record.container_id, record.ifname, self._node) as turn:
            if turn is None or turn.read() != record:
                return
            turn.settle(begun.rests)
            turn.settle(turn.begin(record, begun.later, Deadline.after(cleanup.PLACE_S)))
            self._tell_again(begun.later)

    def _tell_again(self, steps: Iterable[Step]) -> None:
        for step in steps:
            say("info", "making again what was lost", step=step.kind)
            self._report(f"again-{step.kind}")

    def _undo_mounts(self, found: Finding, turn: Turn) -> None:
        """What keeps the kubelet from removing the pod's directory; all else stays until the pod is known to be gone."""

        def wanted(step: Step) -> bool:
            if is_needed(step, found.record.key, self._node):
                return False
            say("info", "taking off what keeps the directory of a gone sandbox", step=step.kind, netns=found.record.netns)
            return True

        turn.undo_some(found.steps, wanted, Deadline.after(cleanup.TURN_S))
        self._report("removed-namespace-gone")

    def _tell_foreign(self, keys: Iterable[str]) -> None:
        """Once for each, as long as it is there."""
        for key in set(keys) - self._foreign:
            say("warning", "a port of another installation's state directory is left alone", attachment=key)
        self._foreign = frozenset(keys)
