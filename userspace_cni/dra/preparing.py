"""Prepares and unprepares claims: asks the API server what was allocated, and has the node make it so.

Nothing is kept in memory: the record of each device says what was prepared. The kubelet's answer follows from the claim alone, so
that it is the same after a restart. While the API server does not answer, a claim that is prepared is answered from its records.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from userspace_cni.attachment import claims
from userspace_cni.attachment.claim_plan import UID, ClaimRequest
from userspace_cni.attachment.claims import ClaimOwner, DeviceWish
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import InvalidConfig, StepFailed, Unavailable, UnsupportedField, UserspaceError
from userspace_cni.base.log import bind, say, timed
from userspace_cni.dra.claim_objects import AllocatedDevice, ClaimConsumer, SeenClaim, read_claim
from userspace_cni.dra.claim_parameters import network_of
from userspace_cni.dra.device_names import DRIVER, bridge_of
from userspace_cni.dra.dra_node import ClaimRef, Prepared, PreparedDevice
from userspace_cni.kube.resources import RESOURCE_CLAIMS
from userspace_cni.node.bridge_room import ClaimedPort
from userspace_cni.node.claim_devices import RequestedDevice

if TYPE_CHECKING:
    from userspace_cni.attachment.steps import Step
    from userspace_cni.kube.object_requests import Objects
    from userspace_cni.node.bridge_room import BridgeRoom
    from userspace_cni.node.claim_devices import ClaimDevices, ClaimPlans
    from userspace_cni.node.local_node import LocalNode

T = TypeVar("T")
THREADS_MAX: Final = 32
"""Devices, and claims of one call, that are worked on at the same time; the kubelet's calls have threads of their own."""


@dataclass(frozen=True)
class PreparingCalls:
    """What is called, and must not wait: `count` with what was done with a claim and the outcome, `on_claim` with each claim that
    was prepared, or found prepared."""

    count: Callable[[str, str], None]
    on_claim: Callable[[SeenClaim], None] = lambda _: None


