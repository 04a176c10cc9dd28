"""Frees the names at which OVS makes sockets: the switch's answer decides whether a file of the node is removed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import UserspaceError
from userspace_cni.base.log import say

if TYPE_CHECKING:
    from userspace_cni.node.local import LocalNode

_SOURCES_S: Final = 5.0


class NodeSockets:
    """The sockets of the node's ports, as the driver of ports needs them."""

    def __init__(self, node: LocalNode) -> None:
        self._node = node

    def free(self, name: str, deadline: Deadline) -> None:
        """Remove a dead socket at the path where OVS makes the socket of a port of that name."""
        free_source(f"{self._node.sockdir(deadline)}/{name}", self._node, deadline)

    def waiting(self, path: str, netns: str) -> int:
        """The inode of the socket at `path` at which a process of that namespace listens, and to which no program is connected; 0
        where it is not so, or cannot be seen."""
        from userspace_cni.host.files.waiting_application import waiting

        return waiting(path, netns, self._node.settings.switch_netns, self._node.root)


def free_source(path: str, node: LocalNode, deadline: Deadline) -> bool:
    """Remove a dead socket at `path`, where OVS makes the port's; whether there was one. `path` ends in the port's name.

    Not under a daemon that has failed to bind there: OVS 3.1 does not unregister it, DPDK 22.11 has closed its descriptor and
    keeps the number, and the next attempt, which comes with any change of the configuration, binds whatever has that number by
    then. As long as the dead socket is there that fails; without it, ovs-vswitchd hangs.
    """
    from userspace_cni.host.files import placement

    name = path.rpartition("/")[2]
    if not placement.is_source_dead(path, node.root) or node.ports.has_failed(name, deadline):
        return False
    return placement.free_source(path, node.root)


def free_sources(node: LocalNode) -> int:
    """Remove the dead sockets of a killed ovs-vswitchd, on which the next one could not bind; how many. Never fails."""
    deadline, count = Deadline.after(_SOURCES_S), 0
    try:
        for record in node.journal.records():
            if record.socket and record.socket.switch_path:
                count += free_source(record.socket.switch_path, node, deadline)
    except UserspaceError as error:
        say("warning", "sockets of the dead ovs-vswitchd may keep the next one from binding", error=error)
    return count
