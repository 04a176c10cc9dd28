"""Drivers of what is on both sides of the walls: rows of the switch, and sockets and mounts of the node that belong to them.

Nothing is decided here that one side can decide.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from userspace_cni.attachment.apply import adopt
from userspace_cni.attachment.drift import Drift
from userspace_cni.attachment.journal import Journal
from userspace_cni.attachment.steps import LegacyRecord, OvsPort, PlacedSocket, PodMount, PortRef, Resource, VhostUserServer
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.root import HostRoot

if TYPE_CHECKING:
    from userspace_cni.dataplane.ports import PortDriver


class Node(Protocol):
    """What they need of the node."""

    @property
    def root(self) -> HostRoot:
        """The host."""
        ...

    @property
    def journal(self) -> Journal:
        """The records."""
        ...

    @property
    def ports(self) -> PortDriver:
        """The switch."""
        ...

    def sockdir(self, deadline: Deadline) -> str:
        """Where OVS makes server-mode sockets."""
        ...


class ServedPortDriver:
    """OvsPort and PortRef: rows by `PortDriver`; where OVS makes the socket, its name is free before the port comes and after it
    goes.

    A dead socket there, left by an ovs-vswitchd that was killed before it was placed, would keep the port from being opened.
    """

    def __init__(self, node: Node) -> None:
        self._node = node

    def apply(self, step: OvsPort, deadline: Deadline) -> Callable[[], None]:
        """Free the name, then as PortDriver. A PortRef is never applied."""
        self._free(step, deadline)
        return self._node.ports.apply(step, deadline)

    def undo(self, step: OvsPort | PortRef, deadline: Deadline) -> None:
        """As PortDriver, then free the name: ovs-vswitchd, if it lives, removes its own socket."""
        self._node.ports.undo(step, deadline)
        self._free(step, deadline)

    def check(self, step: OvsPort, deadline: Deadline) -> list[Drift]:
        """As PortDriver."""
        return self._node.ports.check(step, deadline)

    def present(self, step: OvsPort | PortRef) -> bool:
        """As PortDriver."""
        return self._node.ports.present(step)

    def _free(self, step: OvsPort | PortRef, deadline: Deadline) -> None:
        if isinstance(step, PortRef) or isinstance(step.interface, VhostUserServer):
            free_source(f"{self._node.sockdir(deadline)}/{step.name}", self._node, deadline)


class ServedSocketDriver:
    """PlacedSocket steps as the node's driver has them, with OVS's own name free for the socket that is awaited."""

    def __init__(self, node: Node) -> None:
        from userspace_cni.host.placement import PlacedSocketDriver

        self._node = node
        self._sockets = PlacedSocketDriver(node.root)

    def apply(self, step: PlacedSocket, deadline: Deadline) -> None:
        """Free the name, then as PlacedSocketDriver."""
        free_source(step.source, self._node, deadline)
        self._sockets.apply(step, deadline)

    def undo(self, step: PlacedSocket, deadline: Deadline) -> None:
        """As PlacedSocketDriver; the name is freed with the port."""
        self._sockets.undo(step, deadline)

    def check(self, step: PlacedSocket, deadline: Deadline) -> list[Drift]:
        """As PlacedSocketDriver."""
        return self._sockets.check(step, deadline)

    def present(self, step: PlacedSocket) -> bool:
        """As PlacedSocketDriver."""
        return self._sockets.present(step)


def free_source(path: str, node: Node, deadline: Deadline) -> bool:
    """Remove a dead socket where OVS makes the port's; whether there was one. `path` ends in the port's name.

    Not under a daemon that has failed to bind there: OVS 3.1 does not unregister it, DPDK 22.11 has closed its descriptor and
    keeps the number, and the next attempt, which comes with any change of the configuration, binds whatever has that number by
    then. As long as the dead socket is there that fails; without it, ovs-vswitchd hangs.
    """
    from userspace_cni.host import placement

    name = path.rpartition("/")[2]
    if not placement.is_source_dead(path, node.root) or node.ports.has_failed(name, deadline):
        return False
    return placement.free_source(path, node.root)


class LegacyDriver:
    """Undoes an attachment of the former plugin: its port, its socket and short mount, its record. Sees both walls."""

    def __init__(self, node: Node, short_dir: str) -> None:
        self._node = node
        self._short_dir = short_dir

    def apply(self, step: LegacyRecord, deadline: Deadline) -> None:
        """Never made by us."""

    def undo(self, step: LegacyRecord, deadline: Deadline) -> None:
        """Remove what the record leads to, the record last."""
        from userspace_cni.host import legacy

        root = self._node.root
        name = legacy.read_port_name(step.path, root)
        found = self._node.ports.find(name, deadline) if name else None
        if found and not found.marks:
            if found.server_path:
                self._remove_socket(found.server_path, step, deadline)
            self._node.ports.undo(PortRef(name, found.bridge, legacy=True), deadline)
        legacy.remove_record(step.path, root)

    def _remove_socket(self, path: str, step: LegacyRecord, deadline: Deadline) -> None:
        """The socket, and what was mounted or made for it unless others need it; attachments of ours then have the mount."""
        from userspace_cni.host import legacy

        names = legacy.other_port_names(step.path, self._node.root)
        used = [other.server_path for name in names if (other := self._node.ports.find(name, deadline))]
        target = os.path.dirname(path)  # noqa: PTH120
        mount = self._held_mount(target)
        if mount:
            if not any(os.path.dirname(other) == target for other in used):  # noqa: PTH120
                adopt(mount, self._node.journal, deadline)
            used.append(f"{target}/ours")
        cid12 = os.path.basename(step.path).removeprefix("local-")[:12]  # noqa: PTH119
        legacy.remove_socket(path, cid12, self._short_dir, used, deadline, self._node.root)

    def _held_mount(self, target: str) -> Resource | None:
        """The mount at `target`, if an attachment of ours holds it."""
        for place, shared in self._node.journal.places():
            mount = PodMount(place, place, target).resource
            if shared.needs(mount.key):
                return mount
        return None

    def check(self, step: LegacyRecord, deadline: Deadline) -> list[Drift]:  # noqa: ARG002
        """Nothing is expected of it."""
        return []

    def present(self, step: LegacyRecord) -> bool:  # noqa: ARG002
        """Never shared."""
        return False
