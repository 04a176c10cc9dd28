"""The commands for OVSDB; each reads, decides and writes in one transaction.

Two sessions race: a row that was read may have changed, or vanished, when the transaction arrives, and a mutation of a vanished
bridge succeeds without leaving a port. So every command verifies (RFC 7047 `wait`) the values on which it decided, and runs again
when they have changed. No command here touches a row that is not marked as ours, but for adding and removing our port on an
administrator's bridge.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from userspace_cni.attachment.steps import OvsPort, PortRef
from userspace_cni.base.errors import NameTaken, SwitchRefused, Unavailable
from userspace_cni.dataplane.ovsdb.groups import Draft, Json
from userspace_cni.dataplane.ovsdb.replica import references, refers, value_of
from userspace_cni.dataplane.ovsdb.rows.bridge import bridge_columns, local_port_columns
from userspace_cni.dataplane.ovsdb.rows.columns import Columns, changed_columns
from userspace_cni.dataplane.ovsdb.rows.interface import VHOST_USER_TYPES, interface_row
from userspace_cni.dataplane.ovsdb.rows.marks import is_ours, other_store, same_attachment, whose
from userspace_cni.dataplane.ovsdb.rows.port import KnownPort, PortRow, interface_columns, port_columns
from userspace_cni.dataplane.ovsdb.rows.switch import SwitchFacts
from userspace_cni.dataplane.ovsdb.session import Clause, Command, Refused, Session, Watch, named

DUPLICATES = 10
"""How often another session may make the same bridge at the same moment, before the server's refusal becomes an error."""


