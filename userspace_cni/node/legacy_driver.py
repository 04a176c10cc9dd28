"""Undoes an attachment of the plugin that this one replaces: a port of the switch, and sockets and mounts of the node."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from userspace_cni.attachment.apply import adopt
from userspace_cni.attachment.drift import Drift
from userspace_cni.attachment.steps import Driver, LegacyRecord, PodMount, PortRef, SharedResource
from userspace_cni.base.deadline import Deadline

if TYPE_CHECKING:
    from userspace_cni.attachment.journal import Journal
    from userspace_cni.base.root import HostRoot
    from userspace_cni.switch.ports import PortDriver


class LegacyDriver(Driver[LegacyRecord]):
    """Undoes an attachment of the former plugin: its port, its socket and short mount, its record."""

    def __init__(self, root: HostRoot, journal: Journal, ports: PortDriver, short_dir: str) -> None:
        self._root = root
        self._journal = journal
        self._ports = ports
        self._short_dir = short_dir

    def apply(self, step: LegacyRecord, deadline: Deadline) -> None:
        """Do nothing: we never make one."""

    def undo(self, step: LegacyRecord, deadline: Deadline) -> None:
        """Remove everything that the record names, the record last."""
        from userspace_cni.host.runtimes import former_plugin as legacy

        name = legacy.read_port_name(step.path, self._root)
        found = self._ports.find(name, deadline) if name else None
        if found and not found.marks:
            if found.server_path:
                self._remove_socket(found.server_path, step, deadline)
            self._ports.undo(PortRef(name, found.bridge, legacy=True), deadline)
        legacy.remove_record(step.path, self._root)

    def _remove_socket(self, path: str, step: LegacyRecord, deadline: Deadline) -> None:
        """Remove the socket, and its mount and directory unless others need them; attachments of ours then own the mount."""
        from userspace_cni.host.runtimes import former_plugin as legacy

        names = legacy.other_port_names(step.path, self._root)
        used = [other.server_path for name in names if (other := self._ports.find(name, deadline))]
        target = os.path.dirname(path)  # noqa: PTH120
        mount = self._held_mount(target)
        if mount:
            if not any(os.path.dirname(other) == target for other in used):  # noqa: PTH120
                adopt(mount, self._journal, deadline)
            used.append(f"{target}/ours")
        cid12 = os.path.basename(step.path).removeprefix("local-")[:12]  # noqa: PTH119
        legacy.remove_socket(path, cid12, self._short_dir, used, deadline, self._root)

    def _held_mount(self, target: str) -> SharedResource | None:
        """The mount at `target`, if an attachment of ours holds it."""
        for place, shared in self._journal.places():
            mount = PodMount(place, place, target).resource
            if mount.key in shared.find_holders():
                return mount
        return None

    def check(self, step: LegacyRecord, deadline: Deadline) -> list[Drift]:  # noqa: ARG002
        """No drift: CHECK expects nothing of it."""
        return []
