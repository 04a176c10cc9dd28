"""A port of the switch, and the reference by which one is deleted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Literal

from userspace_cni.attachment.steps.step import Step
from userspace_cni.base.limits import UNLIMITED, Limits
from userspace_cni.base.mirrors import MirrorSource
from userspace_cni.base.port_kinds import Datapath, KernelPort, PortKind
from userspace_cni.base.stages import Stage
from userspace_cni.base.vlans import Vlan

Role = Literal["client", "server", ""]
Maker = Literal["us", "switch", ""]
EVERYTHING: Final = "*"
"""What a mirror shows that shows every frame of its bridge: no port has this name."""


def port_name(container_id: str, ifname: str) -> str:
    """Name of the OVS port of an attachment, and of its socket unless `host.vhost.socketfile` gives one."""
    return f"{container_id[:12]}-{ifname}"


@dataclass(frozen=True)
class VhostUserClient:
    """The application makes the socket and OVS connects to it. `server_path`: that socket as OVS sees it; never empty."""

    type: ClassVar[Literal["dpdkvhostuserclient"]] = "dpdkvhostuserclient"
    opened_as: ClassVar[str] = "dpdkvhostuserclient"
    role: ClassVar[Role] = "client"
    limited_as: ClassVar[PortKind] = "vhostuser"
    polices: ClassVar[bool] = True
    link_by: ClassVar[Maker] = ""
    server_path: str
    mtu: int | None = None


@dataclass(frozen=True)
class VhostUserServer:
    """OVS makes the socket, named like the port, and the application connects to it."""

    type: ClassVar[Literal["dpdkvhostuser"]] = "dpdkvhostuser"
    opened_as: ClassVar[str] = "dpdkvhostuser"
    role: ClassVar[Role] = "server"
    server_path: ClassVar[str] = ""
    limited_as: ClassVar[PortKind] = "vhostuser"
    polices: ClassVar[bool] = True
    link_by: ClassVar[Maker] = ""
    mtu: int | None = None


@dataclass(frozen=True)
class HostEnd:
    """The host end of a pod's veth, which has the port's name."""

    role: ClassVar[Role] = ""
    server_path: ClassVar[str] = ""
    link_by: ClassVar[Maker] = "us"
    opened_as: KernelPort
    mtu: int | None = None

    @property
    def type(self) -> str:
        return "dpdk" if self.polices else self.opened_as

    @property
    def limited_as(self) -> PortKind:
        return self.opened_as

    @property
    def polices(self) -> bool:
        """Only a port of DPDK's: for any other the switch takes its copy of a frame before the kernel's traffic control does."""
        return self.opened_as.startswith("af_")


@dataclass(frozen=True)
class Internal:
    """A link of the node itself, which OVS makes: a tap of the port's name on a netdev bridge. `mac` "" is OVS's choice."""

    type: ClassVar[Literal["internal"]] = "internal"
    opened_as: ClassVar[str] = "internal"
    role: ClassVar[Role] = ""
    server_path: ClassVar[str] = ""
    limited_as: ClassVar[PortKind] = "system"
    polices: ClassVar[bool] = True
    link_by: ClassVar[Maker] = "switch"
    mac: str = ""
    mtu: int | None = None


@dataclass(frozen=True)
class Patch:
    """An end of a patch to another bridge. `peer`: the port at the other end, which is one of these, too.

    Nothing limits it, as a port of type afxdp.
    """

    type: ClassVar[Literal["patch"]] = "patch"
    opened_as: ClassVar[str] = "patch"
    role: ClassVar[Role] = ""
    server_path: ClassVar[str] = ""
    limited_as: ClassVar[PortKind] = "afxdp"
    polices: ClassVar[bool] = False
    link_by: ClassVar[Maker] = ""
    peer: str
    mtu: int | None = None


PortInterface = VhostUserClient | VhostUserServer | HostEnd | Internal | Patch
"""What is behind a port. `type` is Interface.type, `mtu` Interface.mtu_request of ovs-vswitchd.conf.db(5).

