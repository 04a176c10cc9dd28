"""What a pod's port must leave as it is on its bridge: MAC, addresses and MTU of the node's own links, other pods' MACs. Pure.

What a pod sends is its own affair. But a request is refused if it would impersonate a gateway or a pod of another namespace, or
if Open vSwitch would change another link because of it. A pod of the same namespace may have the same MAC: a pod or VM that is
started again does, while DEL of its former sandbox is still to come.
"""

from __future__ import annotations

from ipaddress import ip_interface
from typing import Final

from userspace_cni.attachment.facts import Facts, NodePort
from userspace_cni.attachment.steps import OvsPort
from userspace_cni.base.errors import InvalidConfig
from userspace_cni.base.vlans import share_one
from userspace_cni.cni.result import ResultAddresses

_USUAL_MTU: Final = 1500
"""Of a port for which none is asked, and of a link on a bridge without other ports."""


def require_apart(port: OvsPort, addresses: ResultAddresses, facts: Facts) -> None:
    """Raise InvalidConfig if the port would take MAC or address of a link of the node, another pod's MAC, or change an MTU."""
    strangers = (each for each in facts.same_mac if each.namespace not in ("", facts.pod.namespace))
    if facts.pod.namespace and any(share_one(port.vlan, each.vlan) for each in strangers):
        # whose it is, is not for the author of this network; the command tells it to an administrator
        raise InvalidConfig(
            f"MAC {port.mac} is that of a pod of another namespace on bridge {port.bridge}",
            "frames to it would go to this pod: give this one another; which pod has it: "
            f"ovs-vsctl find Interface 'external_ids:attached-mac=\"{port.mac}\"'",
        )
    asked = {ip_interface(each["address"]).ip for each in addresses.ips}
    for link in facts.node_ports:
        where = f"the node's own link {link.name} on bridge {port.bridge}"
        if share_one(port.vlan, link.vlan):
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
