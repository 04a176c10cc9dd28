"""TCP segments in Ethernet frames, and what a virtio header makes of a large one: an independent reference for our C.

Written for clearness, from RFC 791, 1071, 8200 and 9293 and from Virtual I/O Device 1.2, 5.1.6; it shares nothing with the
product.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass, replace

NET_HEADER = struct.Struct("<BBHHHHH")
"""flags, gso_type, hdr_len, gso_size, csum_start, csum_offset, num_buffers."""
NEEDS_CSUM, DATA_VALID = 1, 2
GSO_NONE, GSO_TCP4, GSO_TCP6, GSO_ECN = 0, 1, 4, 0x80
FIN, SYN, RST, PSH, ACK, URG, ECE, CWR = (1 << bit for bit in range(8))
TIMESTAMPS = bytes.fromhex("0101080a") + bytes(range(8))


@dataclass(frozen=True)
class Segment:
    """A segment; `options` are those of TCP, a multiple of four bytes. `vlan` is a tag, `outer` one of 802.1ad, 0 for none."""

    payload: bytes = b"x" * 100
    sequence: int = 1000
    acknowledged: int = 77
    flags: int = ACK
    window: int = 500
    urgent: int = 0
    options: bytes = TIMESTAMPS
    ports: tuple[int, int] = (40000, 80)
    six: bool = False
    hosts: tuple[int, int] = (1, 2)
    identification: int = 7
    fragment: int = 0x4000
    hops: int = 64
    service: int = 0
    label: int = 0
    macs: bytes = bytes.fromhex("020000000002 020000000001")
    vlan: int = 0
    outer: int = 0
    padding: bytes = b""

    def next(self, payload: bytes = b"x" * 100, **changes: object) -> Segment:
        """The segment behind this one."""
        sequence = (self.sequence + len(self.payload)) % 2**32
        moved = replace(self, payload=payload, sequence=sequence, identification=(self.identification + 1) % 65536)
        return replace(moved, **changes)  # type: ignore[arg-type]

    def addresses(self) -> bytes:
        """Both addresses, as they are in the header."""
        if self.six:
            return b"".join(socket.inet_pton(socket.AF_INET6, f"fd00::{host:x}") for host in self.hosts)
        return b"".join(socket.inet_aton(f"10.9.0.{host}") for host in self.hosts)

    def frame(self) -> bytes:
        """The frame with right check words."""
        tags = b"".join(struct.pack("!HH", kind, tag) for kind, tag in ((0x88A8, self.outer), (0x8100, self.vlan)) if tag)
        offset = 5 + len(self.options) // 4
        head = struct.pack(
            "!HHIIBBHHH", *self.ports, self.sequence, self.acknowledged, offset << 4, self.flags, self.window, 0, self.urgent
        )
        tcp = head + self.options + self.payload
        tcp = tcp[:16] + struct.pack("!H", checksum(pseudo(self.addresses(), len(tcp)) + tcp)) + tcp[18:]
        if self.six:
            first = 6 << 28 | self.service << 20 | self.label
            ip = struct.pack("!IHBB", first, len(tcp), 6, self.hops) + self.addresses()
        else:
            fields = (0x45, self.service, 20 + len(tcp), self.identification, self.fragment, self.hops, 6, 0)
            ip = struct.pack("!BBHHHBBH", *fields) + self.addresses()
            ip = ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:]
        return self.macs + tags + struct.pack("!H", 0x86DD if self.six else 0x0800) + ip + tcp + self.padding


def train(first: Segment, count: int, size: int = 100) -> list[Segment]:
    """Consecutive segments, each with other bytes."""
    made = [replace(first, payload=_bytes(0, size))]
    for number in range(1, count):
        made.append(made[-1].next(_bytes(number, size)))
    return made


def _bytes(seed: int, size: int) -> bytes:
    return bytes((seed * 37 + at * 11) % 251 for at in range(size))


def checksum(data: bytes) -> int:
    """The check word of RFC 1071."""
    total: int = sum(struct.unpack(f"!{len(data + b'x') // 2}H", data + b"\0" * (len(data) % 2)))
    while total >> 16:
        total = (total >> 16) + (total & 0xFFFF)
    return ~total & 0xFFFF


def pseudo(addresses: bytes, length: int) -> bytes:
    """TCP's pseudo header."""
    return addresses + struct.pack("!II", length, 6)


def offloaded(frame: bytes, size: int, ecn: int = 0) -> bytes:
    """A frame as a kernel hands it over: with a virtio header, and its check word partial; `size` 0: it is not to be cut."""
    six, at = _ip(frame)
    tcp = at + (40 if six else 20)
    payload = tcp + (frame[tcp + 12] >> 4) * 4
    word = ~checksum(pseudo(frame[tcp - (32 if six else 8) : tcp], len(frame) - tcp)) & 0xFFFF
    gso = ((GSO_TCP6 if six else GSO_TCP4) | ecn) if size else GSO_NONE
    header = NET_HEADER.pack(NEEDS_CSUM, gso, payload if size else 0, size, tcp, 16, 0)
    return header + frame[: tcp + 16] + struct.pack("!H", word) + frame[tcp + 18 :]


def cut(given: bytes) -> list[bytes]:
    """The frames that a frame with its virtio header stands for, by the reference."""
    flags, gso, _, size, start, offset, _ = NET_HEADER.unpack_from(given)
    frame = given[NET_HEADER.size :]
    if not flags & NEEDS_CSUM:
        return [frame]
    if gso == GSO_NONE:
        whole = bytearray(frame)
        word = checksum(frame[start:])
        whole[start + offset : start + offset + 2] = struct.pack("!H", word or 0xFFFF)
        return [bytes(whole)]
    six, at = _ip(frame)
    head = start + (frame[start + 12] >> 4) * 4
    payloads = [frame[head + done : head + done + size] for done in range(0, len(frame) - head, size)] or [b""]
    made = []
    for number, payload in enumerate(payloads):
        one = bytearray(frame[:head] + payload)
        if six:
            one[at + 4 : at + 6] = struct.pack("!H", len(one) - at - 40)
        else:
            identification = (int.from_bytes(frame[at + 4 : at + 6], "big") + number) % 65536
            one[at + 2 : at + 6] = struct.pack("!HH", len(one) - at, identification)
            one[at + 10 : at + 12] = bytes(2)
            one[at + 10 : at + 12] = struct.pack("!H", checksum(bytes(one[at:start])))
        sequence = int.from_bytes(frame[start + 4 : start + 8], "big")
        one[start + 4 : start + 8] = struct.pack("!I", (sequence + number * size) % 2**32)
        if number:
            one[start + 13] &= ~CWR
        if number + 1 < len(payloads):
            one[start + 13] &= ~(FIN | PSH)
        one[start + 16 : start + 18] = bytes(2)
        addresses = frame[at + 8 : at + 40] if six else frame[at + 12 : at + 20]
        word = checksum(pseudo(addresses, len(one) - start) + bytes(one[start:]))
        one[start + 16 : start + 18] = struct.pack("!H", word or 0xFFFF)
        made.append(bytes(one))
    return made


def _ip(frame: bytes) -> tuple[bool, int]:
    """Whether it is IPv6, and where IP's header is."""
    at = 14
    while frame[at - 2 : at] in (b"\x81\x00", b"\x88\xa8"):
        at += 4
    return frame[at - 2 : at] == b"\x86\xdd", at
