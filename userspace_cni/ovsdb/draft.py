"""A transaction that is being written: its operations as OVSDB takes them (RFC 7047, 5.2), in order."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from ovs.db import idl as ovs_idl

from userspace_cni.ovsdb.column_values import Json, as_json, as_row, by_uuid, columns_of, table_of
from userspace_cni.ovsdb.replica import Replica

Operation = dict[str, Any]


class Part(Protocol):
    """What is decided once per transaction, when all commands of a group have said what they need."""

    def write(self, draft: Draft) -> None: ...


P = TypeVar("P", bound=Part)


class Draft(ovs_idl.Transaction):  # type: ignore[misc]
    """A transaction that is being written: its operations as OVSDB takes them, in order."""

    def __init__(self, idl: Replica[Any]) -> None:
        super().__init__(idl)
        self._parts: dict[tuple[type[Any], str], Any] = {}
        self._inserted = 0
        self._answers: list[Any] = []

    def select(self, table: str, where: list[Any], columns: list[str]) -> int:
        """Read columns that are not replicated; returns the number by which `read_selected` finds the answer."""
        self.add_op({"op": "select", "table": table, "where": where, "columns": columns})
        return len(self._operations) - 1

    def read_selected(self, number: int) -> list[dict[str, Any]]:
        """The rows of a `select`, with values as OVSDB writes them (RFC 7047, 5.1). Only after the commit."""
        rows: list[dict[str, Any]] = self._answers[number]["rows"]
        return rows

    def extend(self, operations: list[Operation]) -> int:
        """Add operations as they are; returns the number by which `answers` finds the first one's answer."""
        first = len(self._operations)
        for each in operations:
            self.add_op(each)
        return first

    def answers(self, first: int, count: int) -> list[Any]:
        """The server's answers to operations, in order. Only after the commit."""
        return self._answers[first : first + count]

    def _process_reply(self, msg: Any) -> None:
        """As the base class, and keep the answers."""
        super()._process_reply(msg)
        if isinstance(msg.result, list):
            self._answers = msg.result[len(msg.result) - len(self._operations) :]

    def verify(self, row: Any, *columns: str) -> None:
        """Commit only if these columns of the row are still what the replica shows, and the row is still there."""
        self.expect(table_of(row), by_uuid(row), [as_row(columns_of(row, *columns))])

    def expect(self, table: str, where: list[Any], rows: list[Operation], *, until: str = "==") -> None:
        """Commit only if at this point of the transaction the rows chosen by `where` are (with "!=": are not) `rows`."""
        columns = list(rows[0]) if rows else ["name"]
        wait = {"op": "wait", "table": table, "where": where, "columns": columns, "until": until, "rows": rows}
        self.add_op(wait | {"timeout": 0})

    def write(self, table: str, columns: dict[str, Any], *, row_id: uuid.UUID | None = None) -> Json:
        """Insert a row; returns the reference to it within this transaction.

        `row_id`: its UUID, else the server's choice. A server of OVS 3.1 or later takes it, and refuses one that a row has.
        """
        row = as_row(columns)
        if row_id is not None:
            self.add_op({"op": "insert", "table": table, "uuid": str(row_id), "row": row})
            return ("uuid", str(row_id))
        self._inserted += 1
        name = f"row{self._inserted}"
        self.add_op({"op": "insert", "table": table, "uuid-name": name, "row": row})
        return ("named-uuid", name)

    def update(self, row: Any, columns: dict[str, Any]) -> None:
        self.add_op({"op": "update", "table": table_of(row), "where": by_uuid(row), "row": as_row(columns)})

    def delete(self, row: Any) -> None:
        """Delete the row, to which no other may refer that stays."""
        self.add_op({"op": "delete", "table": table_of(row), "where": by_uuid(row)})

    def increment(self, row: Any, column: str) -> None:
        """Add one to the column, whatever its value is at the commit."""
        self.add_op({"op": "mutate", "table": table_of(row), "where": by_uuid(row), "mutations": [[column, "+=", 1]]})

    def mutate(self, row: Any, column: str, mutator: str, members: list[Json]) -> None:
        """Insert members into the column, or delete them from it."""
        self.mutate_by_id(table_of(row), row.uuid, column, mutator, members)

    def mutate_by_id(self, table: str, row_id: uuid.UUID, column: str, mutator: str, members: Sequence[Any]) -> None:
        """As `mutate`, of the row with this UUID."""
        mutations = [[column, mutator, ("set", [as_json(each) for each in members])]]
        self.add_op({"op": "mutate", "table": table, "where": [["_uuid", "==", as_json(row_id)]], "mutations": mutations})

    def set_keys(self, row: Any, column: str, values: Mapping[str, str]) -> None:
        """Set keys of a map, whatever they are, and remove those without a value; others stay."""
        new = [(key, value) for key, value in values.items() if value]
        mutations = [[column, "delete", ("set", list(values))], [column, "insert", ("map", new)]]
        self.add_op({"op": "mutate", "table": table_of(row), "where": by_uuid(row), "mutations": mutations})

    def share_part(self, kind: type[P], name: str, make: Callable[[], P]) -> P:
        """What the commands of a group change together, as one row and what refers to it: it is made once, and written last."""
        if (kind, name) not in self._parts:
            self._parts[kind, name] = make()
        part: P = self._parts[kind, name]
        return part

    def complete(self) -> None:
        """Write the parts, and a `select`, so that the server always answers."""
        for part in self._parts.values():
            part.write(self)
        self.add_op({"op": "select", "table": self.idl.database.root, "where": [], "columns": ["_uuid"]})
