"""Mirrors: a port's part in them, and those that the node's settings name. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from string import ascii_letters, digits
from typing import Any, Final, Literal, get_args

from userspace_cni.base.errors import InvalidConfig
from userspace_cni.base.misspelt import meant_or_known

NAME_MAX: Final = 63
NAME_FIRST: Final = f"{ascii_letters}{digits}_"
NAME_CHARACTERS: Final = f"{NAME_FIRST}.-"
NAME: Final = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_.\-]{{0,{NAME_MAX - 1}}}")
MIRRORS_MAX: Final = 16
"""Mirrors of which an interface can be a source, or the output."""
_LINK: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,14}")


Select = Literal["all", "joined"]


@dataclass(frozen=True)
class NodeMirror:
    """A mirror that the node is to have: `[[mirror]]`. `output`: its port, or a kernel link, or what is made as an internal port.

    `select`: every frame of the bridge, or those of the ports that join by network or annotation.
    """

    name: str
    bridge: str
    output: str
    select: Select = "all"


_KEYS: Final = tuple(NodeMirror.__dataclass_fields__)


def read_node_mirrors(raw: object, where: str) -> tuple[NodeMirror, ...]:
    """Read the tables `[[mirror]]` of the file `where`. Raises InvalidConfig naming file, the table's number, key and value."""
    if not isinstance(raw, list) or not all(isinstance(table, dict) for table in raw):
        raise InvalidConfig(f"{where}: 'mirror' is {raw!r}", "write mirrors as tables, each below a line [[mirror]]")
    found = tuple(_read_one(table, f"{where}, [[mirror]] number {number}") for number, table in enumerate(raw, 1))
    for number, each in enumerate(found, 1):
        if any((other.bridge, other.name) == (each.bridge, each.name) or other.output == each.output for other in found[number:]):
            raise InvalidConfig(f"{where}, [[mirror]] number {number}: a later one has its name and bridge, or its output")
    return found


def _read_one(table: Mapping[str, Any], where: str) -> NodeMirror:
    for key, value in table.items():
        if key not in _KEYS:
            raise InvalidConfig(f"{where}: unknown key '{key}' = {value!r}", meant_or_known(key, _KEYS))
    for key, right in (("name", NAME), ("bridge", _LINK), ("output", _LINK)):
        value = table.get(key)
        if not isinstance(value, str) or not right.fullmatch(value):
            raise InvalidConfig(f"{where}: '{key}' is {value!r}", f"it must match {right.pattern}")
    if table.get("select", "all") not in get_args(Select):
        raise InvalidConfig(f"{where}: 'select' is {table['select']!r}", f"it can be {' or '.join(get_args(Select))}")
    return NodeMirror(**table)


@dataclass(frozen=True)
class MirrorSource:
    """A port is a source of the mirror `name` of its bridge: of the frames that come from the pod, that go to it, or both."""

    name: str
    from_pod: bool = True
    to_pod: bool = True
