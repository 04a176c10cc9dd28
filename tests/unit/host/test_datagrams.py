"""Datagrams in frames are built as the RFCs say, and parsed without trust."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from userspace_cni.host.node_net.udp_frames import Datagram, build_frame, read

V4 = Datagram(IPv4Address("10.56.0.9"), 4000, IPv4Address("198.18.0.7"), 5000, b"abc")
V6 = Datagram(IPv6Address("fd00:56::9"), 4000, IPv6Address("2001:2::7"), 5000, b"abcd")
MACS = bytes.fromhex("020000000001"), bytes.fromhex("020000000002")
PORTS = st.integers(0, 65535)


@pytest.mark.parametrize(
    ("datagram", "expected"),
    [
        (
            V4,
            """020000000001 020000000002 0800
               45 00 001f 0000 4000 02 11 a874 0a380009 c6120007
               0fa0 1388 000b 47f3 616263""",
        ),
        (
            V6,
            """020000000001 020000000002 86dd
               60000000 000c 11 02 fd000056000000000000000000000009 20010002000000000000000000000007
               0fa0 1388 000c fa7d 61626364""",
        ),
    ],
)
def test_bytes(datagram: Datagram, expected: str) -> None:
    """Two hops, no fragments, and the checksums."""
    assert build_frame(datagram, *MACS) == bytes.fromhex(expected)


@given(st.sampled_from([V4, V6]), st.binary(min_size=32, max_size=32), PORTS, PORTS, st.binary(max_size=64))
def test_what_is_built_is_read(like: Datagram, addresses: bytes, source: int, target: int, said: bytes) -> None:
    """What was built is read back, also with padding behind it."""
    kind, length = type(like.source), len(like.source.packed)
    made = Datagram(kind(addresses[:length]), source, kind(addresses[-length:]), target, said)
    assert read(build_frame(made, *MACS) + bytes(7)) == made


@given(st.binary(max_size=80))
def test_anything_is_read(frame: bytes) -> None:
    """No bytes make the parser raise."""
    read(frame)


@pytest.mark.parametrize("made", [build_frame(V4, *MACS), build_frame(V6, *MACS)])
def test_what_is_cut_off(made: bytes) -> None:
    """A datagram with an incomplete header, another protocol or IP options is not ours."""
    header = len(made) - 8 - len(V4.said if made[12:14] == b"\x08\x00" else V6.said)
    assert all(read(made[:length]) is None for length in range(header + 8))
    protocol = 23 if made[12:14] == b"\x08\x00" else 20
    assert read(made[:protocol] + b"\6" + made[protocol + 1 :]) is None


def test_options() -> None:
    """A header longer than usual is not read."""
    made = build_frame(V4, *MACS)
    assert read(made[:14] + b"\x46" + made[15:]) is None
