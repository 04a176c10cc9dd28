"""Writes changes of pods' logical ports and of their limits, many in one transaction.

A port becomes a member of the groups of its policies in the transaction that makes it, so that it is at no moment without them.
One whose groups are not known, or not there yet, is not made: it waits, for policies that are not known may isolate it. A port
that another pod had leaves that one's groups in the transaction that gives it to the next one: they may let through to it.

What a change follows from is verified by the server, so a row that another one has changed since fails the transaction, which is
then composed anew from the row as it is. The caller compares again afterwards.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from userspace_cni.ovn.limit_rows import LimitChange
from userspace_cni.ovn.northbound import NorthboundSession
from userspace_cni.ovn.northbound_tables import PORT_GROUP, QOS, SWITCH, SWITCH_PORT
from userspace_cni.ovn.port_rows import VERSION, PortChange
from userspace_cni.ovn.row_view import scope_of
from userspace_cni.ovsdb.column_values import Json, as_json, read_references, refers, value_of
from userspace_cni.ovsdb.draft import Draft
from userspace_cni.ovsdb.groups import Command

BATCH: Final = 500
"""Changes in one transaction: the server checks all rows of a table at each commit, and others wait for a long one."""


GroupsOf = Callable[[str], Collection[str] | None]
"""Takes a port's name; the port groups that it is to be in, None while that is not known."""


class WritePorts(Command[NorthboundSession]):
    """Does these changes, as far as their rows are still there. `count`: how many were done; `held`: the ports that wait.

    `groups_of` is called with the session's lock, once for each attempt.
    """

    count = 0

    def __init__(
        self,
        session: NorthboundSession,
        changes: Sequence[PortChange | LimitChange],
        groups_of: GroupsOf = lambda _name: (),
    ) -> None:
        super().__init__(session)
        self.target = "logical ports of pods"
        self._changes = changes
        self._groups_of = groups_of
        self.held: dict[str, str] = {}
        """Ports that are not written now, and why."""
        self._memberships: dict[UUID, set[str]] | None = None
        """Our groups by their ports, while a transaction is composed that needs them."""

    def run_idl(self, txn: Draft) -> None:
        """Write them: of each switch that gets or loses rows all of a kind in one operation."""
        got: Mapping[tuple[str, str], list[Json]] = defaultdict(list)
        lost: Mapping[tuple[str, str], list[Json]] = defaultdict(list)
        joined: dict[str, list[Json]] = defaultdict(list)
        self.count, self.held, self._memberships = 0, {}, None
        for change in self._changes:
            if self.api.row(SWITCH, change.switch) is None and change.kind != "delete":
                continue  # a row that nothing has is no row
            column = "ports" if isinstance(change, PortChange) else "qos_rules"
            came, went = got[change.switch, column], lost[change.left or change.switch, column]
            groups = self._list_groups(change) if isinstance(change, PortChange) else ()
            if groups is not None:
                self.count += self._write(txn, change, came, went)
                reference = self._reference(change, came) if isinstance(change, PortChange) else None
                if isinstance(change, PortChange) and reference is not None:
                    for group in groups:
                        joined[group].append(reference)
                    for group in self._list_former(change):
                        txn.mutate(self.api.row(PORT_GROUP, group), "ports", "delete", [reference])
        for group, refs in joined.items():
            txn.mutate(self.api.row(PORT_GROUP, group), "ports", "insert", refs)
        for members, mutator in ((lost, "delete"), (got, "insert")):
            for (switch, column), refs in members.items():
                row = self.api.row(SWITCH, switch)
                if refs and row is not None:
                    txn.mutate(row, column, mutator, refs)

    def _list_groups(self, change: PortChange) -> Collection[str] | None:
        """The groups that the port is to come into, as far as it is not in them; None for a port that has to wait.

        A port that another pod had is as a new one.
        """
        if change.kind == "delete":
            return ()
        row: Any = self.api.row(SWITCH_PORT, change.name)
        groups = self._groups_of(change.name)
        is_new = row is None or _is_others(row, change)
        found = {each: self._group(each) for each in groups or ()}
        absent = [each for each, group in found.items() if group is None]
        if is_new and (groups is None or absent):
            self.held[change.name] = "its NetworkPolicies are not written yet" if absent else "NetworkPolicies are not known yet"
            return None
        there = [each for each, group in found.items() if group is not None]
        return there if row is None else [each for each in there if not refers(found[each], "ports", row.uuid)]

    def _list_former(self, change: PortChange) -> Collection[str]:
        """The groups of ours that a port which another pod had has to leave."""
        row: Any = self.api.row(SWITCH_PORT, change.name)
        if change.kind != "update" or row is None or not _is_others(row, change):
            return ()
        if self._memberships is None:
            self._memberships = defaultdict(set)
            for group in self.api.rows(PORT_GROUP):
                for port in read_references(group, "ports") if scope_of(group) else ():
                    self._memberships[port].add(value_of(group, "name"))
        return self._memberships[row.uuid] - set(self._groups_of(change.name) or ())

    def _group(self, name: str) -> Any:
        """A group of ours; None where there is none, and where the row of this name is another's: it isolates no port."""
        row: Any = self.api.row(PORT_GROUP, name)
        return row if row is not None and scope_of(row) else None

    def _reference(self, change: PortChange, got: Sequence[Json]) -> Json | None:
        """The port's row, within this transaction if it is made by that."""
        row: Any = self.api.row(SWITCH_PORT, change.name)
        if row is not None:
            return ("uuid", str(row.uuid))
        return got[-1] if change.kind == "insert" and got else None

    def _write(self, txn: Draft, change: PortChange | LimitChange, got: list[Json], lost: list[Json]) -> bool:
        if isinstance(change, PortChange):
            table, row_id, row = SWITCH_PORT, None, self.api.row(SWITCH_PORT, change.name)
        else:
            table, row_id = QOS, change.row_id
            row = self.api.tables[QOS].rows.get(row_id)
        if change.kind == "insert":
            if row is None:
                got.append(txn.write(table, change.columns, row_id=row_id))
            return row is None
        if row is None:
            return False
        reference = as_json(row.uuid)
        if change.kind == "delete" or change.left:
            lost.append(reference)
        if change.kind == "update":
            txn.verify(row, *change.columns)
            txn.update(row, change.columns)
            if change.left:
                got.append(reference)
        return True


def _is_others(row: Any, change: PortChange) -> bool:
    """Whether the row is that of another pod than the one that gets it."""
    version = change.columns.get("options", {})
    return VERSION in version and value_of(row, "options").get(VERSION) != version[VERSION]
