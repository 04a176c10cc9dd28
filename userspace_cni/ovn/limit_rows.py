"""Limits of logical ports as rows of OVN's table QoS: what a port is to have, what it has, and the difference. Pure.

Each direction of a port is a row of its switch. ovn-controller makes a meter of it on the port's chassis, which drops what is too
much (`meter_shapes` has each be one of its own). A row is the port's by its UUID, which follows from the port's name: so what
others have written beside it is never touched, and a row that was lost is made again as it was.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal
from uuid import UUID

from userspace_cni.attachment.steps import OWNER
from userspace_cni.base.limits import Rate
from userspace_cni.ovn.desired_rows import SCOPE, RowKey
from userspace_cni.ovn.meter_shapes import MeterShape, is_shape_of
from userspace_cni.ovn.northbound_tables import QOS
from userspace_cni.ovn.port_rows import PODS
from userspace_cni.ovsdb.columns import Columns, find_changed_columns

Direction = Literal["to-lport", "from-lport"]
DIRECTIONS: Final[tuple[Direction, ...]] = ("to-lport", "from-lport")
"""To the pod, and from it."""
PORT: Final = "port"
"""The key of external_ids by which a row says whose it is."""
_SWITCH: Final = "switch"
_ASKED: Final = "asked"
"""The key by which a row says what its limit is made of, as rate/burst in bit/s and bits."""
_PRIORITY: Final = 2000


@dataclass(frozen=True, slots=True)
class FoundLimit:
    """A limit as the database has it. `switch`: the logical switch whose row it is."""

    switch: str
    columns: Columns

    @property
    def shape(self) -> MeterShape:
        """Rate and burst, 0 for what is not said."""
        said = self.columns["bandwidth"]
        return MeterShape(said.get("rate", 0), said.get("burst", 0))

    def shape_of(self, asked: Rate) -> MeterShape | None:
        """Rate and burst, if they were chosen for what is asked."""
        is_same = self.columns["external_ids"].get(_ASKED) == _spell(asked)
        return self.shape if is_same and is_shape_of(self.shape, asked) else None


@dataclass(frozen=True, slots=True)
class DesiredLimit:
    """A limit as it is to be: what was asked, and what is written of it."""

    asked: Rate
    shape: MeterShape


FoundLimits = Mapping[Direction, FoundLimit]
"""The limits of one port."""


@dataclass(frozen=True, slots=True)
class LimitChange:
    """One limit that is to be made, changed or removed. `name`: the port's; `switch`: has it afterwards, or had it; `left`: loses
    it, "" for none."""

    kind: Literal["insert", "update", "delete"]
    name: str
    direction: Direction
    switch: str
    columns: Columns = field(default_factory=dict)
    left: str = ""

    @property
    def row_id(self) -> UUID:
        return limit_id(self.name, self.direction)


def limit_id(name: str, direction: Direction) -> UUID:
    """The UUID of the row that limits the port."""
    return RowKey(QOS, f"{name} {direction}").row_id


def find_limit_changes(name: str, switch: str, limits: Mapping[Direction, DesiredLimit], found: FoundLimits) -> list[LimitChange]:
    """What has to be written so that the port of this name, and of this switch, has these limits and no others of ours."""
    changes = []
    for direction in DIRECTIONS:
        has, desired = found.get(direction), limits.get(direction)
        if desired is None:
            if has is not None:
                changes.append(LimitChange("delete", name, direction, has.switch))
            continue
        columns = _columns(name, switch, direction, desired)
        if has is None:
            changes.append(LimitChange("insert", name, direction, switch, columns))
        elif changed := find_changed_columns(columns, has.columns):
            changes.append(LimitChange("update", name, direction, switch, changed, has.switch if has.switch != switch else ""))
    return changes


def find_gone_limits(name: str, found: FoundLimits) -> list[LimitChange]:
    """What has to be written where there is no such port."""
    return find_limit_changes(name, "", {}, found)


def _columns(name: str, switch: str, direction: Direction, desired: DesiredLimit) -> Columns:
    """The row. The name is that of a pod's choice: it is written as a text of OVN's language, which has JSON's form."""
    side = "outport" if direction == "to-lport" else "inport"
    return {
        "priority": _PRIORITY,
        "direction": direction,
        "match": f"{side} == {json.dumps(name)}",
        "bandwidth": desired.shape._asdict(),
        "external_ids": {"owner": OWNER, SCOPE: PODS, PORT: name, _SWITCH: switch, _ASKED: _spell(desired.asked)},
    }


def read_switch(external_ids: Mapping[str, str]) -> str:
    """The logical switch of a row of ours."""
    return external_ids.get(_SWITCH, "")


def _spell(asked: Rate) -> str:
    return f"{asked.rate}/{asked.burst}"
