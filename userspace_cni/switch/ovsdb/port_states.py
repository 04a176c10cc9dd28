"""What a session's rows say of one port, of any owner. Only reads; needs a session that replicates everything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from userspace_cni.ovsdb.column_values import read_references, refers, value_of
from userspace_cni.switch.ovsdb.bridge_mirrors import find_mirror
from userspace_cni.switch.ovsdb.rows.bridge_row import datapath_of
from userspace_cni.switch.ovsdb.rows.marks import is_nodes, is_ours

if TYPE_CHECKING:
    from userspace_cni.switch.ovsdb.switch_database import SwitchSession


@dataclass(frozen=True)
class PortState:
    """What ovs-vswitchd wrote about a port: Interface.link_state ("" while unknown), status, ofport (0 while none) and error."""

    link_state: str
    status: Mapping[str, str]
    ofport: int
    error: str


@dataclass(frozen=True)
class OutputLook:
    """What is to be known of a bridge and of a port that is to be a mirror's output.

    `datapath`: the bridge's, "" for a bridge that is not there. `is_there`, `on_bridge`: the port. `owned`: it is a pod's or the
    node's own, with these `marks`. `type`: of its interface, "" also where that is not known.
    """

    datapath: str = ""
    is_there: bool = False
    on_bridge: bool = False
    owned: bool = False
    marks: Mapping[str, str] = field(default_factory=dict)
    type: str = ""


def look_at_output(session: SwitchSession, bridge: str, name: str) -> OutputLook:
    """Look at them. Needs a session that replicates everything."""
    found, port, link = session.row("Bridge", bridge), session.row("Port", name), session.row("Interface", name)
    if found is None:
        return OutputLook()
    datapath = datapath_of(value_of(found, "datapath_type"))
    if port is None:
        return OutputLook(datapath)
    marks = value_of(port, "external_ids")
    kind = "" if link is None else value_of(link, "type")
    return OutputLook(
        datapath,
        is_there=True,
        on_bridge=refers(found, "ports", port.uuid),
        owned=is_ours(marks) or is_nodes(marks),
        marks=marks,
        type=kind,
    )


def is_mirrored(session: SwitchSession, bridge: str, mirror: str) -> bool:
    """Whether the bridge's mirror of that name has its source and its output."""
    row = find_mirror(session.replica, session.row("Bridge", bridge), mirror)
    return row is not None and bool(read_references(row, "select_src_port") and read_references(row, "output_port"))


def state_of(session: SwitchSession, name: str) -> PortState | None:
    row = session.row("Interface", name)
    if row is None:
        return None
    link, ofport, error = (value_of(row, column) for column in ("link_state", "ofport", "error"))
    status = value_of(row, "status")
    return PortState(link[0] if link else "", status, max(0, ofport[0]) if ofport else 0, error[0] if error else "")
