"""Names the driver of each type of step, and gives it what it needs of the node. To add a type: a row here.

A driver is imported when it is first needed: a process that lives for one verb loads nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from userspace_cni.attachment.steps import (
    AddressMove,
    Announcement,
    BorrowedName,
    ClaimDirectory,
    ClaimFile,
    ConfigFile,
    DeviceInfo,
    Directory,
    Driver,
    GatewayFlows,
    Guard,
    JoinedPort,
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
    PortFlow,
    PortRef,
    RuntimeNetwork,
    Shaper,
    SocketDirectory,
    SocketFile,
    Step,
    Translation,
    UplinkPort,
)

if TYPE_CHECKING:
    from userspace_cni.attachment.attachment_store import AttachmentStore
    from userspace_cni.host.node_net.switch_links import SwitchLinks
    from userspace_cni.node.installation import Installation
    from userspace_cni.node.local_addresses import LocalAddresses
    from userspace_cni.node.local_pods import LocalPods
    from userspace_cni.node.local_switch import LocalSwitch


@dataclass(frozen=True)
class Drivers:
    """The drivers of this node's steps, each made when it is first needed, of what it needs of these."""

    installation: Installation
    store: AttachmentStore
    switch: LocalSwitch
    addresses: LocalAddresses
    pods: LocalPods
    _made: dict[type[Step], Driver[Any]] = field(default_factory=dict)

    def __call__(self, step: Step) -> Driver[Any]:
        kind = type(step)
        if kind not in self._made:
            self._made[kind] = MAKERS[kind](self)
        return self._made[kind]

    def make_all(self) -> None:
        """Make each of them now, for a process that lives on."""
        self._made.update((kind, make(self)) for kind, make in MAKERS.items())


def _port_ref(given: Drivers) -> Driver[Any]:
    from userspace_cni.switch.port_refs import PortRefDriver

    return PortRefDriver(given.switch.ports)


def _placed_socket(given: Drivers) -> Driver[Any]:
    from userspace_cni.host.files.placement import PlacedSocketDriver

    return PlacedSocketDriver(given.installation.root, given.switch.sockets.free_source)


def _legacy(given: Drivers) -> Driver[Any]:
    from userspace_cni.node.legacy_driver import LegacyDriver

    return LegacyDriver(given.installation.root, given.store.journal, given.switch.ports, given.installation.settings.short_dir)


def _directory(given: Drivers) -> Driver[Any]:
    from userspace_cni.host.files.vhost_sockets import DirectoryDriver

    return DirectoryDriver(given.installation.root, given.store.journal.has_made)


def _socket_file(given: Drivers) -> Driver[Any]:
    from userspace_cni.host.files.vhost_sockets import SocketFileDriver

    return SocketFileDriver(given.installation.root)


def _pod_mount(given: Drivers) -> Driver[Any]:
    from userspace_cni.host.files.mounts import PodMountDriver

    return PodMountDriver(given.installation.settings.ovs_rundir, given.installation.root, given.installation.devices.allows)


def _device_info(given: Drivers) -> Driver[Any]:
    from userspace_cni.host.files.device_info import DeviceInfoDriver

    return DeviceInfoDriver(given.installation.root)


def _config_file(given: Drivers) -> Driver[Any]:
    from userspace_cni.host.files.whole_files import ConfigFileDriver

    return ConfigFileDriver(given.installation.root)


def _claim_directory(given: Drivers) -> Driver[Any]:
    from userspace_cni.host.files.device_directories import ClaimDirectoryDriver

    return ClaimDirectoryDriver(given.installation.root)


def _claim_file(given: Drivers) -> Driver[Any]:
    from userspace_cni.host.files.claim_files import ClaimFileDriver

    return ClaimFileDriver(given.installation.root)


def _joined_port(given: Drivers) -> Driver[Any]:
    from userspace_cni.node.joined_ports import JoinedPortDriver

    return JoinedPortDriver(given.store.journal, given.switch.ports)


def _pod_note(given: Drivers) -> Driver[Any]:
    from userspace_cni.kube.notes import PodNoteDriver

    return PodNoteDriver(given.installation.clients, given.pods.watch)


def _guard(given: Drivers) -> Driver[Any]:
    from userspace_cni.host.pod_net.guards import GuardDriver

    return GuardDriver(given.installation.root)


def _link(given: Drivers) -> Driver[Any]:
    from userspace_cni.host.pod_net.pod_links import LinkDriver

    return LinkDriver(given.installation.root, given.installation.settings.route_protocol)


def _link_ref(given: Drivers) -> Driver[Any]:
    from userspace_cni.host.pod_net.pod_links import LinkRefDriver

    return LinkRefDriver(given.installation.root)


def _shaper(given: Drivers) -> Driver[Any]:
    from userspace_cni.host.pod_net.shapers import ShaperDriver

    return ShaperDriver(given.installation.root)


