"""Provider networks: a bridge of the node with an uplink, as settings and objects wish them for this node. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

BondMode = Literal["active-backup", "balance-slb", "balance-tcp"]
"""Port.bond_mode of ovs-vswitchd.conf.db(5)."""
Lacp = Literal["", "active", "passive"]
MoveAddresses = Literal["no", "yes", "primary"]
"""Whether the NIC's addresses move to the bridge. "primary": also those of the NIC that has the node's default route."""
NicPort = Literal["system", "afxdp"]
"""How OVS opens a kernel NIC."""

BRIDGE_PREFIX: Final = "br-"
NAME_MAX: Final = 12
"""Characters of a name: `br-<name>` is a kernel link, too."""
PCI: Final = "pci:"
VDEV: Final = "vdev:"
"""What an interface begins with that DPDK opens; any other is a kernel NIC's name."""


@dataclass(frozen=True)
class Bond:
    """Several interfaces as one uplink, bonded by OVS. `updelay_ms` as Port.bond_updelay."""

    members: tuple[str, ...]
    mode: BondMode = "active-backup"
    lacp: Lacp = ""
    updelay_ms: int = 0


@dataclass(frozen=True)
class ProviderNetwork:
    """What this node is to have: bridge `br-<name>` with an uplink.

    `interface`: a kernel NIC's name, `pci:ADDRESS`, or `vdev:DEVARGS`; "" where there is a `bond`. `port`: how a kernel NIC is
    opened. `give_back_after_s`: moved addresses go back to the NIC when ovs-vswitchd is gone for so long. `vlans`: what the
    uplink carries beside untagged frames; () for all. `vlan_interfaces`: sub-interfaces of the NIC, as eth0.10, that become
    internal ports of the bridge. `mtu`, `rx_queues`: 0 for what the NIC has, and one. `said_by`: where the wish stands, for
    messages.
    """

    name: str
    interface: str = ""
    bond: Bond | None = None
    port: NicPort = "system"
    move_addresses: MoveAddresses = "no"
    give_back_after_s: float = 10.0
    vlans: tuple[int, ...] = ()
    vlan_interfaces: tuple[str, ...] = ()
    mtu: int = 0
    rx_queues: int = 0
    said_by: str = field(default="", compare=False)

    @property
    def bridge(self) -> str:
        """Name of its bridge."""
        return f"{BRIDGE_PREFIX}{self.name}"

    @property
    def interfaces(self) -> tuple[str, ...]:
        """The uplink's interfaces: one, or the bond's members."""
        return self.bond.members if self.bond else (self.interface,)
