"""The rows that OVSDB is to have for one step, and those that go with it, as data: `put.Put` and `delete.Delete` make it so.

Columns are as `find_changed_columns` takes them. References between rows are not among them: the transaction has these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from userspace_cni.attachment.steps import LogicalPort
from userspace_cni.base.mirrors import MirrorSource
from userspace_cni.ovsdb.columns import Columns
from userspace_cni.switch.ovsdb.rows.logical_ids import without_former_word
from userspace_cni.switch.ovsdb.rows.qos_row import QosRow


@dataclass(frozen=True)
class DesiredBridge:
    """The bridge of a step. `columns`: of its row; `local`: of the Interface of its local port.

    `own`: its row has to carry the step's marks, and is changed to the columns; else they are those of a bridge that is made, and
    one that is there stays as it is. `missing`: message and details where there is none; None: then it is made. `datapath`: the
    one that it has to have, "" for any; `because`: the end of the message for another.
    """

    name: str
    columns: Columns = field(default_factory=dict)
    local: Columns = field(default_factory=dict)
    own: bool = False
    missing: tuple[str, str] | None = None
    datapath: str = ""
    because: str = ""


@dataclass(frozen=True)
class DesiredInterface:
    """An interface of a port. `columns`: of its row.

    `opened`: those of them by which ovs-vswitchd knows what it opens: where they differ, the interface is removed, and added in
    the next transaction. `later_type`: a type that another step may have given it since, with options, which it keeps.
    `can_reopen`: ovs-vswitchd may be asked again when it could not open it. `logical`: the logical port that it is.
    """

    columns: Columns
    opened: Columns
    later_type: str = ""
    can_reopen: bool = True
    logical: LogicalPort | None = None

    @property
    def name(self) -> str:
        name: str = self.columns["name"]
        return name

    def choose_columns(self, found: Mapping[str, Any]) -> Columns:
        """The columns that its row, which has `found`, is to have now."""
        later = ("type", "options") if self.later_type and found["type"] == self.later_type else ()
        due = {column: value for column, value in self.columns.items() if column not in later}
        if self.logical and (gone := without_former_word(self.logical, found["external_ids"])):
            due["external_ids"] = {**due["external_ids"], **gone}
        return due


@dataclass(frozen=True)
class DesiredPort:
    """The port of a step. `columns`: of its row. `limit`: of what goes to the pod.

    `anew`: ovs-vswitchd is to open it anew, if it is there. `takes_over`: other ports of the same owner may have its interfaces.
    """

    columns: Columns
    interfaces: tuple[DesiredInterface, ...]
    limit: QosRow | None = None
    anew: bool = False
    takes_over: bool = False

    @property
    def name(self) -> str:
        name: str = self.columns["name"]
        return name


@dataclass(frozen=True)
class MirrorPart:
    """The mirrors of which the step's port is a source, and those whose output it is. `shows`: as that of OvsPort."""

    sources: tuple[MirrorSource, ...] = ()
    outputs: tuple[str, ...] = ()
    shows: str = ""


@dataclass(frozen=True)
class DesiredRows:
    """All rows of one step. `marks`: of their owner, on each row. `called`: how messages begin.

    `output`: a port of others that is the output of the mirrors, and stays as it is. `new_names`: the names that OVSDB gets by
    these rows, and whether ovs-vswitchd makes a tap of each. `awaited`: whether ovs-vswitchd has to say that it has gone through
    the rows: always, of new ones, or only where the word on the interface does not tell.
    """

    marks: Mapping[str, str]
    bridge: DesiredBridge
    port: DesiredPort | None = None
    output: str = ""
    mirrors: MirrorPart = field(default_factory=MirrorPart)
    called: str = ""
    new_names: Mapping[str, bool] = field(default_factory=dict)
    awaited: Literal["always", "new", ""] = "always"


@dataclass(frozen=True)
class MarkedRows:
    """What is deleted, if it carries the marks: the port of that name, with its limits; mirrors; the bridge of that name if it is
    `own`, else where it is looked for first.

    `with_foreign_qos`: the port's QoS goes even if another program has set it. `unmarked`: the plugin that this one replaces made
    the port, which has no marks. `awaited`: ovs-vswitchd has to say that it has let go.
    """

    marks: Mapping[str, str]
    port: str = ""
    bridge: str = ""
    own: bool = False
    with_foreign_qos: bool = False
    unmarked: bool = False
    awaited: bool = False
