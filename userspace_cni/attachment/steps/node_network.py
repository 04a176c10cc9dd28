"""What the node itself is to have: a bridge with an uplink, moved addresses, a gateway's link, rules of its firewall.

They are steps of node attachments: a spec asks for them, not a runtime. `switch_netns` is the path of the network namespace in
which ovs-vswitchd opens its ports, which is the node's own: "" for that of this process. `store` is the id of our state
directory, which names what is ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from userspace_cni.attachment.steps.kept import KeptAddress, KeptRoute
from userspace_cni.attachment.steps.step import Step
from userspace_cni.base.port_kinds import Datapath
from userspace_cni.base.stages import Stage


@dataclass(frozen=True)
class NodeBridge(Step):
    """A bridge of our own for the node's uplink. `mac`: the hardware address of its local port, "" for OVS's choice.

    `mtu`: the local port's, 0 for OVS's choice. `marks` are those of its row, of kind node.
    """

    kind: ClassVar[str] = "node-bridge"
    stage: ClassVar[Stage] = "ovs"
    name: str
    mac: str = ""
    mtu: int = 0
    datapath: Datapath = "netdev"
    marks: Mapping[str, str] = field(default_factory=dict)

    @property
    def thing(self) -> str:
        return self.name

    @property
    def links(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def reported(self) -> Mapping[str, Any]:
        return {"bridge": self.name, "mtu": self.mtu}

    @property
    def summary(self) -> str:
        return f"bridge {self.name}"


@dataclass(frozen=True)
class UplinkInterface:
    """One interface of an uplink's port.

    `type`: system, afxdp or dpdk, which has `devargs`. `index`: of the kernel link at planning time, so that a link made anew
    gives another step. Undo restores two settings of a kernel NIC: `offloads`, those of gro and lro that were on (type system
    turns them off), and `mtu`; None means unknown or unchanged. `polled`: "later" for a system interface that a PolledUplink
    may have opened as afxdp since, "now" for the PolledUplink's own. `away`: a device of DPDK that is missing now; it has no
    row, and DPDK must have released it. `moves`: the addresses of the NIC are to move to the bridge.
    """

    name: str
    type: str
    devargs: str = ""
    polled: Literal["", "later", "now"] = ""
    index: int | None = None
    offloads: tuple[str, ...] | None = None
    mtu: int | None = None
    away: bool = False
    moves: bool = False


@dataclass(frozen=True)
class UplinkPort(Step):
    """The port of a bridge's uplink, with one interface, or several that are bonded.

    `trunks`: () for all VLANs. `bond_mode`, `lacp` and `updelay_ms` are for several. `mtu` 0 is not asked for; `rx_queues` 0
    neither.
    """

    kind: ClassVar[str] = "uplink-port"
    stage: ClassVar[Stage] = "ovs"
    bridge: str
    name: str
    interfaces: tuple[UplinkInterface, ...]
    trunks: tuple[int, ...] = ()
    bond_mode: str = ""
    lacp: str = ""
    updelay_ms: int = 0
    mtu: int = 0
    rx_queues: int = 0
    switch_netns: str = ""
    marks: Mapping[str, str] = field(default_factory=dict)

    @property
    def thing(self) -> str:
        """The port, and what its interfaces open: what leaves a bond gets its settings back, or is let go by DPDK."""
        return " ".join([self.name, *sorted(each.devargs or each.name for each in self.interfaces)])

    @property
    def present(self) -> tuple[UplinkInterface, ...]:
        """Those of its interfaces that the port has: the others are away."""
        return tuple(each for each in self.interfaces if not each.away)

    @property
    def devices(self) -> Mapping[str, bool]:
        """The addresses of its PCI devices, each with whether the port has it."""
        found = ((each.devargs.partition(",")[0], not each.away) for each in self.interfaces)
        return {device: present for device, present in found if ":" in device}  # a virtual device's name has none

    @property
    def links(self) -> tuple[str, ...]:
        """Those of its interfaces; one of type dpdk has none of that name."""
        return tuple(each.name for each in self.interfaces)

    @property
    def reported(self) -> Mapping[str, Any]:
        """Of an interface what it is called where it comes from: a kernel NIC's name, or DPDK's arguments of a device."""
        opened = ",".join(each.devargs or each.name for each in self.interfaces)
        vlans = [each for each in self.trunks if each]
        return {"interface": opened, "bridge": self.bridge, "mtu": self.mtu, "vlans": vlans}

    @property
    def summary(self) -> str:
        return f"uplink {self.name} on bridge {self.bridge}"


@dataclass(frozen=True)
class PolledUplink(UplinkPort):
    """Changes the interface of an uplink's living port from system to afxdp, so that it is polled.

    AF_XDP takes all frames from the node's stack. So this is a step of its own: it comes after the move of the NIC's addresses
    to the bridge, and is undone before they move back. A dead ovs-vswitchd takes no frames; then the addresses move back first.
    Its `interfaces` have type afxdp and `polled` "now": the type changes in place.
    """

    kind: ClassVar[str] = "polled-uplink"
    from_switch: ClassVar[bool] = True
    leaves_dead_switch: ClassVar[bool] = True
    takes_nic: ClassVar[bool] = True

    @property
    def summary(self) -> str:
        return f"uplink {self.name} polled by AF_XDP"


@dataclass(frozen=True)
class AddressMove(Step):
    """Addresses and routes of a NIC, moved to its bridge; meanwhile the node's stack receives nothing from the NIC itself.

    `addresses` and `routes` are those of the NIC, as the kernel showed them before the first of them moved; `ifindex` is the
    NIC's; `boot_id` is the boot in which they were read: in another boot they must not be used. `next_hops`: one of them must
    answer after the move, because one did before it; () if none did.
    """

    kind: ClassVar[str] = "address-move"
    stage: ClassVar[Stage] = "link"
    from_switch: ClassVar[bool] = True
    keeps_earlier: ClassVar[bool] = True
    leaves_dead_switch: ClassVar[bool] = True
    nic: str
    ifindex: int
    bridge: str
    store: str
    boot_id: str
    addresses: tuple[KeptAddress, ...] = ()
    routes: tuple[KeptRoute, ...] = ()
    next_hops: tuple[str, ...] = ()
    cut: bool = True
    switch_netns: str = ""

    @property
    def thing(self) -> str:
        return f"{self.nic} {self.bridge}"

    @property
    def links(self) -> tuple[str, ...]:
        """The NIC, and the bridge's local port."""
        return self.nic, self.bridge

    @property
    def summary(self) -> str:
        shown = ", ".join(each.shown for each in self.addresses)
        return f"{shown or 'no addresses'} of {self.nic} on {self.bridge}"


