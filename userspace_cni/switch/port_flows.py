"""Flows of runs: the driver of PortFlow.

It must never touch a flow that is not ours. Should one remain all the same, it ends after a time that no frame extends: a port of
others might have got the number of its port. A living run applies its flows again before that. A restart of ovs-vswitchd loses
them.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from userspace_cni.attachment.drift import Drift
from userspace_cni.attachment.steps import Driver, PortFlow
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import Unavailable, UserspaceError
from userspace_cni.base.log import say
from userspace_cni.switch.openflow import flows
from userspace_cni.switch.openflow.flows import Flows
from userspace_cni.switch.openflow.openflow_messages import ONE_PORT, ONE_RUN, Flow
from userspace_cni.switch.switch_view import SwitchView

IDLE_S: Final = 60
"""Seconds without frames after which a flow ends, in case its process is killed and another program deletes the port."""
HARD_S: Final = 900
"""Seconds after which a flow ends that has frames, which may be those of another port with the same number."""
FLOW_S: Final = 2.0
"""Seconds for a bridge to confirm that flows are gone."""


class PortFlowDriver(Driver[PortFlow]):
    """Flows on the bridges of this switch. `ports`: of a process that replicates all rows, for `apply`."""

    def __init__(self, ports: SwitchView) -> None:
        self._ports = ports

    def apply(self, step: PortFlow, deadline: Deadline) -> None:
        """Add the flow, or add it again. Raises Unavailable for a port that is not open, SwitchRefused."""
        source = self._number(step.source, deadline)
        target = self._number(step.target, deadline) if step.target else None
        with Flows(self._ports.locate_management(step.bridge), deadline) as connection:
            connection.add(Flow(source, target, step.cookie, IDLE_S, HARD_S), deadline)

    def undo(self, step: PortFlow, deadline: Deadline) -> None:
        """Delete the flow, and wait until the switch confirms it. Raises Unavailable, SwitchRefused while that is unknown."""
        try:
            which = ONE_PORT if step.source else ONE_RUN
            flows.forget(self._ports.locate_management(step.bridge), step.cookie, deadline.within(FLOW_S), which)
        except UserspaceError as error:
            if not step.own_bridge:
                raise
            say("debug", "flows of a temporary bridge go with it", bridge=step.bridge, error=error)

    def check(self, step: PortFlow, deadline: Deadline) -> list[Drift]:
        """A flow ends by itself, and a living run adds it again: one that is not there is no drift."""
        del step, deadline
        return []

    def _number(self, name: str, deadline: Deadline) -> int:
        from userspace_cni.switch.ovsdb.port_states import state_of

        found = self._ports.look(partial(state_of, name=name), {}, f"port {name}: looking at it", deadline)
        if found is None or not found.ofport:
            why = "there is no such port" if found is None else found.error or "the switch has not said why"
            raise Unavailable(f"port {name} is not open: {why}", "was it plugged in?")
        return found.ofport
