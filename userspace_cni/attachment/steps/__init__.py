"""The step types, in the order in which an ADD takes them. To add one: a type here, a driver, and a row in `node.drivers`."""

from userspace_cni.attachment.steps.addresses import Lease
from userspace_cni.attachment.steps.directories import Directory, PodMount
from userspace_cni.attachment.steps.documents import ConfigFile, DeviceInfo, PodNote
from userspace_cni.attachment.steps.legacy import LegacyRecord
from userspace_cni.attachment.steps.port import (
    MARK_SCHEMA,
    OWNER,
    OvsPort,
    PortInterface,
    PortRef,
    VhostUserClient,
    VhostUserServer,
)
from userspace_cni.attachment.steps.sockets import PlacedSocket, SocketFile
from userspace_cni.attachment.steps.step import Resource, Step

STEP_TYPES: tuple[type[Step], ...] = (
    Lease,
    Directory,
    SocketFile,
    PodMount,
    OvsPort,
    PortRef,
    PlacedSocket,
    DeviceInfo,
    ConfigFile,
    PodNote,
    LegacyRecord,
)

__all__ = [
    "MARK_SCHEMA",
    "OWNER",
    "STEP_TYPES",
    "ConfigFile",
    "DeviceInfo",
    "Directory",
    "Lease",
    "LegacyRecord",
    "OvsPort",
    "PlacedSocket",
    "PodMount",
    "PodNote",
    "PortInterface",
    "PortRef",
    "Resource",
    "SocketFile",
    "Step",
    "VhostUserClient",
    "VhostUserServer",
]
