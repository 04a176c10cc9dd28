"""A port of the switch, and the reference by which one is deleted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Final, Literal, get_args

from userspace_cni.attachment.steps.step import Step
from userspace_cni.base.limits import UNLIMITED, Limits, Netem, Rate
from userspace_cni.base.mirrors import MirrorSource
from userspace_cni.base.port_kinds import Datapath, KernelPort
from userspace_cni.base.stages import Stage
from userspace_cni.base.vlans import Vlan

OWNER: Final = "userspace-cni"
"""Value of the mark `owner` on every row that we make."""
MARK_SCHEMA: Final = "1"
_BETWEEN: Final = ","
"""No name of a mirror has it."""


def port_name(container_id: str, ifname: str) -> str:
    """Name of the OVS port of an attachment, and of its socket unless `host.vhost.socketfile` gives one."""
    return f"{container_id[:12]}-{ifname}"


def owner_marks(container_id: str, network: str, ifname: str) -> dict[str, str]:
    """The marks by which a row of OVSDB is recognised as this attachment's."""
    return {"owner": OWNER, "schema": MARK_SCHEMA, "container-id": container_id, "network": network, "ifname": ifname}


@dataclass(frozen=True)
class VhostUserClient:
    """The application makes the socket and OVS connects to it. `server_path`: that socket as OVS sees it; never empty."""

    type: ClassVar[Literal["dpdkvhostuserclient"]] = "dpdkvhostuserclient"
    switch_makes_socket: ClassVar[bool] = False
    server_path: str
    mtu: int | None = None


@dataclass(frozen=True)
class VhostUserServer:
    """OVS makes the socket, named like the port, and the application connects to it."""

    type: ClassVar[Literal["dpdkvhostuser"]] = "dpdkvhostuser"
    switch_makes_socket: ClassVar[bool] = True
    mtu: int | None = None


@dataclass(frozen=True)
class HostEnd:
    """The host end of a pod's veth, which has the port's name; `opened_as`: how OVS opens it."""

    switch_makes_socket: ClassVar[bool] = False
    opened_as: KernelPort
    mtu: int | None = None

    @property
    def type(self) -> str:
        """Interface.type."""
        return "dpdk" if self.opened_as.startswith("af_") else self.opened_as


@dataclass(frozen=True)
class Internal:
    """A link of the node itself, which OVS makes: a tap of the port's name on a netdev bridge. `mac` "" is OVS's choice."""

    type: ClassVar[Literal["internal"]] = "internal"
    switch_makes_socket: ClassVar[bool] = False
    mac: str = ""
    mtu: int | None = None


PortInterface = VhostUserClient | VhostUserServer | HostEnd | Internal
"""What is behind a port. `type` is Interface.type, `mtu` Interface.mtu_request of ovs-vswitchd.conf.db(5). `switch_makes_socket`:
at a path that ends in the port's name, which has to be free."""


@dataclass(frozen=True)
class Terms:
    """Where a port's limits and its part in mirrors are from, by which later changes of the pod's annotations are judged.

    `runtime` and `noted`: what the runtime and the pod's annotations said of limits at ADD; `network` and `mirrors`: what the
    network says.
    """

    runtime: Limits = UNLIMITED
    noted: Limits = UNLIMITED
    network: Limits = UNLIMITED
    mirrors: tuple[MirrorSource, ...] = ()


NO_TERMS: Final = Terms()


@dataclass(frozen=True)
class StoredPort(Step):
    """The stored form of a plain vhost-user port, or of a reference. It is the same in all releases: each reads others' records.

    A client port with neither path nor MAC is never made: it is the stored form of a reference.
    """

    kind: ClassVar[str] = "port"
    bridge: str
    name: str
    interface_type: Literal["dpdkvhostuserclient", "dpdkvhostuser"]
    server_path: str = ""
    tag: int | None = None
    trunks: tuple[int, ...] = ()
    vlan_mode: str = ""
    mtu: int | None = None
    mac: str = ""
    marks: Mapping[str, str] = field(default_factory=dict)
    foreign_bridge: bool = False
    legacy: bool = False

    def restored(self) -> OvsPort | PortRef:
        """The port or reference of which this is the stored form."""
        is_client = self.interface_type == VhostUserClient.type
        if self.legacy or (is_client and not self.server_path and not self.mac):
            return PortRef(self.name, self.bridge, self.marks, self.legacy)
        interface = VhostUserClient(self.server_path, self.mtu) if is_client else VhostUserServer(self.mtu)
        vlan = Vlan(self.tag, self.trunks, self.vlan_mode)
        return OvsPort(self.bridge, self.name, interface, vlan, self.mac, self.marks, self.foreign_bridge)


@dataclass(frozen=True)
class PortRef(Step):
    """A port that is only undone, by its name; `bridge`: the port's bridge, "" while that is not known.

    The port is deleted if its row has these marks. `legacy`: the plugin that this one replaces made the row, which has no marks
    and is deleted if it is a vhost-user port.
    """

    kind: ClassVar[str] = "port"
    stored_as: ClassVar[type[Step] | None] = StoredPort
    stage: ClassVar[Stage] = "ovs"
    postponable: ClassVar[bool] = True
    name: str
    bridge: str = ""
    marks: Mapping[str, str] = field(default_factory=dict)
    legacy: bool = False

    @property
    def ref(self) -> PortRef:
        """Itself."""
        return self

    @property
    def switch_makes_socket(self) -> bool:
        """It may: of a reference that is not known."""
        return True

    @property
    def summary(self) -> str:
        """Its name and bridge."""
        return f"{self.name} on bridge {self.bridge or '(wherever it is)'}"

    def stored(self) -> StoredPort:
        """The stored form, with the fields that are known."""
        return StoredPort(self.bridge, self.name, VhostUserClient.type, marks=self.marks, legacy=self.legacy)


