"""Claims of devices: the kubelet's prepare and unprepare, as folds over the steps of each device.

A claim comes before its pod's container. So its devices have records of their own, one each, under what stands for the
container; they have locks, drivers and steps as an interface that a network asked for, and reconciliation repairs them. A
device that is there as it was asked for is left as it is, also by another agent; one that was asked for otherwise is made anew.
A claim of which one device fails leaves none that this call has made.

The kubelet may remember over a reboot that a claim is prepared, and never ask again: so a device of another boot is made again
from its record. It ends when the kubelet says so, or when its claim is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from userspace_cni.attachment import cleanup
from userspace_cni.attachment.apply import Failure, Turn, await_turn, try_turn
from userspace_cni.attachment.claim_plan import LeftDevice
from userspace_cni.attachment.records import Record, claim_container
from userspace_cni.attachment.steps import SharedReads, Step
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import RecordRefused, Unavailable, UserspaceError, combine
from userspace_cni.base.log import about, say

if TYPE_CHECKING:
    from userspace_cni.attachment.node import Node

DEVICES_MAX: Final = 32
"""As many devices as the API takes of one claim."""
ANEW_S: Final = 10.0
"""Seconds for one device of another boot: ovs-vswitchd opens its port."""
_IFNAME: Final = "net"


@dataclass(frozen=True)
class ClaimOwner:
    """A claim, with the pod that uses it."""

    namespace: str
    name: str
    uid: str
    pod_name: str = ""
    pod_uid: str = ""


@dataclass(frozen=True)
class DeviceWish:
    """A device that the claim is to have. `number`: which of its devices, from 0. `said`: as JSON values, all that decides about
    it; it is recorded, and compared with what is asked for later. `plan` looks at the node, and changes nothing.
    """

    number: int
    said: Mapping[str, Any]
    plan: Callable[[], tuple[Step, ...]]

    @property
    def ifname(self) -> str:
        return interface_name(self.number)


class AtOnce(Protocol):
    """Calls each of several functions, possibly at the same time, and returns when all have ended. They raise nothing."""

    def __call__(self, calls: Sequence[Callable[[], _DeviceOutcome]], /) -> Sequence[_DeviceOutcome]: ...


@dataclass(frozen=True)
class _DeviceOutcome:
    """`made`: what has been made now; None where all was there, or where it failed with `error`, and was undone."""

    device: DeviceWish
    made: Record | None = None
    error: UserspaceError | None = None


def interface_name(number: int) -> str:
    """How a device of a claim is called among the claim's."""
    return f"{_IFNAME}{number}"


def number_in(ifname: str) -> int:
    """The inverse of `interface_name`."""
    return int(ifname.removeprefix(_IFNAME))


def prepare(owner: ClaimOwner, devices: Sequence[DeviceWish], node: Node, spread: AtOnce, deadline: Deadline) -> None:
    """Make it so that the claim has just these devices, each with all that its container needs.

    Raises UserspaceError, the first of those of its devices: what this call has made is undone then, as far as that is possible
    now, and the rest is recorded.
    """
    cleanup.settle(node.store, node.driver, node.switch, node.sandboxes, deadline)
    _remove_beyond(owner.uid, len(devices), node, deadline)
    done = spread([partial(_prepare_one, owner, device, node, deadline) for device in devices])
    errors = [each.error for each in done if each.error]
    if errors:
        for made in (each.made for each in done if each.made):
            with about(made.subject), _turn(made.container_id, made.ifname, node, deadline) as turn:
                cleanup.roll_back(made, turn, errors[0], deadline)
        raise errors[0]


def unprepare(uid: str, node: Node, find_left: Callable[[Collection[str]], Mapping[str, LeftDevice]], deadline: Deadline) -> None:
    """Undo all that there is of the claim, whether it is known or not.

    `find_left` is given the names of the recorded devices, and returns what the node has of the claim beside these: by the name
    of each device. Raises UserspaceError for what stays; a port whose switch does not answer is recorded, and goes later.
    """
    container = claim_container(uid)
    failures: list[Failure] = []
    records = read_devices(uid, node)
    for each in records:
        with about(each.subject), _turn(container, each.ifname, node, deadline) as turn:
            if record := turn.read():
                failures += turn.remove(record, deadline)
    for ifname, left in find_left({each.ifname for each in records}).items():
        say("warning", "removing what a claim left without a record", uid=uid, interface=ifname)
        with _turn(container, ifname, node, deadline) as turn:
            failures += _undo_left(container, ifname, left, turn, node, deadline)
    stays = [each.error for each in failures if not (each.step.postponable and isinstance(each.error, Unavailable))]
    if stays:
        raise combine(f"undoing claim {uid}", stays)


def read_devices(uid: str, node: Node, begin: int = 0) -> list[Record]:
    """The records of the claim's devices from number `begin` on, by number. Those of other claims are not read: a node may have
    hundreds."""
    return node.store.journal.read_some(claim_container(uid), map(interface_name, range(begin, DEVICES_MAX)))


def read_whole(uid: str, node: Node) -> list[Mapping[str, Any]]:
    """What was said of each device of a claim that is prepared in this boot, by number; () where one of its devices is not."""
    found = read_devices(uid, node)
    boot_id = node.store.boot_id()
    whole = all(each.state == "ready" and each.boot_id == boot_id and each.result for each in found)
    said = [each.result for each in found if each.result]
    return said if whole and len(said) == len(found) else []


