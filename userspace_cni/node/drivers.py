"""Names the driver of each type of step, and gives it what it needs of the node. To add a type: a row here.

A driver is imported when it is first needed: a process that lives for one verb loads nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from userspace_cni.attachment.steps import (
    AddressMove,
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
    MirrorOutput,
    NodeBridge,
    NodeLink,
    NodeRoute,
    OvsPort,
    PlacedSocket,
    PodMount,
    PodNote,
    PolicyRoute,
    PolledUplink,
    PortRef,
    RuntimeNetwork,
    Shaper,
    SocketFile,
    Step,
    Translation,
    UplinkPort,
)

if TYPE_CHECKING:
    from userspace_cni.host.node_net.switch_links import SwitchLinks
    from userspace_cni.node.local import LocalNode


def _port_ref(node: LocalNode) -> Driver[Any]:
    from userspace_cni.switch.port_refs import PortRefDriver

    return PortRefDriver(node.ports)


def _placed_socket(node: LocalNode) -> Driver[Any]:
    from userspace_cni.host.files.placement import PlacedSocketDriver
    from userspace_cni.node.switch_sockets import free_source

    return PlacedSocketDriver(node.root, lambda path, deadline: free_source(path, node, deadline))


def _legacy(node: LocalNode) -> Driver[Any]:
    from userspace_cni.node.legacy import LegacyDriver

    return LegacyDriver(node, node.settings.short_dir)


def _directory(node: LocalNode) -> Driver[Any]:
    from userspace_cni.host.files.vhost_sockets import DirectoryDriver

    return DirectoryDriver(node.root, node.journal.has_made)


def _socket_file(node: LocalNode) -> Driver[Any]:
    from userspace_cni.host.files.vhost_sockets import SocketFileDriver

    return SocketFileDriver(node.root)


def _pod_mount(node: LocalNode) -> Driver[Any]:
    from userspace_cni.host.files.mounts import PodMountDriver

    return PodMountDriver(node.settings.ovs_rundir, node.root, node.installation.devices.allows)


def _device_info(node: LocalNode) -> Driver[Any]:
    from userspace_cni.host.files.device_info import DeviceInfoDriver

    return DeviceInfoDriver(node.root)


def _config_file(node: LocalNode) -> Driver[Any]:
    from userspace_cni.host.files.whole_files import ConfigFileDriver

    return ConfigFileDriver(node.root)


def _pod_note(node: LocalNode) -> Driver[Any]:
    from userspace_cni.kube.notes import PodNoteDriver

    return PodNoteDriver(node.installation.clients, node.watch)


def _guard(node: LocalNode) -> Driver[Any]:
    from userspace_cni.host.pod_net.guards import GuardDriver

    return GuardDriver(node.root)


def _link(node: LocalNode) -> Driver[Any]:
    from userspace_cni.host.pod_net.pod_links import LinkDriver

    return LinkDriver(node.root, node.settings.route_protocol)


def _link_ref(node: LocalNode) -> Driver[Any]:
    from userspace_cni.host.pod_net.pod_links import LinkRefDriver

    return LinkRefDriver(node.root)


def _shaper(node: LocalNode) -> Driver[Any]:
    from userspace_cni.host.pod_net.shapers import ShaperDriver

    return ShaperDriver(node.root)


def _announcement(node: LocalNode) -> Driver[Any]:
    from userspace_cni.host.pod_net.announcements import AnnouncementDriver

    return AnnouncementDriver(node.root)


def _node_link(node: LocalNode) -> Driver[Any]:
    from userspace_cni.host.node_net.node_links import NodeLinkDriver

    return NodeLinkDriver(node.root)


def _node_route(node: LocalNode) -> Driver[Any]:
    from userspace_cni.host.node_net.node_links import NodeRouteDriver

    return NodeRouteDriver(node.root)


def _policy_route(node: LocalNode) -> Driver[Any]:
    from userspace_cni.host.node_net.policy_routes import PolicyRouteDriver

    return PolicyRouteDriver(node.root)


def _translation(node: LocalNode) -> Driver[Any]:
    from userspace_cni.host.node_net.translations import TranslationDriver

    return TranslationDriver(node.root)


def _node_bridge(node: LocalNode) -> Driver[Any]:
    from userspace_cni.host.node_net.switch_links import SwitchLinks
    from userspace_cni.switch.node_bridges import NodeBridgeDriver

    return NodeBridgeDriver(node.ports, node.journal.identity, SwitchLinks(node.settings.switch_netns, node.root))


def _mirror_output(node: LocalNode) -> Driver[Any]:
    from userspace_cni.switch.mirror_outputs import MirrorOutputDriver

    return MirrorOutputDriver(node.ports, node.journal.identity)


def _uplink_port(node: LocalNode) -> Driver[Any]:
    from userspace_cni.switch.uplinks import UplinkDriver

    return UplinkDriver(node.ports, node.journal.identity, _switch_links(node), node.settings.afxdp_max)


def _polled_uplink(node: LocalNode) -> Driver[Any]:
    from userspace_cni.switch.polled_uplinks import PolledUplinkDriver

    return PolledUplinkDriver(node.ports, node.journal.identity, _switch_links(node), node.settings.afxdp_max)


def _runtime_network(node: LocalNode) -> Driver[Any]:
    from userspace_cni.host.runtimes.runtime_networks import RuntimeNetworkDriver

    return RuntimeNetworkDriver(node.root)


def _switch_links(node: LocalNode) -> Callable[[str], SwitchLinks]:
    from userspace_cni.host.node_net.switch_links import SwitchLinks

    return lambda switch_netns: SwitchLinks(switch_netns, node.root)


def _address_move(node: LocalNode) -> Driver[Any]:
    from userspace_cni.host.node_net.address_moves import AddressMoveDriver

    return AddressMoveDriver(node.root, node.boot_id)


MAKERS: Final[Mapping[type[Step], Callable[[LocalNode], Driver[Any]]]] = {
    Lease: lambda node: node.addresses.leases,
    Directory: _directory,
    SocketFile: _socket_file,
    PodMount: _pod_mount,
    Guard: _guard,
    Link: _link,
    LinkRef: _link_ref,
    Shaper: _shaper,
    Announcement: _announcement,
    AddressMove: _address_move,
    OvsPort: lambda node: node.ports,
    PortRef: _port_ref,
    PlacedSocket: _placed_socket,
    DeviceInfo: _device_info,
    ConfigFile: _config_file,
    PodNote: _pod_note,
    NodeBridge: _node_bridge,
    MirrorOutput: _mirror_output,
    UplinkPort: _uplink_port,
    PolledUplink: _polled_uplink,
    LegacyRecord: _legacy,
    NodeLink: _node_link,
    NodeRoute: _node_route,
    PolicyRoute: _policy_route,
    Translation: _translation,
    RuntimeNetwork: _runtime_network,
}