@dataclass(frozen=True)
class OvsPort(Step):
    """A port with its interface, on a bridge made on demand, in one OVSDB transaction.

    `mac` goes to external_ids:attached-mac, `marks` are the owner marks of Interface and Port. `foreign_bridge`: an administrator
    made the bridge, and we never make it again. `limits` are those that the switch enforces; `mirrors` those of which the port is
    a source, `mirror_outputs` those whose output it is; all of them belong to the port, and come and go with it.
    `terms`: where they are from.
    """

    kind: ClassVar[str] = "port"
    stored_as: ClassVar[type[Step] | None] = StoredPort
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
    terms: Terms = NO_TERMS

    @property
    def thing(self) -> str:
        """The port."""
        return self.name

    @property
    def ref(self) -> PortRef:
        """The reference by which it is deleted."""
        return PortRef(self.name, self.bridge, self.marks)

    @property
    def switch_makes_socket(self) -> bool:
        """Whether OVS makes the socket."""
        return self.interface.switch_makes_socket

    @property
    def server_path(self) -> str:
        """The path of the application's socket, as OVS is given it; "" where OVS makes the socket."""
        return self.interface.server_path if isinstance(self.interface, VhostUserClient) else ""

    @property
    def summary(self) -> str:
        """Its name and bridge."""
        return self.ref.summary

    def stored(self) -> Step:
        """The stored form, with every field: the plain one where it suffices, which earlier releases read."""
        interface = self.interface
        if (
            isinstance(interface, HostEnd | Internal)
            or self.limits
            or self.mirrors
            or self.mirror_outputs
            or self.terms != NO_TERMS
        ):
            return FullPort.of(self)
        return StoredPort(
            bridge=self.bridge,
            name=self.name,
            interface_type=interface.type,
            server_path=self.server_path,
            tag=self.vlan.tag,
            trunks=self.vlan.trunks,
            vlan_mode=self.vlan.mode,
            mtu=interface.mtu,
            mac=self.mac,
            marks=self.marks,
            foreign_bridge=self.foreign_bridge,
        )


@dataclass(frozen=True)
class FullPort(Step):
    """The stored form of a port with what a plain one lacks: a kernel link, limits, a part in mirrors.

    `interface`, `limits` and `mirrors` have the fields of the dataclasses for which they stand. `mirror_output`: all in one
    text, for earlier releases know one and read a text.
    """

    kind: ClassVar[str] = "full-port"
    bridge: str
    name: str
    datapath: Datapath
    interface: Mapping[str, Any]
    tag: int | None
    trunks: tuple[int, ...]
    vlan_mode: str
    mac: str
    marks: Mapping[str, str]
    foreign_bridge: bool
    limits: Mapping[str, Any]
    mirrors: tuple[Mapping[str, Any], ...]
    mirror_output: str
    terms: Mapping[str, Any]

    @classmethod
    def of(cls, port: OvsPort) -> FullPort:
        """The stored form of that port."""
        return cls(
            bridge=port.bridge,
            name=port.name,
            datapath=port.datapath,
            interface={"kind": type(port.interface).__name__, **asdict(port.interface)},
            tag=port.vlan.tag,
            trunks=port.vlan.trunks,
            vlan_mode=port.vlan.mode,
            mac=port.mac,
            marks=port.marks,
            foreign_bridge=port.foreign_bridge,
            limits=asdict(port.limits),
            mirrors=tuple(map(asdict, port.mirrors)),
            mirror_output=_BETWEEN.join(port.mirror_outputs),
            terms=asdict(port.terms),
        )

    def restored(self) -> OvsPort:
        """The port of which this is the stored form. Raises TypeError, ValueError or KeyError for what is none."""
        given, terms = dict(self.interface), dict(self.terms)
        kinds: Mapping[str, type[PortInterface]] = {each.__name__: each for each in get_args(PortInterface)}
        return OvsPort(
            bridge=self.bridge,
            name=self.name,
            interface=kinds[given.pop("kind")](**given),
            vlan=Vlan(self.tag, self.trunks, self.vlan_mode),
            mac=self.mac,
            marks=self.marks,
            foreign_bridge=self.foreign_bridge,
            datapath=self.datapath,
            limits=_limits(self.limits),
            mirrors=_sources(self.mirrors),
            mirror_outputs=tuple(filter(None, self.mirror_output.split(_BETWEEN))),
            terms=Terms(mirrors=_sources(terms.pop("mirrors")), **{name: _limits(each) for name, each in terms.items()}),
        )


def _limits(raw: Mapping[str, Any]) -> Limits:
    rates = {key: Rate(**value) for key in ("to_pod", "from_pod") if (value := raw[key])}
    return Limits(**rates, netem=Netem(**raw["netem"]) if raw["netem"] else None)


def _sources(raw: Iterable[Mapping[str, Any]]) -> tuple[MirrorSource, ...]:
    return tuple(MirrorSource(**each) for each in raw)
