"""The agent's reconciliation: from records and reality to what to undo and what to make again.

It runs at start, when OVSDB is there again, on a tick and on demand. `findings` decides and changes nothing; a `Reconciliation`
acts on what was found. Doubt keeps, proof deletes: an attachment that looks complete, or a row whose record is lost, is removed
only when its sandbox is proven gone in two passes. What somebody works on at the moment (its container's lock is taken) is left
alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from userspace_cni.attachment import apply, cleanup
from userspace_cni.attachment.cleanup import Report, is_unfinished
from userspace_cni.attachment.journal import Journal
from userspace_cni.attachment.records import Record, record_key
from userspace_cni.attachment.steps import OvsPort, PlacedSocket, PodMount, PortRef, SocketFile, Step
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import UserspaceError
from userspace_cni.base.log import about, bound, say

LOOK_S: Final = 5.0
"""What listing the switch's ports may take."""
CHECK_S: Final = 2.0
"""What looking at one step may take."""
TELL_S: Final = 3600.0
"""Seconds between two lines about the same failure."""

Marks = Mapping[str, str]
Problem = Literal["unfinished", "rebooted", "sandbox-gone", "namespace-gone", "lost", "record-lost", "foreign", "dead-test"]
"""unfinished: ADD or DEL died in it. rebooted: made in an earlier boot. sandbox-gone: no DEL will ever come. namespace-gone:
the sandbox is gone and its pod not known to be; mounts of ours keep the kubelet from removing the directory by which that would
be known. lost: parts of a living attachment are missing or dead. record-lost: a port of ours without record or sandbox. foreign:
a port of another installation. dead-test: no attachment, but what a person's probe, ping or load left that was killed."""


class DeadTests(Protocol):
    """What runs of test ports left whose process has ended. Raises Unavailable."""

    def records(self, deadline: Deadline) -> Sequence[Record]:
        """Each as a record of its ports."""
        ...

    def remove(self, test: Record, deadline: Deadline) -> object:
        """Remove it, unless it is gone."""
        ...


class Surroundings(cleanup.Node, Protocol):
    """What reconciliation asks of the node besides."""

    @property
    def journal(self) -> Journal:
        """The records of this node."""
        ...

    @property
    def log_level(self) -> str:
        """A key of log.LEVELS."""
        ...

    def owned_ports(self, deadline: Deadline) -> Mapping[str, Marks]:
        """Name and marks of every port that is marked as ours. Raises Unavailable."""
        ...

    def closed_ports(self) -> frozenset[str]:
        """Names of the ports of ours that the switch could not open, and may be asked to again by now. Raises Unavailable."""
        ...

    @property
    def dead_tests(self) -> DeadTests:
        """What killed tests left."""
        ...

    def mount_points(self) -> frozenset[str]:
        """Where something is mounted, as the host calls it."""
        ...

    def has_mounts(self, step: PlacedSocket) -> bool:
        """Whether a mount of ours shows the socket in the pod's directory, under whatever name."""
        ...

    def is_dead(self, step: SocketFile) -> bool:
        """Whether the application that made this socket has ended without removing it."""
        ...

    def pod_is_gone(self, uid: str) -> bool:
        """Whether the pod is missing in a successful listing of the API or of the kubelet's directory."""
        ...


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


def findings(node: Surroundings) -> Iterator[Finding]:
    """Everything that is not as the records say; decides, and changes nothing. Raises RecordRefused.

    While the switch can not be asked, nothing is concluded from a port that is not there.
    """
    records = node.journal.records()
    boot_id = node.boot_id()
    for record in records:
        if is_unfinished(record, boot_id):
            yield Finding("rebooted" if record.state == "ready" else "unfinished", record)
    seen = _look(node)
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
        yield from (Finding("dead-test", test) for test in node.dead_tests.records(Deadline.after(LOOK_S)))


def sandbox_is_gone(marks: Marks, node: Surroundings) -> bool:
    """Whether the sandbox is proven gone, by what marks (`boot-id`, `netns`, `pod-uid`) say of it."""
    if marks.get("boot-id", "") not in ("", node.boot_id()):
        return True
    netns, uid = marks.get("netns", ""), marks.get("pod-uid", "")
    return bool(netns) and node.netns_is_gone(netns) and (not uid or node.pod_is_gone(uid))


