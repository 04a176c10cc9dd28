"""What is done to OVSDB, each as one command of a transaction that reads, decides and writes.

Two sessions race: a row that was read may have changed, or vanished, when the transaction arrives, and a mutation of a bridge
that has vanished succeeds without leaving a port. So every command verifies (RFC 7047 `wait`) what it decided on, and runs again
when that is not true any more. No command here touches a row that is not marked as ours, but for adding and removing our port on
an administrator's bridge.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from userspace_cni.dataplane import ovs_rows
from userspace_cni.dataplane.ovs_rows import Columns, PortRow
from userspace_cni.dataplane.session import Clause, Command, Refused, Session, named, verify
from userspace_cni.errors import NameTaken, SwitchRefused
from userspace_cni.steps import Port

DUPLICATES = 10
"""How often somebody else may make the same bridge at the same moment before we believe the server that something is wrong."""


class AddPort(Command):
    """The port with its interface on its bridge, which is made when it is missing."""

    def __init__(self, session: Session, step: Port, marks: dict[str, str]) -> None:
        super().__init__(session)
        self._step = step
        self._marks = marks
        self._duplicates = 0

    def needs(self) -> frozenset[Clause]:
        """The port, and whoever may have the bridge's name."""
        return named(self._step.name, self._step.bridge)

    def run_idl(self, txn: Any) -> None:
        """Insert the rows, or bring those that are ours up to date."""
        step, api = self._step, self.api
        bridge = api.row("Bridge", step.bridge)
        if bridge is not None and bridge.datapath_type != ovs_rows.DATAPATH_TYPE:
            raise SwitchRefused(
                f"bridge {step.bridge} has datapath_type {bridge.datapath_type or 'system (the default)'}, "
                f"a vhost-user port needs {ovs_rows.DATAPATH_TYPE}",
                f"use another bridge, or: ovs-vsctl set Bridge {step.bridge} datapath_type={ovs_rows.DATAPATH_TYPE}",
            )
        port = api.row("Port", step.name)
        if port is not None:
            self._update(txn, port, bridge)
            return
        if api.row("Interface", step.name) is not None:
            raise NameTaken(f"an interface of another port has the name {step.name}", f"ovs-vsctl list Interface {step.name}")
        if bridge is None and api.row("Port", step.bridge) is not None:
            raise NameTaken(f"bridge {step.bridge} can not be made: a port has this name", f"ovs-vsctl list Port {step.bridge}")
        added = self._insert(txn, "Port", ovs_rows.port_columns(step, self._marks))
        added.interfaces = [self._insert(txn, "Interface", ovs_rows.interface_columns(step, self._marks)).uuid]
        if bridge is None:
            self._add_bridge(txn, added)
        else:
            verify(txn, bridge, "name", "datapath_type")
            bridge.addvalue("ports", added.uuid)

    def again(self, refused: Refused) -> bool:
        """A name that somebody else has just taken: look whether it was for us."""
        self._duplicates += 1
        return refused.error == "constraint violation" and "identical values" in refused.details and self._duplicates < DUPLICATES

    def _add_bridge(self, txn: Any, added: Any) -> None:
        name = self._step.bridge
        port_columns, interface_columns = ovs_rows.local_port_columns(name)
        local = self._insert(txn, "Port", port_columns)
        local.interfaces = [self._insert(txn, "Interface", interface_columns).uuid]
        bridge = self._insert(txn, "Bridge", ovs_rows.bridge_columns(name))
        bridge.ports = [local.uuid, added.uuid]
        self.api.root().addvalue("bridges", bridge.uuid)

    def _insert(self, txn: Any, table: str, columns: Columns) -> Any:
        row = txn.insert(self.api.tables[table])
        for column, value in columns.items():
            setattr(row, column, value)
        return row

    def _update(self, txn: Any, port: Any, bridge: Any) -> None:
        step = self._step
        if not ovs_rows.same_attachment(step, port.external_ids) or ovs_rows.other_store(step, port.external_ids):
            raise NameTaken(
                f"port {step.name} exists and belongs to {ovs_rows.whose(port.external_ids)}",
                f"if nobody uses it: ovs-vsctl del-port {step.name}",
            )
        if bridge is None or port.uuid not in bridge.ports:
            raise NameTaken(f"port {step.name} of this attachment exists, but not on bridge {step.bridge}", "DEL it first")
        interface = self.api.row("Interface", step.name)
        if interface is None:
            raise SwitchRefused(f"port {step.name} exists without an interface of that name", f"ovs-vsctl list Port {step.name}")
        verify(txn, bridge, "name", "datapath_type")
        for row, wanted in (
            (port, ovs_rows.port_columns(step, self._marks)),
            (interface, ovs_rows.interface_columns(step, self._marks)),
        ):
            verify(txn, row, "external_ids")
            found = {column: getattr(row, column) for column in wanted}
            for column, value in ovs_rows.changed_columns(wanted, found).items():
                setattr(row, column, value)


