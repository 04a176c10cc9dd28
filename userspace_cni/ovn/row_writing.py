"""Writes desired rows into OVN's northbound database: the difference alone, in one transaction.

What was compared is verified by the server; when it has changed meanwhile, or another writer has made the row first, the
comparison is made anew.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import UserspaceError
from userspace_cni.ovn.desired_rows import Changes, DesiredRow, FoundRow, RowChange, RowKey, Within, compare
from userspace_cni.ovn.northbound import ROOTS, NorthboundClient, NorthboundSession
from userspace_cni.ovn.northbound_tables import (
    ACL,
    CONNECTION,
    GLOBAL,
    HA_CHASSIS,
    HA_GROUP,
    LOAD_BALANCER,
    LOAD_BALANCER_GROUP,
    METER,
    METER_BAND,
    NAT,
    PORT_GROUP,
    QOS,
    ROUTER,
    ROUTER_POLICY,
    ROUTER_PORT,
    STATIC_ROUTE,
    SWITCH,
    SWITCH_PORT,
)
from userspace_cni.ovn.row_view import RowView, scope_of
from userspace_cni.ovsdb.column_values import columns_of, read_references, refers, table_of, value_of
from userspace_cni.ovsdb.draft import Draft
from userspace_cni.ovsdb.groups import Command, RefusedCommand

HOLDERS: Final[Mapping[str, tuple[str, str]]] = {
    CONNECTION: (GLOBAL, "connections"),
    SWITCH_PORT: (SWITCH, "ports"),
    ROUTER_PORT: (ROUTER, "ports"),
    STATIC_ROUTE: (ROUTER, "static_routes"),
    NAT: (ROUTER, "nat"),
    ROUTER_POLICY: (ROUTER, "policies"),
    ACL: (PORT_GROUP, "acls"),
    QOS: (SWITCH, "qos_rules"),
    HA_CHASSIS: (HA_GROUP, "ha_chassis"),
    METER_BAND: (METER, "bands"),
    LOAD_BALANCER: (LOAD_BALANCER_GROUP, "load_balancer"),
}
"""What has the rows of a table, and the column for them. A load balancer is only listed: it stays without a group."""
_NAMES: Final[Mapping[str, str]] = {CONNECTION: "target"}
"""By which column rows are known, of tables whose rows have no names."""
_SAYS: Final[Mapping[str, Callable[[Mapping[str, Any]], tuple[object, ...]]]] = {
    STATIC_ROUTE: lambda row: (row["ip_prefix"], row.get("policy") == ["src-ip"], row.get("route_table", "")),
    NAT: lambda row: (row["type"], row["logical_ip"]),
    ROUTER_POLICY: lambda row: (row["priority"], row["match"]),
}
"""What a router has once, of tables without names: a second row would be of no use, or of harm."""
_RACED: Final = ("duplicate", "constraint violation")
"""The server's words when another writer was first: with the row's UUID, or with its name where names are unique."""


class SessionRows:
    """The rows of a session, as `compare` needs them. Only within the session's lock. `view`: where it is kept whose rows are."""

    def __init__(self, session: NorthboundSession, view: RowView | None = None) -> None:
        self._session = session
        self._view = view
        self._replica = session.replica
        self._names: dict[str, dict[str, list[Any]]] = {}
        self._holders: dict[str, dict[uuid.UUID, Any]] = {}

    def has(self, table: str, column: str) -> bool:
        return self._replica.has(table, column)

    def is_named(self, table: str) -> bool:
        return table in self._replica.database.named

    def called(self, key: RowKey, columns: Iterable[str]) -> Sequence[FoundRow]:
        found = {row.uuid: row for row in self._named(key)}
        if key.table in self._replica.tables and (row := self._replica.tables[key.table].rows.get(key.row_id)) is not None:
            found[row.uuid] = row
        return [self._found(row, key, columns) for row in found.values()]

    def alike(self, desired: DesiredRow, columns: Iterable[str]) -> Sequence[FoundRow]:
        key, within = desired.key, desired.within
        if key.table not in _SAYS or within is None:
            return ()
        says, rows = _SAYS[key.table], self._replica.tables[key.table].rows
        names = [name for name in self._replica.tables[key.table].columns if self.has(key.table, name)]
        said = says(desired.columns)
        beside = [rows[each] for holder in self.called(within.key, ()) for each in read_references(holder.row, within.column)]
        return [self._found(row, key, columns) for row in beside if says(columns_of(row, *names)) == said]

    def of_scope(self, scope: str) -> Iterable[FoundRow]:
        for row in self._view.of_scope(scope) if self._view else self._marked(scope):
            yield self._found(row, self._key(row), ())

    def _marked(self, scope: str) -> Iterable[Any]:
        return (row for table in self._replica.tables for row in self._session.rows(table) if scope_of(row) == scope)

    def members(self, row: FoundRow, column: str) -> frozenset[Any]:
        return read_references(row.row, column)

    def is_held(self, row: FoundRow, within: Within, holder: uuid.UUID) -> bool:
        found = self._replica.tables[within.key.table].rows.get(holder)
        return found is not None and refers(found, within.column, row.row_id)

    def holder(self, row: FoundRow) -> tuple[FoundRow, str] | None:
        if row.key.table not in HOLDERS:
            return None
        table, column = HOLDERS[row.key.table]
        if row.key.table not in self._holders:
            holders = self._session.rows(table) if table in self._replica.tables else ()
            self._holders[row.key.table] = {each: holder for holder in holders for each in read_references(holder, column)}
        holder = self._holders[row.key.table].get(row.row_id)
        return None if holder is None else (self._found(holder, self._key(holder), ()), column)

    def content(self, row: FoundRow) -> Iterable[FoundRow]:
        inner = {table: column for table, (holder, column) in HOLDERS.items() if holder == row.key.table}
        for table, column in inner.items():
            for each in read_references(row.row, column):
                found = self._replica.tables[table].rows[each]
                yield self._found(found, self._key(found), ())

    def _named(self, key: RowKey) -> Sequence[Any]:
        """The rows of this name, where the table has names; and the one row of the root table."""
        if key.table == self._replica.database.root:
            return (self._session.root(),)
        column = self._name_column(key.table)
        if not column:
            return ()
        if key.table in self._replica.database.unique:
            row = self._session.row(key.table, key.name)
            return () if row is None else (row,)
        if key.table not in self._names:
            names = self._names.setdefault(key.table, {})
            for row in self._session.rows(key.table):
                names.setdefault(value_of(row, column), []).append(row)
        return self._names[key.table].get(key.name, ())

    def _key(self, row: Any) -> RowKey:
        table = table_of(row)
        column = self._name_column(table)
        return RowKey(table, value_of(row, column) if column else str(row.uuid))

    def _name_column(self, table: str) -> str:
        """By which column rows of the table are known, "" for none."""
        return _NAMES.get(table, "") or ("name" if self.is_named(table) else "")

    def _found(self, row: Any, key: RowKey, columns: Iterable[str]) -> FoundRow:
        ids = value_of(row, "external_ids") if self.has(key.table, "external_ids") else {}
        return FoundRow(key, row.uuid, ids, columns_of(row, *names) if (names := tuple(columns)) else {}, row)