def dead_sockets(record: Record, node: Surroundings) -> tuple[Step, ...]:
    """The sockets that a dead application of the attachment left, as steps whose `apply` frees the name."""
    return _those(record, lambda step: isinstance(step, SocketFile) and _looked(step, lambda: node.is_dead(step)))


def _those(record: Record, wanted: Callable[[Step], bool]) -> tuple[Step, ...]:
    """The steps of the attachment of which that is true; what is logged meanwhile is about it."""
    with about(record.subject):
        return tuple(step for step in record.steps if wanted(step))


@dataclass(frozen=True)
class _Seen:
    """What one look at the node shows of all attachments. `ports`: None while the switch cannot be asked."""

    ports: Mapping[str, Marks] | None
    closed: frozenset[str]
    mounts: frozenset[str]


def _look(node: Surroundings) -> _Seen:
    try:
        return _Seen(node.owned_ports(Deadline.after(LOOK_S)), node.closed_ports(), node.mount_points())
    except UserspaceError as error:
        say("warning", "the switch can not be looked at", error=error)
        return _Seen(None, frozenset(), node.mount_points())


def _is_lost(step: Step, seen: _Seen, node: Surroundings) -> bool:
    """Whether it is gone, closed or dead; what is there and not as it was made, CHECK tells."""
    if isinstance(step, OvsPort):
        return seen.ports is not None and (step.name not in seen.ports or step.name in seen.closed)
    if isinstance(step, PodMount) and step.target in seen.mounts:
        return False
    if isinstance(step, SocketFile):
        return _looked(step, lambda: node.is_dead(step))
    if isinstance(step, (PodMount, PlacedSocket)):
        return _looked(step, lambda: bool(node.driver(step).check(step, Deadline.after(CHECK_S))))
    return False


def _holds_up(step: Step, key: str, seen: _Seen, node: Surroundings) -> bool:
    """Whether it is a mount that only sandboxes need which are gone."""
    if isinstance(step, PodMount):
        mounted = step.target in seen.mounts
    else:
        mounted = isinstance(step, PlacedSocket) and _looked(step, lambda: node.has_mounts(step))
    return mounted and not is_needed(step, key, node)


def is_needed(step: Step, key: str, node: Surroundings) -> bool:
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


def _looked(step: Step, look: Callable[[], bool]) -> bool:
    try:
        return look()
    except UserspaceError as error:
        say("warning", f"step '{step.kind}' cannot be looked at", error=error)
        return False


def _without_record(recorded: set[str], ports: Mapping[str, Marks], node: Surroundings) -> Iterator[Finding]:
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
            yield Finding("record-lost", record.to("deleting", steps=cleanup.traces(container_id, ifname, port, node.journal)))


@dataclass(frozen=True)
class _Begun:
    """What is being made again: what remains to be awaited, and the steps that can be applied only then."""

    record: Record
    rests: list[apply.Rest]
    later: list[Step]


