"""A pcap file as readers of libpcap expect it."""

from __future__ import annotations

from userspace_cni.probe import pcap
from userspace_cni.probe.pcap import Frame


def test_a_file() -> None:
    """The head names nanoseconds and Ethernet; each frame has its time, the bytes kept and those that it had."""
    assert pcap.header(96).hex() == "4d3cb2a1" + "02000400" + "00000000" * 2 + "60000000" + "01000000"
    written = pcap.records([Frame(1_000_000_002, b"abc", 60), Frame(0, b"", 1)])
    assert written.hex() == "01000000" + "02000000" + "03000000" + "3c000000" + "616263" + "00000000" * 3 + "01000000"
