"""The node's own port on its logical switch, as a table `[[gateway]]` of the settings. Pure.

The agent makes it and keeps it, as every gateway: after a boot, and after the port was deleted by hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import ip_interface
from typing import Final

from userspace_cni.base.gateways import LINK_MAX, Gateway
from userspace_cni.ovn.topology import (
    LogicalNode,
    Subnet,
    mac_of,
    management_address,
    management_port,
    router_address,
    with_length,
)


def management_link(node: str) -> str:
    """The name of the node's interface: that of the logical port, as far as a link can have it."""
    return management_port(node)[:LINK_MAX]


def management_table(node: LogicalNode, bridge: str, services: Sequence[Subnet] = ()) -> str:
    """The table, in TOML. Its routes lead to all pods, and to these subnets of Services, by the node's router port."""
    own = [management_address(each) for each in node.subnets]
    addresses = [f'"{with_length(address, each)}"' for address, each in zip(own, node.subnets, strict=True)]
    routes = [
        f'{{ dst = "{reached}", gw = "{router_address(each)}" }}'
        for each in node.subnets
        for reached in (*node.cluster_subnets, *services)
        if reached.version == each.version
    ]
    lines = (
        "[[gateway]]",
        f'bridge = "{bridge}"',
        f'port = "{management_link(node.name)}"',
        f"addresses = [{', '.join(addresses)}]",
        f'mac = "{mac_of(own)}"',
        f'logical_port = "{management_port(node.name)}"',
        *([f"routes = [{', '.join(routes)}]"] if routes else []),
    )
    return "".join(f"{line}\n" for line in lines)


def read_former_subnets(gateways: Iterable[Gateway], node: str) -> tuple[Subnet, ...]:
    """The subnets that the node of this name had when its port was asked for, IPv4 first; () where it was not."""
    own = [each for each in gateways if each.logical_port == management_port(node.lower())]
    found = [ip_interface(address).network for each in own for address in each.addresses]
    return tuple(sorted(found, key=lambda each: each.version))


BY: Final = "userspace-cni ovn init-node"
"""Who writes it."""
