"""The addresses that this node has, on its links and on those of its bridges: both are links of one network namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from userspace_cni.host.netlink.node_kernel import at_node

if TYPE_CHECKING:
    from ipaddress import IPv4Address, IPv6Address

    from userspace_cni.base.root import HostRoot


def read_node_addresses(switch_netns: str, root: HostRoot) -> frozenset[IPv4Address | IPv6Address]:
    """All but link-local ones and those of loopback. Raises Unavailable, StepFailed where they cannot be read."""
    what = "looking at the node's addresses"
    return at_node(switch_netns, root, what, lambda kernel: frozenset(each.interface.ip for each in kernel.addresses()))
