"""Builds and reads Ethernet frames with one UDP datagram, of IPv4 or IPv6. Pure.

What is read may come from anywhere: it is never trusted to be well-formed. Sources: RFC 768, RFC 791, RFC 8200.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from userspace_cni.host.pod_net.neighbour_frames import checksum

_ETHERNET: Final = struct.Struct("!6s6sH")
_IPV4: Final = struct.Struct("!BBHHHBBH4s4s")
_IPV6: Final = struct.Struct("!IHBB16s16s")
_UDP: Final = struct.Struct("!HHHH")
_TYPES: Final = {4: 0x0800, 6: 0x86DD}
_PROTOCOL = 17
_HOPS = 2
"""Through this node, and no further than to the next router, wherever it is led."""
_DO_NOT_FRAGMENT = 0x4000


@dataclass(frozen=True)
class Datagram:
    """A datagram: from where to where, addresses of one version with ports, and what it says."""

    source: IPv4Address | IPv6Address
    source_port: int
    target: IPv4Address | IPv6Address
    target_port: int
    said: bytes


def build_frame(datagram: Datagram, mac_to: bytes, mac_from: bytes) -> bytes:
    """The datagram in a frame between these MACs, six bytes each."""
    source, target, version = datagram.source.packed, datagram.target.packed, datagram.source.version
    length = _UDP.size + len(datagram.said)
    udp = _UDP.pack(datagram.source_port, datagram.target_port, length, 0) + datagram.said
    pseudo = source + target + struct.pack("!II", _PROTOCOL, length)
    summed = checksum(pseudo + udp + bytes(length % 2)) or 0xFFFF
    udp = udp[:6] + struct.pack("!H", summed) + udp[8:]
    if version == 4:
        fields = (0x45, 0, _IPV4.size + length, 0, _DO_NOT_FRAGMENT, _HOPS, _PROTOCOL)
        head = _IPV4.pack(*fields, checksum(_IPV4.pack(*fields, 0, source, target)), source, target)
    else:
        head = _IPV6.pack(6 << 28, length, _PROTOCOL, _HOPS, source, target)
    return _ETHERNET.pack(mac_to, mac_from, _TYPES[version]) + head + udp


def read(frame: bytes) -> Datagram | None:
    """The datagram in a frame; None for a frame of anything else, or with options."""
    if len(frame) < _ETHERNET.size:
        return None
    *_, kind = _ETHERNET.unpack_from(frame)
    packet = frame[_ETHERNET.size :]
    source: IPv4Address | IPv6Address
    target: IPv4Address | IPv6Address
    if kind == _TYPES[4] and len(packet) >= _IPV4.size + _UDP.size:
        first, *_, protocol, _, of, to = _IPV4.unpack_from(packet)
        source, target, rest, plain = IPv4Address(of), IPv4Address(to), packet[_IPV4.size :], first == 0x45
    elif kind == _TYPES[6] and len(packet) >= _IPV6.size + _UDP.size:
        _, _, protocol, _, of, to = _IPV6.unpack_from(packet)
        source, target, rest, plain = IPv6Address(of), IPv6Address(to), packet[_IPV6.size :], True
    else:
        return None
    if not plain or protocol != _PROTOCOL:
        return None
    source_port, target_port, length, _ = _UDP.unpack_from(rest)
    return Datagram(source, source_port, target, target_port, rest[_UDP.size : max(length, _UDP.size)])
