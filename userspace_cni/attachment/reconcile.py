"""The agent's reconciliation: compares records with the node, and finds what to undo and what to make again.

It runs at start, when OVSDB is reachable again, on a tick and on demand, and acts on what `deviations` finds. An attachment that
looks complete, or a row whose record is lost, is removed only when its sandbox is proven gone in two passes; in doubt it is kept.
What another call works on (its lock is taken) is left alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final

from userspace_cni.attachment import cleanup
from userspace_cni.attachment.amend import amend
from userspace_cni.attachment.apply import Turn, try_turn
from userspace_cni.attachment.cleanup import Report, is_unfinished
from userspace_cni.attachment.dead_sockets import dead_sockets
from userspace_cni.attachment.deviations import CHECK_S, Deviation, findings, is_lost, is_needed, see, select
from userspace_cni.attachment.last_looks import LastLooks
from userspace_cni.attachment.put_backs import key_of, restore
from userspace_cni.attachment.records import Record
from userspace_cni.attachment.steps import PortRef, Rest, SharedReads, Step
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import BadRequest, StepFailed, UserspaceError
from userspace_cni.base.log import about, bind, limit_repeats, say
from userspace_cni.base.notices import LIMIT_REFUSED, PORT_DEGRADED, PORT_RESTORED
from userspace_cni.base.repeats import Repeats
from userspace_cni.base.retries import Retries

if TYPE_CHECKING:
    from userspace_cni.attachment.node import Node

_NOT_DONE: Final = "the pod's annotations for this interface cannot be applied; nothing has changed"
_NOT_MADE: Final = "lost parts of this interface cannot be made again"
_NOT_PUT_BACK: Final = "changes of this interface cannot be put back now"
REPEAT_S: Final = 3600.0
"""Seconds after which a pod's refusal is reported again."""


@dataclass(frozen=True)
class _Begun:
    """An attachment whose lost steps are being made again.

    `first`: those that are begun, `rests`: what remains to be awaited of them, `later`: those to be applied after that.
    """

    record: Record
    first: list[Step]
    rests: list[Rest]
    later: list[Step]


@dataclass(frozen=True)
class _RefusalNote:
    """What a pod was told last of what its annotations ask for: the hash of the text, and when."""

    text: int
    at: float