def make_anew(record: Record, node: Node) -> bool:
    """Make a device of another boot again, from its record; False while another call works on it. Raises UserspaceError."""
    with try_turn(record.container_id, record.ifname, node.store, node.driver) as turn:
        if turn is None or turn.read() != record:
            return False
        boot_id = node.store.boot_id()
        steps = tuple(step.in_boot(boot_id) for step in record.steps)
        fresh = record.to("ready", boot_id=boot_id, boottime_ns=node.store.boottime_ns(), steps=steps)
        with about(record.subject):
            say("info", "making a device of a claim anew after a reboot")
            turn.settle(turn.begin(fresh, steps, Deadline.after(ANEW_S), again=True))
        node.store.journal.write(fresh)
    return True


def _turn(container: str, ifname: str, node: Node, deadline: Deadline) -> AbstractContextManager[Turn]:
    return await_turn(container, ifname, node.store, node.driver, deadline)


def _remove_beyond(uid: str, number: int, node: Node, deadline: Deadline) -> None:
    """Undo the devices from that number on, which the claim has no more. Raises UserspaceError for what stays."""
    for each in read_devices(uid, node, number):  # one that died here may have left a later number alone
        with _turn(each.container_id, each.ifname, node, deadline) as turn:
            if record := turn.read():
                _remove(record, turn, deadline)


def _prepare_one(owner: ClaimOwner, device: DeviceWish, node: Node, deadline: Deadline) -> _DeviceOutcome:
    record = _new_record(owner, device, node)
    with about(record.subject):
        try:
            with _turn(record.container_id, record.ifname, node, deadline) as turn:
                former = turn.read()
                if former and _is_as_asked(former, record, device):
                    _make_whole(former, turn, node, deadline)
                    return _DeviceOutcome(device)
                if former:
                    _remove(former, turn, deadline)
                return _DeviceOutcome(device, _make(record.to("applying", steps=device.plan()), device, turn, node, deadline))
        except UserspaceError as error:
            return _DeviceOutcome(device, error=error)
        except Exception as error:  # noqa: BLE001 -- the other devices go on, and the kubelet is told
            say("error", "a device of a claim could not be prepared", error=f"{type(error).__name__}: {error}")
            return _DeviceOutcome(
                device, error=Unavailable(f"preparing {device.ifname}: {type(error).__name__}", "the agent's log")
            )


def _make(record: Record, device: DeviceWish, turn: Turn, node: Node, deadline: Deadline) -> Record:
    """Apply the steps of the record; the record as it is then. What fails is undone."""
    try:
        record, _ = turn.foresee(record)
        node.store.journal.write(record)
        turn.settle(turn.begin(record, record.steps, deadline))
        record = record.to("ready", result=device.said)
        node.store.journal.advance(record)
    except BaseException as error:
        cleanup.roll_back(record, turn, error, deadline)
        raise
    return record


def _new_record(owner: ClaimOwner, device: DeviceWish, node: Node) -> Record:
    return Record(
        state="applying",
        network=owner.name,
        container_id=claim_container(owner.uid),
        ifname=device.ifname,
        boot_id=node.store.boot_id(),
        boottime_ns=node.store.boottime_ns(),
        pod_namespace=owner.namespace,
        pod_name=owner.pod_name,
        pod_uid=owner.pod_uid,
    )


def _is_as_asked(former: Record, record: Record, device: DeviceWish) -> bool:
    """Whether the device that is there is what is asked for now, for the same pod, in this boot."""
    same = (former.boot_id, former.network, former.pod_uid) == (record.boot_id, record.network, record.pod_uid)
    return former.state == "ready" and same and former.result == device.said


def _make_whole(record: Record, turn: Turn, node: Node, deadline: Deadline) -> None:
    """Make again what is lost of a device that was prepared before. While the switch cannot be asked, its port is left alone."""
    try:
        seen = SharedReads(node.switch.list_owned(deadline.half()))
    except UserspaceError as error:
        say("warning", "the port of a claim that was prepared before cannot be looked at", error=error)
        seen = SharedReads()
    lost = [step for step in record.steps if node.driver(step).is_lost(step, seen, deadline)]
    for step in lost:
        say("info", "restoring a lost part", step=step.kind)
    turn.settle(turn.begin(record, lost, deadline))


def _remove(record: Record, turn: Turn, deadline: Deadline) -> None:
    """Undo a device. Raises UserspaceError for what stays."""
    failures = turn.remove(record, deadline)
    if failures:
        raise combine(f"undoing the former {record.ifname} of claim {record.network}", [each.error for each in failures])


def _undo_left(container: str, ifname: str, left: LeftDevice, turn: Turn, node: Node, deadline: Deadline) -> list[Failure]:
    known = cleanup.traces(container, ifname, left.ports, node.store, node.sandboxes)
    network = next((each.marks.get("network", "") for each in left.ports), "")
    try:
        failures = turn.remove(Record("deleting", network, container, ifname, steps=known), deadline)
    except RecordRefused as error:
        raise Unavailable("what is left of a claim cannot be recorded", str(error)) from error
    for step in reversed(left.steps):
        failures += turn.undo_unrecorded(step, deadline.half())
    return failures
