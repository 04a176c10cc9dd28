"""Values of columns, for any table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Columns = dict[str, Any]


def wrap_optional(value: object) -> list[Any]:
    """The column's form of a value that may be absent: a list of one or none."""
    return [] if value is None else [value]


def make_columns(wanted: Columns) -> Columns:
    """The columns of a new row, from what `find_changed_columns` takes."""
    return {column: _merged({}, value) if isinstance(value, dict) else value for column, value in wanted.items()}


def find_changed_columns(wanted: Columns, found: Mapping[str, Any]) -> Columns:
    """The columns to write so that `found` becomes `wanted`; keys of maps that `wanted` lacks are kept, and None removes one."""
    changes: Columns = {}
    for column, value in wanted.items():
        new = _merged(found[column], value) if isinstance(value, dict) else value
        old = sorted(found[column]) if isinstance(value, list) else found[column]
        if new != old:
            changes[column] = new
    return changes


def _merged(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in {**found, **wanted}.items() if value is not None}
