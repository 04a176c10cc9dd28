"""The specs of the node itself, from settings, objects and commands: a node attachment meets each.

A new spec is applied, a changed one is amended, and one that is gone is undone from its record. A spec is gone when the
complete list of its source lacks it: while a source is not known to be complete, its attachments stay as recorded. A spec that
cannot be met says why and is tried again, less and less often; the others go on. A spec that conflicts with the node (another
program's bridge, an overlapping address) is refused by its own plan, before any effect, and the attachment stays as it is.

A crash leaves a record in `applying` or `deleting`, with every step that may be true and the steps of the last complete state.
The next round completes the change if the spec still exists and can be met, and rolls it back if the spec is refused. Kernel
state of another boot is gone: the plan looks at the node again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from userspace_cni.attachment import put_backs
from userspace_cni.attachment.apply import Turn, await_turn, try_turn
from userspace_cni.attachment.records import Record, as_recorded, encode_complete, node_container
from userspace_cni.attachment.steps import Parts, SharedReads, Step, StillTaken
from userspace_cni.base.back_off import BackOff
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import Unavailable, UserspaceError, combine
from userspace_cni.base.log import about, say
from userspace_cni.base.retries import Retries

if TYPE_CHECKING:
    from userspace_cni.attachment.attachment_store import AttachmentStore
    from userspace_cni.attachment.node import DriverOf, Switch

SPEC_S: Final = 20.0
"""Seconds for one spec: ovs-vswitchd opens ports, and a next hop is asked."""
PAUSE_MIN_S: Final = 1.0
PAUSE_MAX_S: Final = 60.0
_ROWS_S: Final = 1.0
"""Seconds for a look at the rows before a round: what is urgent comes after it."""
_LEFT_S: Final = 5.0
LOOK_MAX_S: Final = 10.0
"""The longest pause of a spec that its plan refuses: a look changes nothing, and the NIC or switch that is missing may come."""

Key = tuple[str, str]
"""Kind and name of a spec."""
UNKNOWN: Final = "unknown"
"""The source of an attachment whose record was lost. It is complete when all sources are."""
Plan = Callable[[Record | None], tuple[Step, ...]]
"""Looks at the node and returns the desired steps, () for none. The argument is the present record, which may be of another
boot. Raises UserspaceError for a spec that cannot be met, before any effect."""


class KeepsLess(Unavailable):
    """Raised by a plan: the spec cannot be met now, and only `steps` may stay, because the rest has lost its device."""

    def __init__(self, message: str, hint: str, steps: tuple[Step, ...]) -> None:
        super().__init__(message, hint)
        self.steps = steps


@dataclass(frozen=True)
class Spec:
    """One thing that the node is to have. `kind` and `name` identify it: the record is found by them.

    `source`: which list it stands in; `said_by`: where in it, for people. `content` is compared: a spec that has changed is tried
    at once, however often it failed before.
    """

    kind: str
    name: str
    source: str
    said_by: str
    plan: Plan
    content: object = None

    @property
    def key(self) -> Key:
        return self.kind, self.name


@dataclass(frozen=True)
class SpecStatus(Parts):
    """What has become of a spec, or of an attachment whose spec has gone. `problem`: why it is not as desired; "" if it is.

    `steps` are what its record lists now. `desired` is False for what is to be undone; `said_by` is "" where no spec is known.
    """

    kind: str
    name: str
    source: str
    said_by: str
    problem: str
    steps: tuple[Step, ...]
    desired: bool = True

    @property
    def holds(self) -> bool:
        """Whether the node is as desired."""
        return not self.problem


class Means(Protocol):
    """What specs are met with, of a node."""

    @property
    def store(self) -> AttachmentStore:
        """The records, and the present boot."""
        ...

    @property
    def driver(self) -> DriverOf: ...

    @property
    def switch(self) -> Switch: ...


class _Does(Protocol):
    def __call__(self, *, now: bool) -> SpecStatus: ...


_Work = tuple[Key, _Does]


@dataclass
class _Trouble:
    """A spec that could not be met: what it was, why it failed, when it is tried again, and how long it waits after that.

    `told`: whether the log says so.
    """

    content: object
    problem: str
    due: float
    pause_s: float
    told: bool


class Specs:
    """Reconciles specs. For one thread; the lock of each attachment excludes other processes.

    `keep` is the plan of attachments that a possibly incomplete source does not name; by default they stay as recorded.
    `urgent` returns the specs that must go first, such as addresses that must leave a dead bridge; it is called before every
    other spec, and these specs ignore their back-off. It must not wait or fail.
    """

    def __init__(self, node: Means, keep: Plan | None = None, urgent: Callable[[], Collection[Key]] = tuple) -> None:
        self._node = node
        self._keep = keep or (lambda record: plan_as_recorded(record, node.store.boot_id()))
        self._urgent = urgent
        self._troubles: dict[Key, _Trouble] = {}
        self._put_back = Retries()
        self._statuses: tuple[SpecStatus, ...] = ()

    def reconcile(self, specs: Sequence[Spec], complete: Collection[str], *, now: bool = False) -> tuple[SpecStatus, ...]:
        """Bring the node to these specs, in this order but for urgent ones; what became of each. `complete`: the sources of
        which all specs are among these.

        `now`: also what failed a moment ago is tried. Never fails.
        """
        try:
            self._record_again()
            records = {key_of(record): record for record in self._node.store.journal.node_records()}
        except UserspaceError as error:
            say("warning", "the node's own attachments cannot be looked at", error=error)
            return self._statuses
        wanted = {spec.key for spec in specs}
        spare = [record for key, record in records.items() if key not in wanted]
        gone = [record for record in spare if record.network in complete]
        unknown = [self._unknown(record) for record in spare if record.network not in complete]
        # the latest first: a gateway's port is on the bridge that was made before it
        gone.sort(key=lambda record: record.boottime_ns, reverse=True)
        undone: list[_Work] = [(key_of(record), partial(self._undo, record)) for record in gone]
        met: list[_Work] = [(spec.key, partial(self._meet, spec)) for spec in (*unknown, *specs)]
        statuses = self._in_turn([*undone, *met], [*met, *undone], now=now)
        self._troubles = {key: each for key, each in self._troubles.items() if key in wanted or key in records}
        self._statuses = tuple(each for each in statuses if each.desired or each.problem)
        return self._statuses

    @property
    def next_due(self) -> float:
        """When the next spec that could not be met is tried again, on the monotonic clock; infinity for none."""
        return min((each.due for each in self._troubles.values()), default=float("inf"))

    def _in_turn(self, works: Sequence[_Work], urgent_works: Sequence[_Work], *, now: bool) -> list[SpecStatus]:
        """Do each of the works, in order; before each the urgent ones, once, in their order: also one that was done already."""
        found: dict[Key, SpecStatus] = {}
        hurried: set[Key] = set()
        for key, work in works:
            for other, urgent_work in urgent_works:
                if other not in hurried and other in self._urgent():
                    hurried.add(other)
                    found[other] = urgent_work(now=True)
            if key not in hurried:
                found[key] = work(now=now)
        return [found[key] for key, _ in works]

    def _record_again(self) -> None:
        """Record what rows name and no record does, but what another call works on. Raises RecordRefused."""
        node, later = self._node, "what the switch has of the node's own is compared with the records later"
        recorded = {key_of(record) for record in node.store.journal.node_records()}
        try:
            in_rows = node.switch.specs_in_rows(Deadline.after(_ROWS_S))
        except UserspaceError as error:
            say("debug", later, error=error)
            return
        for key in sorted(in_rows - recorded):
            try:
                with try_turn(node_container(key[0]), key[1], node.store, node.driver) as turn:
                    if turn:
                        _read(turn, *key, node, Deadline.after(SPEC_S))
            except Exception as error:  # noqa: BLE001 -- neither a full disk nor a bug in one may keep the others from being met
                say("debug" if isinstance(error, Unavailable) else "warning", later, spec=" ".join(key), error=_said(error))

    def _unknown(self, record: Record) -> Spec:
        return Spec(*key_of(record), record.network, "", self._keep)

    def _meet(self, spec: Spec, *, now: bool) -> SpecStatus:
        planned: list[bool] = []

        def plan(record: Record | None) -> tuple[Step, ...]:
            steps = spec.plan(record)
            planned.append(True)
            return steps

        def work() -> bool:
            return meet(replace(spec, plan=plan), self._node, self._put_back)

        problem = self._attempt(spec.key, spec.content, work, planned, now=now)
        return SpecStatus(*spec.key, spec.source, spec.said_by, problem, self._steps(spec.key))

    def _undo(self, record: Record, *, now: bool) -> SpecStatus:
        key = key_of(record)
        problem = self._attempt(key, _GONE, lambda: undo(*key, self._node), [True], now=now)
        return SpecStatus(*key, record.network, "", problem, self._steps(key), desired=False)

    def _attempt(self, key: Key, content: object, work: Callable[[], object], planned: list[bool], *, now: bool) -> str:
        """Do the work unless the same failed a short while ago; the problem, "" for none."""
        trouble = self._troubles.get(key)
        same = trouble is not None and trouble.content == content
        if trouble and same and not now and time.monotonic() < trouble.due:
            return trouble.problem
        with about({"spec": " ".join(key)}):
            try:
                work()
            except Exception as error:  # noqa: BLE001 -- also a bug in one spec must not keep the others from being met
                problem = _said(error)
                pauses = BackOff(PAUSE_MIN_S, PAUSE_MAX_S if planned else LOOK_MAX_S)
                pause_s = pauses.after(trouble.pause_s if trouble and same else 0.0)
                told = trouble is not None and trouble.told and trouble.problem == problem
                told = told or say("warning", "a spec of the node cannot be met now", problem=problem)
                self._troubles[key] = _Trouble(content, problem, time.monotonic() + pause_s, pause_s, told)
                return problem
            if self._troubles.pop(key, None):
                say("info", "the node is as desired again")
            return ""

    def _steps(self, key: Key) -> tuple[Step, ...]:
        try:
            record = self._node.store.journal.read(node_container(key[0]), key[1])
        except UserspaceError:
            return ()
        return record.steps if record else ()


_GONE: Final = "gone"
"""The content of a spec that is no longer desired."""


def plan_as_recorded(record: Record | None, boot_id: str) -> tuple[Step, ...]:
    """The plan of an attachment whose spec is not known now: what it had when it was complete, nothing if it never was.

    Raises Unavailable for one of another boot, whose spec says what is to be made of it.
    """
    if record is None:
        return ()
    if record.boot_id != boot_id:
        raise Unavailable(
            f"what is desired by {record.network} is not known since the node was started, so nothing of it was made again",
            "what is in OVSDB stays as it is",
        )
    return record.complete or ()


def compare(spec: Spec, node: Means) -> SpecStatus:
    """How the spec stands now, by a look that changes nothing. Raises RecordRefused."""
    record = node.store.journal.read(node_container(spec.kind), spec.name)
    try:
        problem = _difference(record, tuple(map(as_recorded, spec.plan(record))), node)
    except UserspaceError as error:
        problem = str(error)
    return SpecStatus(*spec.key, spec.source, spec.said_by, problem, record.steps if record else ())


def _difference(record: Record | None, steps: tuple[Step, ...], node: Means) -> str:
    if record is None:
        return "it is not made yet" if steps else ""
    if record.boot_id != node.store.boot_id():
        return "it is not made again since the node was started"
    if record.state != "ready":
        return f"it is unfinished: {record.state}"
    if steps != record.steps:
        return "it is not changed yet as desired"
    lost = _lost(record, node, Deadline.after(SPEC_S))
    if lost:
        return f"lost: {_summary(lost)}"
    changed = put_backs.changes_of(record.steps, _seen(node, Deadline.after(SPEC_S)), node.driver, Deadline.after(SPEC_S))
    return f"changed by another program: {put_backs.words(changed)}" if changed else ""


def meet(spec: Spec, node: Means, tries: Retries | None = None) -> bool:
    """Make the spec true; whether anything was done. `tries`: when what another program has changed was put back; it is left as
    it is for a while then.

    Raises UserspaceError: then the attachment is as it was before, or is undone if it never was complete. What failed because
    something did not answer may be left half changed, for the next call to go on with.
    """
    deadline = Deadline.after(SPEC_S)
    container = node_container(spec.kind)
    with await_turn(container, spec.name, node.store, node.driver, deadline) as turn:
        record = _read(turn, spec.kind, spec.name, node, deadline)
        if record and record.state == "deleting":
            # what cannot go now, as a bridge on which pods have ports, is used again
            record = turn.read() if turn.remove(record, deadline) else None
        try:
            steps = tuple(map(as_recorded, spec.plan(record)))
        except KeepsLess as error:
            if record:
                _change(turn, record, spec.source, tuple(map(as_recorded, error.steps)), node, deadline)
            raise
        except Unavailable:
            raise
        except UserspaceError as error:
            if record and record.state != "ready" and record.boot_id == node.store.boot_id():
                _go_back(turn, error)
            raise
        if record is None:
            if not steps:
                return False
            record = Record(
                "applying", spec.source, container, spec.name, boot_id=node.store.boot_id(), boottime_ns=node.store.boottime_ns()
            )
        elif not steps:
            _remove(turn, record, deadline)
            say("info", "undone, because this node does not need it", undone=_summary(record.steps))
            return True
        done = _change(turn, record, spec.source, steps, node, deadline)
        return _put_back(turn, node, tries or Retries(), deadline) or done


def undo(kind: str, name: str, node: Means, *, force: bool = False) -> None:
    """Undo the node attachment of that spec, if there is one. Raises UserspaceError when some of it stays.

    `force`: gives up steps that cannot be undone, such as addresses whose NIC is absent, so that the rest can be.
    """
    deadline = Deadline.after(SPEC_S)
    with await_turn(node_container(kind), name, node.store, node.driver, deadline) as turn:
        record = _read(turn, kind, name, node, deadline)
        if record:
            _remove(turn, record, deadline, force=force)
            say("info", "undone, because it is no longer desired", undone=_summary(record.steps))


def key_of(record: Record) -> Key:
    return record.container_id.removeprefix(node_container("")), record.ifname


def _read(turn: Turn, kind: str, name: str, node: Means, deadline: Deadline) -> Record | None:
    """The record; where it was lost, one of what the switch shows is written first. Raises RecordRefused.

    With the lock that a turn has no process is between a record and its rows. The new one has what there is, so that nothing is
    made twice, and what goes does so in its order: addresses leave a bridge before that is deleted.
    """
    record = turn.read()
    if record:
        return record
    try:
        left = node.switch.left_of(kind, name, deadline.within(_LEFT_S))
    except Unavailable:
        return None  # the plan asks the switch, too
    if not left:
        return None
    store, steps = node.store, tuple(map(as_recorded, left))
    record = Record(
        "ready", UNKNOWN, node_container(kind), name, boot_id=store.boot_id(), boottime_ns=store.boottime_ns(), steps=steps
    )
    say("warning", "the record of what the node has was lost, and is made again of what there is", steps=_summary(steps))
    store.journal.write(record)
    return record


def _change(turn: Turn, record: Record, source: str, steps: tuple[Step, ...], node: Means, deadline: Deadline) -> bool:
    """Bring an attachment to these steps; whether anything was done."""
    this_boot = record.boot_id == node.store.boot_id()
    if this_boot and record.state == "ready" and steps == record.steps and source == record.network:
        return _restore(turn, record, node, deadline)
    now = record.to(record.state, network=source)
    if not this_boot:
        lost = _lost(record, node, deadline)
        had = encode_complete(tuple(step for step in record.steps if step not in lost))
        now = now.to("applying", boot_id=node.store.boot_id(), boottime_ns=node.store.boottime_ns(), result=had)
    try:
        turn.converge(now, steps, deadline)
    except UserspaceError as error:
        _go_back(turn, error)
    say("info", "changed to what is desired", steps=_summary(steps))
    return True


def _restore(turn: Turn, record: Record, node: Means, deadline: Deadline) -> bool:
    """Make again what is lost of a living attachment; whether anything was."""
    lost = _lost(record, node, deadline)
    if lost:
        say("info", "restoring lost parts", lost=_summary(lost))
        turn.settle(turn.begin(record, lost, deadline))
    return bool(lost)


def _put_back(turn: Turn, node: Means, tries: Retries, deadline: Deadline) -> bool:
    """Put back what others have changed of a complete attachment; whether anything was. Raises StepFailed for what they have
    changed again since."""
    record = turn.read()
    if record is None or record.state != "ready":
        return False
    found = put_backs.changes_of(record.steps, _seen(node, deadline), node.driver, deadline)
    put_backs.forget_same(record, found, tries)
    early = put_backs.early(record, found, tries)
    if due := [change for change in found if change not in early]:
        put_backs.put_back(turn, record, due, tries, deadline)
        put_backs.require_same(due, _seen(node, deadline), node.driver, deadline)
    if early:
        raise put_backs.waiting(early)
    return bool(due)


def _go_back(turn: Turn, error: UserspaceError) -> None:
    """After `error`, give the attachment what it had when it was complete, or undo what never was. Raises `error`, with what
    could not be put back.

    What does not answer now is asked again, forward: a switch that is gone must not get back the addresses that left it.
    """
    record = turn.read()
    if record is None or record.state == "ready":
        raise error
    try:
        if record.complete is None:
            _remove(turn, record, Deadline.after(SPEC_S))
        elif not isinstance(error, Unavailable):
            turn.converge(record, record.complete, Deadline.after(SPEC_S))
    except UserspaceError as other:
        raise combine(f"{error.message}; and the former state cannot be restored now", (error, other)) from error
    raise error


def _remove(turn: Turn, record: Record, deadline: Deadline, *, force: bool = False) -> None:
    """Undo all of it. Raises the errors of what stays, which is recorded."""
    failures = turn.remove(record, deadline)
    keeping = [each.step for each in failures if each.step.keeps_earlier and not isinstance(each.error, StillTaken)]
    if force and keeping:
        say("warning", "steps that cannot be undone are given up", given_up=_summary(keeping))
        rest = tuple(failure.step for failure in failures[::-1] if not failure.step.keeps_earlier)
        failures = turn.remove(record.to("deleting", steps=rest), deadline)
    if failures:
        errors = dict.fromkeys(failure.error for failure in failures)  # what is kept by another step has that one's
        raise combine("some of it cannot be undone now", errors)


def _lost(record: Record, node: Means, deadline: Deadline) -> list[Step]:
    seen = _seen(node, deadline)
    return [step for step in record.steps if node.driver(step).is_lost(step, seen, deadline)]


def _seen(node: Means, deadline: Deadline) -> SharedReads:
    try:
        return SharedReads(node.switch.of_node(deadline.half()))
    except UserspaceError:
        return SharedReads()  # nothing is concluded from a missing port


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, UserspaceError) else repr(error)


def _summary(steps: Iterable[Step]) -> str:
    return "; ".join(each.summary for each in steps)
