"""The command that deletes the rows with given marks."""

from __future__ import annotations

import uuid
from typing import Any, Literal

from userspace_cni.ovsdb.column_values import read_references, value_of
from userspace_cni.ovsdb.database import Clause, every_name, named, with_ids
from userspace_cni.ovsdb.draft import Draft
from userspace_cni.ovsdb.groups import Command, RefusedCommand
from userspace_cni.ovsdb.replica import Watch
from userspace_cni.switch.ovsdb import bridge_mirrors, port_limits
from userspace_cni.switch.ovsdb.bridge_drafts import draft_bridge
from userspace_cni.switch.ovsdb.rounds import Round
from userspace_cni.switch.ovsdb.rows.desired import MarkedRows
from userspace_cni.switch.ovsdb.rows.interface_row import VHOST_USER_TYPES
from userspace_cni.switch.ovsdb.rows.marks import describe_owner, is_ours, owns, select_identity
from userspace_cni.switch.ovsdb.switch_database import SwitchSession
from userspace_cni.switch.ovsdb.switch_reads import bridge_of, read_link_index


class Delete(Command[SwitchSession]):
    """Deletes port, interfaces, limits and mirrors with the marks, and the bridge: its own one if no other has ports on it, one
    that was made for pods with the last port. What belongs to another stays (`marks.owns`). As with Put, what several commands of
    a group do to a bridge a BridgeDraft collects.

    `left_alone`: why the named row was not deleted, "" if it was. `links`: the names of ours of which ovs-vswitchd may have had a
    link, with its index, 0 for unknown. `users`: the ports of others for which an own bridge stays; `gone`: it is not there now.
    `done`: ovs-vswitchd has let go, None unless it is to say so. `flows_after`: as that of Put, of rows without a port.
    """

    done: Watch[Literal[True]] | None

    def __init__(self, session: SwitchSession, rows: MarkedRows) -> None:
        super().__init__(session)
        self._rows = rows
        self.target = rows.port or rows.bridge
        self._shared_qos = False
        self.flows_after: int | None = None
        self._begin()

    def _begin(self) -> None:
        self._round: Round | None = None
        self.left_alone = ""
        self.links: dict[str, int] = {}
        self.users: tuple[str, ...] = ()
        self.gone = False

    def needs(self) -> frozenset[Clause]:
        """The rows with the names, the local port of the bridge that the port is on, and the mirrors; all ports that may be on an
        own bridge."""
        rows = self._rows
        if rows.own:
            return every_name()
        bridge = self._bridge_of(self._port_row())
        found = "" if bridge is None else value_of(bridge, "name")
        marks = select_identity(rows.marks) if rows.marks else {}
        return named(*filter(None, (rows.port, rows.bridge, found))) | (with_ids(marks) if marks else frozenset())

    def run_idl(self, txn: Draft) -> None:
        """Remove the references to the rows, which deletes them; if there are no rows, have the server confirm that."""
        self._begin()
        if self._rows.own:
            self._delete_bridge(txn)
        elif self._rows.port:
            self._delete_port(txn)
        else:
            self._leave_mirrors(txn, self._bridge_row())
            self._round = Round(txn)

    def post_commit(self, txn: Draft) -> None:
        """Watch for ovs-vswitchd's answer; whether an own bridge was deleted, for others of the group may have added a port."""
        rows = self._rows
        self.done = self._round.watch(self.api) if self._round and rows.port else None
        self.flows_after = self._round.configuration if self._round and not rows.port else None
        if rows.own:
            self.gone = self.gone or draft_bridge(txn, rows.bridge, self._bridge_row()).deleted

    def should_retry(self, refused: RefusedCommand) -> bool:
        """Whether another port uses the QoS row too: then the row stays."""
        first = not self._shared_qos
        self._shared_qos = refused.error == "referential integrity violation"
        return self._shared_qos and first

    def _delete_port(self, txn: Draft) -> None:
        rows, port = self._rows, self._port_row()
        bridge = self._bridge_of(port)
        if bridge is None:
            port, bridge = None, self._bridge_row()
            self.links = dict.fromkeys(filter(None, (rows.bridge, rows.port)), 0)  # a call that died may have taken them
            txn.expect("Port", [["name", "==", rows.port]], [])
        else:
            txn.verify(port, "external_ids", "qos")
            self.left_alone = self._why_foreign(port)
            if self.left_alone:
                return
            self.links = self._links_of(bridge)
            self._round = Round(txn) if rows.awaited else None
        self._leave_mirrors(txn, bridge)
        if not self._shared_qos:
            port_limits.drop(txn, rows.marks, port, foreign=rows.with_foreign_qos)
        if bridge is not None:
            ours = is_ours(value_of(bridge, "external_ids"))
            draft_bridge(txn, value_of(bridge, "name"), bridge).remove(port, ours=ours)

    def _delete_bridge(self, txn: Draft) -> None:
        rows, bridge = self._rows, self._bridge_row()
        if bridge is None:
            txn.expect("Bridge", [["name", "==", rows.bridge]], [])
            self.links, self.gone = {rows.bridge: 0}, True
            return
        txn.verify(bridge, "external_ids", "ports")
        marks = value_of(bridge, "external_ids")
        if not owns(rows.marks, marks):
            self.left_alone = f"it belongs to {describe_owner(marks)}"
            return
        self.links = {rows.bridge: read_link_index(self.api, rows.bridge)}
        self.users = tuple(sorted(filter(None, map(self._user, read_references(bridge, "ports")))))
        if not self.users:
            draft_bridge(txn, rows.bridge, bridge).give_up()

    def _user(self, reference: uuid.UUID) -> str:
        """The name of a port that keeps the bridge; "" for its local one, and for one of the same owner."""
        port = self.api.tables["Port"].rows.get(reference)
        if port is None:
            return str(reference)
        name: str = value_of(port, "name")
        return "" if name == self._rows.bridge or owns(self._rows.marks, value_of(port, "external_ids")) else name

    def _leave_mirrors(self, txn: Draft, bridge: Any) -> None:
        """Delete the mirrors with the marks, of any bridge if that of the port is not known any more."""
        for each in self.api.rows("Bridge") if bridge is None else [bridge]:
            draft = draft_bridge(txn, value_of(each, "name"), each)
            bridge_mirrors.leave(draft, self.api.replica, self._rows.marks)

    def _links_of(self, bridge: Any) -> dict[str, int]:
        name, row = self._rows.port, self.api.row("Interface", self._rows.port)
        ours = [value_of(bridge, "name")] if is_ours(value_of(bridge, "external_ids")) else []
        internal = [name] if row is not None and value_of(row, "type") == "internal" else []
        return {each: read_link_index(self.api, each) for each in (*ours, *internal)}

    def _port_row(self) -> Any:
        return self.api.row("Port", self._rows.port) if self._rows.port else None

    def _bridge_row(self) -> Any:
        return self.api.row("Bridge", self._rows.bridge) if self._rows.bridge else None

    def _bridge_of(self, port: Any) -> Any:
        return None if port is None else bridge_of(self.api, port, self._rows.bridge)

    def _why_foreign(self, port: Any) -> str:
        """Why the port is not to be deleted; "" if it is."""
        rows, marks = self._rows, value_of(port, "external_ids")
        if rows.unmarked and not marks.get("owner"):
            interface = self.api.row("Interface", rows.port)
            kind = value_of(interface, "type") if interface is not None else "none"
            return "" if kind in VHOST_USER_TYPES else f"it is not a vhost-user port: type {kind}"
        return "" if owns(rows.marks, marks) else f"it belongs to {describe_owner(marks)}"
