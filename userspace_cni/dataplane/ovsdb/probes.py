"""Rows of test ports: those that a person's probe, ping or load makes for a moment, and that are no attachment.

They carry an owner mark of their own, so that no verb, no GC and no reconciliation of attachments takes them for one. Pure looks
at a session's rows; they are written and deleted by `PortDriver`, like any port.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from userspace_cni.dataplane.ovsdb.commands import find_port, known_ports
from userspace_cni.dataplane.ovsdb.replica import value_of
from userspace_cni.dataplane.ovsdb.rows import port as rows

if TYPE_CHECKING:
    from userspace_cni.dataplane.ovsdb.rows.port import KnownPort
    from userspace_cni.dataplane.ovsdb.session import Session

OWNER: Final = "userspace-cni-probe"
"""Value of the mark `owner` of test ports."""


@dataclass(frozen=True)
class Bridge:
    """A bridge. `datapath`: Bridge.datapath_type, "" for the kernel's. `ours`: we made it, and it goes with its last port.

    `connected`, `waiting` and `broken` count the attachments' ports on it: those whose application is connected, those without
    one, which is normal, and those that ovs-vswitchd could not open.
    """

    name: str
    datapath: str
    ours: bool
    connected: int = 0
    waiting: int = 0
    broken: int = 0

    @property
    def has_vhost(self) -> bool:
        """Whether vhost-user ports can be on it."""
        return self.datapath == rows.DATAPATH_TYPE


@dataclass(frozen=True)
class PortState:
    """What ovs-vswitchd says of a port: Interface.link_state ("" while unknown), status, ofport (0 while none) and error."""

    link_state: str
    status: Mapping[str, str]
    ofport: int
    error: str


@dataclass(frozen=True)
class ProbeRow:
    """A test port as OVSDB has it; `marks` are all its external_ids."""

    name: str
    bridge: str
    marks: Mapping[str, str]


def bridges(session: Session) -> list[Bridge]:
    """Every bridge by name, with what is known of the attachments' ports on it. For a session with everything."""
    ports = [port for port in known_ports(session) if port.ours]
    found = []
    for name, row in sorted(session.replica.names("Bridge").items()):
        mine = [port for port in ports if port.bridge == name]
        broken = [port for port in mine if port.error]
        connected = [port for port in mine if not port.error and _is_connected(port)]
        ours = rows.is_ours(value_of(row, "external_ids"))
        waiting = len(mine) - len(broken) - len(connected)
        found.append(Bridge(name, value_of(row, "datapath_type"), ours, len(connected), waiting, len(broken)))
    return found


def probe_rows(session: Session) -> list[ProbeRow]:
    """Every test port, whoever made it."""
    found = []
    for name, row in session.replica.names("Port").items():
        marks = value_of(row, "external_ids")
        if marks.get("owner") == OWNER:
            port = find_port(session, name)
            found.append(ProbeRow(name, port.bridge if port else "", marks))
    return found


def state_of(session: Session, name: str) -> PortState | None:
    """What is known of a port; None when there is none. For a session with everything."""
    row = session.row("Interface", name)
    if row is None:
        return None
    link, ofport, error = (value_of(row, column) for column in ("link_state", "ofport", "error"))
    status = value_of(row, "status")
    return PortState(link[0] if link else "", status, max(0, ofport[0]) if ofport else 0, error[0] if error else "")


def _is_connected(port: KnownPort) -> bool:
    """OVS may say `disconnected` of a peer for as long as it is there; its link is up then."""
    return port.link_state == "up" or port.status.get("status") == "connected"
