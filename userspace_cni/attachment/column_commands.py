"""The commands of ovs-vsctl that set columns back to what ADD wrote, for people. Pure; nothing here runs one."""

from __future__ import annotations

import re
import shlex
from typing import Final

from userspace_cni.attachment.drift import Condition, Drift

_KEY: Final = re.compile("(?:(?P<table>Port|Interface) )?(?P<column>options|external_ids):(?P<key>.+)")
"""A field that is a key of a map; one that names no table is of Interface."""
TABLES: Final = {
    "Interface.type": ("Interface", "type"),
    "tag": ("Port", "tag"),
    "trunks": ("Port", "trunks"),
    "vlan_mode": ("Port", "vlan_mode"),
    "mtu_request": ("Interface", "mtu_request"),
    "ingress_policing_rate": ("Interface", "ingress_policing_rate"),
    "ingress_policing_burst": ("Interface", "ingress_policing_burst"),
}
"""Fields of a port's drift that are columns: table and column."""


def command_for(drift: Drift) -> str | None:
    """The command, without `ovs-vsctl`, that sets the column back or clears one that ADD did not set; None for no such column."""
    row = shlex.quote(drift.subject.partition(" ")[2])
    value = "" if isinstance(drift.expected, Condition) else drift.expected
    if key := _KEY.fullmatch(drift.field):
        return _of_map(row, key["table"] or "Interface", key["column"], key["key"], str(value))
    if drift.field not in TABLES:
        return None
    table, column = TABLES[drift.field]
    given = ",".join(map(str, value)) if isinstance(value, tuple) else value
    return f"clear {table} {row} {column}" if given == "" else f"set {table} {row} {column}={given}"


def _of_map(row: str, table: str, column: str, key: str, value: str) -> str:
    """The command that sets a key of a map, or removes it for ""; the value is a quoted string of OVSDB, quoted for the shell."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    given = shlex.quote(f'{column}:{key}="{escaped}"')
    return f"set {table} {row} {given}" if value else f"remove {table} {row} {column} {key}"
