"""Messages about addresses of links. Source: rtnetlink(7), linux/if_addr.h."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv6Interface, ip_address, ip_interface
from typing import Final

from userspace_cni.linux import netlink as codec
from userspace_cni.linux.netlink import Message, attribute, attributes, u8, u32

_NEWADDR: Final = 20
_DELADDR: Final = 21
_GETADDR: Final = 22
_HEADER: Final = struct.Struct("=BBBBI")
"""struct ifaddrmsg: family, length of the prefix, flags, scope, index."""
_ADDRESS: Final = 1
_LOCAL: Final = 2
_BROADCAST: Final = 4
_FLAGS: Final = 8
_PROTOCOL: Final = 11
_NODAD: Final = 0x02
_DADFAILED: Final = 0x08
_BROADCAST_MAX: Final = 30
"""Longer prefixes have no address of broadcast (RFC 3021)."""
FAMILIES: Final = {4: 2, 6: 10}
"""AF_INET and AF_INET6, by version."""


@dataclass(frozen=True)
class FoundAddress:
    """An address with its prefix, and the index of its link. `protocol`: IFA_PROTO, 0 for none and with kernels before 5.18.
    `failed`: IPv6 has found another machine that has it, and does not use it."""

    index: int
    interface: IPv4Interface | IPv6Interface
    protocol: int = 0
    failed: bool = False


def put(index: int, interface: IPv4Interface | IPv6Interface) -> Message:
    """Give a link an address with its prefix; it stays when it is there. IPv6 is used at once: its lease says that it is ours."""
    packed, length = interface.ip.packed, interface.network.prefixlen
    given = attribute(_LOCAL, packed) + attribute(_ADDRESS, packed)
    if interface.version == 6:
        given += u32(_FLAGS, _NODAD)
    elif length <= _BROADCAST_MAX:
        given += attribute(_BROADCAST, interface.network.broadcast_address.packed)
    return Message(_NEWADDR, codec.CREATE | codec.REPLACE, _header(index, interface) + given)


def add(index: int, interface: IPv4Interface | IPv6Interface, protocol: int) -> Message:
    """Give a link an address of that protocol, without asking whether it is free. EEXIST: it is there."""
    given = attribute(_LOCAL, interface.ip.packed) + attribute(_ADDRESS, interface.ip.packed) + u8(_PROTOCOL, protocol)
    given += u32(_FLAGS, _NODAD) if interface.version == 6 else b""
    return Message(_NEWADDR, codec.CREATE | codec.EXCL, _header(index, interface) + given)


def remove(found: FoundAddress) -> Message:
    """Take the address from its link. EADDRNOTAVAIL: it has none such."""
    given = attribute(_LOCAL, found.interface.ip.packed)
    return Message(_DELADDR, 0, _header(found.index, found.interface) + given)


def dump(index: int) -> Message:
    """Ask for every address of a link, or of all with 0."""
    return Message(_GETADDR, codec.DUMP, _HEADER.pack(0, 0, 0, 0, index))


def read(payload: bytes) -> FoundAddress:
    _, length, flags, _, index = _HEADER.unpack_from(payload)
    found = attributes(payload[_HEADER.size :])
    interface = ip_interface((ip_address(found.get(_LOCAL) or found[_ADDRESS]), length))
    return FoundAddress(index, interface, found.get(_PROTOCOL, b"\0")[0], bool(flags & _DADFAILED))


def _header(index: int, interface: IPv4Interface | IPv6Interface) -> bytes:
    return _HEADER.pack(FAMILIES[interface.version], interface.network.prefixlen, 0, 0, index)
