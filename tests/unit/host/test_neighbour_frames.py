"""Frames of ARP and Neighbour Discovery are built as the RFCs say, and parsed without trust."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from userspace_cni.host.pod_net.neighbour_frames import Address, AddressClaim, announcement, claim, question

MAC = "02:00:00:00:00:01"
V4, V6 = IPv4Address("10.9.0.1"), IPv6Address("2001:db8::1:2345")
ADDRESSES = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)).filter(lambda each: not each.is_unspecified)
MACS = st.binary(min_size=6, max_size=6).map(lambda each: each.hex(":"))


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (
            announcement(MAC, V4),
            "ffffffffffff 020000000001 0806  0001 0800 06 04 0001  020000000001 0a090001  000000000000 0a090001",
        ),
        (
            question(MAC, IPv4Address(0), V4),
            "ffffffffffff 020000000001 0806  0001 0800 06 04 0001  020000000001 00000000  000000000000 0a090001",
        ),
        (
            announcement(MAC, V6),
            """333300000001 020000000001 86dd
               60000000 0020 3a ff 20010db8000000000000000000012345 ff020000000000000000000000000001
               88 00 b2a0 20000000 20010db8000000000000000000012345  02 01 020000000001""",
        ),
        (
            question(MAC, IPv6Address(0), V6),
            """3333ff012345 020000000001 86dd
               60000000 0018 3a ff 00000000000000000000000000000000 ff0200000000000000000001ff012345
               87 00 0663 00000000 20010db8000000000000000000012345""",
        ),
    ],
    ids=["gratuitous ARP", "ARP probe", "unsolicited NA", "NS probe"],
)
def test_bytes_on_the_wire(frame: bytes, expected: str) -> None:
    """Each kind of frame has exactly the bytes of its RFC, checksum included."""
    assert frame.hex() == "".join(expected.split())


@given(MACS, ADDRESSES)
def test_what_is_announced_is_read(mac: str, address: Address) -> None:
    """An announcement claims its address for its MAC, with any padding behind the frame."""
    assert claim(announcement(mac, address)) == AddressClaim(address, mac)
    assert claim(announcement(mac, address) + bytes(18)) == AddressClaim(address, mac)


@given(MACS, ADDRESSES)
def test_a_probe_claims_nothing(mac: str, address: Address) -> None:
    """A probe claims no address; an ARP question from an IPv4 address claims that one."""
    assert claim(question(mac, ip_address("::" if address.version == 6 else "0.0.0.0"), address)) is None
    if isinstance(address, IPv4Address):
        assert claim(question(mac, address, V4)) == AddressClaim(address, mac)


@given(MACS, ADDRESSES, st.integers(0, 100), st.binary(max_size=40))
def test_hostile_frames(mac: str, address: Address, cut: int, rest: bytes) -> None:
    """A frame that is cut off, continues differently, or is no frame at all, raises nothing."""
    for frame in (rest, announcement(mac, address)[:cut], announcement(mac, address)[:cut] + rest):
        assert isinstance(claim(frame), AddressClaim | None)


def test_an_answer_without_the_option() -> None:
    """An advertisement without a MAC is its sender's own; one that was routed (hop limit 254) is ignored."""
    frame = announcement(MAC, V6)
    short = frame[:18] + b"\x00\x18" + frame[20:-8]
    assert claim(short) == AddressClaim(V6, MAC)
    assert claim(frame[:21] + b"\xfe" + frame[22:]) is None
