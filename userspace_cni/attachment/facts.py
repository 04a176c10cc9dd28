"""What is known of this node and pod when an attachment is planned. Pure data; `node` gathers it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from userspace_cni.attachment.steps import NO_TERMS, Directory, LogicalPort, OvsPort, PortTerms
from userspace_cni.base.limits import UNLIMITED, Limits
from userspace_cni.base.mirrors import MirrorSource
from userspace_cni.base.port_kinds import KernelPort
from userspace_cni.base.vlans import Vlan
from userspace_cni.cni.result import EMPTY, ResultAddresses
from userspace_cni.pod.document import DEFAULT_MAPPED_DIR


@dataclass(frozen=True)
class Volume:
    """A pod's volume. `kind` is the key of its source in the pod's spec; `path` is set for a hostPath."""

    name: str
    kind: str
    path: str = ""


@dataclass(frozen=True)
class Pod:
    """The pod as far as it is known; a field is empty while its value is not known.

    `lacks_hugepages`: its spec is known; no container of it can have hugepages, and none asks DPDK to do without them.
    `mounts`: volume name -> mountPaths in the containers, in order; initContainers are left out. `uid` is the UID that the node
    knows: K8S_POD_UID, and the kubelet's directories. The API has another UID for a static pod, `api_uid`. `machine_uid`: that of
    the VirtualMachineInstance whose launcher the pod is.
    """

    namespace: str = ""
    name: str = ""
    uid: str = ""
    volumes: tuple[Volume, ...] = ()
    mounts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    deleting: bool = False
    lacks_hugepages: bool = False
    api_uid: str = ""
    machine_uid: str = ""


@dataclass(frozen=True)
class ChangeableOptions:
    """What may change of an attachment while it lives: the limits that its pod's annotations ask for, and all its mirrors."""

    limits: Limits = UNLIMITED
    mirrors: tuple[MirrorSource, ...] = ()


@dataclass(frozen=True)
class SocketPlace:
    """Where the pod's sockets are on the host, and whether we may make and own that directory (see `Directory`)."""

    path: str
    trusted: str
    create: bool
    own: bool
    mount_name: str = ""
    """Name of the mount below short_dir; "" derives one from the path."""
    parents: bool = False
    unseen: str = ""
    """Why no container of the pod is expected to see this directory, as far as its spec is known; "" where one is."""
    subdirectory: str = ""
    """The directory in the container, relative to the pod's mapped directory, with a trailing slash; "" for that one itself."""
    closed: bool = False
    """Whether containers see only what is made in the directory itself, and nothing that is mounted there later."""


@dataclass(frozen=True)
class Allocation:
    """What a device plugin decided in the device-info file before ADD: the application's role and its path."""

    mode: str
    path: str
    content: Mapping[str, Any]


@dataclass(frozen=True)
class JoinableDevice:
    """A device of the pod's claims that the interface joins. `holder` and `ifname`: the key of its record; `claim`: the claim's
    namespace and name. `directory`: that of its socket, which containers have at `mapped`. `told`: what the claim has the
    application told of its rings, by key of `container.vhost`.
    """

    holder: str
    ifname: str
    claim: str
    directory: Directory
    mapped: str
    port: OvsPort
    told: Mapping[str, int] = field(default_factory=dict)

    @property
    def socket_name(self) -> str:
        return self.port.server_path.rpartition("/")[2]

    @property
    def place(self) -> SocketPlace:
        """Where its socket is. OVS has it through the claim's own mount."""
        mount = self.port.server_path.rpartition("/")[0]
        return SocketPlace(
            self.directory.path,
            trusted=self.directory.trusted,
            create=False,
            own=False,
            mount_name=mount.rpartition("/")[2],
            subdirectory=f"{self.mapped.removeprefix(DEFAULT_MAPPED_DIR)}/",
            closed=True,
        )

    @property
    def short_dir(self) -> str:
        """The directory of that mount."""
        return self.port.server_path.rsplit("/", 2)[0]


@dataclass(frozen=True)
class NodePort:
    """A link of the node itself on the pod's bridge, up or down: a gateway's, the bridge's own, an administrator's.

    `addresses` are without prefix length. `mtu`: the one that it has, if Open vSwitch derives it from those of the other ports; 0
    where it asks for one, and for the bridge's own link while that is down. `least`: the smallest MTU of the ports that are
    neither pods' nor the node's own, 0 for none.
    """

    name: str
    mac: str
    vlan: Vlan = field(default_factory=Vlan)
    addresses: tuple[str, ...] = ()
    mtu: int = 0
    least: int = 0


@dataclass(frozen=True)
class PodPort:
    """A pod's port on the bridge, with the MAC that this pod is to have. `namespace`: that pod's, "" where none was told."""

    namespace: str
    vlan: Vlan


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What `node` found out about this node and pod for one ADD, whatever the kind of its interface."""

    boot_id: str
    store: str
    netns_inode: int
    pod: Pod
    bridge: str = ""
    """The port's bridge; "" for the one that the network says."""
    logical: LogicalPort | None = None
    """The logical port that the interface is; where it has `ids`, the plan adds the addresses."""
    foreign_bridge: bool = False
    """Whether the bridge exists and an administrator made it."""
    node_ports: tuple[NodePort, ...] = ()
    """The links of the node itself on the bridge."""
    same_mac: tuple[PodPort, ...] = ()
    """Ports of pods on the bridge that have the MAC already; not looked for where this pod's namespace is not known."""
    vlan: Vlan = field(default_factory=Vlan)
    """The port's VLAN: the network's, or what the pod chose within it."""
    mac: str = ""
    """The MAC that the pod's annotations say, where theirs counts; "" for none."""
    addresses: ResultAddresses = EMPTY
    """The addresses that the pod's annotations say, for a network that has them from there."""
    limits: Limits = UNLIMITED
    """What network, runtime and pod limit the port to."""
    mirrors: tuple[MirrorSource, ...] = ()
    """The mirrors of which network or pod make the port a source."""
    terms: PortTerms = NO_TERMS
    """Where both are from."""


@dataclass(frozen=True, kw_only=True)
class SocketFacts(Facts):
    """What a vhost-user interface needs beside that."""

    place: SocketPlace
    mapped_dir: str
    """The directory as the container sees it, with a trailing slash."""
    short_dir: str
    mount_always: bool
    ovs_sockdir: str
    noted: bool
    """Whether the pod's annotations are written; otherwise a file in its directory is."""
    kubeconfig: str = ""
    allocation: Allocation | None = None
    device_info_file: str = ""
    """Where the device-info file is, below `device_info_dir`; "" when none was asked for. `allocation` was in it."""
    device_info_dir: str = ""
    joined: JoinableDevice | None = None
    """The claim's device whose port the interface is; None for a port of its own."""


@dataclass(frozen=True, kw_only=True)
class LinkFacts(Facts):
    """What a kernel link needs beside that."""

    switch_netns: str
    """Path of the network namespace in which ovs-vswitchd opens its ports; "" for this process's own."""
    opened_as: KernelPort
    """How OVS is to open the host end: what the network says, else the node's setting, "auto" resolved."""
    mtu: int
    """Bytes: the network's, else the node's."""
    route_mtu: int = 0
    """Bytes; what routes have that say none, 0 for that of the link."""
    node_addresses: tuple[str, ...] = ()
    """This node's own addresses without prefix length; found only for a network that asks for routes to them."""
    node_services: tuple[str, ...] = ()
    """The network of Services that the node's file says; read only for a network that asks for a route to it."""
