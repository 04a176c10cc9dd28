"""What ovs-vswitchd answers about a bridge, as it is read: traces, and what OpenFlow forbids ports."""

from __future__ import annotations

import struct

import pytest

from userspace_cni.base.errors import Unavailable
from userspace_cni.base.seen_bridge import TracedFrame
from userspace_cni.switch.openflow.openflow_messages import OpenflowMessage
from userspace_cni.switch.openflow.port_configs import ask_port_configs, read_port_configs
from userspace_cni.switch.seen_bridges import read_trace

HEAD = 'Flow: arp,in_port=1,dl_src=02:00:00:00:00:01\n\nbridge("br0")\n-------------\n'
FOOT = "\nFinal flow: unchanged\nMegaflow: recirc_id=0,eth,arp,in_port=1\nDatapath actions: "


@pytest.mark.parametrize(
    ("rules", "actions", "wanted"),
    [
        (
            " 0. priority 0\n    NORMAL\n     -> no learned MAC for destination, flooding\n",
            "1,3",
            TracedFrame(False, "0. priority 0", normal=True),
        ),
        (" 0. No match.\n    drop\n", "drop", TracedFrame(True)),
        (" 0. in_port=1, priority 100\n    drop\n", "drop", TracedFrame(True, "0. in_port=1, priority 100")),
        (
            " 0. in_port=1, priority 9\n    resubmit(,5)\n 5. arp, priority 3, cookie 0x7\n    drop\n",
            "drop",
            TracedFrame(True, "5. arp, priority 3, cookie 0x7"),
        ),
        (
            " 0. priority 0\n     >>>> dropping packet received on port a, which is reserved exclusively for mirroring <<<<\n",
            "drop",
            TracedFrame(True, "0. priority 0", "dropping packet received on port a, which is reserved exclusively for mirroring"),
        ),
        (
            " 0. priority 0\n    NORMAL\n     >> disallowed VLAN VID for this input port, dropping\n",
            "drop",
            TracedFrame(True, "0. priority 0", "disallowed VLAN VID for this input port, dropping", normal=True),
        ),
    ],
)
def test_a_trace_says_which_flow_decides(rules: str, actions: str, wanted: TracedFrame) -> None:
    """The last flow, whether the frame is dropped, and the switch's own reason."""
    assert read_trace(HEAD + rules + FOOT + actions + "\n") == wanted


def test_what_openflow_forbids_a_port() -> None:
    """1.0 has 48 bytes for a port, and no-flood; 1.3 has 64, and the same bit means nothing there."""
    assert ask_port_configs(0x01, 7) == bytes.fromhex("01 10 000c 00000007 000d 0000")
    assert ask_port_configs(0x04, 7) == bytes.fromhex("04 12 0010 00000007 000d 0000 00000000")
    ports = [struct.pack("!H6s16sII16x", number, b"", b"p", config, 0) for number, config in ((1, 0x11), (2, 0x24))]
    old = struct.pack("!HH", 13, 1) + b"".join(ports)
    assert read_port_configs(OpenflowMessage(0x01, 17, 7, old)) == (
        {1: frozenset({"down", "no-flood"}), 2: frozenset({"no-receive", "no-forward"})},
        False,
    )
    new = struct.pack("!HH4x", 13, 0) + struct.pack("!I4x6s2x16sII24x", 5, b"", b"p", 0x11, 0)
    assert read_port_configs(OpenflowMessage(0x04, 19, 7, new)) == ({5: frozenset({"down"})}, True)


@pytest.mark.parametrize("body", [b"", bytes(9), bytes(4) + bytes(47)])
def test_another_message_is_no_list_of_ports(body: bytes) -> None:
    """Neither a short one nor one of another kind is read."""
    with pytest.raises(Unavailable, match="came instead of ports"):
        read_port_configs(OpenflowMessage(0x01, 17 if len(body) > 4 else 20, 7, body))
