"""Values of columns, whatever the table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Columns = dict[str, Any]


def optional(value: object) -> list[Any]:
    """A value that may be absent."""
    return [] if value is None else [value]


def changed_columns(wanted: Columns, found: Mapping[str, Any]) -> Columns:
    """What must be written to `found` so that it shows `wanted`; keys of maps that we do not know are kept."""
    changes: Columns = {}
    for column, value in wanted.items():
        new = {**found[column], **value} if isinstance(value, dict) else value
        old = sorted(found[column]) if isinstance(value, list) else found[column]
        if new != old:
            changes[column] = new
    return changes
