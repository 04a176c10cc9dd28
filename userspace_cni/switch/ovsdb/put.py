"""The command that makes the rows of a step what they are to be."""

from __future__ import annotations

import shlex
from typing import Any, Final, Literal

from userspace_cni.base.errors import NameTaken, SwitchRefused, Unavailable
from userspace_cni.ovsdb.column_values import Json, as_json, columns_of, count, read_references, refers, value_of
from userspace_cni.ovsdb.columns import find_changed_columns, make_columns
from userspace_cni.ovsdb.database import Clause, every_name, named, of_type, with_ids
from userspace_cni.ovsdb.draft import Draft
from userspace_cni.ovsdb.groups import Command, RefusedCommand
from userspace_cni.ovsdb.replica import Watch
from userspace_cni.switch.ovsdb import bridge_mirrors, port_limits
from userspace_cni.switch.ovsdb.afxdp_ports import list_afxdp_ports, require_memory
from userspace_cni.switch.ovsdb.bridge_drafts import BridgeDraft, draft_bridge
from userspace_cni.switch.ovsdb.rounds import Round
from userspace_cni.switch.ovsdb.rows.bridge_row import LOCAL_MTU, advise_on_datapath, advise_on_taken_name, datapath_of
from userspace_cni.switch.ovsdb.rows.desired import DesiredInterface, DesiredPort, DesiredRows
from userspace_cni.switch.ovsdb.rows.interface_row import AFXDP
from userspace_cni.switch.ovsdb.rows.marks import describe_owner, is_nodes, is_ours, require_own, select_identity
from userspace_cni.switch.ovsdb.rows.mirror_row import find_withdrawn
from userspace_cni.switch.ovsdb.switch_database import SwitchSession
from userspace_cni.switch.ovsdb.switch_reads import bridge_of, find_local_port_without_mtu, find_missing, is_open

_DUPLICATES: Final = 10
"""How often another session may take the same name at the same moment, before the server's refusal becomes an error."""
_AWAITED: Final = frozenset({"ingress_policing_rate", "ingress_policing_burst", "mac", "mtu_request"})
"""Columns of an open interface of which ovs-vswitchd says nothing in its row."""


