"""The flows of a bridge that OVN's gateway router and the node share: the driver of GatewayFlows, and who keeps them.

Only flows with the step's own cookies are ever changed or deleted. They stay without a keeper: a gateway works while an agent is
renewed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, Final

from userspace_cni.attachment.drift import Drift
from userspace_cni.attachment.steps import Driver, GatewayFlows
from userspace_cni.base.deadline import Deadline
from userspace_cni.switch.openflow import flows
from userspace_cni.switch.openflow.gateway_entries import (
    ServicePort,
    SharedBridge,
    list_base_entries,
    list_service_entries,
)
from userspace_cni.switch.openflow.kept_flows import EntryConnection, KeptFlows
from userspace_cni.switch.openflow.openflow_messages import ONE_RUN, cookie_of
from userspace_cni.switch.shared_bridges import read_numbers

if TYPE_CHECKING:
    from userspace_cni.switch.switch_view import SwitchView

FLOWS_S: Final = 5.0
"""Seconds for a bridge to take all flows, or to confirm that they are gone."""
_BASE, _SERVICES = 0, 1
"""The groups of flows: those of Services are not known before the API server has said all of them."""


def number_of(store: str, bridge: str) -> int:
    """The number in the cookies of what the node of that state directory has on the bridge."""
    return int.from_bytes(hashlib.sha256(f"{store} {bridge}".encode()).digest()[:4], "big")


class GatewayFlowsDriver(Driver[GatewayFlows]):
    """Flows on the bridges of this switch."""

    def __init__(self, ports: SwitchView) -> None:
        self._ports = ports

    def apply(self, step: GatewayFlows, deadline: Deadline) -> None:
        """See that the bridge takes such flows: `GatewayFlowKeeper` writes them. Raises Unavailable, SwitchRefused."""
        with EntryConnection(self._ports.locate_management(step.bridge), deadline.within(FLOWS_S)):
            pass

    def undo(self, step: GatewayFlows, deadline: Deadline) -> None:
        """Delete all of them, and wait until the switch confirms it. Raises Unavailable, SwitchRefused while that is unknown."""
        path = self._ports.locate_management(step.bridge)
        flows.forget(path, cookie_of(step.number), deadline.within(FLOWS_S), ONE_RUN)

    def check(self, step: GatewayFlows, deadline: Deadline) -> list[Drift]:
        """Who keeps them looks at them all the time."""
        del step, deadline
        return []


class GatewayFlowKeeper:
    """Keeps the flows of one bridge. For one thread."""

    def __init__(self, ports: SwitchView, step: GatewayFlows) -> None:
        self._ports = ports
        self._step = step
        self._flows = KeptFlows(lambda: ports.locate_management(step.bridge), step.number)

    def keep(self, services: Collection[ServicePort] | None) -> str:
        """Have the bridge have its flows now; what was done, in words, "" for nothing. `services`: None while not known.

        Raises Unavailable for what is not there or not open, NameTaken for flows of others in the place of ours, SwitchRefused.
        """
        step, deadline = self._step, Deadline.after(FLOWS_S)
        look = partial(read_numbers, bridge=step.bridge, interface=step.interface, patch=step.patch)
        found = self._ports.look(look, {}, f"bridge {step.bridge}: looking at its ports", deadline)
        bridge = SharedBridge(found.uplink, found.patch, bytes.fromhex(found.mac.replace(":", "")), step.zone)
        asked = None if services is None else list_service_entries(bridge, services)
        return self._flows.keep({_BASE: list_base_entries(bridge), _SERVICES: asked}, deadline)

    def close(self) -> None:
        """Keep them no longer; they stay."""
        self._flows.close()
