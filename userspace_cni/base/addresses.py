"""Which IP addresses one machine can have. Pure.

The kernel takes some that nothing can be sent from or to (0.0.0.0/8 among them), so their authors are told here.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface
from typing import Final

_THIS_NETWORK: Final = IPv4Network("0.0.0.0/8")
_BROADCAST: Final = IPv4Address("255.255.255.255")


def why_no_machines(address: IPv4Address | IPv6Address) -> str:
    """Why no machine can have the address, as "it is a multicast address"; "" if one can."""
    kinds = {
        "a multicast address": address.is_multicast,
        "a loopback address": address.is_loopback,
        "the unspecified address": address.is_unspecified,
        "an address of IPv4 in IPv6": isinstance(address, IPv6Address) and address.ipv4_mapped is not None,
        "the broadcast address": address == _BROADCAST,
        "reserved": isinstance(address, IPv4Address) and address in _THIS_NETWORK,
    }
    return next((f"it is {name}" for name, is_so in kinds.items() if is_so), "")


def why_not_in_subnet(address: IPv4Interface | IPv6Interface) -> str:
    """Why no machine can have the address in a subnet of this prefix length, as `why_no_machines`; "" if one can."""
    if why := why_no_machines(address.ip):
        return why
    subnet = address.network
    if not subnet.prefixlen:
        return "its subnet is everything"
    if subnet.prefixlen >= subnet.max_prefixlen - 1:  # such a subnet has machines alone (RFC 3021, RFC 6164)
        return ""
    if address.ip == subnet.network_address:
        return "it is the address of the network itself"
    if address.version == 4 and address.ip == subnet.broadcast_address:
        return "it is the broadcast address"
    return ""
