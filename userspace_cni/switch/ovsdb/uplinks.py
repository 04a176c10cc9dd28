"""The commands about the port of an uplink. What is not marked for its spec, of our store, is never changed.

An interface that ovs-vswitchd has to open anew (its NIC was made anew, it is of another type by now, another port of the spec
had it) is removed in one transaction and added in the next: within one transaction ovs-vswitchd would see no change. The other
interfaces of a bond stay meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from userspace_cni.attachment.steps import UplinkInterface, UplinkPort
from userspace_cni.base.errors import NameTaken, SwitchRefused, Unavailable
from userspace_cni.ovsdb.columns import changed_columns, new_columns
from userspace_cni.ovsdb.database import Clause, every_name
from userspace_cni.ovsdb.draft import Draft
from userspace_cni.ovsdb.groups import Command
from userspace_cni.ovsdb.replica import Watch
from userspace_cni.ovsdb.values import Json, columns_of, references, refers, value_of
from userspace_cni.switch.ovsdb.bridge_drafts import bridge_draft
from userspace_cni.switch.ovsdb.commands import afxdp_ports, require_memory, too_many_afxdp
from userspace_cni.switch.ovsdb.database import SwitchSession
from userspace_cni.switch.ovsdb.put import Put
from userspace_cni.switch.ovsdb.reads import bridge_of
from userspace_cni.switch.ovsdb.rounds import Round
from userspace_cni.switch.ovsdb.rows.interface import AFXDP
from userspace_cni.switch.ovsdb.rows.marks import owns, whose
from userspace_cni.switch.ovsdb.rows.uplink import (
    DPDK,
    UplinkRow,
    is_outdated,
    own_columns,
    uplink_interface_columns,
    uplink_port_columns,
    why_closed,
)


class PutUplink(Put[UplinkPort]):
    """Adds the port to its bridge, or changes it to what the step says.

    `indexes`: of the kernel links that interfaces have, 0 for a missing one, by interface. `stale`: what has to be opened anew
    was removed, and is to be added by another command once that is `done`: when ovs-vswitchd has gone through its rows.
    """

    def __init__(
        self, session: SwitchSession, step: UplinkPort, marks: dict[str, str], indexes: Mapping[str, int], afxdp_max: int
    ) -> None:
        super().__init__(session, step, marks)
        self._indexes = indexes
        self._afxdp_max = afxdp_max
        self.stale = False

    def needs(self) -> frozenset[Clause]:
        """All ports: any of them may have one of the interfaces."""
        return every_name()

    def run_idl(self, txn: Draft) -> None:
        step, api = self._step, self.api
        bridge = self._own_bridge()
        port = api.row("Port", step.name)
        if port is not None and not self._is_own(port):
            raise _taken(step, f"port {step.name} exists and", port)
        if port is not None and not refers(bridge, "ports", port.uuid):
            raise NameTaken(f"port {step.name} of this spec exists, but not on bridge {step.bridge}", "ovs-vsctl show")
        rivals = self._rivals(port)
        wanted = {each.name: self._columns(each) for each in step.present}
        found = {name: row for name in wanted if (row := api.row("Interface", name)) is not None}
        outdated = {name for name, row in found.items() if port is not None and self._is_outdated(name, row)}
        self._require_able()
        self.stale = bool(rivals or outdated)
        if not self.stale:
            self._take_memory(txn, {name for name, row in found.items() if value_of(row, "type") == AFXDP})
        txn.verify(bridge, "name", "external_ids")
        if port is not None:
            txn.verify(port, "interfaces", "external_ids")
        if self.stale:
            self._make_room(txn, port, rivals, outdated)
        else:
            self._write(txn, bridge, port, wanted)
        self._round = Round(txn)

    def _own_bridge(self) -> Any:
        step = self._step
        bridge = self.api.row("Bridge", step.bridge)
        if bridge is None:
            raise Unavailable(f"uplink {step.name}: there is no bridge {step.bridge}", "another program has deleted it")
        if not self._is_own(bridge):
            raise _taken(step, f"bridge {step.bridge}", bridge)
        return bridge

    def _is_own(self, row: Any) -> bool:
        marks = value_of(row, "external_ids")
        return owns(self._step, marks)

    def _rivals(self, port: Any) -> list[Any]:
        """Other ports of the spec that have one of the interfaces. Raises NameTaken for those that are not its own."""
        step, rivals = self._step, []
        for name in (each.name for each in step.present):
            interface = self.api.row("Interface", name)
            if interface is None or (port is not None and refers(port, "interfaces", interface.uuid)):
                continue
            holder = next((each for each in self.api.rows("Port") if refers(each, "interfaces", interface.uuid)), None)
            if holder is None:
                raise Unavailable(f"uplink {step.name}: interface {name} is being deleted", "try again")
            if not self._is_own(holder):
                bridge = bridge_of(self.api, holder)
                where = f" on bridge {value_of(bridge, 'name')}" if bridge is not None else ""
                raise _taken(step, f"interface {name} is port {value_of(holder, 'name')}{where}, which", holder)
            if holder not in rivals:
                rivals.append(holder)
        return rivals

    def _columns(self, interface: UplinkInterface) -> dict[str, Any]:
        return uplink_interface_columns(self._step, interface, self._marks, self._indexes.get(interface.name))

    def _is_outdated(self, name: str, row: Any) -> bool:
        interface = next(each for each in self._step.present if each.name == name)
        return is_outdated(interface, columns_of(row, "type", "options", "external_ids"), self._indexes.get(name))

    def _make_room(self, txn: Draft, port: Any, rivals: list[Any], outdated: set[str]) -> None:
        """Remove what ovs-vswitchd has to open anew."""
        for rival in rivals:
            txn.verify(rival, "external_ids")
            bridge = bridge_of(self.api, rival, self._step.bridge)
            bridge_draft(txn, value_of(bridge, "name"), bridge).remove(rival, ours=False)
        if outdated:
            names = {each: value_of(self.api.tables["Interface"].rows[each], "name") for each in references(port, "interfaces")}
            kept: list[Json] = [("uuid", str(each)) for each, name in sorted(names.items()) if name not in outdated]
            if kept:
                txn.update(port, {"interfaces": kept})
            else:
                bridge = self.api.row("Bridge", self._step.bridge)
                bridge_draft(txn, self._step.bridge, bridge).remove(port, ours=False)

    def _require_able(self) -> None:
        """Raise SwitchRefused for what this ovs-vswitchd cannot open."""
        step, root, others = self._step, self.api.root(), afxdp_ports(self.api)
        types, has_dpdk = value_of(root, "iface_types"), value_of(root, "dpdk_initialized")
        for each in step.present:
            name, kind = each.name, each.type
            if kind in (AFXDP, DPDK) and types and kind not in types:
                raise SwitchRefused(
                    f"uplink {step.name}: {name} cannot be opened as {kind}: ovs-vswitchd is built without it",
                    f"Open_vSwitch.iface_types has no {kind}; open a kernel NIC as system",
                )
            if kind == DPDK and not has_dpdk:
                hint = "ovs-vsctl get Open_vSwitch . dpdk_initialized other_config, and the log of ovs-vswitchd"
                raise SwitchRefused(f"uplink {step.name}: {name} cannot be opened: ovs-vswitchd runs without DPDK", hint)
            if kind == AFXDP and name not in others and len(others) >= self._afxdp_max:
                raise too_many_afxdp(name, self._afxdp_max)

    def _take_memory(self, txn: Draft, has_it: set[str]) -> None:
        """Count the interfaces that are to become of type afxdp."""
        for each in self._step.present:
            if each.type == AFXDP and each.name not in has_it:
                require_memory(txn, self.api, each.name, self._afxdp_max)

    def _write(self, txn: Draft, bridge: Any, port: Any, wanted: Mapping[str, dict[str, Any]]) -> None:
        members = [self._interface(txn, name, columns) for name, columns in wanted.items()]
        columns = uplink_port_columns(self._step, self._marks)
        if port is None:
            added = txn.write("Port", new_columns(columns) | {"interfaces": members})
            bridge_draft(txn, self._step.bridge, bridge).add(added)
            return
        changes = changed_columns(columns, columns_of(port, *columns))
        if {("uuid", str(each)) for each in references(port, "interfaces")} != set(members):
            changes["interfaces"] = members
        if changes:
            txn.update(port, changes)

    def _interface(self, txn: Draft, name: str, wanted: dict[str, Any]) -> Json:
        row = self.api.row("Interface", name)
        if row is None:
            return txn.write("Interface", new_columns(wanted))
        interface = next(each for each in self._step.present if each.name == name)
        changes = changed_columns(own_columns(wanted, interface, columns_of(row, "type")), columns_of(row, *wanted))
        if why_closed(columns_of(row, "error", "ofport")):
            changes |= {"ofport": [], "error": []}  # it is tried with each new configuration, and answers as for a new row
        if changes:
            txn.update(row, changes)
        return "uuid", str(row.uuid)


class DeleteUplink(Command[SwitchSession]):
    """Deletes the port with its interfaces. `left_alone`: whose it is if it is not ours. `done`: ovs-vswitchd has let it go."""

    done: Watch[Literal[True]] | None

    def __init__(self, session: SwitchSession, step: UplinkPort) -> None:
        super().__init__(session)
        self.target = step.name
        self._step = step
        self._round: Round | None = None
        self.left_alone = ""

    def needs(self) -> frozenset[Clause]:
        """All ports: the bridge is found by its port."""
        return every_name()

    def run_idl(self, txn: Draft) -> None:
        """Remove the reference to the port; if there is none, have the server confirm that."""
        step, self._round, self.left_alone = self._step, None, ""
        port = self.api.row("Port", step.name)
        bridge = None if port is None else bridge_of(self.api, port, step.bridge)
        if port is None or bridge is None:
            txn.expect("Port", [["name", "==", step.name]], [])
            return
        txn.verify(port, "external_ids")
        marks = value_of(port, "external_ids")
        if not owns(step, marks):
            self.left_alone = whose(marks)
            return
        bridge_draft(txn, value_of(bridge, "name"), bridge).remove(port, ours=False)
        self._round = Round(txn)

    def post_commit(self, txn: Draft) -> None:  # noqa: ARG002 - the interface
        """Watch for ovs-vswitchd's answer."""
        self.done = self._round.watch(self.api) if self._round else None


def find_uplink(session: SwitchSession, step: UplinkPort) -> UplinkRow | None:
    port = session.row("Port", step.name)
    if port is None:
        return None
    bridge, rows = bridge_of(session, port, step.bridge), session.tables["Interface"].rows
    members = [rows[each] for each in references(port, "interfaces") if each in rows]
    return UplinkRow(
        "" if bridge is None else value_of(bridge, "name"),
        columns_of(port),
        {value_of(row, "name"): columns_of(row) for row in members},
    )


def _taken(step: UplinkPort, what: str, row: Any) -> NameTaken:
    owner = whose(value_of(row, "external_ids"))
    return NameTaken(f"uplink {step.name}: {what} belongs to {owner}", "it is not changed here: ovs-vsctl show")
