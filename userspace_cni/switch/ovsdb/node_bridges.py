"""The commands about a bridge of the node's own. A bridge without the marks of its spec and of our store is never changed."""

from __future__ import annotations

import uuid
from typing import Any

from userspace_cni.attachment.steps import NodeBridge
from userspace_cni.base.errors import NameTaken, SwitchRefused
from userspace_cni.ovsdb.columns import changed_columns, new_columns
from userspace_cni.ovsdb.database import Clause, every_name, named
from userspace_cni.ovsdb.draft import Draft
from userspace_cni.ovsdb.groups import Command
from userspace_cni.ovsdb.values import count, references, value_of
from userspace_cni.switch.ovsdb.bridge_drafts import bridge_draft
from userspace_cni.switch.ovsdb.database import SwitchSession
from userspace_cni.switch.ovsdb.put import Put
from userspace_cni.switch.ovsdb.reads import link_index
from userspace_cni.switch.ovsdb.rounds import Round
from userspace_cni.switch.ovsdb.rows.bridge import (
    datapath_of,
    in_the_way,
    node_bridge_columns,
    node_bridge_link_columns,
    other_datapath,
)
from userspace_cni.switch.ovsdb.rows.marks import is_nodes, owns, require_own, whose


class PutNodeBridge(Put[NodeBridge]):
    """Makes the bridge with its local port, or changes it to what the step says."""

    def needs(self) -> frozenset[Clause]:
        return named(self._step.name)

    def run_idl(self, txn: Draft) -> None:
        """Insert the rows, or update them when they are ours."""
        step, api = self._step, self.api
        bridge, local = api.row("Bridge", step.name), api.row("Interface", step.name)
        if bridge is None:
            self._require_free(txn)
            draft = bridge_draft(txn, step.name, None)
            draft.make(
                new_columns(node_bridge_columns(step, self._marks)),
                {"name": step.name},
                node_bridge_link_columns(step),
            )
        else:
            self._require_own(bridge)
            txn.verify(bridge, "external_ids", "datapath_type", "other_config")
            rows = [(bridge, node_bridge_columns(step, self._marks))]
            rows += [(local, node_bridge_link_columns(step))] if local is not None else []
            for row, wanted in rows:
                if changes := changed_columns(wanted, {column: value_of(row, column) for column in wanted}):
                    txn.update(row, changes)
        self._round = Round(txn)

    def _require_free(self, txn: Draft) -> None:
        step, api = self._step, self.api
        for table in ("Port", "Interface"):
            if api.row(table, step.name) is not None:
                raise NameTaken(f"bridge {step.name} cannot be made: a port has its name", f"ovs-vsctl list {table} {step.name}")
        api.root()  # raises when there is no row to add a bridge to
        bridge_draft(txn, step.name, None).require_maker("node")

    def _require_own(self, bridge: Any) -> None:
        step, marks = self._step, value_of(bridge, "external_ids")
        hint = in_the_way(step.name, count(bridge, "ports") - 1, is_nodes=is_nodes(marks))
        require_own(step, marks, f"bridge {step.name} exists and", hint)
        found = datapath_of(value_of(bridge, "datapath_type"))
        if found != step.datapath:
            raise SwitchRefused(
                f"bridge {step.name} has datapath_type {found}, and is to have {step.datapath}",
                other_datapath(step.name, step.datapath, count(bridge, "ports") - 1),
            )


class DeleteNodeBridge(Command[SwitchSession]):
    """Deletes the bridge if it is ours, unless others have ports on it.

    `left_alone`: whose it is if it is not ours. `users`: the ports of others, for which it stays. `gone`: it is not there now.
    `link`: the index of its link, 0 for unknown.
    """

    def __init__(self, session: SwitchSession, step: NodeBridge) -> None:
        super().__init__(session)
        self.target = step.name
        self._step = step
        self.left_alone = ""
        self.users: tuple[str, ...] = ()
        self.gone = False
        self.link = 0

    def needs(self) -> frozenset[Clause]:
        """All ports: any of them may be on it."""
        return every_name()

    def run_idl(self, txn: Draft) -> None:
        """Remove the reference to the bridge; if there is none, have the server confirm that."""
        step = self._step
        self.left_alone, self.users, self.gone = "", (), False
        bridge = self.api.row("Bridge", step.name)
        if bridge is None:
            txn.expect("Bridge", [["name", "==", step.name]], [])
            self.gone = True
            return
        txn.verify(bridge, "external_ids", "ports")
        marks = value_of(bridge, "external_ids")
        if not owns(step, marks):
            self.left_alone = whose(marks)
            return
        self.link = link_index(self.api, step.name)
        self.users = tuple(sorted(filter(None, map(self._user, references(bridge, "ports")))))
        if not self.users:
            bridge_draft(txn, step.name, bridge).give_up()

    def post_commit(self, txn: Draft) -> None:
        """Whether it was deleted: others of the group may have added a port."""
        bridge = self.api.row("Bridge", self._step.name)
        self.gone = self.gone or bridge_draft(txn, self._step.name, bridge).deleted

    def _user(self, reference: uuid.UUID) -> str:
        """The name of a port that keeps the bridge; "" for its local one, and for one of the same spec."""
        port = self.api.tables["Port"].rows.get(reference)
        if port is None:
            return str(reference)
        name, marks = value_of(port, "name"), value_of(port, "external_ids")
        mine = owns(self._step, marks)
        return "" if mine or name == self._step.name else str(name)
