"""Reads the rows of probes: the ports that `probe`, `ping`, `load` or `capture` makes for a moment, and that are no attachment.

Their owner is a run, so that no verb, no GC and no reconciliation of attachments touches them. `PortDriver`
writes and deletes them, like any port.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from userspace_cni.attachment.steps import owner_kind
from userspace_cni.ovsdb.values import references, value_of
from userspace_cni.switch.ovsdb.mirrors import find_mirror, mirrors_of
from userspace_cni.switch.ovsdb.reads import find_port

if TYPE_CHECKING:
    from userspace_cni.switch.ovsdb.database import SwitchSession


@dataclass(frozen=True)
class PortState:
    """What ovs-vswitchd wrote about a port: Interface.link_state ("" while unknown), status, ofport (0 while none) and error."""

    link_state: str
    status: Mapping[str, str]
    ofport: int
    error: str


@dataclass(frozen=True)
class ProbeRow:
    """A probe as OVSDB has it; `marks` are all its external_ids."""

    name: str
    bridge: str
    marks: Mapping[str, str]


def probe_rows(session: SwitchSession) -> list[ProbeRow]:
    """Every probe, of any process; also one of which only the mirror is left, which has its name."""
    found = _mirrors_without_port(session)
    for name, row in session.replica.names("Port").items():
        marks = value_of(row, "external_ids")
        if owner_kind(marks) == "run":
            port = find_port(session, name)
            found.append(ProbeRow(name, port.bridge if port else "", marks))
    return found


def _mirrors_without_port(session: SwitchSession) -> list[ProbeRow]:
    """The mirrors of probes whose port another program deleted. Needs a session that replicates everything."""
    ports = session.replica.names("Port")
    found = []
    for name, bridge in session.replica.names("Bridge").items():
        for row in mirrors_of(session.replica, bridge):
            marks, mirror = value_of(row, "external_ids"), value_of(row, "name")
            if owner_kind(marks) == "run" and mirror not in ports:
                found.append(ProbeRow(mirror, name, marks))
    return found


def is_mirrored(session: SwitchSession, bridge: str, mirror: str) -> bool:
    """Whether the bridge's mirror of that name has its source and its output. Needs a session that replicates everything."""
    row = find_mirror(session.replica, session.row("Bridge", bridge), mirror)
    return row is not None and bool(references(row, "select_src_port") and references(row, "output_port"))


def state_of(session: SwitchSession, name: str) -> PortState | None:
    """The state of the port `name`; None when there is none. Needs a session that replicates everything."""
    row = session.row("Interface", name)
    if row is None:
        return None
    link, ofport, error = (value_of(row, column) for column in ("link_state", "ofport", "error"))
    status = value_of(row, "status")
    return PortState(link[0] if link else "", status, max(0, ofport[0]) if ofport else 0, error[0] if error else "")
