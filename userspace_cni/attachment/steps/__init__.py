"""The step types. To add one: a type here, a driver, and a row in `node.drivers`."""

from userspace_cni.attachment.steps.directories import Directory, PodMount
from userspace_cni.attachment.steps.documents import ConfigFile, DeviceInfo, PodNote
from userspace_cni.attachment.steps.driver import Driver, Rest, Seen
from userspace_cni.attachment.steps.kept import Kept, KeptAddress, KeptHop, KeptRoute, next_hops
from userspace_cni.attachment.steps.lease import Lease
from userspace_cni.attachment.steps.legacy import LegacyRecord
from userspace_cni.attachment.steps.node_network import (
    AddressMove,
    MirrorOutput,
    NodeBridge,
    NodeLink,
    NodeRoute,
    PolicyRoute,
    PolledUplink,
    RuntimeNetwork,
    Translation,
    UplinkPort,
)
from userspace_cni.attachment.steps.owners import (
    MARK_SCHEMA,
    OWNER,
    OWNER_KIND,
    OwnerKind,
    node_marks,
    owner_kind,
    owner_marks,
    run_marks,
)
from userspace_cni.attachment.steps.parts import Parts, Steps
from userspace_cni.attachment.steps.pod_link import Announcement, Guard, Link, LinkRef, Shaper, host_alias, host_end, is_host_end
from userspace_cni.attachment.steps.port import (
    EVERYTHING,
    NO_TERMS,
    HostEnd,
    Internal,
    OvsPort,
    PortInterface,
    PortRef,
    Terms,
    VhostUserClient,
    VhostUserServer,
    port_name,
)
from userspace_cni.attachment.steps.runs import BorrowedName, PortFlow, SocketDirectory
from userspace_cni.attachment.steps.step import STEP_TYPES, Resource, Step
from userspace_cni.attachment.steps.vhost_socket import PlacedSocket, Socket, SocketFile

__all__ = [
    "EVERYTHING",
    "MARK_SCHEMA",
    "NO_TERMS",
    "OWNER",
    "OWNER_KIND",
    "STEP_TYPES",
    "AddressMove",
    "Announcement",
    "BorrowedName",
    "ConfigFile",
    "DeviceInfo",
    "Directory",
    "Driver",
    "Guard",
    "HostEnd",
    "Internal",
    "Kept",
    "KeptAddress",
    "KeptHop",
    "KeptRoute",
    "Lease",
    "LegacyRecord",
    "Link",
    "LinkRef",
    "MirrorOutput",
    "NodeBridge",
    "NodeLink",
    "NodeRoute",
    "OvsPort",
    "OwnerKind",
    "Parts",
    "PlacedSocket",
    "PodMount",
    "PodNote",
    "PolicyRoute",
    "PolledUplink",
    "PortFlow",
    "PortInterface",
    "PortRef",
    "Resource",
    "Rest",
    "RuntimeNetwork",
    "Seen",
    "Shaper",
    "Socket",
    "SocketDirectory",
    "SocketFile",
    "Step",
    "Steps",
    "Terms",
    "Translation",
    "UplinkPort",
    "VhostUserClient",
    "VhostUserServer",
    "host_alias",
    "host_end",
    "is_host_end",
    "next_hops",
    "node_marks",
    "owner_kind",
    "owner_marks",
    "port_name",
    "run_marks",
]
