"""The mirrors that the node itself is to have, and the outputs that are made for them: one command that brings OVSDB to a list.

What it makes carries an owner mark of its own and the id of the state directory: no verb, no GC and no sweep of attachments
touches it, and what has these marks and is not in the list is removed. So OVSDB is the record of it. A Mirror, or a port, without
these marks is never changed.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

from userspace_cni.attachment.steps import NODE_OWNER
from userspace_cni.base.mirrors import NodeMirror
from userspace_cni.dataplane.ovsdb.groups import BridgeDraft, Draft
from userspace_cni.dataplane.ovsdb.mirrors import find_mirror, mirrors_of, ports_asking
from userspace_cni.dataplane.ovsdb.replica import references, refers, value_of
from userspace_cni.dataplane.ovsdb.rows.bridge import LOCAL_MTU
from userspace_cni.dataplane.ovsdb.rows.marks import is_nodes, is_ours, whose
from userspace_cni.dataplane.ovsdb.rows.mirror import COLUMNS
from userspace_cni.dataplane.ovsdb.session import Command, Session


class KeepMirrors(Command):
    """Makes the mirrors of the list as they are to be, and removes those of this store that are not in it. Needs all rows.

    `links`: which outputs are kernel links, which are opened as they are; for the others an internal port is made. `problems`:
    why a mirror is not made, by mirror. `flows_after`: as that of AddPort; None when nothing has changed.
    """

    def __init__(self, session: Session, wanted: Iterable[NodeMirror], store: str, links: frozenset[str]) -> None:
        super().__init__(session)
        self._wanted = tuple(wanted)
        self._marks = _marks(store)
        self._links = links
        self._changes = False
        self._asked = 0
        self.problems: dict[NodeMirror, str] = {}
        self.flows_after: int | None = None

    def run_idl(self, txn: Draft) -> None:
        """Write what differs."""
        self._changes, self.problems = False, {}
        for each in self._wanted:
            if problem := self._keep(each, txn):
                self.problems[each] = problem
        self._remove_others(txn)
        if self._changes:
            self._asked = txn.confirm()

    def post_commit(self, txn: Draft) -> None:
        """Keep the number of the configuration."""
        self.flows_after = txn.configuration(self._asked) if self._changes else None

    def _keep(self, wanted: NodeMirror, txn: Draft) -> str:
        """Make one; why it cannot be made."""
        bridge = self.api.row("Bridge", wanted.bridge)
        if bridge is None:
            return f"there is no bridge {wanted.bridge}"
        row = find_mirror(self.api.replica, bridge, wanted.name)
        if row is not None and not self._is_own(row):
            return f"a mirror of that name exists and belongs to {whose(value_of(row, 'external_ids'))}"
        port = self.api.row("Port", wanted.output)
        ids = value_of(port, "external_ids") if port is not None else {}
        if port is not None and (is_ours(ids) or is_nodes(ids) or not refers(bridge, "ports", port.uuid)):
            return f"port {wanted.output} is a pod's, an uplink or a gateway, or on another bridge"
        self._keep_mtu(port, txn)
        if row is not None and port is not None and self._is_right(wanted, bridge, row, port.uuid):
            return ""
        self._changes = True
        draft = txn.bridge(wanted.bridge, bridge)
        reference = self._output(wanted.output, draft, txn) if port is None else ("uuid", str(port.uuid))
        draft.mirror(wanted.name, row).take(reference, self._marks, everything=wanted.select == "all")
        return ""

    def _keep_mtu(self, port: Any, txn: Draft) -> None:
        """Have an internal port that was made here without an MTU keep one: else it would get the smallest of the pods' ports."""
        interface = self.api.row("Interface", value_of(port, "name")) if port is not None and self._is_own(port) else None
        if interface is not None and value_of(interface, "type") == "internal" and not value_of(interface, "mtu_request"):
            txn.update(interface, {"mtu_request": [LOCAL_MTU]})
            self._changes = True

    def _output(self, name: str, draft: BridgeDraft, txn: Draft) -> Any:
        kind = "" if name in self._links else "internal"
        mtu = [LOCAL_MTU] if kind else []
        interface = txn.write("Interface", {"name": name, "type": kind, "mtu_request": mtu, "external_ids": self._marks})
        added = txn.write("Port", {"name": name, "interfaces": interface, "external_ids": self._marks})
        draft.add(added)
        return added

    def _is_right(self, wanted: NodeMirror, bridge: Any, row: Any, output: uuid.UUID) -> bool:
        if references(row, "output_port") != {output} or value_of(row, "select_all") != (wanted.select == "all"):
            return False
        for column, start in COLUMNS.items():
            specing = {port.uuid for port in ports_asking(self.api.replica, start + wanted.name).values()}
            if references(row, column) != specing & references(bridge, "ports"):
                return False
        return True

    def _remove_others(self, txn: Draft) -> None:
        names = {(each.bridge, each.name) for each in self._wanted}
        outputs = {each.output for each in self._wanted}
        ports = self.api.tables["Port"].rows
        for bridge in self.api.rows("Bridge"):
            name = value_of(bridge, "name")
            for row in mirrors_of(self.api.replica, bridge):
                if self._is_own(row) and (name, value_of(row, "name")) not in names:
                    txn.bridge(name, bridge).mirror(value_of(row, "name"), row).remove()
                    self._changes = True
            for port in (ports[each] for each in references(bridge, "ports") if each in ports):
                if self._is_own(port) and value_of(port, "name") not in outputs:
                    txn.bridge(name, bridge).remove(port, ours=is_ours(value_of(bridge, "external_ids")))
                    self._changes = True

    def _is_own(self, row: Any) -> bool:
        return _has(row, self._marks)


def has_any(session: Session, store: str) -> bool:
    """Whether there is a mirror or an output that was made for the node by this store."""
    rows = [*session.tables["Mirror"].rows.values(), *session.rows("Port")]
    return any(_has(row, _marks(store)) for row in rows)


def _marks(store: str) -> dict[str, str]:
    return {"owner": NODE_OWNER, "store": store}


def _has(row: Any, marks: dict[str, str]) -> bool:
    ids = value_of(row, "external_ids")
    return marks.items() <= ids.items() and not is_nodes(ids)
