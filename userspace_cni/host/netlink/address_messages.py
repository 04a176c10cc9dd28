"""Messages about addresses of links. Source: rtnetlink(7), linux/if_addr.h."""

from __future__ import annotations

import struct
from ipaddress import IPv4Interface, IPv6Interface, ip_address, ip_interface
from typing import Final

from userspace_cni.host.netlink import codec
from userspace_cni.host.netlink.codec import Message, attribute, attributes, u32

_NEWADDR: Final = 20
_GETADDR: Final = 22
_HEADER: Final = struct.Struct("=BBBBI")
"""struct ifaddrmsg: family, length of the prefix, flags, scope, index."""
_ADDRESS: Final = 1
_LOCAL: Final = 2
_BROADCAST: Final = 4
_FLAGS: Final = 8
_NODAD: Final = 0x02
_BROADCAST_MAX: Final = 30
"""Longer prefixes have no address of broadcast (RFC 3021)."""
FAMILIES: Final = {4: 2, 6: 10}
"""AF_INET and AF_INET6, by version."""


def put(index: int, interface: IPv4Interface | IPv6Interface) -> Message:
    """Give a link an address with its prefix; it stays when it is there. IPv6 is used at once: its lease says that it is ours."""
    packed, length = interface.ip.packed, interface.network.prefixlen
    given = attribute(_LOCAL, packed) + attribute(_ADDRESS, packed)
    if interface.version == 6:
        given += u32(_FLAGS, _NODAD)
    elif length <= _BROADCAST_MAX:
        given += attribute(_BROADCAST, interface.network.broadcast_address.packed)
    header = _HEADER.pack(FAMILIES[interface.version], length, 0, 0, index)
    return Message(_NEWADDR, codec.CREATE | codec.REPLACE, header + given)


def listed(index: int) -> Message:
    """Ask for every address of a link."""
    return Message(_GETADDR, codec.DUMP, _HEADER.pack(0, 0, 0, 0, index))


def read(payload: bytes) -> tuple[int, IPv4Interface | IPv6Interface]:
    """The index of the link in a reply, and the address with its prefix."""
    _, length, _, _, index = _HEADER.unpack_from(payload)
    found = attributes(payload[_HEADER.size :])
    return index, ip_interface((ip_address(found.get(_LOCAL) or found[_ADDRESS]), length))