@dataclass(frozen=True)
class RowPlan:
    """Rows with the mark `scope`. `desired`: them, or what makes them of what is there now. `adopt`, `further`: as of `compare`.

    `alone`: a row whose column `ports` has to stay as it is until they are written, because `desired` judges by it.
    """

    desired: Sequence[DesiredRow] | Callable[[NorthboundSession], Sequence[DesiredRow]]
    scope: str
    adopt: bool = False
    alone: RowKey | None = None
    further: tuple[str | RowKey, ...] = ()

    def compare(self, session: NorthboundSession) -> Changes:
        """What is to be written. Only within the session's lock. Raises the errors of `desired`."""
        desired = self.desired(session) if callable(self.desired) else self.desired
        return compare(desired, SessionRows(session), self.scope, self.further, adopt=self.adopt)


class WriteRows(Command[NorthboundSession]):
    """Makes the rows with the plan's mark the desired ones. `changes` is what was written.

    Raises the first reason why that may not be, before it writes.
    """

    changes: Changes

    def __init__(self, session: NorthboundSession, plan: RowPlan) -> None:
        super().__init__(session)
        self.target = f"rows of {plan.scope}"
        self._plan = plan
        self._raced = False

    def run_idl(self, txn: Draft) -> None:
        """Write the difference between the desired rows and those that are there now."""
        self.changes = self._plan.compare(self.api)
        if self.changes.refused:
            raise self.changes.refused[0]
        if self._plan.alone is not None and self.changes.rows:
            for found in SessionRows(self.api).called(self._plan.alone, ()):
                txn.verify(found.row, "ports")
        write(txn, self.changes, self.api.replica.database.unique)

    def should_retry(self, refused: RefusedCommand) -> bool:
        """Once more where another writer was first."""
        again = not self._raced and is_raced(refused)
        self._raced = True
        return again


