"""Drivers of what is on both sides of the walls: rows of the switch, and sockets and mounts of the node that belong to them.

Nothing is decided here that one side can decide.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from userspace_cni.attachment.apply import adopt
from userspace_cni.attachment.drift import Drift
from userspace_cni.attachment.steps import Driver, LegacyRecord, OvsPort, PodMount, PortRef, Resource, Rest, Seen
from userspace_cni.base.deadline import Deadline

if TYPE_CHECKING:
    from userspace_cni.node.drivers import Drivers


class ServedPortDriver(Driver[OvsPort]):
    """A port: its rows by `PortDriver`; where OVS makes the socket, its name is free before the port comes and after it goes.

    A dead socket there, left by an ovs-vswitchd that was killed before it was placed, would keep the port from being opened.
    """

    def __init__(self, node: Drivers) -> None:
        self._node = node

    def apply(self, step: OvsPort, deadline: Deadline) -> Rest:
        """Free the name, then as PortDriver."""
        self._free(step, deadline)
        return self._node.ports.apply(step, deadline)

    def undo(self, step: OvsPort, deadline: Deadline) -> None:
        """As PortDriver, then free the name: ovs-vswitchd, if it lives, removes its own socket."""
        self._node.ports.undo(step, deadline)
        self._free(step, deadline)

    def check(self, step: OvsPort, deadline: Deadline) -> list[Drift]:
        """As PortDriver."""
        return self._node.ports.check(step, deadline)

    def lost(self, step: OvsPort, seen: Seen, deadline: Deadline) -> bool:  # noqa: ARG002 - it is all in the replica
        """Whether the switch has no such port, or one that it could not open and may be asked to again by now."""
        if seen.ports is None:
            return False
        return step.name not in seen.ports or step.name in seen.once(self._node.ports.closed_ports)

    def _free(self, step: OvsPort, deadline: Deadline) -> None:
        if not step.server_path:  # with one, the application makes the socket
            _free_name(step.name, self._node, deadline)


class PortRefDriver(Driver[PortRef]):
    """A port that is only ever undone. Who made its socket is not known: its name may be where OVS makes them."""

    def __init__(self, node: Drivers) -> None:
        self._node = node

    def apply(self, step: PortRef, deadline: Deadline) -> None:
        """It is never made."""

    def undo(self, step: PortRef, deadline: Deadline) -> None:
        """As PortDriver, then free the name."""
        self._node.ports.undo(step, deadline)
        _free_name(step.name, self._node, deadline)

    def check(self, step: PortRef, deadline: Deadline) -> list[Drift]:  # noqa: ARG002
        """Nothing is expected of it."""
        return []


def _free_name(name: str, node: Drivers, deadline: Deadline) -> None:
    free_source(f"{node.sockdir(deadline)}/{name}", node, deadline)


def free_source(path: str, node: Drivers, deadline: Deadline) -> bool:
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


class LegacyDriver(Driver[LegacyRecord]):
    """Undoes an attachment of the former plugin: its port, its socket and short mount, its record. Sees both walls."""

    def __init__(self, node: Drivers, short_dir: str) -> None:
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
