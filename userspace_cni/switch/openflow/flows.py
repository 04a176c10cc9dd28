"""Flows of probes on one bridge, over its management socket.

It must never touch a flow whose cookie is not ours, run a program, or wait without a deadline.
"""

from __future__ import annotations

from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import SwitchRefused, Unavailable
from userspace_cni.switch.openflow import openflow_messages
from userspace_cni.switch.openflow.management import Management
from userspace_cni.switch.openflow.openflow_messages import Flow


def forget(path: str, cookie: int, deadline: Deadline, which: int = openflow_messages.ONE_PORT) -> None:
    """Delete the flows of this cookie, in the bits `which`, from the bridge whose management socket is `path`.

    Without a listener there are none: they ended with ovs-vswitchd. A bridge that speaks none of our versions never got any.
    Raises Unavailable and SwitchRefused as Flows does: then it is unknown whether flows are left.
    """
    try:
        flows = Flows(path, deadline)
    except SwitchRefused:
        return
    except Unavailable as error:
        if isinstance(error.__cause__, FileNotFoundError | ConnectionRefusedError):
            return
        raise
    with flows:
        flows.delete(cookie, deadline, which)


class Flows(Management):
    """A connection that adds and deletes flows; flows stay when it ends."""

    def add(self, flow: Flow, deadline: Deadline) -> None:
        """Add the flow; it is in force when this returns."""
        xid = next(self.xids)
        self._carry_out(openflow_messages.add_flow(self.version, xid, flow), f"adding a flow from port {flow.in_port}", deadline)

    def delete(self, cookie: int, deadline: Deadline, which: int = openflow_messages.ONE_PORT) -> None:
        xid = next(self.xids)
        self._carry_out(openflow_messages.delete_flows(self.version, xid, cookie, which), f"deleting flows {cookie:#x}", deadline)

    def _carry_out(self, request: bytes, what: str, deadline: Deadline) -> None:
        """Send `request` with a barrier after it; an error that comes before the barrier's answer is about `request`."""
        xid = next(self.xids)
        self.send(request + openflow_messages.encode_barrier(self.version, xid), deadline)
        while True:
            answer = self.receive(deadline)
            if answer.kind == openflow_messages.ERROR:
                raise openflow_messages.explain_refusal(answer, f"{what} at {self.path}")
            if openflow_messages.is_barrier_reply(answer) and answer.xid == xid:
                return