class Reconciliation:
    """One pass after the other; what one suspects, a later one is certain of. For one thread.

    `report` is told each action by name. `apart_s`: seconds that have to lie between a suspicion and its proof, however often a
    pass is asked for.
    """

    def __init__(self, node: Surroundings, report: Report, apart_s: float) -> None:
        self._node = node
        self._journal = node.journal
        self._report = report
        self._apart_s = apart_s
        self._suspected: dict[str, float] = {}
        self._told: dict[tuple[str, str], float] = {}
        self._foreign: frozenset[str] = frozenset()

    def run(self) -> None:
        """One pass. Never fails: what could not be done is said, and is there for the next one."""
        cleanup.drain(self._node, self._journal, Deadline.after(cleanup.TURN_S), self._report)
        suspected: dict[str, float] = {}
        foreign: set[str] = set()
        begun: list[_Begun] = []
        try:
            for found in findings(self._node):
                key = found.record.key
                if found.problem == "foreign":
                    foreign.add(key)
                elif not found.needs_proof or self._is_proven(f"{found.problem} {key}", suspected):
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
            record = self._journal.read(marks.get("container-id", ""), marks.get("ifname", ""))
        except UserspaceError as error:
            say("warning", "an application that has gone is looked at later", port=port, error=error)
            return
        if record is None or is_unfinished(record, self._node.boot_id()):
            return
        if steps := dead_sockets(record, self._node):
            self._attempt(record, lambda: self._act(Finding("lost", record, steps), []))

    def _is_proven(self, key: str, suspected: dict[str, float]) -> bool:
        """Whether what seems to be left over seemed so in an earlier pass; the next pass will know of this one."""
        suspected[key] = self._suspected.get(key, time.monotonic())
        return key in self._suspected and time.monotonic() - suspected[key] >= self._apart_s

    def _attempt(self, record: Record, act: Callable[[], None]) -> None:
        """Do it; a failure keeps no other record from its turn, and is told once an hour."""
        with bound(self._node.log_level), about(record.subject):
            try:
                act()
            except UserspaceError as error:
                if self._is_news(record.key, error.message):
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
        record = found.record
        unrecorded = found.problem in ("record-lost", "dead-test")
        with self._unchanged(record, recorded=not unrecorded) as unchanged:
            if not unchanged:
                return
            if found.problem == "dead-test":
                say("info", "removing what a killed test left", test=record.network)
                self._node.dead_tests.remove(record, Deadline.after(cleanup.TURN_S))
                self._report("removed-dead-test")
                return
            if found.problem == "namespace-gone":
                self._undo_mounts(found)
                return
            if found.problem == "lost":
                begun.append(self._make_again(record, found.steps))
                return
            say("info", "removing what an attachment left", why=found.problem, state=record.state, netns=record.netns)
            if not cleanup.remove(record, self._node, self._journal, Deadline.after(cleanup.TURN_S)):
                self._report(f"removed-{found.problem}")

    @contextmanager
    def _unchanged(self, record: Record, *, recorded: bool = True) -> Iterator[bool]:
        """While inside no other process works on the container; whether the record is still this one (or there is still none)."""
        lock = self._journal.try_container_lock(record.container_id)
        if lock is None:
            yield False
            return
        with lock:
            yield self._journal.read_key(record.key) == (record if recorded else None)

    def _make_again(self, record: Record, lost: Sequence[Step]) -> _Begun:
        """Begin with it: many ports are opened by the switch at the same time."""
        first = [step for step in lost if not step.after_rest]
        deadline = Deadline.after(cleanup.TURN_S)
        rests = apply.begin_steps(record, first, self._node, self._journal, deadline)
        self._tell_again(first)
        return _Begun(record, rests, [step for step in lost if step.after_rest])

    def _finish(self, begun: _Begun) -> None:
        """Await what was begun, and make what waits for it. A DEL that came in between has removed it all."""
        with self._unchanged(begun.record) as unchanged:
            if not unchanged:
                return
            apply.settle(begun.rests)
            deadline = Deadline.after(cleanup.PLACE_S)
            apply.settle(apply.begin_steps(begun.record, begun.later, self._node, self._journal, deadline))
            self._tell_again(begun.later)

    def _tell_again(self, steps: Iterable[Step]) -> None:
        for step in steps:
            say("info", "making again what was lost", step=step.kind)
            self._report(f"again-{step.kind}")

    def _undo_mounts(self, found: Finding) -> None:
        """What keeps the kubelet from removing the pod's directory; all else stays until the pod is known to be gone."""
        deadline = Deadline.after(cleanup.TURN_S)
        for step in found.steps:
            assert step.resource is not None  # noqa: S101 - for the type checker: only what is in a place is found so
            with self._journal.place_lock(step.resource.place, deadline):
                if not is_needed(step, found.record.key, self._node):
                    say("info", "taking off what keeps the directory of a gone sandbox", step=step.kind, netns=found.record.netns)
                    self._node.driver(step).undo(step, deadline)
        self._report("removed-namespace-gone")

    def _tell_foreign(self, keys: Iterable[str]) -> None:
        """Once for each, as long as it is there."""
        for key in set(keys) - self._foreign:
            say("warning", "a port of another installation's state directory is left alone", attachment=key)
        self._foreign = frozenset(keys)
