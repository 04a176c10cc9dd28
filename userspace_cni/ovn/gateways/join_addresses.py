"""A gateway's addresses on the switch `join`. Pure.

They follow from its name, so that a gateway whose rows were lost gets its former ones, and two that are made at once rarely want
the same; a taken one is passed over.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from ipaddress import IPv4Interface, IPv6Interface, ip_interface
from typing import Final

from userspace_cni.base.errors import InvalidConfig
from userspace_cni.ovn.topology import Address, Subnet

_MOST: Final = 1 << 16
"""Addresses of a subnet that are considered."""
_RESERVED: Final = 2
"""The subnet's own, and the router's."""


def choose_joins(
    name: str, joins: Sequence[Subnet], taken: Collection[Address], former: Sequence[IPv4Interface | IPv6Interface]
) -> tuple[IPv4Interface | IPv6Interface, ...]:
    """One in each subnet that is not taken: the former one where it can be. Raises InvalidConfig where none is left."""
    return tuple(_choose(name, each, taken, former) for each in joins)


def _choose(
    name: str, subnet: Subnet, taken: Collection[Address], former: Sequence[IPv4Interface | IPv6Interface]
) -> IPv4Interface | IPv6Interface:
    kept = [each.ip for each in former if each.version == subnet.version and each.ip in subnet and each.ip not in taken]
    size = min(subnet.num_addresses - 1, _MOST) - _RESERVED  # without the last, which in IPv4 is for all
    first = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) % max(size, 1)
    tried = (subnet.network_address + _RESERVED + (first + number) % size for number in range(size))
    found = next((each for each in (*kept, *tried) if each not in taken), None)
    if found is None:
        raise InvalidConfig(
            f"all addresses of the join subnet {subnet} are taken", "init-cluster --join-subnet gives a larger one"
        )
    return ip_interface(f"{found}/{subnet.prefixlen}")
