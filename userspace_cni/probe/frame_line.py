"""A line for each frame, for people without tcpdump: time, addresses, what it carries, ports and length. Pure.

Frames are a pod's: the line has numbers and names of ours only, never text out of a frame.
"""

from __future__ import annotations

import time
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from userspace_cni.probe.pcap import Frame

_TAGS: Final = (0x8100, 0x88A8)
"""802.1Q and 802.1ad."""
_IPV4, _ARP, _IPV6 = 0x0800, 0x0806, 0x86DD
_NAMES: Final = {_ARP: "ARP", 0x88CC: "LLDP", 0x8847: "MPLS", 0x8863: "PPPoE", 0x8864: "PPPoE", 0x88F7: "PTP"}
_PROTOCOLS: Final = {1: "ICMP", 2: "IGMP", 6: "TCP", 17: "UDP", 47: "GRE", 50: "ESP", 58: "ICMPv6", 89: "OSPF", 132: "SCTP"}
_WITH_PORTS: Final = (6, 17, 132)
_OPERATIONS: Final = {1: "request", 2: "reply"}
_FLAGS: Final = ((0x02, "SYN"), (0x01, "FIN"), (0x04, "RST"))
_SECOND: Final = 1_000_000_000
_LENGTH_MIN: Final = 1536
"""A smaller ethertype is a length (IEEE 802.3)."""


def frame_line(frame: Frame) -> str:
    """The line. A frame that ends early is told as far as it goes."""
    seconds, rest = divmod(frame.ns, _SECOND)
    clock = f"{time.strftime('%H:%M:%S', time.localtime(seconds))}.{rest // 1000:06d}"
    data = frame.data
    if len(data) < 14:
        return f"{clock} a frame without a header, {frame.length} bytes"
    at, kind, tags = 12, _number(data, 12), []
    while kind in _TAGS and len(data) >= at + 6:
        tags.append(f"vlan {_number(data, at + 2) & 0xFFF}, ")
        at += 4
        kind = _number(data, at)
    return f"{clock} {_mac(data[6:12])} > {_mac(data[:6])}, {''.join(tags)}{_carried(kind, data[at + 2 :])}, {frame.length} bytes"


def _carried(kind: int, data: bytes) -> str:
    if kind == _IPV4 and len(data) >= 20:
        later = _number(data, 6) & 0x1FFF
        head = 4 * (data[0] & 0x0F)
        source, target = IPv4Address(data[12:16]), IPv4Address(data[16:20])
        return _packet(str(source), str(target), data[9], b"" if later else data[head:])
    if kind == _IPV6 and len(data) >= 40:
        return _packet(f"{IPv6Address(data[8:24])}", f"{IPv6Address(data[24:40])}", data[6], data[40:])
    if kind == _ARP and len(data) >= 28:
        operation = _OPERATIONS.get(_number(data, 6), "message")
        return f"ARP {operation}, {IPv4Address(data[24:28])} of {IPv4Address(data[14:18])}"
    return _NAMES.get(kind, f"ethertype 0x{kind:04x}" if kind >= _LENGTH_MIN else "802.3")


def _packet(source: str, target: str, protocol: int, data: bytes) -> str:
    """An IP packet; `data`: behind its header, b"" for a later fragment."""
    name = _PROTOCOLS.get(protocol, f"protocol {protocol}")
    if protocol in _WITH_PORTS and len(data) >= 4:
        source, target = f"{source} port {_number(data, 0)}", f"{target} port {_number(data, 2)}"
    flags = [flag for bit, flag in _FLAGS if data[13] & bit] if name == "TCP" and len(data) >= 14 else []
    return f"{source} > {target}, {' '.join([name, *flags])}"


def _number(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 2], "big")


def _mac(data: bytes) -> str:
    return data.hex(":")
