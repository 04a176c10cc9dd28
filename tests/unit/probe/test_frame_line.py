"""The line that a person sees of a frame."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from userspace_cni.probe.frame_line import frame_line
from userspace_cni.probe.pcap import Frame

MACS = "020000000001020000000002"
SHOWN = "02:00:00:00:00:02 > 02:00:00:00:00:01, "
TCP, UDP, ICMP, ICMP6 = "06", "11", "01", "3a"
SYN = "04d200500000000000000000" + "5002"


def v4(protocol: str, rest: str, fragment: str = "0000") -> str:
    """An IPv4 packet in hex."""
    return f"0800450000280000{fragment}40{protocol}00000a0000010a000002{rest}"


def v6(protocol: str, rest: str) -> str:
    """An IPv6 packet in hex."""
    return f"86dd600000000008{protocol}40{'fd' + '00' * 14 + '01'}{'fd' + '00' * 14 + '02'}{rest}"


@pytest.fixture
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (v4(TCP, SYN), "10.0.0.1 port 1234 > 10.0.0.2 port 80, TCP SYN"),
        (v4(UDP, "00350035"), "10.0.0.1 port 53 > 10.0.0.2 port 53, UDP"),
        (v4(UDP, "00350035", fragment="0001"), "10.0.0.1 > 10.0.0.2, UDP"),
        (v4(ICMP, "0800"), "10.0.0.1 > 10.0.0.2, ICMP"),
        (v4("fe", ""), "10.0.0.1 > 10.0.0.2, protocol 254"),
        (v6(ICMP6, "8000"), "fd00::1 > fd00::2, ICMPv6"),
        (v6(TCP, SYN), "fd00::1 port 1234 > fd00::2 port 80, TCP SYN"),
        ("81000007" + v4(ICMP, ""), "vlan 7, 10.0.0.1 > 10.0.0.2, ICMP"),
        ("88a8000981000007" + v4(ICMP, ""), "vlan 9, vlan 7, 10.0.0.1 > 10.0.0.2, ICMP"),
        ("08060001080006040001" + "02" * 6 + "0a000001" + "00" * 6 + "0a000002", "ARP request, 10.0.0.2 of 10.0.0.1"),
        ("0806", "ARP"),
        ("0800", "ethertype 0x0800"),
        ("88b5", "ethertype 0x88b5"),
        ("0026", "802.3"),
        ("8100", "ethertype 0x8100"),
    ],
)
def test_a_line(data: str, told: str) -> None:
    """It tells addresses, VLANs, protocol and ports; of a frame that is cut off, what is there."""
    frame = bytes.fromhex(MACS + data)
    assert frame_line(Frame(0, frame, 99)).split(" ", 1)[1] == f"{SHOWN}{told}, 99 bytes"


@pytest.mark.usefixtures("_utc")
def test_the_time() -> None:
    """It begins with the time of day, to the microsecond; a frame without a header has a line too."""
    assert frame_line(Frame(3_723_000_004_999, b"", 5)) == "01:02:03.000004 a frame without a header, 5 bytes"
