"""What an attachment has, by its part in it: its port, its socket, its addresses that have moved.

Nothing else looks for a step by its type. What a step can say of itself is a trait (`step`), which a new type answers without a
change here; a part is asked for where a plan is made of just these steps, or its fields are shown by their names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from userspace_cni.attachment.steps.claim_steps import ClaimFile, JoinedPort
from userspace_cni.attachment.steps.directories import Directory, PodMount
from userspace_cni.attachment.steps.documents import ConfigFile, PodNote
from userspace_cni.attachment.steps.lease import Lease
from userspace_cni.attachment.steps.node_network import (
    AddressMove,
    GatewayFlows,
    NodeBridge,
    NodeLink,
    NodeRoute,
    PolicyRoute,
    RuntimeNetwork,
    Translation,
    UplinkPort,
)
from userspace_cni.attachment.steps.pod_link import Guard, Link, Shaper
from userspace_cni.attachment.steps.port import OvsPort, PortRef
from userspace_cni.attachment.steps.run_steps import BorrowedName, PortFlow
from userspace_cni.attachment.steps.step import Step
from userspace_cni.attachment.steps.vhost_socket import Socket

S = TypeVar("S", bound=Step)


class _HasSteps(Protocol):
    @property
    def steps(self) -> Sequence[Step]: ...


class _All(Generic[S]):
    """An attribute: the steps of this type, in their order."""

    def __init__(self, kind: type[S]) -> None:
        self._kind = kind

    def __get__(self, owner: _HasSteps, _: object) -> tuple[S, ...]:
        return tuple(step for step in owner.steps if isinstance(step, self._kind))


class _First(Generic[S]):
    """An attribute: the first step of this type, None where there is none."""

    def __init__(self, kind: type[S]) -> None:
        self._kind = kind

    def __get__(self, owner: _HasSteps, _: object) -> S | None:
        return next((step for step in owner.steps if isinstance(step, self._kind)), None)


class Parts:
    """The parts of what has `steps`: a record, a plan, what became of a spec."""

    lease = _First(Lease)
    directory = _First(Directory)
    mount = _First(PodMount)
    """The mount through which the switch sees that directory."""
    socket = _First(Socket)
    guard = _First(Guard)
    link = _First(Link)
    shaper = _First(Shaper)
    port = _First(OvsPort)
    """Its port; None while its addresses are being leased."""
    claim_files = _All(ClaimFile)
    """Those about it, of a device of a claim."""
    joined = _First(JoinedPort)
    """The port of a claim's device, which it has joined."""
    bare_ref = _First(PortRef)
    """A port of which nothing but the reference is known."""
    ports = _All(OvsPort)
    """Of a run, which may have several."""
    flows = _All(PortFlow)
    borrowed = _All(BorrowedName)
    note = _First(PodNote)
    """Its entry in the pod's annotations."""
    config_file = _First(ConfigFile)
    """The same as a file, where it has no such entry."""
    node_bridge = _First(NodeBridge)
    node_link = _First(NodeLink)
    uplink = _First(UplinkPort)
    uplinks = _All(UplinkPort)
    """Also during a change, and once more where it is polled."""
    moves = _All(AddressMove)
    node_routes = _All(NodeRoute)
    policy_routes = _All(PolicyRoute)
    translation = _First(Translation)
    runtime_networks = _All(RuntimeNetwork)
    gateway_flows = _First(GatewayFlows)


@dataclass(frozen=True)
class Steps(Parts):
    """Steps of one attachment, without what they are recorded in."""

    steps: Sequence[Step]
