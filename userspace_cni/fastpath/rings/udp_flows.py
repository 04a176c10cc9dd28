"""Ethernet frames of UDP flows, as a traffic generator sends them: sizes, addresses and ports that vary.

Source: RFC 768, 791, 2544 (addresses for benchmarks); IEEE 802.1Q.
"""

from __future__ import annotations

import ipaddress
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

IMIX: Final = (64, 590, 64, 64, 590, 64, 1514, 64, 590, 64, 64, 590)
"""Sizes as on the Internet ("simple IMIX"): 7 of 40 bytes of IP, 4 of 576, 1 of 1500; bytes of frames, 64 at least."""
FRAMES_MAX: Final = 65536
BYTES_MAX: Final = 256 << 20
_HEADERS: Final = 14 + 20 + 8
_TAG: Final = 4
_IP: Final = struct.Struct("!BBHHHBBHII")
_UDP: Final = struct.Struct("!HHHH")


@dataclass(frozen=True, slots=True)
class UdpFlows:
    """UDP flows between two stations; `frames` makes a frame or more of each.

    `sizes`: bytes of the frames, without checksum, one after the other, as `IMIX`; 58 at least (62 with `vlan`), so that a stamp
    has room. `sources`, `targets`, `source_ports`, `target_ports`: how many addresses and ports, counted up from the first one;
    there are as many flows as their product. `vlan`: 1 to 4094 for a tag, None for none. The payload is zeros, and the UDP
    checksum 0: not used.
    """

    source_mac: str
    target_mac: str
    source_ip: str = "198.18.0.1"
    target_ip: str = "198.19.0.1"
    source_port: int = 49152
    target_port: int = 9
    sources: int = 1
    targets: int = 1
    source_ports: int = 1
    target_ports: int = 1
    sizes: Sequence[int] = (64,)
    vlan: int | None = None

    def __post_init__(self) -> None:
        shortest = self.stamp_at + 16
        if not self.sizes or min(self.sizes) < shortest or max(self.sizes) > 65535 + 14:
            raise ValueError(f"sizes={self.sizes}: frames of {shortest} to {65535 + 14} bytes are possible")
        for name in ("sources", "targets", "source_ports", "target_ports"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: 1 or more are possible")
        for name, first, count in (
            ("source_port", self.source_port, self.source_ports),
            ("target_port", self.target_port, self.target_ports),
        ):
            if not 0 <= first <= first + count - 1 <= 65535:
                raise ValueError(f"{name}={first} and {count} of them: ports are 0 to 65535")
        if self.vlan is not None and not 1 <= self.vlan <= 4094:
            raise ValueError(f"vlan={self.vlan}: 1 to 4094 are possible")
        for name, ip, count in (("source_ip", self.source_ip, self.sources), ("target_ip", self.target_ip, self.targets)):
            if int(ipaddress.IPv4Address(ip)) + count - 1 > 0xFFFFFFFF:
                raise ValueError(f"{name}={ip} and {count} of them: beyond 255.255.255.255")
        _mac(self.source_mac)
        _mac(self.target_mac)
        if self.count > FRAMES_MAX or self.count * max(self.sizes) > BYTES_MAX:
            what = f"{self.flows} flows with {len(self.sizes)} sizes are {self.count} frames"
            raise ValueError(f"{what}; {FRAMES_MAX} frames and {BYTES_MAX >> 20} MiB are possible")

    @property
    def flows(self) -> int:
        """How many flows there are."""
        return self.sources * self.targets * self.source_ports * self.target_ports

    @property
    def count(self) -> int:
        """How many frames `frames` makes: the least number with which flows and sizes are all in turn."""
        return math.lcm(self.flows, len(self.sizes))

    @property
    def stamp_at(self) -> int:
        """Where a `FrameStream` may stamp these frames: behind the UDP header."""
        return _HEADERS + (0 if self.vlan is None else _TAG)

    def frames(self) -> list[bytes]:
        """The frames: each has the next size, and the next flow, whose ports vary first."""
        return [self._frame(index, self.sizes[index % len(self.sizes)]) for index in range(self.count)]

    def _frame(self, index: int, size: int) -> bytes:
        index, source_port = divmod(index, self.source_ports)
        index, target_port = divmod(index, self.target_ports)
        index, source = divmod(index, self.sources)
        target = index % self.targets
        tag = b"" if self.vlan is None else struct.pack("!HH", 0x8100, self.vlan)
        ethernet = _mac(self.target_mac) + _mac(self.source_mac) + tag + b"\x08\x00"
        length = size - len(ethernet)
        addresses = (
            int(ipaddress.IPv4Address(self.source_ip)) + source,
            int(ipaddress.IPv4Address(self.target_ip)) + target,
        )
        fields = (0x45, 0, length, 0, 0x4000, 64, 17)  # do not fragment, 64 hops, UDP
        ip = _IP.pack(*fields, checksum(_IP.pack(*fields, 0, *addresses)), *addresses)
        udp = _UDP.pack(self.source_port + source_port, self.target_port + target_port, length - len(ip), 0)
        return ethernet + ip + udp + bytes(length - len(ip) - len(udp))


def checksum(header: bytes) -> int:
    """The checksum of an IPv4 header whose own checksum is 0 (RFC 1071); 0 for a header with a right one."""
    total: int = sum(struct.unpack(f"!{len(header) // 2}H", header))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF


def _mac(text: str) -> bytes:
    try:
        made = bytes.fromhex(text.replace(":", ""))
    except ValueError:
        made = b""
    if len(made) != 6:
        raise ValueError(f"{text!r} is no MAC address, as 02:00:00:00:00:01")
    return made
