"""Every bridge, with the states of the attachments' ports on it. Only reads a session's rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from userspace_cni.ovsdb.column_values import value_of
from userspace_cni.switch.ovsdb.rows.bridge_row import DATAPATH_TYPE
from userspace_cni.switch.ovsdb.rows.marks import is_ours
from userspace_cni.switch.ovsdb.switch_reads import list_ports

if TYPE_CHECKING:
    from userspace_cni.switch.ovsdb.rows.port_row import KnownPort
    from userspace_cni.switch.ovsdb.switch_database import SwitchSession


@dataclass(frozen=True)
class Bridge:
    """A bridge. `datapath`: Bridge.datapath_type, "" for the kernel's. `ours`: we made it, and delete it with its last port.

    `connected`, `waiting` and `broken` count the attachments' ports on it: ports whose application is connected, ports without
    one, which is normal, and ports that ovs-vswitchd could not open.
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


def list_bridges(session: SwitchSession) -> list[Bridge]:
    """Every bridge, sorted by name. Needs a session that replicates everything."""
    ports = [port for port in list_ports(session) if port.ours]
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
    """Whether the port's peer is there. OVS may say `disconnected` all the while the peer is there; the link is up then."""
    return port.link_state == "up" or port.status.get("status") == "connected"