class Preparing:
    """`dra_node.DraNode` of this node. `objects`: None without an account of the API server."""

    def __init__(
        self,
        node: LocalNode,
        devices: ClaimDevices,
        objects: Objects | None,
        room: BridgeRoom,
        calls: PreparingCalls,
    ) -> None:
        self._node = node
        self._devices = devices
        self._objects = objects
        self._room = room
        self._calls = calls
        self._busy: set[str] = set()
        self._ended = threading.Condition()
        self._claims = ThreadPoolExecutor(THREADS_MAX, "claims")
        self._ports = ThreadPoolExecutor(THREADS_MAX, "claims-devices")

    def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, Prepared]:
        """As `DraNode`."""
        done = _spread(self._claims, [partial(self._prepare, each) for each in claims])
        for each in done:
            self._calls.count("prepare", "failed" if each.error else "ok")
        return {claim.uid: each for claim, each in zip(claims, done, strict=True)}

    def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, UserspaceError | None]:
        """As `DraNode`."""
        done = _spread(self._claims, [partial(self._unprepare, each) for each in claims])
        for error in done:
            self._calls.count("unprepare", "failed" if error else "ok")
        return {claim.uid: each for claim, each in zip(claims, done, strict=True)}

    def close(self) -> None:
        """Begin nothing more."""
        self._claims.shutdown(wait=False, cancel_futures=True)
        self._ports.shutdown(wait=False, cancel_futures=True)

    # -- one claim, on any thread -----------------------------------------------------------------------------------------

    def _prepare(self, claim: ClaimRef) -> Prepared:
        with bind(self._node.service.log_level, claim=f"{claim.namespace}/{claim.name}"), timed("answered"):
            try:
                deadline = Deadline.after(self._node.service.deadline_s, "deadline_s")
                with self._alone(claim.uid, deadline):
                    return Prepared(self._prepared(claim, deadline))
            except UserspaceError as error:
                say("warning", "a claim could not be prepared", error=error)
                return Prepared(error=error)
            except Exception as error:  # noqa: BLE001 -- the other claims of the call are answered
                say("error", "a claim could not be prepared", error=f"{type(error).__name__}: {error}")
                return Prepared(error=StepFailed(f"preparing the claim: {type(error).__name__}", "the agent's log"))

    def _unprepare(self, claim: ClaimRef) -> UserspaceError | None:
        with bind(self._node.service.log_level, claim=f"{claim.namespace}/{claim.name}"), timed("answered"):
            try:
                deadline = Deadline.after(self._node.service.deadline_s, "deadline_s")
                _require_uid(claim.uid)
                with self._alone(claim.uid, deadline):
                    find_left = self._devices.find_left
                    claims.unprepare(claim.uid, self._node, lambda known: find_left(claim.uid, known, deadline), deadline)
                    self._room.forget_claims()
            except UserspaceError as error:
                say("warning", "a claim could not be unprepared", error=error)
                return error
            except Exception as error:  # noqa: BLE001
                say("error", "a claim could not be unprepared", error=f"{type(error).__name__}: {error}")
                return StepFailed(f"unpreparing the claim: {type(error).__name__}", "the agent's log")
        return None

    def _prepared(self, claim: ClaimRef, deadline: Deadline) -> tuple[PreparedDevice, ...]:
        _require_uid(claim.uid)
        try:
            seen = self._read(claim)
        except Unavailable:
            recorded = self._recorded(claim.uid)
            if not recorded:
                raise
            say("warning", "the API server does not answer; the claim is answered as it was prepared")
            return recorded
        pod = _consumer_of(seen)
        owner = ClaimOwner(seen.namespace, seen.name, seen.uid, pod.name, pod.uid)
        plans = self._devices.begin_plans(owner, deadline)
        wishes = [self._wish(seen, device, plans) for device in seen.devices]
        with self._room.admit(seen.uid, self._claimed(seen)):
            claims.prepare(owner, wishes, self._node, partial(_spread, self._ports), deadline)
        self._calls.on_claim(seen)
        return tuple(self._answer(seen.uid, each.number, each.request, each.pool, each.device) for each in seen.devices)

    def _read(self, claim: ClaimRef) -> SeenClaim:
        """The claim as the API server has it. Raises UserspaceError unless it is there, under this UID, allocated, and ours."""
        what = f"claim {claim.namespace}/{claim.name}"
        if self._objects is None:
            raise Unavailable(f"{what} cannot be read", "the agent has no account of the API server: setting kubeconfig")
        found = self._objects.get(RESOURCE_CLAIMS.within(claim.namespace), claim.name)
        if found is None:
            raise StepFailed(f"{what} is not there", "it was deleted, or the server has no resource.k8s.io/v1")
        seen = read_claim(found, DRIVER)
        if seen.uid != claim.uid:
            raise StepFailed(f"{what} has UID {seen.uid}, and {claim.uid} is to be prepared", "another claim has its name now")
        if not seen.devices:
            raise StepFailed(f"{what} has no device of {DRIVER}", "its status.allocation")
        if looking := [each for each in seen.devices if each.admin]:
            raise UnsupportedField(
                f"request {looking[0].request} of {what} has adminAccess to device {looking[0].device}, and a port has one user",
                "ask without adminAccess for a port of the claim's own; one with 'mirrorOutput' sees the frames of others",
            )
        return seen

    def _wish(self, seen: SeenClaim, device: AllocatedDevice, plans: ClaimPlans) -> DeviceWish:
        """What is wanted of one device. What cannot be is raised when it is planned: a device that is there needs no bridge."""
        alike = [each for each in seen.devices if each.request == device.request]
        numbers = tuple(each.number for each in alike)
        request = ClaimRequest(seen.namespace, seen.name, seen.uid, seen.pod_claim, device.request, numbers)

        def plan() -> tuple[Step, ...]:
            return plans.plan(request, device.number, [self._requested(each) for each in alike])

        said = {
            "number": device.number,
            "request": device.request,
            "pool": device.pool,
            "device": device.device,
            "share": device.share,
            "pod_claim": seen.pod_claim,
            "of": len(seen.devices),
            "alike": [each.said for each in alike],
        }
        return DeviceWish(device.number, said, plan)

    def _claimed(self, seen: SeenClaim) -> list[ClaimedPort]:
        """The ports that the claim takes of bridges that are here; none while they are not known: no port can be made then."""
        try:
            bridges = sorted(self._node.switch.ports.list_administrators_bridges())
        except UserspaceError:
            return []
        named = ((bridge_of(each.device, bridges), each.device) for each in seen.devices)
        return [ClaimedPort(seen.uid, bridge, device) for bridge, device in named if bridge]

    def _requested(self, device: AllocatedDevice) -> RequestedDevice:
        bridges = self._node.switch.ports.list_administrators_bridges()
        bridge = bridge_of(device.device, sorted(bridges))
        if bridge is None:
            raise Unavailable(
                f"device {device.device} is of no bridge that is here: {', '.join(sorted(bridges)) or 'there is none'}",
                "the bridge has gone, or ovs-vswitchd has not begun: ovs-vsctl show",
            )
        return RequestedDevice(device.pool, device.device, device.number, network_of(device.parameters, bridge))

    def _answer(self, uid: str, number: int, request: str, pool: str, device: str) -> PreparedDevice:
        return PreparedDevice(request, pool, device, (self._devices.places.cdi_id(uid, number),))

    def _recorded(self, uid: str) -> tuple[PreparedDevice, ...]:
        """What a claim was answered when it was prepared in this boot, and is whole; () otherwise: the kubelet would take a part
        for all of it, and never ask again."""
        whole = claims.read_whole(uid, self._node)
        if any(said.get("of") != len(whole) for said in whole):
            return ()
        return tuple(self._answer(uid, said["number"], said["request"], said["pool"], said["device"]) for said in whole)

    @contextmanager
    def _alone(self, uid: str, deadline: Deadline) -> Iterator[None]:
        """Let one call at a time work on a claim. Raises Unavailable."""
        with self._ended:
            if not self._ended.wait_for(lambda: uid not in self._busy, deadline.remaining()):
                raise Unavailable(f"another call works on claim {uid}", "the agent's log")
            self._busy.add(uid)
        try:
            yield
        finally:
            with self._ended:
                self._busy.discard(uid)
                self._ended.notify_all()