class Reconciliation:
    """Runs passes; a pass removes only what an earlier one suspected. For one thread.

    What a pass cannot do, the next ones cannot do either, and pods' authors write what they like: repeats are left out of the
    log, and what is kept of an attachment goes with it.

    `report` receives each action by name. `apart_s`: least seconds between a suspicion and its proof, however often a pass is
    asked for.
    """

    def __init__(self, node: Node, report: Report, apart_s: float) -> None:
        self._node = node
        self._report = report
        self._apart_s = apart_s
        self._suspected: dict[str, float] = {}
        self._repeats = Repeats()
        self._refused: dict[str, _RefusalNote] = {}
        self._put_back = Retries()
        self._foreign: frozenset[str] = frozenset()
        self._dead: Mapping[str, PortRef] = {}
        self._looks = LastLooks()

    @property
    def dead_sockets(self) -> Collection[PortRef]:
        """The ports of attachments whose sockets were dead at the last look, which could not repair them."""
        return self._dead.values()

    def run(self, *, whole: bool = True) -> None:
        """Run one pass. Never fails: what could not be done is logged, and left for the next pass.

        `whole`: it looks at every step, else at those of which something may have changed since the last pass.
        """
        self._looks.begin(whole=whole)
        with limit_repeats(self._repeats):
            self._pass()

    def _pass(self) -> None:
        node = self._node
        cleanup.drain(node.store, node.sandboxes, node.addresses, Deadline.after(cleanup.TURN_S), self._report)
        suspected: dict[str, float] = {}
        foreign: set[str] = set()
        left: list[Record] = []
        begun: list[_Begun] = []
        subjects: list[Mapping[str, str]] = []
        differing: set[str] = set()
        try:
            for found in findings(self._node, self._looks):
                subjects.append(found.record.subject)
                if found.problem == "foreign":
                    foreign.add(found.record.key)
                elif found.problem == "changed":
                    differing |= {key_of(found.record, step) for step in found.steps}
                    self._attempt(found.record, partial(self._restore, found), told=_NOT_PUT_BACK)
                elif not found.needs_proof or self._is_proven(f"{found.problem} {found.record.key}", suspected):
                    lost = found.problem == "lost"
                    if lost and found.record.socket in found.steps:
                        left.append(found.record)
                    self._attempt(found.record, lambda found=found: self._act(found, begun), told=_NOT_MADE if lost else "")  # type: ignore[misc]
            self._forget_gone(subjects)
            self._put_back.keep_recent(differing)
            self._sweep()
        except UserspaceError as error:
            say("warning", "reconciliation was cut short", error=error)
        self._finish_all(begun)
        self._suspected = suspected
        self._dead = self._still_dead(left)
        self._log_foreign(foreign)

    def follow(self, pods: Collection[tuple[str, str]]) -> set[tuple[str, str]]:
        """Amend the attachments of these pods, by namespace and name, if their annotations say something else now. Never fails.

        Returns those of which another call works on an attachment: they are to be followed again when that has ended.
        """
        with limit_repeats(self._repeats):
            try:
                records = [each for each in self._node.store.journal.records() if (each.pod_namespace, each.pod_name) in pods]
            except UserspaceError as error:
                say("warning", "the annotations of pods are checked later", error=error)
                return set()
            return {(each.pod_namespace, each.pod_name) for each in self._amend(records)}

    def _amend(self, records: Iterable[Record]) -> list[Record]:
        """Amend the attachments; those on which another call works."""
        busy: list[Record] = []
        for record in records:
            if record.pod_name:
                self._attempt(record, lambda record=record: self._amend_one(record, busy))  # type: ignore[misc]
        return busy

    def _amend_one(self, record: Record, busy: list[Record]) -> None:
        try:
            changed = amend(record, self._node.store, self._node.driver, self._node.pods)
        except (BadRequest, StepFailed) as error:
            say("warning", _NOT_DONE, error=error)
            self._tell_refused(record, f"{_NOT_DONE}: {error}")
        else:
            self._refused.pop(record.key, None)
            if changed:
                self._report("amended")
            elif changed is None:
                busy.append(record)

    def _tell_refused(self, record: Record, text: str) -> None:
        """Tell the pod, unless it was told the same a short while ago."""
        said, now = self._refused.get(record.key), time.monotonic()
        if said is None or said.text != hash(text) or now - said.at >= REPEAT_S:
            self._refused[record.key] = _RefusalNote(hash(text), now)
            self._node.pods.tell(record.recipient, (LIMIT_REFUSED.finding(text),))

    def _forget_gone(self, found: Collection[Mapping[str, str]]) -> None:
        """Keep nothing of attachments that are gone, and of which nothing was found in this pass. Raises RecordRefused."""
        records = self._node.store.journal.records()
        if self._refused:
            keys = {each.key for each in records}
            self._refused = {key: said for key, said in self._refused.items() if key in keys}
        self._repeats.keep(chain(found, (each.subject for each in records)))

    def _sweep(self) -> None:
        """Follow the pods of all attachments, and remove what no record names and nothing uses."""
        self._amend(self._node.store.journal.records())
        for _ in range(self._node.switch.sweep()):
            self._report("swept")

    def look_at(self, port: str) -> None:
        """Free the socket's name if the application of the port, whose connection has just ended, has died. Never fails."""
        with limit_repeats(self._repeats):
            self._look_at(port)

    def _look_at(self, port: str) -> None:
        try:
            marks = self._node.switch.list_owned(Deadline.after(CHECK_S)).get(port, {})
            record = self._node.store.journal.read(marks.get("container-id", ""), marks.get("ifname", ""))
        except UserspaceError as error:
            say("warning", "the socket of an application that disconnected is checked later", port=port, error=error)
            return
        if record is None or is_unfinished(record, self._node.store.boot_id()):
            return
        seen = SharedReads()
        if steps := select(record, record.steps, lambda step: step.left_by_application and is_lost(step, seen, self._node)):
            self._attempt(record, lambda: self._act(Deviation("lost", record, steps), []))
            self._dead = {**self._dead, **self._still_dead([record])}

    def look_at_changed(
        self, attachments: Collection[tuple[str, str]], ports: Collection[str], bridges: Collection[str]
    ) -> set[tuple[str, str]]:
        """Repair these attachments, named by container and interface, and those with these ports or bridges.

        Returns those on which another call is working: check them again later. Attachments that are being made or deleted are
        left to that call. Never fails.
        """
        try:
            records = self._of(attachments, ports, bridges)
        except UserspaceError as error:
            say("warning", "changed attachments are checked later", error=error)
            return set()
        seen, boot_id = see(self._node), self._node.store.boot_id()
        busy: set[tuple[str, str]] = set()
        begun: list[_Begun] = []

        def mend(record: Record, lost: tuple[Step, ...]) -> None:
            if not self._act(Deviation("lost", record, lost), begun):
                busy.add((record.container_id, record.ifname))

        for record in records:
            if is_unfinished(record, boot_id) or (record.netns and self._node.sandboxes.is_gone(record.netns)):
                continue
            if lost := select(record, record.steps, lambda step: is_lost(step, seen, self._node)):
                self._attempt(record, lambda record=record, lost=lost: mend(record, lost), told=_NOT_MADE)  # type: ignore[misc]
        self._finish_all(begun)
        return busy

    def _of(self, attachments: Collection[tuple[str, str]], ports: Collection[str], bridges: Collection[str]) -> list[Record]:
        """The records of what `look_at_changed` is told. Raises UserspaceError."""
        marks = self._node.switch.list_owned(Deadline.after(CHECK_S)) if ports else {}
        having = [marks[port] for port in ports if port in marks]
        wanted = {*attachments, *((each.get("container-id", ""), each.get("ifname", "")) for each in having)}
        found = [record for container, ifname in sorted(wanted) if (record := self._node.store.journal.read(container, ifname))]
        if bridges:
            found += [
                record
                for record in self._node.store.journal.records()
                if record.port and record.port.bridge in bridges and (record.container_id, record.ifname) not in wanted
            ]
        return found

    def _still_dead(self, records: Iterable[Record]) -> Mapping[str, PortRef]:
        """The ports of those whose sockets are dead now, by key of record."""
        every = list(records)
        dead = dead_sockets(every, self._node.driver)
        return {record.key: record.port_ref for record in every if record.key in dead and record.port_ref}

    def _is_proven(self, key: str, suspected: dict[str, float]) -> bool:
        """Whether an earlier pass suspected it too, at least `apart_s` ago; the suspicion is kept for the next pass."""
        suspected[key] = self._suspected.get(key, time.monotonic())
        return key in self._suspected and time.monotonic() - suspected[key] >= self._apart_s

    def _attempt(self, left: Record, act: Callable[[], object], *, told: str = "") -> None:
        """Act on one finding; a failure does not stop the pass. `told`: with which words the pod is told of it, "" for not."""
        with bind(self._node.service.log_level), about(left.subject):
            try:
                act()
            except UserspaceError as error:
                if told:
                    self._node.pods.tell(left.recipient, (PORT_DEGRADED.finding(f"{told}: {error}"),))
                say("warning", "an attachment could not be repaired now", error=error)

    def _act(self, found: Deviation, begun: list[_Begun]) -> bool:
        """Put one finding right, if its record is still the one that was found; False while another call works on it."""
        record, recorded = found.record, found.problem != "record-lost"
        with try_turn(record.container_id, record.ifname, self._node.store, self._node.driver) as turn:
            if turn is None:
                return False
            if turn.read() != (record if recorded else None):
                return True
            if found.problem == "namespace-gone":
                self._undo_mounts(found, turn)
            elif found.problem == "lost":
                begun.append(self._make_again(found, turn))
            else:
                say("info", "removing what an attachment left", why=found.problem, state=record.state, netns=record.netns)
                if not turn.remove(record, Deadline.after(cleanup.TURN_S)):
                    self._report(f"removed-{found.problem}")
        return True

    def _make_again(self, found: Deviation, turn: Turn) -> _Begun:
        """Begin to make the lost steps again, without waiting: the switch opens many ports at the same time."""
        first = [step for step in found.steps if not step.from_switch]
        rests = turn.begin(found.record, first, Deadline.after(cleanup.TURN_S))
        self._report_again(first)
        return _Begun(found.record, first, rests, [step for step in found.steps if step.from_switch])

    def _restore(self, found: Deviation) -> None:
        restore(found.record, found.steps, self._node, self._put_back, self._report)

    def _finish_all(self, begun: Iterable[_Begun]) -> None:
        for each in begun:
            self._attempt(each.record, lambda each=each: self._finish(each), told=_NOT_MADE)  # type: ignore[misc]

    def _finish(self, begun: _Begun) -> None:
        """Await what was begun, and apply the later steps. Does nothing if a DEL came in between: it has removed everything."""
        record = begun.record
        with try_turn(record.container_id, record.ifname, self._node.store, self._node.driver) as turn:
            if turn is None or turn.read() != record:
                return
            turn.settle(begun.rests)
            turn.settle(turn.begin(record, begun.later, Deadline.after(cleanup.TURN_S), again=True))
            self._report_again(begun.later)
            if record.port and record.port in begun.first:
                text = f"port {record.port.name} of bridge {record.port.bridge} was lost or closed, and is there again"
                self._node.pods.tell(record.recipient, (PORT_RESTORED.finding(text),))

    def _report_again(self, steps: Iterable[Step]) -> None:
        for step in steps:
            say("info", "restoring a lost part", step=step.kind)
            self._report(f"again-{step.kind}")

    def _undo_mounts(self, found: Deviation, turn: Turn) -> None:
        """Undo the mounts that keep the kubelet from removing the pod's directory; the rest stays until the pod is known gone."""

        def wanted(step: Step) -> bool:
            if is_needed(step, found.record.key, self._node):
                return False
            say(
                "info",
                "unmounting what keeps the kubelet from removing the directory of a pod whose sandbox is gone",
                step=step.kind,
                netns=found.record.netns,
            )
            return True

        turn.undo_some(found.steps, wanted, Deadline.after(cleanup.TURN_S))
        self._report("removed-namespace-gone")

    def _log_foreign(self, keys: Iterable[str]) -> None:
        """Log each foreign port once, as long as it exists."""
        for key in set(keys) - self._foreign:
            say("warning", "a port of another installation's state directory is left alone", attachment=key)
        self._foreign = frozenset(keys)
