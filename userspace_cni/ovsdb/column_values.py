"""Values of replicated rows, as `kept_values` has them, and values as OVSDB writes them (RFC 7047, 5.1).

Only for rows that no transaction has changed: a Draft changes none.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from userspace_cni.ovsdb.kept_values import default_of

Json = tuple[str, Any]
"""A set, a map or a reference as OVSDB writes it."""


def value_of(row: Any, column: str) -> Any:
    """The value of `row.column`: a map is a dict, a set or an optional value is a sorted list."""
    value = dict.get(row._data, column)  # noqa: SLF001
    if value is None:
        value = default_of(row._table.columns[column].type)  # noqa: SLF001
    if isinstance(value, dict):
        return value.copy()
    return sorted(value) if isinstance(value, frozenset) else value


def columns_of(row: Any, *names: str) -> dict[str, Any]:
    """These replicated columns of a row, all of them unless some are named."""
    return {name: value_of(row, name) for name in names or row._table.columns}  # noqa: SLF001 - ovs.db.idl has no other list


def refers(row: Any, column: str, target: uuid.UUID) -> bool:
    """Whether the column's set of UUIDs contains `target`, without reading the others."""
    return target in _members(row, column)


def read_references(row: Any, column: str) -> frozenset[Any]:
    """The members of a column that is a set, mostly of UUIDs."""
    return _members(row, column)


def count(row: Any, column: str) -> int:
    return len(_members(row, column))


def _members(row: Any, column: str) -> frozenset[Any]:
    members: frozenset[Any] = dict.get(row._data, column, frozenset())  # noqa: SLF001
    return members


def table_of(row: Any) -> str:
    return str(row._table.name)  # noqa: SLF001


def by_uuid(row: Any) -> list[Any]:
    """The condition that chooses this row."""
    return [["_uuid", "==", as_json(row.uuid)]]


def as_row(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of a row as OVSDB writes them."""
    return {column: as_json(value) for column, value in columns.items()}


def as_json(value: Any) -> Any:
    """A value as OVSDB writes it; a value in that form is returned as it is."""
    if isinstance(value, dict):
        return ("map", list(value.items()))
    if isinstance(value, uuid.UUID):
        return ("uuid", str(value))
    if isinstance(value, list):
        return ("set", [as_json(each) for each in value])
    return value