`opened_as`: what people are shown, for two ways of opening a link are of one type. `role`: OVS's part at a vhost-user socket, ""
where there is none; `server_path`: that socket as OVS sees it, where the application makes it, else "". `limited_as`: the limits
of which kind are possible. `polices`: whether the switch can limit what comes from behind the port. `link_by`: who makes the link
of the port's name in the switch's network namespace, we before the port or the switch with it; "" where there is none."""


@dataclass(frozen=True)
class LogicalPort:
    """The port as OVN knows it. `name`: of its logical port; `version`: the UID of the pod or VM, which tells a stale port of the
    same name from it, "" where that is not known. `ids`: further external_ids that another control plane knows its ports by.

    `waits`: it is there when ovn-controller has installed it, else when its interface is open.
    """

    name: str
    version: str = ""
    ids: Mapping[str, str] = field(default_factory=dict)
    waits: bool = True


@dataclass(frozen=True)
class PortTerms:
    """Where a port's limits and its part in mirrors are from, by which later changes of the pod's annotations are judged.

    `runtime` and `noted`: what the runtime and the pod's annotations said of limits at ADD; `network` and `mirrors`: what the
    network says. `by_ovn`: the limits are rows of OVN's, which the controller writes: the port has none of its own.
    """

    runtime: Limits = UNLIMITED
    noted: Limits = UNLIMITED
    network: Limits = UNLIMITED
    mirrors: tuple[MirrorSource, ...] = ()
    by_ovn: bool = False


NO_TERMS: Final = PortTerms()


@dataclass(frozen=True)
class PortRef(Step):
    """A port that is only undone, by its name; `bridge`: the port's bridge, "" while that is not known.

    The port is deleted if its row has these marks. `legacy`: the plugin that this one replaces made the row, which has no marks
    and is deleted if it is a vhost-user port.
    """

    kind: ClassVar[str] = "port-ref"
    stage: ClassVar[Stage] = "ovs"
    postponable: ClassVar[bool] = True
    name: str
    bridge: str = ""
    marks: Mapping[str, str] = field(default_factory=dict)
    legacy: bool = False

    @property
    def ref(self) -> PortRef:
        return self

    @property
    def switch_makes_socket(self) -> bool:
        """True, because the port's kind is not known."""
        return True

    @property
    def summary(self) -> str:
        return f"{self.name} on bridge {self.bridge or '(wherever it is)'}"


@dataclass(frozen=True)
class OvsPort(Step):
    """A port with its interface, on a bridge made on demand, in one OVSDB transaction.

    `mac` goes to external_ids:attached-mac, `marks` are the owner marks of Interface and Port. `foreign_bridge`: an administrator
    made the bridge, and we never make it again. `limits` are those that the switch enforces; `mirrors` those of which the port is
    a source, `mirror_outputs` those whose output it is; all of them belong to the port, and come and go with it.
    `shows`: what these show beside the ports that ask for it: a port of that name, EVERYTHING, or "" for nothing.
    `terms`: where limits and mirrors are from. `logical`: what OVN knows of it, None for a port that is not OVN's.
    """

    kind: ClassVar[str] = "port"
    stage: ClassVar[Stage] = "ovs"
    postponable: ClassVar[bool] = True
    bridge: str
    name: str
    interface: PortInterface
    vlan: Vlan = field(default_factory=Vlan)
    mac: str = ""
    marks: Mapping[str, str] = field(default_factory=dict)
    foreign_bridge: bool = False
    datapath: Datapath = "netdev"
    limits: Limits = UNLIMITED
    mirrors: tuple[MirrorSource, ...] = ()
    mirror_outputs: tuple[str, ...] = ()
    shows: str = ""
    terms: PortTerms = NO_TERMS
    logical: LogicalPort | None = None

    def in_boot(self, boot_id: str) -> OvsPort:
        """The port with the mark of that boot."""
        return replace(self, marks={**self.marks, "boot-id": boot_id})

    @property
    def thing(self) -> str:
        return self.name

    @property
    def links(self) -> tuple[str, ...]:
        return (self.name,) if self.interface.link_by else ()

    @property
    def reported(self) -> Mapping[str, Any]:
        return {"bridge": self.bridge}

    @property
    def ref(self) -> PortRef:
        return PortRef(self.name, self.bridge, self.marks)

    @property
    def switch_makes_socket(self) -> bool:
        """Whether OVS makes a socket, at a path that ends in the port's name, which has to be free."""
        return self.interface.role == "server"

    @property
    def server_path(self) -> str:
        """The path of the application's socket, as OVS is given it; "" for a port that connects to none."""
        return self.interface.server_path

    @property
    def summary(self) -> str:
        return self.ref.summary