def is_raced(refused: RefusedCommand) -> bool:
    """Whether the server refused it because another writer was first."""
    return any(word in refused.error for word in _RACED)


def write(draft: Draft, changes: Changes, unique: frozenset[str]) -> None:
    """Write the changes; where names are not `unique`, the server is to find that there is none of a new row's."""
    made = {change.key: change for change in changes.rows if change.kind == "insert"}
    held: dict[RowKey, dict[str, list[uuid.UUID]]] = {}
    for change in changes.rows:
        if change.held_by is not None:
            held.setdefault(change.held_by.key, {}).setdefault(change.held_by.column, []).append(change.row_id)
    for change in changes.rows:
        if change.kind == "insert":
            _insert(draft, change, held.get(change.key, {}), unique)
    for key, columns in held.items():
        if key not in made:
            for column, ids in columns.items():
                draft.mutate_by_id(key.table, changes.ids[key], column, "insert", ids)
    gone = {change.row_id for change in changes.rows if change.kind == "delete"}
    for change in changes.rows:
        if change.kind == "update" and change.found is not None:
            _update(draft, change, change.found.row)
        is_left = change.left_by is not None and change.left_by[0].row_id in gone
        if change.kind == "delete" and change.found is not None and (is_left or change.key.table in ROOTS):
            draft.delete(change.found.row)  # also one that would go with its holder: it may refer to another that is deleted
        elif change.left_by is not None and not is_left:
            draft.mutate_by_id(
                table_of(change.left_by[0].row), change.left_by[0].row_id, change.left_by[1], "delete", [change.row_id]
            )


def _update(draft: Draft, change: RowChange, row: Any) -> None:
    if change.columns:
        draft.verify(row, *change.columns)
        draft.update(row, change.columns)
    for column, (come, gone) in change.members.items():
        for mutator, members in (("insert", come), ("delete", gone)):
            if members:
                draft.mutate(row, column, mutator, list(members))


def _insert(draft: Draft, change: RowChange, held: Mapping[str, list[uuid.UUID]], unique: frozenset[str]) -> None:
    table, columns = change.key.table, dict(change.columns)
    if isinstance(columns.get("name"), str) and table not in unique:  # one that may be absent tells no rows from others
        draft.expect(table, [["name", "==", columns["name"]]], [])
    for column, ids in held.items():
        columns[column] = [*columns.get(column, []), *ids]
    draft.write(table, columns, row_id=change.row_id)


def preview(client: NorthboundClient, plan: RowPlan, deadline: Deadline) -> Changes:
    """What `WriteRows` would write now. Raises Unavailable, and the errors of the plan."""

    def look(session: NorthboundSession) -> Changes | UserspaceError:
        try:
            return plan.compare(session)
        except UserspaceError as error:  # it is the caller's, and none of the session's thread
            return error

    what = "comparing rows with OVN's northbound database"
    found = client.read(look, frozenset(), what, deadline, enough=lambda _: False)
    if isinstance(found, UserspaceError):
        raise found
    return found


def write_rows(client: NorthboundClient, plan: RowPlan, deadline: Deadline) -> Changes:
    """Make the rows with the plan's mark the desired ones; returns what was written.

    Raises Unavailable; RowsRefused; NameTaken for rows of others; and the errors of the plan.
    """

    def run(session: NorthboundSession) -> Changes:
        command = WriteRows(session, plan)
        session.transact([command], deadline)
        return command.changes

    return client.use(run, frozenset(), "writing rows of OVN's northbound database", deadline)
