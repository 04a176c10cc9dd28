"""What a pod's port must leave as it is on its bridge: MAC, addresses and MTU of the node's own links there. Pure.

What a pod sends is its own affair. But what it asks for is refused where it would take the place of a gateway, or where Open
vSwitch would change another link because of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_interface
from typing import Final

from userspace_cni.attachment.facts import NodePort
from userspace_cni.attachment.steps import OvsPort
from userspace_cni.base.errors import InvalidConfig
from userspace_cni.cni.result import Addresses

_USUAL_MTU: Final = 1500
"""Of a port for which none is asked, and of a link on a bridge without other ports."""


def require_apart(port: OvsPort, addresses: Addresses, node_ports: Iterable[NodePort]) -> None:
    """Raise InvalidConfig if the port would take MAC or address of one of these links, or change its MTU."""
    asked = {ip_interface(each["address"]).ip for each in addresses.ips}
    for link in node_ports:
        where = f"the node's own link {link.name} on bridge {port.bridge}"
        if link.vlan == (port.vlan.tag or 0):
            if port.mac and port.mac.lower() == link.mac.lower():
                raise InvalidConfig(
                    f"MAC {port.mac} is that of {where}", "frames to it would go to the pod: give the pod another"
                )
            if taken := asked & {ip_interface(each).ip for each in link.addresses}:
                raise InvalidConfig(
                    f"address {min(map(str, taken))} is that of {where}",
                    "the network's ipam has to leave it out, as 'exclude' does",
                )
        if link.mtu and _changes(link, port.interface.mtu or _USUAL_MTU):
            raise InvalidConfig(
                f"a port with MTU {port.interface.mtu or _USUAL_MTU} would change that of {where}, which is {link.mtu}: "
                "it asks for none, so Open vSwitch gives it the smallest of the other ports",
                f"ovs-vsctl set Interface {link.name} mtu_request={link.mtu} keeps it; or 'host.mtu' has to be {link.mtu}",
            )


def _changes(link: NodePort, mtu: int) -> bool:
    """Whether the link would have another MTU beside a port with this one, now or when other pods' ports have gone."""
    return mtu != link.mtu and (not link.least or mtu < link.least)