class DeletePort(Command):
    """Port, interface and QoS row; and the bridge, if it is ours and this was its last port. `left_alone` says why not."""

    def __init__(self, session: Session, step: Port) -> None:
        super().__init__(session)
        self._step = step
        self._shared_qos = False
        self.left_alone = ""

    def needs(self) -> frozenset[Clause]:
        """Of the bridge that it is on, whichever it is, the local port is needed too."""
        bridge = self._bridge_of(self.api.row("Port", self._step.name))
        return named(self._step.name, self._step.bridge, *([bridge.name] if bridge is not None else []))

    def run_idl(self, txn: Any) -> None:
        """Remove the references to the rows, which is what deletes them; if there is none, have the server confirm it."""
        name = self._step.name
        port = self.api.row("Port", name)
        bridge = self._bridge_of(port)
        if port is None or bridge is None:
            no_port = {"op": "wait", "table": "Port", "timeout": 0, "where": [["name", "==", name]], "columns": ["name"]}
            txn.add_op(no_port | {"until": "==", "rows": []})
            self._delete_if_empty(txn, self.api.row("Bridge", self._step.bridge) if self._step.bridge else None)
            return
        verify(txn, port, "external_ids", "qos")
        self.left_alone = self._somebody_elses(port)
        if self.left_alone:
            return
        if port.qos and not self._shared_qos:
            # References are counted before rows without a referrer go: so the reference must be taken back first.
            txn.add_op({"op": "delete", "table": "QoS", "where": [["_uuid", "==", ["uuid", str(port.qos[0])]]]})
            port.qos = []
        if not ovs_rows.is_ours(bridge.external_ids):
            bridge.delvalue("ports", port.uuid)
            return
        # Of two sessions that each leave the other's port behind, one must notice: hence also when it is not the last one.
        verify(txn, bridge, "ports")
        if self._others_of(bridge) <= {port.uuid}:
            self.api.root().delvalue("bridges", bridge.uuid)
        else:
            bridge.delvalue("ports", port.uuid)

    def again(self, refused: Refused) -> bool:
        """The QoS row serves another port too: leave it."""
        first = not self._shared_qos
        self._shared_qos = refused.error == "referential integrity violation"
        return self._shared_qos and first

    def _delete_if_empty(self, txn: Any, bridge: Any) -> None:
        """Somebody else deleted our port, the last one of a bridge of ours: the bridge is still ours to delete."""
        if bridge is not None and ovs_rows.is_ours(bridge.external_ids) and not self._others_of(bridge):
            verify(txn, bridge, "ports", "external_ids")
            self.api.root().delvalue("bridges", bridge.uuid)

    def _others_of(self, bridge: Any) -> set[Any]:
        """The bridge's ports but for its local one."""
        local = self.api.row("Port", bridge.name)
        return set(bridge.ports) - {local.uuid if local is not None else None}

    def _bridge_of(self, port: Any) -> Any:
        holders = (bridge for bridge in self.api.rows("Bridge") if port is not None and port.uuid in bridge.ports)
        return next(holders, None)

    def _somebody_elses(self, port: Any) -> str:
        """Whose it is, if not ours to delete; "" if it is."""
        step, marks = self._step, port.external_ids
        if step.legacy and not marks.get("owner"):
            interface = self.api.row("Interface", step.name)
            kind = interface.type if interface is not None else "none"
            return "" if kind in ovs_rows.LEGACY_TYPES else f"it is not a vhost-user port: type {kind}"
        if ovs_rows.same_attachment(step, marks) and not ovs_rows.other_store(step, marks):
            return ""
        return f"it belongs to {ovs_rows.whose(marks)}"


class Read(Command):
    """What `look` sees of the rows that were asked for, at a moment when the server has answered."""

    def __init__(self, session: Session, needs: frozenset[Clause], look: Callable[[Session], Any]) -> None:
        super().__init__(session)
        self._needs = needs
        self._look = look

    def needs(self) -> frozenset[Clause]:
        """As asked for."""
        return self._needs

    def run_idl(self, txn: Any) -> None:
        """Nothing to write."""

    def post_commit(self, txn: Any) -> None:  # noqa: ARG002 - the interface
        """All that was committed before the answer has arrived by now."""
        self.result = self._look(self.api)


def port_rows(session: Session) -> list[PortRow]:
    """All replicated ports, each with its interface and bridge; no local ports of bridges, and none with several interfaces."""
    bridges = {port: bridge.name for bridge in session.rows("Bridge") for port in bridge.ports}
    interfaces = session.tables["Interface"].rows
    found = []
    for port in session.rows("Port"):
        bridge, references = bridges.get(port.uuid), port.interfaces
        interface = interfaces.get(references[0]) if len(references) == 1 else None
        if interface is not None and bridge is not None and bridge != port.name:
            found.append(PortRow(bridge, _columns(port), _columns(interface)))
    return found


def _columns(row: Any) -> Columns:
    return {name: getattr(row, name) for name in row._table.columns}  # noqa: SLF001 - ovs.db.idl has no other list of columns
