"""Every bridge, with what is known of the attachments' ports on it. Pure looks at a session's rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from userspace_cni.dataplane.ovsdb.commands import known_ports
from userspace_cni.dataplane.ovsdb.replica import value_of
from userspace_cni.dataplane.ovsdb.rows.bridge import DATAPATH_TYPE
from userspace_cni.dataplane.ovsdb.rows.marks import is_ours

if TYPE_CHECKING:
    from userspace_cni.dataplane.ovsdb.rows.port import KnownPort
    from userspace_cni.dataplane.ovsdb.session import Session


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
        return self.datapath == DATAPATH_TYPE


def known_bridges(session: Session) -> list[Bridge]:
    """Every bridge by name, with what is known of the attachments' ports on it. For a session with everything."""
    ports = [port for port in known_ports(session) if port.ours]
    found = []
    for name, row in sorted(session.replica.names("Bridge").items()):
        mine = [port for port in ports if port.bridge == name]
        broken = [port for port in mine if port.error]
        connected = [port for port in mine if not port.error and _is_connected(port)]
        ours = is_ours(value_of(row, "external_ids"))
        waiting = len(mine) - len(broken) - len(connected)
        found.append(Bridge(name, value_of(row, "datapath_type"), ours, len(connected), waiting, len(broken)))
    return found


def _is_connected(port: KnownPort) -> bool:
    """OVS may say `disconnected` of a peer for as long as it is there; its link is up then."""
    return port.link_state == "up" or port.status.get("status") == "connected"