class Put(Command[SwitchSession]):
    """Inserts the rows that are missing, and changes what differs. Raises NameTaken for what belongs to another (`marks.owns`).

    Rows are those of one step. What several steps share is no row of any of them, and a command does not see what others of its
    group write: what they do to one bridge, its list of ports and its mirrors with their sources a BridgeDraft collects, and the
    count of afxdp ports another part of the transaction. QoS and Queue are of one port each.

    `afxdp_max`: how many ports of type afxdp the switch may have. `held`: the names that the caller has taken where the kernel
    has links; `unheld`: those that it has to take first: as long as there is one, nothing is written.
    `stale`: what ovs-vswitchd has to open anew was removed, and is to be added by another command once this is `done`: removed
    and added within one of its rounds it would be no change to ovs-vswitchd. `done`: it has gone through the rows; None unless it
    is to say so. `closed`: an interface was there, and not open. `flows_after`: the number of the configuration after which flows
    in use must be made anew, because a mirror has changed; None if none must be.
    """

    done: Watch[Literal[True]] | None

    def __init__(self, session: SwitchSession, rows: DesiredRows, afxdp_max: int = 0, held: frozenset[str] = frozenset()) -> None:
        super().__init__(session)
        self._rows = rows
        self.target = rows.port.name if rows.port else rows.bridge.name
        self._afxdp_max = afxdp_max
        self._held = held
        self._duplicates = 0
        self.flows_after: int | None = None
        self._begin()

    def _begin(self) -> None:
        self._round: Round | None = None
        self._flows: Round | None = None
        self._is_awaited = False
        self.unheld: frozenset[str] = frozenset()
        self.stale = self.closed = False

    def needs(self) -> frozenset[Clause]:
        """The rows with the names of port and bridge, and those of mirrors and limits, if the port has or had some."""
        rows, row = self._rows, self._port_row()
        clauses = (
            every_name() if rows.port and rows.port.takes_over else named(*filter(None, (self._port_name, rows.bridge.name)))
        )
        clauses |= bridge_mirrors.clauses_of(rows.mirrors, value_of(row, "external_ids") if row is not None and rows.port else {})
        if rows.port and (rows.port.limit or (row is not None and value_of(row, "qos"))):
            clauses |= with_ids(select_identity(rows.marks))
        return clauses | (of_type(AFXDP) if self._afxdp_names() else frozenset())

    def run_idl(self, txn: Draft) -> None:
        """Refuse, or write."""
        self._begin()
        rows, api = self._rows, self.api
        bridge, port = api.row("Bridge", rows.bridge.name), self._port_row()
        draft = draft_bridge(txn, rows.bridge.name, bridge)
        self._require_bridge(draft, bridge, port)
        if port is not None:
            self._require_port(bridge, port)
        rivals = self._rivals(rows.port, port) if rows.port else []
        bridge_mirrors.require_part(api.replica, rows, bridge, draft)
        self.unheld = find_missing(api, rows.new_names) - self._held
        if self.unheld:
            return
        outdated = self._outdated(rows.port, port) if rows.port and port is not None else frozenset()
        self.stale = bool(rivals or outdated)
        names = self._afxdp_names()
        if names and (added := names - list_afxdp_ports(api)):  # it looks at all interfaces
            require_memory(txn, api, added, self._afxdp_max, adds=not self.stale)
        if bridge is None:
            draft.make(rows.bridge.columns, rows.bridge.local)
        else:
            self._keep_bridge(txn, draft, bridge)
        if self.stale:
            self._make_room(txn, draft, port, rivals, outdated)
        elif rows.port:
            self._write_port(txn, draft, rows.port, port)
        elif rows.output:
            txn.verify(port, "external_ids")
            draft.verify("ports")
            bridge_mirrors.take_part(draft, api.replica, rows, as_json(port.uuid), living=None)
        self._ask(txn, is_new=port is None, makes_bridge=bridge is None)

    def post_commit(self, txn: Draft) -> None:  # noqa: ARG002 - the interface
        """Watch for ovs-vswitchd's answer: it can come now that the rows are there."""
        self.done = self._round.watch(self.api) if self._round else None
        self.flows_after = self._flows.configuration if self._flows else None

    def should_retry(self, refused: RefusedCommand) -> bool:
        """Whether another session has just taken a name: perhaps it has made what we need, or it shows whose it is."""
        self._duplicates += 1
        is_duplicate = refused.error == "constraint violation" and "identical values" in refused.details
        return is_duplicate and self._duplicates < _DUPLICATES

    @property
    def _port_name(self) -> str:
        return self._rows.port.name if self._rows.port else self._rows.output

    def _port_row(self) -> Any:
        """The port, ours or the mirrors' output; None for none."""
        return self.api.row("Port", self._port_name) if self._port_name else None

    def _afxdp_names(self) -> frozenset[str]:
        interfaces = self._rows.port.interfaces if self._rows.port else ()
        return frozenset(each.name for each in interfaces if each.columns["type"] == AFXDP)

    def _require_bridge(self, draft: BridgeDraft, bridge: Any, port: Any) -> None:
        """Raise unless the bridge is there, and as it has to be, or can be made."""
        rows, desired, name = self._rows, self._rows.bridge, self._rows.bridge.name
        if bridge is None:
            if desired.missing:
                raise Unavailable(*desired.missing)
            for table in ("Port", "Interface"):
                if self.api.row(table, name) is not None:
                    raise NameTaken(f"bridge {name} cannot be made: a port has its name", f"ovs-vsctl list {table} {name}")
            self.api.root()  # raises when there is no row to add a bridge to
            draft.require_maker(desired.columns)
            return
        marks, others = value_of(bridge, "external_ids"), count(bridge, "ports") - 1
        if desired.own:
            what = f"{rows.called}bridge {name}" + ("" if desired.missing else " exists and")
            require_own(rows.marks, marks, what, advise_on_taken_name(name, others, is_nodes=is_nodes(marks)))
        found = datapath_of(value_of(bridge, "datapath_type"))
        if desired.datapath and found != desired.datapath:
            hint = advise_on_datapath(name, desired.datapath, others)
            raise SwitchRefused(f"bridge {name} has datapath_type {found}, {desired.because}", hint)
        if port is None and is_nodes(marks) and not (desired.missing or is_nodes(rows.marks)):
            raise Unavailable(
                f"bridge {name} belongs to {describe_owner(marks)} by now, and did not when the port was planned",
                "a setting [[rule]] has to allow its use; the next ADD asks the rules again",
            )
        if rows.output and (port is None or not refers(bridge, "ports", port.uuid)):
            raise Unavailable(*desired.missing or ())

    def _require_port(self, bridge: Any, port: Any) -> None:
        """Raise NameTaken unless the port, which exists, is this owner's and on the bridge; an output must not have an owner."""
        rows, name, marks = self._rows, self._port_name, value_of(port, "external_ids")
        if rows.output:
            if is_ours(marks) or is_nodes(marks):
                raise NameTaken(f"{rows.called}port {name} belongs to {describe_owner(marks)}", "use another port as output")
            return
        hint = f"ovs-vsctl list Port {shlex.quote(name)}; it goes with the DEL of that attachment, or by the program that made it"
        require_own(rows.marks, marks, f"{rows.called}port {name} exists and", hint)
        if bridge is None or not refers(bridge, "ports", port.uuid):
            of = "spec" if is_nodes(rows.marks) else "attachment"
            what = f"{rows.called}port {name} of this {of} exists, but not on bridge {rows.bridge.name}"
            raise NameTaken(what, f"it goes with the {of}: ovs-vsctl show")

    def _rivals(self, desired: DesiredPort, port: Any) -> list[Any]:
        """Other ports of the owner that have one of the interfaces. Raises NameTaken for those that are not its own."""
        rivals: list[Any] = []
        for name in (each.name for each in desired.interfaces):
            interface = self.api.row("Interface", name)
            if interface is None or (port is not None and refers(port, "interfaces", interface.uuid)):
                continue
            holder = next((each for each in self.api.rows("Port") if refers(each, "interfaces", interface.uuid)), None)
            if holder is None:  # without `takes_over` it may be any port
                raise NameTaken(
                    f"an interface of another port has the name {name}", f"ovs-vsctl list Interface {shlex.quote(name)}"
                )
            bridge = bridge_of(self.api, holder)
            where = f" on bridge {value_of(bridge, 'name')}" if bridge is not None else ""
            what = f"{self._rows.called}interface {name} is port {value_of(holder, 'name')}{where}, which"
            require_own(self._rows.marks, value_of(holder, "external_ids"), what, "it is not changed here: ovs-vsctl show")
            if holder not in rivals:
                rivals.append(holder)
        return rivals

    def _outdated(self, desired: DesiredPort, port: Any) -> frozenset[str]:
        """Names of the interfaces that ovs-vswitchd has to open anew."""
        rows = ((each, self.api.row("Interface", each.name)) for each in desired.interfaces)
        return frozenset(
            each.name
            for each, row in rows
            if row is not None
            and refers(port, "interfaces", row.uuid)
            and (desired.anew or find_changed_columns(each.opened, columns_of(row, *each.opened)))
        )

    def _keep_bridge(self, txn: Draft, draft: BridgeDraft, bridge: Any) -> None:
        desired = self._rows.bridge
        draft.verify("name", "datapath_type")
        if desired.own:
            draft.verify("external_ids", *desired.columns)
            draft.change(find_changed_columns(desired.columns, columns_of(bridge, "name", *desired.columns)))
            local = self.api.row("Interface", desired.name)
            if desired.local and local is not None:
                _converge(txn, local, desired.local)
        elif (local := find_local_port_without_mtu(self.api, bridge)) is not None and self._rows.port:
            txn.update(local, {"mtu_request": [LOCAL_MTU]})  # whatever the ports on it have

    def _make_room(self, txn: Draft, draft: BridgeDraft, port: Any, rivals: list[Any], outdated: frozenset[str]) -> None:
        """Remove what ovs-vswitchd has to open anew; other interfaces of a bond stay. The bridge does."""
        for rival in rivals:
            txn.verify(rival, "external_ids")
            bridge = bridge_of(self.api, rival, draft.name)
            draft_bridge(txn, value_of(bridge, "name"), bridge).remove(rival, ours=False)
        if not outdated:
            return
        txn.verify(port, "interfaces", "external_ids", "qos")
        removed = {self.api.row("Interface", name).uuid for name in outdated}
        kept = sorted(read_references(port, "interfaces") - removed)
        if kept:
            txn.update(port, {"interfaces": kept})
        else:
            port_limits.drop(txn, self._rows.marks, port)
            draft.remove(port, ours=False)

    def _write_port(self, txn: Draft, draft: BridgeDraft, desired: DesiredPort, port: Any) -> None:
        rows, replica = self._rows, self.api.replica
        if port is not None:
            txn.verify(port, "interfaces", "external_ids", "qos")
        members = [self._write_interface(txn, each) for each in desired.interfaces]
        if port is None:
            qos = port_limits.make(txn, desired.limit, rows.marks)
            reference = txn.write("Port", make_columns(desired.columns) | {"interfaces": members, "qos": qos})
            draft.add(reference)
        else:
            reference = as_json(port.uuid)
            marks = desired.columns["external_ids"] | find_withdrawn(value_of(port, "external_ids"), rows.mirrors.sources)
            changes = find_changed_columns(desired.columns | {"external_ids": marks}, columns_of(port, *desired.columns))
            if {as_json(each) for each in read_references(port, "interfaces")} != set(members):
                changes["interfaces"] = members
            if changes:
                txn.update(port, changes)
            self._is_awaited |= port_limits.converge(txn, replica, desired.limit, port, rows.marks)
        bridge_mirrors.take_part(draft, replica, rows, reference, living=port)

    def _write_interface(self, txn: Draft, desired: DesiredInterface) -> Json:
        row = self.api.row("Interface", desired.name)
        if row is None:
            return txn.write("Interface", make_columns(desired.columns))
        changes = _converge(txn, row, desired.choose_columns(columns_of(row, "type", "external_ids")))
        if not is_open(row):
            self.closed = True
            if desired.can_reopen:  # it is tried with each new configuration, and answers as for a new row
                txn.update(row, {"ofport": [], "error": []})
                self._is_awaited = True
        self._is_awaited |= not _AWAITED.isdisjoint(changes)
        reference: Json = as_json(row.uuid)
        return reference

    def _ask(self, txn: Draft, *, is_new: bool, makes_bridge: bool) -> None:
        """Ask for a round of ovs-vswitchd, where no other event tells that it has taken the rows."""
        rows = self._rows
        if self.stale or self._is_awaited or makes_bridge or rows.awaited == "always" or (is_new and rows.awaited):
            self._round = Round(txn)
        if not self.stale and bridge_mirrors.has_part(rows.mirrors, self._port_row() if rows.port else None):
            self._flows = self._round or Round(txn)


def _converge(txn: Draft, row: Any, wanted: dict[str, Any]) -> dict[str, Any]:
    """Write what differs, and return it. Maps are written whole: so commit only if they are what was seen."""
    found = columns_of(row, *wanted)
    if maps := [column for column, value in wanted.items() if isinstance(value, dict)]:
        txn.verify(row, *maps)
    if changes := find_changed_columns(wanted, found):
        txn.update(row, changes)
    return changes
