"""Builds and reads the Ethernet frames that bring addresses and MACs together: ARP, and Neighbour Discovery of IPv6.

Pure. What is read may come from any pod on the wire: it is never trusted to be well-formed. Sources: RFC 826, RFC 5227, RFC 4861.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Final

Address = IPv4Address | IPv6Address

_ARP, _IPV6 = 0x0806, 0x86DD
_ETHERNET: Final = struct.Struct("!6s6sH")
_ARP_BODY: Final = struct.Struct("!HHBBH6s4s6s4s")
_ARP_KIND: Final = (1, 0x0800, 6, 4)
"""Hardware Ethernet, protocol IPv4, and the lengths of their addresses."""
_REQUEST = 1
_BROADCAST: Final = b"\xff" * 6

_IPV6_HEADER: Final = struct.Struct("!IHBB16s16s")
_NEIGHBOUR: Final = struct.Struct("!BBHI16s")
_ICMPV6, _HOP_LIMIT = 58, 255
_SOLICITATION, _ADVERTISEMENT = 135, 136
_OVERRIDE = 1 << 29
_SOURCE_MAC, _TARGET_MAC = 1, 2
_ALL_NODES: Final = IPv6Address("ff02::1")
_SOLICITED_NODE: Final = int(IPv6Address("ff02::1:ff00:0"))


@dataclass(frozen=True)
class AddressClaim:
    """Who says that it has an address; `mac` as 02:00:00:00:00:01."""

    address: Address
    mac: str


def question(mac: str, sender: Address, target: Address) -> bytes:
    """The frame that asks who has `target`. An unspecified `sender` (of its version) makes it a probe, which changes no cache."""
    if isinstance(target, IPv4Address):
        return _arp_request(mac, sender, target)
    group = IPv6Address(_SOLICITED_NODE | int(target) & 0xFFFFFF)
    option = b"" if sender.is_unspecified else _option(_SOURCE_MAC, mac)
    return _neighbour_frame(mac, sender, group, _NEIGHBOUR.pack(_SOLICITATION, 0, 0, 0, target.packed) + option)


def announcement(mac: str, address: Address) -> bytes:
    """The frame that tells all neighbours to replace what they have cached for `address`: a gratuitous ARP request, or an
    unsolicited advertisement."""
    if isinstance(address, IPv4Address):
        return _arp_request(mac, address, address)
    body = _NEIGHBOUR.pack(_ADVERTISEMENT, 0, 0, _OVERRIDE, address.packed) + _option(_TARGET_MAC, mac)
    return _neighbour_frame(mac, address, _ALL_NODES, body)


def claim(frame: bytes) -> AddressClaim | None:
    """What the frame says of its sender's address; None when it says nothing, as each frame that is cut off or malformed."""
    if len(frame) < _ETHERNET.size:
        return None
    _, source, kind = _ETHERNET.unpack_from(frame)
    if kind == _ARP:
        return _arp_claim(frame[_ETHERNET.size :])
    if kind == _IPV6:
        return _advertised(frame[_ETHERNET.size :], source)
    return None


def _arp_request(mac: str, sender: Address, target: Address) -> bytes:
    body = _ARP_BODY.pack(*_ARP_KIND, _REQUEST, _packed(mac), sender.packed, bytes(6), target.packed)
    return _ETHERNET.pack(_BROADCAST, _packed(mac), _ARP) + body


def _arp_claim(packet: bytes) -> AddressClaim | None:
    if len(packet) < _ARP_BODY.size:
        return None
    *kind, _, mac, sender, _, _ = _ARP_BODY.unpack_from(packet)
    address = IPv4Address(sender)
    return None if tuple(kind) != _ARP_KIND or address.is_unspecified else AddressClaim(address, _shown(mac))


def _neighbour_frame(mac: str, source: Address, group: IPv6Address, body: bytes) -> bytes:
    pseudo = source.packed + group.packed + struct.pack("!II", len(body), _ICMPV6)
    body = body[:2] + struct.pack("!H", checksum(pseudo + body)) + body[4:]
    header = _IPV6_HEADER.pack(6 << 28, len(body), _ICMPV6, _HOP_LIMIT, source.packed, group.packed)
    return _ETHERNET.pack(b"\x33\x33" + group.packed[-4:], _packed(mac), _IPV6) + header + body


def _advertised(packet: bytes, source: bytes) -> AddressClaim | None:
    """The target of an advertisement, with the MAC of its option, else the frame's own."""
    if len(packet) < _IPV6_HEADER.size + _NEIGHBOUR.size:
        return None
    _, length, protocol, hops, _, _ = _IPV6_HEADER.unpack_from(packet)
    kind, code, _, _, target = _NEIGHBOUR.unpack_from(packet, _IPV6_HEADER.size)
    if (protocol, hops, kind, code) != (_ICMPV6, _HOP_LIMIT, _ADVERTISEMENT, 0):
        return None
    options = packet[_IPV6_HEADER.size + _NEIGHBOUR.size : _IPV6_HEADER.size + length]
    while len(options) >= 8 and options[1]:
        if options[0] == _TARGET_MAC:
            source = options[2:8]
            break
        options = options[8 * options[1] :]
    return AddressClaim(IPv6Address(target), _shown(source))


def _option(kind: int, mac: str) -> bytes:
    return bytes((kind, 1)) + _packed(mac)


def checksum(data: bytes) -> int:
    """The sum of RFC 1071; `data` has an even number of bytes."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def _packed(mac: str) -> bytes:
    return bytes.fromhex(mac.replace(":", ""))


def _shown(mac: bytes) -> str:
    return mac.hex(":")