def _announcement(given: Drivers) -> Driver[Any]:
    from userspace_cni.host.pod_net.announcements import AnnouncementDriver

    return AnnouncementDriver(given.installation.root)


def _node_link(given: Drivers) -> Driver[Any]:
    from userspace_cni.host.node_net.node_links import NodeLinkDriver

    return NodeLinkDriver(given.installation.root)


def _node_route(given: Drivers) -> Driver[Any]:
    from userspace_cni.host.node_net.node_links import NodeRouteDriver

    return NodeRouteDriver(given.installation.root)


def _policy_route(given: Drivers) -> Driver[Any]:
    from userspace_cni.host.node_net.policy_routes import PolicyRouteDriver

    return PolicyRouteDriver(given.installation.root)


def _translation(given: Drivers) -> Driver[Any]:
    from userspace_cni.host.node_net.translations import TranslationDriver

    return TranslationDriver(given.installation.root)


def _node_bridge(given: Drivers) -> Driver[Any]:
    from userspace_cni.host.node_net.switch_links import SwitchLinks
    from userspace_cni.switch.node_bridges import NodeBridgeDriver

    return NodeBridgeDriver(
        given.switch.ports,
        given.store.journal.identity,
        SwitchLinks(given.installation.settings.switch_netns, given.installation.root),
    )


def _uplink_port(given: Drivers) -> Driver[Any]:
    from userspace_cni.switch.uplinks import UplinkDriver

    return UplinkDriver(
        given.switch.ports, given.store.journal.identity, _switch_links(given), given.installation.settings.afxdp_max
    )


def _polled_uplink(given: Drivers) -> Driver[Any]:
    from userspace_cni.switch.polled_uplinks import PolledUplinkDriver

    return PolledUplinkDriver(
        given.switch.ports, given.store.journal.identity, _switch_links(given), given.installation.settings.afxdp_max
    )


def _mirror_output(given: Drivers) -> Driver[Any]:
    from userspace_cni.switch.mirror_outputs import MirrorOutputDriver

    return MirrorOutputDriver(given.switch.ports, given.store.journal.identity)


def _runtime_network(given: Drivers) -> Driver[Any]:
    from userspace_cni.host.runtimes.runtime_networks import RuntimeNetworkDriver

    return RuntimeNetworkDriver(given.installation.root)


def _socket_directory(given: Drivers) -> Driver[Any]:
    from userspace_cni.host.files.run_sockets import SocketDirectoryDriver

    return SocketDirectoryDriver(given.installation.root)


def _borrowed_name(given: Drivers) -> Driver[Any]:
    from userspace_cni.host.files.run_sockets import BorrowedNameDriver

    return BorrowedNameDriver(given.installation.root)


def _port_flow(given: Drivers) -> Driver[Any]:
    from userspace_cni.switch.port_flows import PortFlowDriver

    return PortFlowDriver(given.switch.ports)


def _gateway_flows(given: Drivers) -> Driver[Any]:
    from userspace_cni.switch.gateway_flows import GatewayFlowsDriver

    return GatewayFlowsDriver(given.switch.ports)


def _switch_links(given: Drivers) -> Callable[[str], SwitchLinks]:
    from userspace_cni.host.node_net.switch_links import SwitchLinks

    return lambda switch_netns: SwitchLinks(switch_netns, given.installation.root)


def _address_move(given: Drivers) -> Driver[Any]:
    from userspace_cni.host.node_net.address_moves import AddressMoveDriver

    return AddressMoveDriver(given.installation.root, given.store.boot_id)


MAKERS: Final[Mapping[type[Step], Callable[[Drivers], Driver[Any]]]] = {
    Lease: lambda given: given.addresses.leases,
    Directory: _directory,
    ClaimDirectory: _claim_directory,
    ClaimFile: _claim_file,
    JoinedPort: _joined_port,
    SocketFile: _socket_file,
    PodMount: _pod_mount,
    Guard: _guard,
    Link: _link,
    LinkRef: _link_ref,
    Shaper: _shaper,
    Announcement: _announcement,
    AddressMove: _address_move,
    OvsPort: lambda given: given.switch.ports,
    PortRef: _port_ref,
    PlacedSocket: _placed_socket,
    DeviceInfo: _device_info,
    ConfigFile: _config_file,
    PodNote: _pod_note,
    NodeBridge: _node_bridge,
    MirrorOutput: _mirror_output,
    GatewayFlows: _gateway_flows,
    UplinkPort: _uplink_port,
    PolledUplink: _polled_uplink,
    LegacyRecord: _legacy,
    NodeLink: _node_link,
    NodeRoute: _node_route,
    PolicyRoute: _policy_route,
    Translation: _translation,
    RuntimeNetwork: _runtime_network,
    SocketDirectory: _socket_directory,
    BorrowedName: _borrowed_name,
    PortFlow: _port_flow,
}
