"""A compiled filter accepts the same frames as tcpdump, which is run to compare; that needs no network."""

from __future__ import annotations

import random
import struct
import subprocess

import pytest

from userspace_cni.probe import pcap
from userspace_cni.probe.packet_filter import PacketFilter
from userspace_cni.probe.pcap import Frame

EXPRESSIONS = (
    "arp",
    "ip6",
    "icmp or icmp6",
    "host 10.0.0.1 and tcp port 80",
    "udp portrange 50-100",
    "vlan 7 and ip",
    "ether src 02:00:00:00:00:01",
    "greater 100",
    "tcp[tcpflags] & (tcp-syn|tcp-fin) != 0",
    "ip[2:2] - 20 > 60 and ip[8] * 2 < 200 and ip[9] % 5 != 2",
    "(ip[0] & 0xf) << 2 > 20 or ip[8] / 4 = 16 or ip[1] ^ 3 = 1",
    "net 10.0.0.0/8 and not port 80",
    "ip[6:2] & 0x1fff = 0 and ip[ip[0] & 0xf] = 0",
    "len - ip[2:2] > 14",
)


def frames() -> list[bytes]:
    """Frames of many kinds: whole, cut off, and with random bytes; the same ones each time."""
    made, chance = [], random.Random(7)
    for number in range(400):
        macs = bytes([2, 0, 0, 0, 0, number % 3, 2, 0, 0, 0, 0, number % 2])
        tag = struct.pack(">HH", 0x8100, chance.randrange(6, 9)) if number % 4 == 0 else b""
        payload = chance.randbytes(number % 90)
        ports = struct.pack(">HH", *chance.choices((53, 80, 99, 1234), k=2)) + bytes(8) + bytes([0x50, number % 32])
        protocol, ttl, words = chance.choice((1, 6, 17, 58)), chance.choice((1, 64, 255)), 5 + number % 2
        addresses = bytes([chance.choice((10, 11)), 0, 0, chance.randrange(3), 192, 168, 0, number % 5])
        length = 4 * words + len(ports) + len(payload)
        ip = (
            struct.pack(">BBHHHBBH", 0x40 | words, number % 4, length, 0, number % 3, ttl, protocol, 0)
            + addresses
            + bytes(4 * words - 20)
        )
        ip6 = struct.pack(">IHBB", 6 << 28, len(ports), protocol, 64) + addresses + bytes(24)
        kind, body = ((0x0800, ip + ports), (0x86DD, ip6 + ports), (0x0806, bytes(28)))[number % 3]
        whole = macs + tag + struct.pack(">H", kind) + body + payload
        made.append(whole if number % 7 else whole[: chance.randrange(14, len(whole))])
    return made


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_as_tcpdump(expression: str) -> None:
    """Of 400 frames exactly those are accepted that tcpdump accepts: some, but not all."""
    sent = frames()
    file = pcap.header() + pcap.records(Frame(0, data, len(data)) for data in sent)
    text = subprocess.run(["tcpdump", "-ddd", "-r", "-", expression], input=file, capture_output=True, check=True).stdout.decode()
    keep = PacketFilter.parse(text)
    kept = pcap.records(Frame(0, data, len(data)) for data in sent if keep.matches(data))
    theirs = subprocess.run(["tcpdump", "-r", "-", "-w", "-", expression], input=file, capture_output=True, check=True).stdout
    assert theirs[24:] == kept
    assert 0 < len(kept) < len(file) - 24
