"""Bridges of the node's own: the driver of NodeBridge.

Addresses of the node move onto the local port of such a bridge. So `apply` returns when ovs-vswitchd has made that link, and
`undo` leaves a bridge that has ports of others: with it they, and all addresses on it, would be gone. A bridge without the marks
of its spec and of our store is never changed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from userspace_cni.attachment.drift import Absent, Dead, Drift
from userspace_cni.attachment.steps import Driver, NodeBridge, SharedReads
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import SwitchRefused, Unavailable
from userspace_cni.base.log import say
from userspace_cni.switch.kernel_links import KernelLinks
from userspace_cni.switch.link_names import LinkNames
from userspace_cni.switch.ovsdb.rows.bridge_row import WRITTEN, desired_node_bridge, find_bridge_differences
from userspace_cni.switch.ovsdb.rows.desired import MarkedRows
from userspace_cni.switch.ovsdb.rows.marks import marks_of, owns
from userspace_cni.switch.ports import PortDriver, RowWriter
from userspace_cni.switch.read_back import ReadBack

if TYPE_CHECKING:
    from userspace_cni.switch.ovsdb.switch_database import SwitchSession


class NodeBridgeDriver(Driver[NodeBridge]):
    """Bridges through the client of `ports`. `store`: the id of our state directory; `links`: where ovs-vswitchd makes them."""

    def __init__(self, ports: PortDriver, store: Callable[[], str], links: KernelLinks) -> None:
        self._client = ports.client
        self._daemon = ports.daemon
        self._read_back = ReadBack(ports.daemon)
        self._store = store
        self._links = links

    def apply(self, step: NodeBridge, deadline: Deadline) -> None:
        """Make the bridge or change it, and wait for the link of its local port.

        LinkNameTaken: another program's link has its name. NameTaken: the bridge is another's.
        SwitchRefused: another datapath type, or ovs-vswitchd could not make it. Unavailable:
        it does not answer.
        """
        from userspace_cni.ovsdb.database import named

        held = LinkNames(self._links, self._read_back)
        writer = RowWriter(desired_node_bridge(step, marks_of(step, self._store())), held, 0)

        def put(session: SwitchSession) -> SwitchSession:
            command = writer.write(session, deadline)
            self._read_back.wait(command.done, deadline)
            held.settle(session, deadline)
            self._read_back.await_word(step.name, session, deadline)
            return session

        session = self._client.use(put, named(step.name), f"bridge {step.name}: making it", deadline)
        self._require_link(step, session)

    def undo(self, step: NodeBridge, deadline: Deadline) -> None:
        """Delete the bridge, if it is ours. Raises Unavailable while others have ports on it, with their names."""
        from userspace_cni.ovsdb.database import every_name
        from userspace_cni.switch.ovsdb.delete import Delete

        def delete(session: SwitchSession) -> Delete:
            command = Delete(session, MarkedRows(step.marks, bridge=step.name, own=True))
            session.transact([command], deadline)
            return command

        done = self._client.use(delete, every_name(), f"bridge {step.name}: deleting it", deadline)
        if done.left_alone:
            say("warning", f"bridge {step.name} is left alone: {done.left_alone}")
        elif done.users:
            raise Unavailable(
                f"bridge {step.name} stays while others have ports on it: {', '.join(done.users)}",
                "it is deleted when they are gone: ovs-vsctl list-ports, userspace-cni list",
            )
        elif done.gone:
            self._links.let_go(step.name, done.links[step.name])  # an ovs-vswitchd that has it open deletes it itself
        else:
            raise Unavailable(f"bridge {step.name} stays: a port was added to it at this moment", "try again")

    def check(self, step: NodeBridge, deadline: Deadline) -> list[Drift]:
        """Every difference between the step and the rows, and of the link of its local port."""
        from userspace_cni.ovsdb.database import named

        look = partial(self._row_differences, step)
        what, subject = f"bridge {step.name}: reading it", f"bridge {step.name}"
        drifts = self._client.read(look, named(step.name), what, deadline, enough=lambda found: not found)
        liveness = self._daemon.ask(deadline)
        if liveness.state == "dead":
            dead = Dead("ovs-vswitchd dead")
            drifts.append(Drift(subject, "", "a switch that serves it", dead, liveness.reason))
        found = self._links().get(step.name)
        details = f"ip -d link show {step.name}, where ovs-vswitchd opens its ports"
        if found is None:
            return [*drifts, Drift(subject, "link", "that of its local port", Absent("no link of that name"), details)]
        if step.mac and found.mac != step.mac.lower():
            drifts.append(Drift(subject, "link's MAC", step.mac.lower(), found.mac, details))
        if step.mtu and found.mtu != step.mtu:
            drifts.append(Drift(subject, "link's MTU", step.mtu, found.mtu, details))
        return drifts

    def is_lost(self, step: NodeBridge, seen: SharedReads, deadline: Deadline) -> bool:  # noqa: ARG002 - it is all in the replica
        """Whether the switch has no such bridge of ours, or no link of its local port."""
        if seen.ports is None:
            return False
        marks = self._client.require_session().index.bridge_marks.get(step.name)
        return marks is None or not owns(step.marks, marks) or step.name not in seen.once(self._links)

    def find_changes(self, step: NodeBridge, seen: SharedReads, deadline: Deadline) -> list[Drift]:  # noqa: ARG002 - it is all in the replica
        """MAC and MTU, of which ovs-vswitchd sets the link's."""
        if seen.ports is None:
            return []
        drifts = self._client.require_session().look(partial(self._row_differences, step))
        return [drift for drift in drifts if drift.field in WRITTEN]

    @staticmethod
    def _row_differences(step: NodeBridge, session: SwitchSession) -> list[Drift]:
        from userspace_cni.ovsdb.column_values import columns_of

        bridge, link = session.row("Bridge", step.name), session.row("Interface", step.name)
        found = None if bridge is None else columns_of(bridge)
        return find_bridge_differences(step, found, {} if link is None else columns_of(link))

    def _require_link(self, step: NodeBridge, session: SwitchSession) -> None:
        """Raise SwitchRefused unless the local port is open, and its link where it is looked for."""
        from userspace_cni.switch.ovsdb.switch_reads import read_open_state

        if session.look(partial(read_open_state, name=step.name)) != (True, ""):
            raise SwitchRefused(
                f"bridge {step.name}: ovs-vswitchd has not opened its local port",
                f"ovs-vsctl list Interface {step.name}, and the log of ovs-vswitchd",
            )
        if not self._links.index(step.name):
            raise SwitchRefused(
                f"bridge {step.name}: the link of its local port is not there",
                "it is in the network namespace of ovs-vswitchd: is setting switch_netns right? "
                "If it was deleted by hand, a restart of ovs-vswitchd makes it again, and interrupts every port of the node",
            )