class AddPort(Command):
    """Adds the port with its interface to its bridge, and the bridge when it is missing.

    `opened`: whether ovs-vswitchd has opened the interface: (True, ""), or (False, the reason), or nothing yet. `closed`: the
    port was there, and ovs-vswitchd had not opened it. `added`: the reference to the port within the transaction, None while it
    is not added.
    """

    opened: Watch[tuple[bool, str]]
    added: Json | None = None

    def __init__(self, session: Session, step: OvsPort, marks: dict[str, str]) -> None:
        super().__init__(session)
        self.port = step.name
        self._step = step
        self._marks = marks
        self._duplicates = 0
        self.closed = False

    def needs(self) -> frozenset[Clause]:
        """The rows with the port's name, and those with the bridge's."""
        return named(self._step.name, self._step.bridge)

    def run_idl(self, txn: Draft) -> None:
        """Insert the rows, or update them when they are ours."""
        step, api, wanted = self._step, self.api, interface_row(self._step.interface)
        self.added = None
        bridge = api.row("Bridge", step.bridge)
        kind = wanted.datapath_type if bridge is None else value_of(bridge, "datapath_type")
        if kind != wanted.datapath_type:
            raise SwitchRefused(
                f"bridge {step.bridge} has datapath_type {kind or 'system (the default)'}, "
                f"{wanted.called} needs {wanted.datapath_type}",
                f"use another bridge, or: ovs-vsctl set Bridge {step.bridge} datapath_type={wanted.datapath_type}",
            )
        port = api.row("Port", step.name)
        if port is not None:
            self._update(txn, port, bridge)
            return
        if api.row("Interface", step.name) is not None:
            raise NameTaken(f"an interface of another port has the name {step.name}", f"ovs-vsctl list Interface {step.name}")
        if bridge is None and api.row("Port", step.bridge) is not None:
            raise NameTaken(f"bridge {step.bridge} cannot be made: a port has its name", f"ovs-vsctl list Port {step.bridge}")
        if bridge is None and step.foreign_bridge:
            raise Unavailable(
                f"bridge {step.bridge} is missing: it was an administrator's, so it is not made here",
                f"ovs-vsctl add-br {step.bridge} -- set Bridge {step.bridge} datapath_type={wanted.datapath_type}",
            )
        self.api.root()  # raises when there is no row to add a bridge to
        interface = txn.write("Interface", interface_columns(step, self._marks))
        self.added = txn.write("Port", port_columns(step, self._marks) | {"interfaces": interface})
        draft = txn.bridge(step.bridge, bridge)
        draft.add(self.added)
        if bridge is None:
            draft.make(bridge_columns(step.bridge, wanted.datapath_type), *local_port_columns(step.bridge))

    def post_commit(self, txn: Draft) -> None:  # noqa: ARG002 - the interface
        """Watch for ovs-vswitchd's answer: it can come now that the rows are there."""
        self.opened = self.api.watch(self._step.name, self._look)

    def should_retry(self, refused: Refused) -> bool:
        """Whether another session has just taken a name: perhaps it has made the bridge that we need."""
        self._duplicates += 1
        return refused.error == "constraint violation" and "identical values" in refused.details and self._duplicates < DUPLICATES

    def _look(self) -> tuple[bool, str] | None:
        row = self.api.row("Interface", self._step.name)
        if row is None:
            return False, "another process deleted its rows"
        if error := value_of(row, "error"):
            return False, str(error[0])
        ofport = value_of(row, "ofport")
        return (True, "") if ofport and ofport[0] > 0 else None

    def _update(self, txn: Draft, port: Any, bridge: Any) -> None:
        step, marks = self._step, value_of(port, "external_ids")
        if not same_attachment(step, marks) or other_store(step, marks):
            raise NameTaken(
                f"port {step.name} exists and belongs to {whose(marks)}",
                f"if it is not in use: ovs-vsctl del-port {step.name}",
            )
        if bridge is None or not refers(bridge, "ports", port.uuid):
            raise NameTaken(f"port {step.name} of this attachment exists, but not on bridge {step.bridge}", "DEL it first")
        interface = self.api.row("Interface", step.name)
        if interface is None:
            raise SwitchRefused(f"port {step.name} exists without an interface of that name", f"ovs-vsctl list Port {step.name}")
        txn.verify(bridge, "name", "datapath_type")
        for row, wanted in (
            (port, port_columns(step, self._marks)),
            (interface, interface_columns(step, self._marks)),
        ):
            txn.verify(row, "external_ids")
            found = {column: value_of(row, column) for column in wanted}
            if changes := changed_columns(wanted, found):
                txn.update(row, changes)
        self.closed = not _is_open(interface)
        if self.closed and interface_row(step.interface).can_reopen:
            self._try_again(txn, interface)

    def _try_again(self, txn: Draft, interface: Any) -> None:
        """Make ovs-vswitchd open the interface again: it tries for every new configuration, and answers as for a new row.

        Rows that are deleted and added within one of its rounds are no change for it.
        """
        txn.update(interface, {"ofport": [], "error": []})
        txn.increment(self.api.root(), "next_cfg")


