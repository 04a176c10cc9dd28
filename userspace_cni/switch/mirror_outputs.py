"""Mirrors of the node whose output is a port of others: the driver of MirrorOutput.

The port and its bridge are left as they are, and so is a mirror of another owner.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from userspace_cni.attachment.drift import Absent, Drift
from userspace_cni.attachment.steps import EVERYTHING, Driver, MirrorOutput, SharedReads
from userspace_cni.base.deadline import Deadline
from userspace_cni.switch.flow_renewal import FlowRenewal
from userspace_cni.switch.ovsdb.rows.desired import MarkedRows
from userspace_cni.switch.ovsdb.rows.marks import marks_of, owns
from userspace_cni.switch.ovsdb.rows.mirror_row import desired_mirror
from userspace_cni.switch.ports import PortDriver

if TYPE_CHECKING:
    from userspace_cni.ovsdb.database import Clause
    from userspace_cni.switch.ovsdb.delete import Delete
    from userspace_cni.switch.ovsdb.put import Put
    from userspace_cni.switch.ovsdb.switch_database import SwitchSession


class MirrorOutputDriver(Driver[MirrorOutput]):
    """Mirrors through the client of `ports`. `store`: the id of our state directory."""

    def __init__(self, ports: PortDriver, store: Callable[[], str]) -> None:
        self._ports = ports
        self._flows = FlowRenewal(ports.daemon)
        self._store = store

    def apply(self, step: MirrorOutput, deadline: Deadline) -> None:
        """Make the mirror, and have flows in use follow it. NameTaken: mirror or port has an owner. Unavailable: no such port."""
        from userspace_cni.switch.ovsdb.put import Put

        rows = desired_mirror(step, marks_of(step, self._store()))
        self._write(step, lambda session: Put(session, rows), "making it", deadline)

    def undo(self, step: MirrorOutput, deadline: Deadline) -> None:
        """Delete the mirror, if it is ours. Its output is left as it is."""
        from userspace_cni.switch.ovsdb.delete import Delete

        rows = MarkedRows(step.marks, bridge=step.bridge)
        self._write(step, lambda session: Delete(session, rows), "deleting it", deadline)

    def check(self, step: MirrorOutput, deadline: Deadline) -> list[Drift]:
        """A mirror that is not there, has another output, or shows something else."""
        look = partial(self._differences, step)
        return self._ports.client.read(look, _needed(step), _what(step, "reading it"), deadline, enough=lambda found: not found)

    def is_lost(self, step: MirrorOutput, seen: SharedReads, deadline: Deadline) -> bool:  # noqa: ARG002 - it is all in the replica
        return seen.ports is not None and (step.name, step.port) not in seen.once(self._ports.list_mirror_outputs)

    def find_changes(self, step: MirrorOutput, seen: SharedReads, deadline: Deadline) -> list[Drift]:  # noqa: ARG002 - as above
        """What it shows."""
        found = [] if seen.ports is None else self._ports.client.require_session().look(partial(self._differences, step))
        return [drift for drift in found if drift.field]

    def _write(self, step: MirrorOutput, make: Callable[[SwitchSession], Put | Delete], doing: str, deadline: Deadline) -> None:
        def write(session: SwitchSession) -> None:
            command = make(session)
            session.transact([command], deadline)
            if command.flows_after is not None:
                self._flows.renew_after(session, command.flows_after, deadline)

        self._ports.client.use(write, _needed(step), _what(step, doing), deadline)

    @staticmethod
    def _differences(step: MirrorOutput, session: SwitchSession) -> list[Drift]:
        from userspace_cni.ovsdb.column_values import refers, value_of
        from userspace_cni.switch.ovsdb.bridge_mirrors import find_mirror

        subject, details = f"mirror {step.name} of bridge {step.bridge}", f"ovs-vsctl list Mirror {step.name}"
        port = session.row("Port", step.port)
        row = find_mirror(session.replica, session.row("Bridge", step.bridge), step.name)
        marks = {} if row is None else value_of(row, "external_ids")
        ours = owns(step.marks, marks)
        if row is None or port is None or not ours or not refers(row, "output_port", port.uuid):
            return [Drift(subject, "", f"a mirror to port {step.port}", Absent("none of ours"), details)]
        shows, wanted = value_of(row, "select_all"), step.shows == EVERYTHING
        return [Drift(subject, "select_all", wanted, shows, details)] if shows != wanted else []


def _what(step: MirrorOutput, doing: str) -> str:
    return f"mirror {step.name} of bridge {step.bridge}: {doing}"


def _needed(step: MirrorOutput) -> frozenset[Clause]:
    from userspace_cni.ovsdb.database import named
    from userspace_cni.switch.ovsdb.bridge_mirrors import clauses_of

    return named(step.bridge, step.port) | clauses_of(desired_mirror(step, step.marks).mirrors, {})
