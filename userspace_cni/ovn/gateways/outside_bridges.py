"""The bridge of this chassis that leads to the network outside, as switch and kernel have it now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv6Interface, ip_address
from typing import TYPE_CHECKING, Final

from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import InvalidConfig, NameTaken
from userspace_cni.base.root import HostRoot
from userspace_cni.ovn.gateways.gateway_notes import AskedGateway
from userspace_cni.switch.interfaces import map_interfaces_to_bridges

if TYPE_CHECKING:
    from userspace_cni.switch.ovsdb.switch_database import SwitchClient

_GENEVE: Final = {4: 58, 6: 78}
"""Bytes that it takes of a frame, by version of IP of the tunnel."""
_USERSPACE: Final = "netdev"


@dataclass(frozen=True)
class OutsideBridge:
    """A bridge of the userspace datapath. `mac`: its local port's; `addresses`: of that port and of the NIC that was named.

    `routers`: the next hops of the node's default routes over it.
    """

    name: str
    mac: str
    addresses: tuple[str, ...]
    routers: tuple[str, ...] = ()

    def next_hop(self, version: int) -> str:
        """The router of this version of IP, "" for none."""
        return next((each for each in self.routers if ip_address(each).version == version), "")


@dataclass(frozen=True)
class OutsideLook:
    """How switch and kernel of this node are looked at."""

    switch: SwitchClient
    switch_netns: str
    root: HostRoot
    deadline: Deadline

    def find_bridge(self, bridge: str, nic: str) -> OutsideBridge:
        """The bridge of that name, else the one that the NIC is on. Raises NameTaken, and UserspaceError where one is silent."""
        from userspace_cni.host.node_net import nics

        on_bridge = map_interfaces_to_bridges(self.switch, self.deadline)
        name = bridge or on_bridge.get(nic, "")
        if not name:
            raise NameTaken(f"{nic} is on no bridge of Open vSwitch", f"userspace-cni nic-to-bridge {nic} --persist makes one")
        if nic and bridge and on_bridge.get(nic) != bridge:
            raise NameTaken(f"{nic} is on {on_bridge.get(nic) or 'no bridge'}, and not on {bridge}", "give one of them")
        datapaths = self.switch.read(
            lambda session: session.index.datapaths, frozenset(), "looking at the switch's bridges", self.deadline
        )
        if name not in datapaths:
            raise NameTaken(f"there is no bridge {name}", "userspace-cni nic-to-bridge NIC --persist makes one")
        if datapaths[name] != _USERSPACE:
            raise NameTaken(
                f"bridge {name} has the datapath {datapaths[name] or 'system'}",
                f"OVN's bridge has {_USERSPACE}, and no link leads from one to the other: give a bridge of {_USERSPACE}",
            )
        links = nics.look_at_all([each for each in (name, nic) if each], self.switch_netns, self.root)
        addresses = [address for each in links.values() for address in (*each.shown_addresses, *each.passing)]
        own = links.get(name)
        routers = [each for route in own.routes if route.is_default for each in route.gateways] if own else []
        return OutsideBridge(name, own.mac if own else "", tuple(addresses), tuple(routers))

    def find_mtu(self, tunnel: str) -> int:
        """The largest packet that tunnels with this end carry; 0 where no bridge of the switch has the address."""
        from userspace_cni.host.node_net import nics

        bridges = set(map_interfaces_to_bridges(self.switch, self.deadline).values())
        for each in nics.look_at_all(bridges, self.switch_netns, self.root).values():
            if tunnel in {address.partition("/")[0] for address in each.shown_addresses}:
                return each.mtu - _GENEVE[ip_address(tunnel).version]
        return 0


def require_own_address(asked: AskedGateway, bridge: OutsideBridge) -> None:
    """Raise InvalidConfig where the node has an address that is to be the gateway's alone, or lacks one that is to be shared."""
    there = {each.partition("/")[0] for each in bridge.addresses}
    own: Sequence[IPv4Interface | IPv6Interface] = asked.addresses
    for each in own:
        if asked.shared and str(each.ip) not in there:
            raise InvalidConfig(
                f"--ip has {each}, which bridge {bridge.name} does not have", "with --shared it is the node's own"
            )
        if not asked.shared and str(each.ip) in there:
            raise InvalidConfig(
                f"--ip has {each}, which the node itself has on {bridge.name}", "give another address, or --shared for the node's"
            )
