"""Programs of a packet filter are parsed and run, and invalid ones are refused."""

from __future__ import annotations

import pytest

from userspace_cni.probe.packet_filter import BadProgram, Instruction, PacketFilter

ARP = "4\n40 0 0 12\n21 0 1 2054\n6 0 0 262144\n6 0 0 0\n"


def test_a_program() -> None:
    """What `tcpdump -ddd` prints is parsed, and a frame that ends before what is looked at is not taken."""
    keep = PacketFilter.parse(ARP)
    assert keep.program[0] == Instruction(40, 0, 0, 12)
    assert [keep.matches(bytes(12) + kind) for kind in (b"\x08\x06", b"\x08\x00", b"\x08")] == [True, False, False]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tcpdump: syntax error",
        "0\n",
        "2\n6 0 0 0\n",
        "1\n6 0 0\n",
        "1\n40 0 0 12\n",
        "2\n21 1 0 0\n6 0 0 0\n",
        "2\n5 0 0 1\n6 0 0 0\n",
        "2\n5 0 0 -1\n6 0 0 0\n",
        "2\n2 0 0 16\n6 0 0 0\n",
        "2\n96 0 0 16\n6 0 0 0\n",
        "2\n56 0 0 0\n6 0 0 0\n",
        "2\n244 0 0 0\n6 0 0 0\n",
    ],
)
def test_no_program(text: str) -> None:
    """What does not end, jumps out of itself, stores outside its memory or has unknown instructions is refused."""
    with pytest.raises(BadProgram):
        PacketFilter.parse(text)
