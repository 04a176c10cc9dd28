"""OpenFlow messages about what ports are forbidden: `ovs-ofctl mod-port` writes it, and OVSDB does not have it. Pure.

Sources: the OpenFlow specifications 1.0 (5.2.1, ofp_phy_port) and 1.3 (7.2.1, ofp_port). Only 1.0 knows `no-flood`.
"""

from __future__ import annotations

import struct
from typing import Final

from userspace_cni.base.errors import Unavailable
from userspace_cni.switch.openflow.openflow_messages import VERSION_10, VERSION_13, OpenflowMessage, encode_message

OLD: Final = frozenset({VERSION_10})
NEW: Final = frozenset({0x03, VERSION_13})
"""The versions that are spoken here; the old one says more."""
_REQUEST_10: Final = 16
_REQUEST: Final = 18
"""The type of the request; the answer's type is one more."""
_PORT_DESC: Final = 13
_MORE: Final = 1
_PORT_10: Final = struct.Struct("!H22xI20x")
_PORT: Final = struct.Struct("!I28xI28x")
_BITS: Final = {0x01: "down", 0x04: "no-receive", 0x10: "no-flood", 0x20: "no-forward"}


def ask_port_configs(version: int, xid: int) -> bytes:
    """The message that asks what each port is forbidden."""
    if version == VERSION_10:
        return encode_message(version, _REQUEST_10, xid, struct.pack("!HH", _PORT_DESC, 0))
    return encode_message(version, _REQUEST, xid, struct.pack("!HH4x", _PORT_DESC, 0))


def read_port_configs(answer: OpenflowMessage) -> tuple[dict[int, frozenset[str]], bool]:
    """What each port is forbidden, by its number; and whether it is the last message of the answer.

    Raises Unavailable for any other message.
    """
    old = answer.version == VERSION_10
    start, entry = (4, _PORT_10) if old else (8, _PORT)
    if answer.kind != (_REQUEST_10 if old else _REQUEST) + 1 or (len(answer.body) - start) % entry.size:
        raise Unavailable(f"OpenFlow: a message of type {answer.kind} came instead of ports", "is it a bridge's .mgmt socket?")
    words = [(bit, word) for bit, word in _BITS.items() if old or word != "no-flood"]
    ports = entry.iter_unpack(memoryview(answer.body)[start:])
    found = {number: frozenset(word for bit, word in words if config & bit) for number, config in ports}
    return found, not answer.body[3] & _MORE
