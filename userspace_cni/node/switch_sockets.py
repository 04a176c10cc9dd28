"""Frees the names at which OVS makes sockets: the switch's answer decides whether a file of the node is removed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import UserspaceError
from userspace_cni.base.log import say

if TYPE_CHECKING:
    from userspace_cni.attachment.records import Record
    from userspace_cni.node.installation import Installation
    from userspace_cni.switch.ports import PortDriver

_SOURCES_S: Final = 5.0
_UPSTREAM_SOCKDIR: Final = "/usr/local/var/run/openvswitch"


class NodeSockets:
    """The sockets of the node's ports, as the driver of ports needs them, too."""

    def __init__(self, installation: Installation, ports: Callable[[], PortDriver]) -> None:
        self._settings, self._root = installation.settings, installation.root
        self._ports = ports

    def directory(self, deadline: Deadline) -> str:
        """Where OVS makes server-mode sockets, as the host calls it: our setting, else OVS's own."""
        settings = self._settings
        if settings.ovs_sockdir:
            return settings.ovs_sockdir
        configured = self._ports().read_vhost_sock_dir(deadline)
        if configured:
            return f"{settings.ovs_rundir}/{configured}"
        return settings.ovs_rundir if self._root.is_directory(settings.ovs_rundir) else _UPSTREAM_SOCKDIR

    def free(self, name: str, deadline: Deadline) -> None:
        """Remove a dead socket at the path where OVS makes the socket of a port of that name."""
        self.free_source(f"{self.directory(deadline)}/{name}", deadline)

    def find_waiting_socket(self, path: str, netns: str) -> int:
        """The inode of the socket at `path` at which a process of that namespace listens, and to which no program is connected; 0
        where it is not so, or cannot be seen."""
        from userspace_cni.host.files.waiting_application import find_waiting_socket

        return find_waiting_socket(path, netns, self._settings.switch_netns, self._root)

    def free_source(self, path: str, deadline: Deadline) -> bool:
        """Remove a dead socket at `path`, where OVS makes the port's; whether there was one. `path` ends in the port's name.

        Not under a daemon that has failed to bind there: OVS 3.1 does not unregister it, DPDK 22.11 has closed its descriptor and
        keeps the number, and the next attempt, which comes with any change of the configuration, binds whatever has that number
        by then. As long as the dead socket is there that fails; without it, ovs-vswitchd hangs.
        """
        from userspace_cni.host.files import placement

        name = path.rpartition("/")[2]
        if not placement.is_source_dead(path, self._root) or self._ports().has_failed(name, deadline):
            return False
        return placement.free_source(path, self._root)

    def free_sources(self, records: Callable[[], Iterable[Record]]) -> int:
        """Remove the dead sockets of a killed ovs-vswitchd, on which the next one could not bind; how many. Never fails."""
        deadline, count = Deadline.after(_SOURCES_S), 0
        try:
            for record in records():
                if record.socket and record.socket.switch_path:
                    count += self.free_source(record.socket.switch_path, deadline)
        except UserspaceError as error:
            say("warning", "sockets of the dead ovs-vswitchd may keep the next one from binding", error=error)
        return count
