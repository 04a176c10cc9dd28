"""The step types. To add one: a type here, a driver, and a row in `node.drivers`."""

from userspace_cni.attachment.steps.directories import Directory, PodMount
from userspace_cni.attachment.steps.documents import ConfigFile, DeviceInfo, PodNote
from userspace_cni.attachment.steps.driver import Driver, Rest, Seen
from userspace_cni.attachment.steps.lease import Lease
from userspace_cni.attachment.steps.legacy import LegacyRecord
from userspace_cni.attachment.steps.links import Announcement, Guard, Link, LinkRef, Shaper, host_alias, host_end
from userspace_cni.attachment.steps.node_network import (
    NODE_OWNER,
    AddressMove,
    NodeBridge,
    NodeLink,
    NodeRoute,
    PolicyRoute,
    PolledUplink,
    Translation,
    UplinkPort,
    node_marks,
)
from userspace_cni.attachment.steps.port import (
    MARK_SCHEMA,
    NO_TERMS,
    OWNER,
    FullPort,
    HostEnd,
    Internal,
    OvsPort,
    PortInterface,
    PortRef,
    Terms,
    VhostUserClient,
    VhostUserServer,
    owner_marks,
    port_name,
)
from userspace_cni.attachment.steps.sockets import PlacedSocket, Socket, SocketFile
from userspace_cni.attachment.steps.step import STORED_TYPES, Resource, Step, first_of

__all__ = [
    "MARK_SCHEMA",
    "NODE_OWNER",
    "NO_TERMS",
    "OWNER",
    "STORED_TYPES",
    "AddressMove",
    "Announcement",
    "ConfigFile",
    "DeviceInfo",
    "Directory",
    "Driver",
    "FullPort",
    "Guard",
    "HostEnd",
    "Internal",
    "Lease",
    "LegacyRecord",
    "Link",
    "LinkRef",
    "NodeBridge",
    "NodeLink",
    "NodeRoute",
    "OvsPort",
    "PlacedSocket",
    "PodMount",
    "PodNote",
    "PolicyRoute",
    "PolledUplink",
    "PortInterface",
    "PortRef",
    "Resource",
    "Rest",
    "Seen",
    "Shaper",
    "Socket",
    "SocketFile",
    "Step",
    "Terms",
    "Translation",
    "UplinkPort",
    "VhostUserClient",
    "VhostUserServer",
    "first_of",
    "host_alias",
    "host_end",
    "node_marks",
    "owner_marks",
    "port_name",
]
