"""What the node itself is to have: wishes, each made true by a node attachment, from settings, objects and commands.

A wish that is new is applied, one that has changed is amended, one that is gone is undone from its record. Gone is what a
complete list lacks: while a source of wishes is not known to be complete, every attachment that it asked for stays. A wish that
cannot be met says why and is tried again, less and less often; the others go on. What a look at the node cannot allow (another
program's bridge, an address that overlaps) is refused by the wish's own plan, before any effect, and leaves what is there.

A death amid any of this leaves a record that says `applying` or `deleting`, with every step that may be true: the next pursuit
goes on from it, forward where the wish still stands and can be met, back where not. Kernel state of another boot is gone: the
plan looks afresh.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from userspace_cni.attachment.apply import Turn, await_turn
from userspace_cni.attachment.records import Record, State, node_container
from userspace_cni.attachment.steps import Seen, Step
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import UserspaceError, combined
from userspace_cni.base.log import about, say

if TYPE_CHECKING:
    from userspace_cni.attachment.node import Node

WISH_S: Final = 20.0
"""Seconds for one wish: ovs-vswitchd opens ports, and a next hop is asked."""
PAUSE_MIN_S: Final = 1.0
PAUSE_MAX_S: Final = 60.0

Plan = Callable[[Record | None], tuple[Step, ...]]
"""The steps that the attachment is to have, after a fresh look at the node; it is given the record of what it has now. Raises
UserspaceError for a wish that cannot be met, before any effect."""


@dataclass(frozen=True)
class Wish:
    """One thing that the node is to have. `kind` and `name` identify it: the record is found by them.

    `source`: which list it stands in; `said_by`: where in it, for people.
    """

    kind: str
    name: str
    source: str
    said_by: str
    plan: Plan

    @property
    def key(self) -> tuple[str, str]:
        """Kind and name."""
        return self.kind, self.name


@dataclass(frozen=True)
class Standing:
    """What has become of a wish, or of an attachment whose wish has gone. `problem`: why it is not as wished; "" if it is.

    `steps` are what its record lists now. `wished` is False for what is to be undone.
    """

    kind: str
    name: str
    source: str
    said_by: str
    problem: str
    steps: tuple[Step, ...]
    wished: bool = True

    @property
    def holds(self) -> bool:
        """Whether the node is as wished."""
        return not self.problem


@dataclass
class _Trouble:
    """A wish that could not be met: why, when it is tried again, and how long it waits after that."""

    problem: str
    due: float
    pause_s: float


class Wishes:
    """Makes wishes true. For one thread; other processes are kept off by the lock of each attachment."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._troubles: dict[tuple[str, str], _Trouble] = {}
        self.standings: tuple[Standing, ...] = ()
        """What became of each at the last pursuit."""

    def pursue(self, wishes: Sequence[Wish], complete: Collection[str], *, now: bool = False) -> Sequence[Standing]:
        """Bring the node to these wishes; what became of each. `complete`: the sources of which all wishes are among these.

        `now`: also what failed a moment ago is tried. Never fails.
        """
        try:
            records = {(_kind(record), record.ifname): record for record in self._node.journal.node_records()}
        except UserspaceError as error:
            say("warning", "the node's own attachments cannot be looked at", error=error)
            return self.standings
        wanted = {wish.key for wish in wishes}
        standings = [
            self._undo(key, record, tried_at_once=now)
            for key, record in records.items()
            if key not in wanted and record.network in complete
        ]
        unknown = {key: each for key, each in records.items() if key not in wanted and each.network not in complete}
        standings += [Standing(*key, each.network, "", "", each.steps) for key, each in unknown.items()]
        standings += [self._meet(wish, tried_at_once=now) for wish in wishes]
        self._troubles = {key: each for key, each in self._troubles.items() if key in wanted or key in records}
        self.standings = tuple(standings)
        return self.standings

    @property
    def next_due(self) -> float:
        """When the next wish that could not be met is tried again, on the monotonic clock; infinity for none."""
        return min((each.due for each in self._troubles.values()), default=float("inf"))

    def _meet(self, wish: Wish, *, tried_at_once: bool) -> Standing:
        problem = self._attempt(wish.key, lambda: meet(wish, self._node), tried_at_once=tried_at_once)
        record = self._read(wish.key)
        return Standing(*wish.key, wish.source, wish.said_by, problem, record.steps if record else ())

    def _undo(self, key: tuple[str, str], record: Record, *, tried_at_once: bool) -> Standing:
        problem = self._attempt(key, lambda: undo(*key, self._node), tried_at_once=tried_at_once)
        return Standing(*key, record.network, "", problem, record.steps if problem else (), wished=False)

    def _attempt(self, key: tuple[str, str], work: Callable[[], object], *, tried_at_once: bool) -> str:
        """Do the work unless it failed a short while ago; the problem, "" for none."""
        trouble = self._troubles.get(key)
        if trouble and not tried_at_once and time.monotonic() < trouble.due:
            return trouble.problem
        with about({"wish": " ".join(key)}):
            try:
                work()
            except UserspaceError as error:
                pause_s = min(2 * trouble.pause_s, PAUSE_MAX_S) if trouble else PAUSE_MIN_S
                self._troubles[key] = _Trouble(str(error), time.monotonic() + pause_s, pause_s)
                if trouble is None or trouble.problem != str(error):
                    say("warning", "what the node is to have cannot be had now", error=error)
                return str(error)
            if self._troubles.pop(key, None):
                say("info", "the node is as wished again")
            return ""

    def _read(self, key: tuple[str, str]) -> Record | None:
        try:
            return self._node.journal.read(node_container(key[0]), key[1])
        except UserspaceError:
            return None


