"""The commands for a capture: a port of ours for a moment, and a mirror of one other port into it, named alike.

Both come in one transaction and go in one: OVS 3.1 does not apply a mirror that comes or goes alone to flows that are in use, and
a port that comes or goes makes it look at all of them. OVSDB empties a mirror's reference when a port is deleted, and keeps the
row: so the mirror has the marks of its port, by which it is found without it. No mirror without these marks is written here, and
each is added to its bridge and taken from it alone: others may have theirs there, of the same ports.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from userspace_cni.attachment.steps import OvsPort, PortRef
from userspace_cni.base.errors import BadRequest, Unavailable
from userspace_cni.dataplane.ovsdb.commands import AddPort, DeletePort
from userspace_cni.dataplane.ovsdb.groups import Draft, as_json
from userspace_cni.dataplane.ovsdb.rows.mirror import mirror_columns
from userspace_cni.dataplane.ovsdb.session import Clause, Session, named

MIRRORS_MAX: Final = 32
"""Mirrors of a bridge: ovs-vswitchd (3.1) ignores more, with a line in its log (ofproto/ofproto-dpif-mirror.c, MAX_MIRRORS)."""


class AddCapture(AddPort):
    """Adds the port, and the mirror of the port `source` into it; both or none. Raises BadRequest where `source` has gone."""

    def __init__(self, session: Session, step: OvsPort, marks: dict[str, str], source: str) -> None:
        super().__init__(session, step, marks)
        self._source = source

    def needs(self) -> frozenset[Clause]:
        """The rows with the names of both ports, and the bridge's."""
        return super().needs() | named(self._source)

    def run_idl(self, txn: Draft) -> None:
        """Insert the rows; a port of ours that is there has its mirror, for they came in one transaction."""
        bridge, source = self.api.row("Bridge", self._step.bridge), self.api.row("Port", self._source)
        if source is None:
            raise BadRequest(f"there is no port {self._source} any more", "its attachment was removed; userspace-cni list")
        super().run_idl(txn)
        if self.added is not None:
            txn.verify(source, "name")
            mirror = txn.write("Mirror", mirror_columns(self._step.name, as_json(source.uuid), self.added, self._marks))
            txn.mutate(bridge, "mirrors", "insert", [mirror])


class DeleteCapture(DeletePort):
    """Deletes the port, and `mirrors` (UUIDs): a mirror that no bridge has is gone. The port or the mirrors may be gone."""

    def __init__(self, session: Session, step: PortRef, mirrors: Sequence[str]) -> None:
        super().__init__(session, step)
        self._mirrors = mirrors

    def run_idl(self, txn: Draft) -> None:
        """Remove the references to the rows."""
        super().run_idl(txn)
        for uuid in self._mirrors:
            reference = ("set", [("uuid", uuid)])
            where, mutations = [["mirrors", "includes", reference]], [["mirrors", "delete", reference]]
            txn.add_op({"op": "mutate", "table": "Bridge", "where": where, "mutations": mutations})


def members(value: Any) -> list[Any]:
    """The members of a set as OVSDB writes it: one member alone is written without the set (RFC 7047, 5.1)."""
    return list(value[1]) if isinstance(value, list) and value[:1] == ["set"] else [value]


def require_room(bridge: str, rows: Sequence[dict[str, Any]]) -> None:
    """Raise Unavailable for a bridge, as a `select` has its row, that can have no further mirror."""
    count = len(members(rows[0]["mirrors"])) if rows else 0
    if count >= MIRRORS_MAX:
        raise Unavailable(
            f"bridge {bridge} has {count} mirrors, and ovs-vswitchd ignores more than {MIRRORS_MAX}",
            f"ovs-vsctl list Mirror; ovs-vsctl get Bridge {bridge} mirrors",
        )