def _require_uid(uid: str) -> None:
    if not UID.fullmatch(uid):
        raise InvalidConfig(f"claim UID {uid[:80]!r} cannot be a part of names", f"it does not match {UID.pattern}")


def _consumer_of(seen: SeenClaim) -> ClaimConsumer:
    """The one pod that uses the claim. Raises StepFailed for none, several, or another kind of object."""
    what = f"claim {seen.namespace}/{seen.name}"
    if len(seen.consumers) != 1:
        names = ", ".join(each.name for each in seen.consumers[:5]) or "none"
        raise StepFailed(
            f"{what} is for {len(seen.consumers)} pods (its status.reservedFor: {names}), and a vhost-user socket has one peer",
            "use a ResourceClaimTemplate, which makes a claim for each pod",
        )
    if seen.consumers[0].resource != "pods":
        raise StepFailed(f"{what} is reserved for {seen.consumers[0].resource}", "only pods can use its devices")
    return seen.consumers[0]


def _spread(threads: ThreadPoolExecutor, calls: Sequence[Callable[[], T]]) -> list[T]:
    """Call all of them at the same time, each with the log's context of here; one alone is called here."""
    if len(calls) < 2:
        return [call() for call in calls]
    return [each.result() for each in [threads.submit(copy_context().run, call) for call in calls]]
