"""What a session's rows say of one port, of any owner. Only reads; needs a session that replicates everything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from userspace_cni.ovsdb.values import references, value_of
from userspace_cni.switch.ovsdb.mirrors import find_mirror

if TYPE_CHECKING:
    from userspace_cni.switch.ovsdb.database import SwitchSession


@dataclass(frozen=True)
class PortState:
    """What ovs-vswitchd wrote about a port: Interface.link_state ("" while unknown), status, ofport (0 while none) and error."""

    link_state: str
    status: Mapping[str, str]
    ofport: int
    error: str


def is_mirrored(session: SwitchSession, bridge: str, mirror: str) -> bool:
    """Whether the bridge's mirror of that name has its source and its output."""
    row = find_mirror(session.replica, session.row("Bridge", bridge), mirror)
    return row is not None and bool(references(row, "select_src_port") and references(row, "output_port"))


def state_of(session: SwitchSession, name: str) -> PortState | None:
    row = session.row("Interface", name)
    if row is None:
        return None
    link, ofport, error = (value_of(row, column) for column in ("link_state", "ofport", "error"))
    status = value_of(row, "status")
    return PortState(link[0] if link else "", status, max(0, ofport[0]) if ofport else 0, error[0] if error else "")
