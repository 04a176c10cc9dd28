"""Names the driver of each type of step, and gives it what it needs of the node. To add a type: a row here.

A driver is imported when it is first needed: a process that lives for one verb loads nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from userspace_cni.attachment.steps import (
    Announcement,
    ConfigFile,
    DeviceInfo,
    Directory,
    Driver,
    Guard,
    Lease,
    LegacyRecord,
    Link,
    LinkRef,
    OvsPort,
    PlacedSocket,
    PodMount,
    PodNote,
    PortRef,
    Shaper,
    SocketFile,
    Step,
)

if TYPE_CHECKING:
    from userspace_cni.node.local import LocalNode


def _port_ref(node: LocalNode) -> Driver[Any]:
    from userspace_cni.dataplane.ports import PortRefDriver

    return PortRefDriver(node.ports)


def _placed_socket(node: LocalNode) -> Driver[Any]:
    from userspace_cni.host.placement import PlacedSocketDriver
    from userspace_cni.node.switch_sockets import free_source

    return PlacedSocketDriver(node.root, lambda path, deadline: free_source(path, node, deadline))


def _legacy(node: LocalNode) -> Driver[Any]:
    from userspace_cni.node.legacy import LegacyDriver

    return LegacyDriver(node, node.settings.short_dir)


def _directory(node: LocalNode) -> Driver[Any]:
    from userspace_cni.host.sockets import DirectoryDriver

    return DirectoryDriver(node.root, node.journal.has_made)


def _socket_file(node: LocalNode) -> Driver[Any]:
    from userspace_cni.host.sockets import SocketFileDriver

    return SocketFileDriver(node.root)


def _pod_mount(node: LocalNode) -> Driver[Any]:
    from userspace_cni.host.mounts import PodMountDriver

    return PodMountDriver(node.settings.ovs_rundir, node.root, node.devices.allows)


def _device_info(node: LocalNode) -> Driver[Any]:
    from userspace_cni.host.device_info import DeviceInfoDriver

    return DeviceInfoDriver(node.settings.device_info_dir, node.root)


def _config_file(node: LocalNode) -> Driver[Any]:
    from userspace_cni.host.files import ConfigFileDriver

    return ConfigFileDriver(node.root)


def _pod_note(node: LocalNode) -> Driver[Any]:
    from userspace_cni.kube.notes import PodNoteDriver

    return PodNoteDriver(node.clients, node.watch)


def _guard(node: LocalNode) -> Driver[Any]:
    from userspace_cni.host.guards import GuardDriver

    return GuardDriver(node.root)


def _link(node: LocalNode) -> Driver[Any]:
    from userspace_cni.host.links import LinkDriver

    return LinkDriver(node.root)


def _link_ref(node: LocalNode) -> Driver[Any]:
    from userspace_cni.host.links import LinkRefDriver

    return LinkRefDriver(node.root)


def _shaper(node: LocalNode) -> Driver[Any]:
    from userspace_cni.host.shapers import ShaperDriver

    return ShaperDriver(node.root)


def _announcement(node: LocalNode) -> Driver[Any]:
    from userspace_cni.host.announcements import AnnouncementDriver

    return AnnouncementDriver(node.root)


MAKERS: Final[Mapping[type[Step], Callable[[LocalNode], Driver[Any]]]] = {
    Lease: lambda node: node.leases,
    Directory: _directory,
    SocketFile: _socket_file,
    PodMount: _pod_mount,
    Guard: _guard,
    Link: _link,
    LinkRef: _link_ref,
    Shaper: _shaper,
    Announcement: _announcement,
    OvsPort: lambda node: node.ports,
    PortRef: _port_ref,
    PlacedSocket: _placed_socket,
    DeviceInfo: _device_info,
    ConfigFile: _config_file,
    PodNote: _pod_note,
    LegacyRecord: _legacy,
}