class DeletePort(Command):
    """Deletes port, interface and QoS row; and the bridge, if it is ours and this was its last port.

    `left_alone`: why the port was not deleted, "" if it was.
    """

    def __init__(self, session: Session, step: PortRef) -> None:
        super().__init__(session)
        self.port = step.name
        self._step = step
        self._shared_qos = False
        self.left_alone = ""

    def needs(self) -> frozenset[Clause]:
        """The rows with the port's name, and the local port of the bridge that it is on, whichever it is."""
        bridge = self._bridge_of(self.api.row("Port", self._step.name))
        return named(self._step.name, self._step.bridge, *([value_of(bridge, "name")] if bridge is not None else []))

    def run_idl(self, txn: Draft) -> None:
        """Remove the references to the rows, which deletes them; if there are no rows, have the server confirm that."""
        name = self._step.name
        port = self.api.row("Port", name)
        bridge = self._bridge_of(port)
        if port is None or bridge is None:
            txn.expect("Port", [["name", "==", name]], [])
            self._delete_if_empty(txn, self.api.row("Bridge", self._step.bridge) if self._step.bridge else None)
            return
        txn.verify(port, "external_ids", "qos")
        self.left_alone = self._why_foreign(port)
        if self.left_alone:
            return
        qos = value_of(port, "qos")
        if qos and not self._shared_qos:
            # The server checks references before it removes unreferenced rows: so the reference must go first.
            txn.update(port, {"qos": []})
            txn.add_op({"op": "delete", "table": "QoS", "where": [["_uuid", "==", ["uuid", str(qos[0])]]]})
        ours = is_ours(value_of(bridge, "external_ids"))
        txn.bridge(value_of(bridge, "name"), bridge).remove(port, ours=ours)

    def should_retry(self, refused: Refused) -> bool:
        """Whether another port uses the QoS row too: then the row stays."""
        first = not self._shared_qos
        self._shared_qos = refused.error == "referential integrity violation"
        return self._shared_qos and first

    def _delete_if_empty(self, txn: Draft, bridge: Any) -> None:
        """Delete the bridge if it is ours and empty, after another process deleted our port."""
        if bridge is not None and is_ours(value_of(bridge, "external_ids")):
            txn.bridge(self._step.bridge, bridge).remove(None, ours=True)

    def _bridge_of(self, port: Any) -> Any:
        return None if port is None else _bridge_of(self.api, port, self._step.bridge)

    def _why_foreign(self, port: Any) -> str:
        """Why the port is not ours to delete; "" if it is."""
        step, marks = self._step, value_of(port, "external_ids")
        if step.legacy and not marks.get("owner"):
            interface = self.api.row("Interface", step.name)
            kind = value_of(interface, "type") if interface is not None else "none"
            return "" if kind in VHOST_USER_TYPES else f"it is not a vhost-user port: type {kind}"
        if same_attachment(step, marks) and not other_store(step, marks):
            return ""
        return f"it belongs to {whose(marks)}"


class Read(Command):
    """Calls `look` when the server has answered; `result` is what it returned from the rows of `needs`."""

    def __init__(self, session: Session, needs: frozenset[Clause], look: Callable[[Session], Any]) -> None:
        super().__init__(session)
        self._needs = needs
        self._look = look

    def needs(self) -> frozenset[Clause]:
        """The rows that the caller needs."""
        return self._needs

    def run_idl(self, txn: Any) -> None:
        """Write nothing."""

    def post_commit(self, txn: Any) -> None:  # noqa: ARG002 - the interface
        """Look now: all that was committed before the answer has arrived."""
        self.result = self._look(self.api)


class Select(Command):
    """Reads columns that no replica has, of the rows that `where` chooses; `rows` are as OVSDB writes them."""

    rows: list[dict[str, Any]]

    def __init__(self, session: Session, table: str, where: list[Any], columns: list[str]) -> None:
        super().__init__(session)
        self._asked = table, where, columns
        self._number = 0

    def run_idl(self, txn: Draft) -> None:
        """Ask; nothing is written."""
        self._number = txn.select(*self._asked)

    def post_commit(self, txn: Draft) -> None:
        """Keep the answer."""
        self.rows = txn.selected(self._number)


def find_port(session: Session, name: str) -> PortRow | None:
    """The port of that name; None unless it is on a bridge, has one interface, and is not the bridge's local port."""
    port = session.row("Port", name)
    bridge = None if port is None else _bridge_of(session, port)
    return None if bridge is None else _port_row(session, port, value_of(bridge, "name"))


def known_ports(session: Session) -> list[KnownPort]:
    """The same ports as `port_rows`, with the columns that lists and metrics show."""
    replica, rows = session.replica, session.tables["Port"].rows
    if replica.listed is not None:
        return list(replica.listed)
    shown, interfaces = replica.shown, replica.names("Interface")
    found = []
    for bridge, row in replica.names("Bridge").items():
        for reference in references(row, "ports"):
            port = rows.get(reference)
            name = "" if port is None else value_of(port, "name")
            interface = interfaces.get(name)
            if interface is None or name == bridge:
                continue
            known = shown.get(name)
            if known is None or known.bridge != bridge:
                known = shown[name] = _known(name, bridge, interface, ours=is_ours(replica.marks[name]))
            found.append(known)
    replica.listed = found
    return list(found)