@dataclass(frozen=True)
class NodeLink(Step):
    """An internal port's link as the node uses it: up, with these addresses, which carry our protocol number.

    `addresses` are with prefix length.
    """

    kind: ClassVar[str] = "node-link"
    stage: ClassVar[Stage] = "link"
    from_switch: ClassVar[bool] = True
    name: str
    addresses: tuple[str, ...]
    switch_netns: str = ""

    @property
    def thing(self) -> str:
        return self.name

    @property
    def links(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def reported(self) -> Mapping[str, Any]:
        return {"interface": self.name}

    @property
    def summary(self) -> str:
        return f"{self.name} with {', '.join(self.addresses)}"


@dataclass(frozen=True)
class NodeRoute(Step):
    """A route of the node's main table to `dst` by `gw`, with our protocol number; by whichever link leads to `gw`."""

    kind: ClassVar[str] = "node-route"
    stage: ClassVar[Stage] = "link"
    from_switch: ClassVar[bool] = True
    dst: str
    gw: str
    switch_netns: str = ""

    @property
    def thing(self) -> str:
        return self.dst

    @property
    def summary(self) -> str:
        return f"to {self.dst} by {self.gw}"


@dataclass(frozen=True)
class PolicyRoute(Step):
    """What comes from `sources` and has no way of its own leaves by `via`: a default route in the routing table `table`, the only
    one there, and policy rules.

    A rule of the priority before `priority` has the main table looked at first, but for its default route; one of `priority` has
    `table` looked at. `link` is the one by which `via` is reached, "" for the one of the main table's route to it.
    """

    kind: ClassVar[str] = "policy-route"
    stage: ClassVar[Stage] = "link"
    from_switch: ClassVar[bool] = True
    sources: tuple[str, ...]
    via: str
    table: int
    priority: int
    link: str = ""
    switch_netns: str = ""

    @property
    def thing(self) -> str:
        return str(self.table)

    @property
    def summary(self) -> str:
        return f"from {', '.join(self.sources)} by {self.via}"


@dataclass(frozen=True)
class MirrorOutput(Step):
    """A port of others on the bridge that is the output of a mirror of ours; a port that we make has its mirrors with itself.

    `shows`: as that of OvsPort. `marks` are those of the mirror's row, of kind node.
    """

    kind: ClassVar[str] = "mirror-output"
    stage: ClassVar[Stage] = "ovs"
    bridge: str
    port: str
    name: str
    shows: str = ""
    marks: Mapping[str, str] = field(default_factory=dict)

    @property
    def thing(self) -> str:
        return f"{self.name} {self.bridge}"

    @property
    def mirror_outputs(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def summary(self) -> str:
        return f"mirror {self.name} of bridge {self.bridge} to port {self.port}"


@dataclass(frozen=True)
class GatewayFlows(Step):
    """The flows of a bridge that OVN's gateway router and the node share. They follow the switch and the Services: who keeps them
    writes them, as long as this step is recorded. `number`: of their cookies.
    """

    kind: ClassVar[str] = "shared-gateway"
    stage: ClassVar[Stage] = "ovs"
    from_switch: ClassVar[bool] = True
    keeps_earlier: ClassVar[bool] = True
    bridge: str
    interface: str
    patch: str
    zone: int
    number: int

    @property
    def thing(self) -> str:
        return self.bridge

    @property
    def summary(self) -> str:
        return f"flows on bridge {self.bridge} by which OVN shares {self.interface or 'its NIC'}"


@dataclass(frozen=True)
class RuntimeNetwork(Step):
    """The file by which the node's runtimes know a network, in their directory. `content` carries the mark of `store`.

    Of one directory there is one at a time: a file of another name takes its place. `instead_of`: names of files of ours that go
    once it is there.
    """

    kind: ClassVar[str] = "runtime-network"
    abridged: ClassVar[tuple[str, ...]] = ("content",)
    directory: str
    name: str
    content: str
    store: str
    instead_of: tuple[str, ...] = ()

    @property
    def thing(self) -> str:
        return self.directory

    @property
    def path(self) -> str:
        return f"{self.directory}/{self.name}"

    @property
    def summary(self) -> str:
        return self.path


@dataclass(frozen=True)
class Translation(Step):
    """Our nftables table of family inet, of all gateways.

    Each of `gateways` has `port`, its link; `subnets`; `masquerade`, whether what leaves them gets the node's address; `kept`,
    destinations for which it does not; and `clamp_mss`. Lists are lists, for that is how a record has them.
    """

    kind: ClassVar[str] = "translation"
    stage: ClassVar[Stage] = "link"
    store: str
    gateways: tuple[Mapping[str, Any], ...]
    switch_netns: str = ""

    @property
    def summary(self) -> str:
        return f"address translation of {', '.join(str(each.get('port')) for each in self.gateways)}"
