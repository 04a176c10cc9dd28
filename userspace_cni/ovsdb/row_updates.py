"""Applies the server's messages about rows (ovsdb-server(7), 4.1.14) to the tables of ovs.db.idl, which keep plain values then.

What ovs.db.idl does itself takes most of the time of a session's thread: an object for each value, a second row for what a column
has by default, and two checks of each.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import ovs.db.error
from ovs.db import idl as ovs_idl

from userspace_cni.ovsdb.kept_values import Changer, KeptColumns, Reader, changer_of, default_of, reader_of

_VERSIONS: Final = (ovs_idl.OVSDB_UPDATE2, ovs_idl.OVSDB_UPDATE3)


class _Column(NamedTuple):
    read: Reader
    change: Changer
    default: Any


class UpdatedIdl(ovs_idl.Idl):  # type: ignore[misc]
    """The IDL with rows of KeptColumns. A message that cannot be applied raises ValueError, TypeError or AttributeError."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        self._columns: dict[Any, dict[str, _Column]] = {}
        super().__init__(*arguments, **settings)

    def _Idl__do_parse_update(self, updates: Mapping[str, Any], version: str, tables: Mapping[str, Any]) -> None:  # noqa: N802
        """As the base class, which calls this from methods that are private to it."""
        if version not in _VERSIONS:
            raise ValueError("it is older than Open vSwitch 2.6")
        changes = [
            self._update_row(tables[name], uuid.UUID(text), update)
            for name, rows in updates.items()
            for text, update in rows.items()
        ]
        if tables is self.server_tables:
            return
        notices = [each for each in changes if each is not None]
        self.change_seqno += len(notices)
        for notice in notices:
            self.notify(*notice)

    def _update_row(self, table: Any, row_id: uuid.UUID, update: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """Apply the change of one row; what `notify` is to be told of it."""
        rows = table.rows
        row = rows[row_id] if row_id in rows.data else None
        if "modify" in update:
            if row is None:
                raise ValueError(f"it changes a row of {table.name} that is not there")
            if rows.indexes:
                del rows[row_id]
            former = self._modify(table, row._data, update["modify"])  # noqa: SLF001 - there is no other way
            if rows.indexes:
                rows[row_id] = row
            return ovs_idl.ROW_UPDATE, row, ovs_idl.Row(self, table, row_id, former)
        if row is not None:
            del rows[row_id]
        if "delete" in update:
            return None if row is None else (ovs_idl.ROW_DELETE, row)
        columns = KeptColumns(table)
        columns.update(_read(self._columns_of(table), update["insert"] if "insert" in update else update["initial"]))
        rows[row_id] = row = ovs_idl.Row(self, table, row_id, columns)
        return ovs_idl.ROW_CREATE, row

    def _modify(self, table: Any, kept: dict[str, Any], told: Mapping[str, Any]) -> dict[str, Any]:
        """Change the columns of a row; what they were."""
        columns, former = self._columns_of(table), {}
        for name, difference in _read(columns, told).items():
            former[name] = before = dict.get(kept, name, columns[name].default)
            dict.__setitem__(kept, name, columns[name].change(before, difference))
        return former

    def _columns_of(self, table: Any) -> dict[str, _Column]:
        found = self._columns.get(table)
        if found is None:
            kinds = {name: each.type for name, each in table.columns.items()}
            found = {name: _Column(reader_of(kind), changer_of(kind), default_of(kind)) for name, kind in kinds.items()}
            self._columns[table] = found
        return found


def _read(columns: Mapping[str, _Column], told: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a message. A column that is unknown, or whose value is of another type, is left out: it stays as it is."""
    found = {}
    for name, value in told.items():
        column = columns.get(name)
        if column is not None:
            try:
                found[name] = column.read(value)
            except ovs.db.error.Error:
                continue
    return found