def uplinks(session: Session) -> dict[str, tuple[str, ...]]:
    """Interface.options:dpdk-devargs of the ports of type dpdk, by bridge; "" where a port has none."""
    found: dict[str, tuple[str, ...]] = {}
    for known in known_ports(session):
        if known.interface_type == "dpdk":
            options = value_of(session.row("Interface", known.name), "options")
            found[known.bridge] = (*found.get(known.bridge, ()), options.get("dpdk-devargs", ""))
    return found


def counted_ports(session: Session) -> dict[str, dict[int, tuple[str, Mapping[str, str]]]]:
    """Name and marks of the open ports with our owner mark, by bridge and OpenFlow number."""
    found: dict[str, dict[int, tuple[str, Mapping[str, str]]]] = {}
    for known in known_ports(session):
        if known.ours and known.ofport > 0:
            found.setdefault(known.bridge, {})[known.ofport] = known.name, session.replica.marks[known.name]
    return found


def closed_ports(session: Session, *, unseen: bool) -> frozenset[str]:
    """The ports with our owner mark that ovs-vswitchd could not open; `unseen`: also those without its answer yet."""
    ours = (name for name, marks in session.replica.marks.items() if is_ours(marks))
    found = ((name, session.row("Interface", name)) for name in ours)
    return frozenset(
        name
        for name, row in found
        if row is not None and not _is_open(row) and (unseen or value_of(row, "ofport") or value_of(row, "error"))
    )


def is_closed(session: Session, name: str) -> bool:
    """Whether ovs-vswitchd has said that it could not open the interface."""
    row = session.row("Interface", name)
    return row is not None and not _is_open(row) and bool(value_of(row, "ofport") or value_of(row, "error"))


def _is_open(interface: Any) -> bool:
    ofport = value_of(interface, "ofport")
    return bool(ofport) and ofport[0] > 0 and not value_of(interface, "error")


def port_rows(session: Session, marks: Mapping[str, str] = MappingProxyType({})) -> list[PortRow]:
    """All replicated ports that have these marks, as `find_port` returns them."""
    replica, wanted = session.replica, marks.items()
    bridges = {port: name for name, bridge in replica.names("Bridge").items() for port in references(bridge, "ports")}
    rows = [
        _port_row(session, port, bridges.get(port.uuid, ""))
        for name, port in replica.names("Port").items()
        if wanted <= replica.marks[name].items()
    ]
    return [row for row in rows if row is not None]


def switch_facts(session: Session) -> SwitchFacts:
    """The settings of the switch, and the MTUs of the replicated ports that are open."""
    interfaces = session.replica.names("Interface").items()
    mtus = {name: mtu[0] for name, interface in interfaces if (mtu := value_of(interface, "mtu"))}
    return SwitchFacts(other_config(session), mtus)


def other_config(session: Session) -> dict[str, str]:
    """Open_vSwitch.other_config."""
    return dict(value_of(session.root(), "other_config"))


def _known(name: str, bridge: str, interface: Any, *, ours: bool) -> KnownPort:
    link, error = value_of(interface, "link_state"), value_of(interface, "error")
    kind, status = value_of(interface, "type"), value_of(interface, "status")
    ofport = value_of(interface, "ofport")
    number = ofport[0] if ofport else 0
    return KnownPort(name, bridge, kind, ours, link[0] if link else "", status, error[0] if error else "", number)


def _bridge_of(session: Session, port: Any, likely: str = "") -> Any:
    """The row of the bridge that has the port; `likely`: where to look first."""
    first = session.row("Bridge", likely)
    bridges = session.rows("Bridge") if first is None else [first, *session.rows("Bridge")]
    return next((bridge for bridge in bridges if refers(bridge, "ports", port.uuid)), None)


def _port_row(session: Session, port: Any, bridge: str) -> PortRow | None:
    interfaces = value_of(port, "interfaces")
    interface = session.tables["Interface"].rows.get(interfaces[0]) if len(interfaces) == 1 else None
    if interface is None or not bridge or bridge == value_of(port, "name"):
        return None
    return PortRow(bridge, _columns(port), _columns(interface))


def _columns(row: Any) -> Columns:
    return {name: value_of(row, name) for name in row._table.columns}  # noqa: SLF001 - ovs.db.idl has no other list of columns