def meet(wish: Wish, node: Node) -> bool:
    """Make the wish true; whether anything was done. Raises UserspaceError: then the attachment is as it was, or is undone."""
    deadline = Deadline.after(WISH_S)
    container = node_container(wish.kind)
    with await_turn(container, wish.name, node, deadline) as turn:
        record = turn.read()
        if record and record.state == "deleting":
            _remove(turn, record, deadline)
            record = None
        try:
            steps = wish.plan(record)
        except UserspaceError:
            if record and record.state == "applying" and record.boot_id == node.boot_id():
                _remove(turn, record, deadline)
            raise
        if record is None:
            fresh = Record("applying", wish.source, container, wish.name, boot_id=node.boot_id(), boottime_ns=node.boottime_ns())
            _introduce(turn, fresh, steps, deadline)
            return True
        return _amend(turn, record, wish.source, steps, node, deadline)


def undo(kind: str, name: str, node: Node) -> None:
    """Undo the node attachment of that wish, if there is one. Raises UserspaceError when some of it stays."""
    deadline = Deadline.after(WISH_S)
    with await_turn(node_container(kind), name, node, deadline) as turn:
        record = turn.read()
        if record:
            _remove(turn, record, deadline)
            say("info", "the node no longer has what is not wished any more", undone=_summary(record.steps))


def _introduce(turn: Turn, record: Record, steps: tuple[Step, ...], deadline: Deadline) -> None:
    try:
        turn.converge(record, steps, deadline)
    except UserspaceError as error:
        _back_out(turn, error)
    say("info", "the node has what is wished", made=_summary(steps))


def _back_out(turn: Turn, error: UserspaceError) -> None:
    """Undo a new attachment that could not be made, and raise `error`, with what stays."""
    record = turn.read()
    if record:
        try:
            _remove(turn, record, Deadline.after(WISH_S))
        except UserspaceError as other:
            raise combined(f"{error.message}; and it cannot be undone", (error, other)) from error
    raise error


def _amend(turn: Turn, record: Record, source: str, steps: tuple[Step, ...], node: Node, deadline: Deadline) -> bool:
    """Bring a living attachment to these steps; whether anything was done."""
    this_boot = record.boot_id == node.boot_id()
    is_settled = record.state == "ready" and this_boot
    if is_settled and steps == record.steps and source == record.network:
        lost = _lost(record, node, deadline)
        if lost:
            say("info", "making again what was lost", lost=_summary(lost))
            turn.settle(turn.begin(record, lost, deadline))
        return bool(lost)
    state: State = record.state if this_boot else "applying"
    now = record.to(state, network=source, boot_id=node.boot_id(), boottime_ns=node.boottime_ns())
    try:
        turn.converge(now, steps, deadline)
    except UserspaceError as error:
        if not is_settled:
            raise
        current = turn.read()
        if current is not None and current.state != "ready":
            try:
                turn.converge(current, record.steps, Deadline.after(WISH_S))
            except UserspaceError as other:
                raise combined(f"{error.message}; and the former state cannot be had back now", (error, other)) from error
        raise
    say("info", "what the node has was changed as wished", changed=_summary(each for each in steps if each not in record.steps))
    return True


def _remove(turn: Turn, record: Record, deadline: Deadline) -> None:
    """Undo all of it. Raises the errors of what stays, which is recorded."""
    failures = turn.remove(record, deadline)
    if failures:
        raise combined("some of it cannot be undone now", [failure.error for failure in failures])


def _lost(record: Record, node: Node, deadline: Deadline) -> list[Step]:
    seen = Seen(node.wished_ports(deadline))
    return [step for step in record.steps if node.driver(step).lost(step, seen, deadline)]


def _summary(steps: Iterable[Step]) -> str:
    return "; ".join(each.summary for each in steps)


def _kind(record: Record) -> str:
    return record.container_id.removeprefix(node_container(""))
