"""Flow entries with matches and actions of their own, as OpenFlow 1.3 and 1.4 have them. Pure: no socket, no clock.

They are written and deleted by cookie, as those of `openflow_messages`: no message that is made here changes or deletes a flow
without our cookie. What the switch answers about flows is compared as it is, and never decoded further than needed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from userspace_cni.base.errors import Unavailable
from userspace_cni.switch.openflow.openflow_messages import (
    COOKIE_PREFIX,
    FLOW_MOD,
    OpenflowMessage,
    encode_match,
    encode_message,
)

ENTRY_VERSIONS: Final = frozenset({0x04, 0x05})
"""1.3 and 1.4, in which a flow's statistics have one form."""
LOCAL: Final = 0xFFFF_FFFE
"""The bridge's local port."""
IPV4, IPV6, ARP = 0x0800, 0x86DD, 0x0806
TCP, UDP, ICMPV6, SCTP = 6, 17, 58, 132
_PORT_FIELDS: Final = {TCP: 14, UDP: 16, SCTP: 18}
ESTABLISHED, RELATED, TRACKED = 0x02, 0x04, 0x20
"""Bits of ct_state."""

_ADD, _DELETE_STRICT = 0, 4
_APPLY: Final = 4
_NO_BUFFER, _ANY, EVERY_TABLE = 0xFFFF_FFFF, 0xFFFF_FFFF, 0xFF
_EXPERIMENTER, _NICIRA = 0xFFFF, 0x0000_2320
_CT: Final = 35
_NICIRAS_FIELDS, _CT_STATE, _MASKED = 0x0001, 105, 1
_COMMIT: Final = 1
_STATISTICS, _FLOWS, _MORE = 18, 1, 1
_ENTRY: Final = struct.Struct("!HBx8xHHHH4xQ16x")
"""ofp_flow_stats before its match: length, table, priority, timeouts, flags, cookie."""


@dataclass(frozen=True)
class FlowEntry:
    """A flow: table, priority, the OXM fields of its match, the actions that it applies."""

    table: int
    priority: int
    match: bytes
    actions: bytes


@dataclass(frozen=True)
class FoundEntry:
    """A flow that the switch has. `rest` is all of it that its counters and age do not change, in the switch's encoding."""

    table: int
    priority: int
    cookie: int
    rest: bytes

    @property
    def is_ours(self) -> bool:
        return self.cookie >> 40 == COOKIE_PREFIX


def from_port(number: int) -> bytes:
    return _oxm(0, struct.pack("!I", number))


def to_mac(mac: bytes) -> bytes:
    return _oxm(3, mac)


def of_type(ethernet_type: int) -> bytes:
    return _oxm(5, struct.pack("!H", ethernet_type))


def without_tag() -> bytes:
    return _oxm(6, struct.pack("!H", 0))


def of_icmpv6(icmp_type: int) -> bytes:
    """ICMPv6 of that type; after the type of frame."""
    return _oxm(10, bytes([ICMPV6])) + _oxm(29, bytes([icmp_type]))


def to_port(protocol: int, port: int) -> bytes:
    """TCP, UDP or SCTP to that port; after the type of frame. Not true of a datagram's fragments after the first."""
    return _oxm(10, bytes([protocol])) + _oxm(_PORT_FIELDS[protocol], struct.pack("!H", port))


def to_address(address: IPv4Address | IPv6Address) -> bytes:
    """To that address; after the type of frame."""
    return _oxm(12 if address.version == 4 else 27, address.packed)


def tracked_as(state: int) -> bytes:
    """With all these bits of ct_state."""
    return struct.pack("!HBBII", _NICIRAS_FIELDS, _CT_STATE << 1 | _MASKED, 8, state, state)


def output(*ports: int) -> bytes:
    """The actions that send a frame out of these ports."""
    return b"".join(struct.pack("!HHIH6x", 0, 16, port, 0) for port in ports)


def track(zone: int, table: int) -> bytes:
    """The action that looks a packet up in conntrack, and goes on in the table."""
    return _conntrack(0, zone, table)


def commit(zone: int) -> bytes:
    """The action that has conntrack remember the packet's connection."""
    return _conntrack(_COMMIT, zone, EVERY_TABLE)


def add_entry(version: int, xid: int, entry: FlowEntry, cookie: int) -> bytes:
    """The message that adds the flow, or replaces the one of the same table, priority and match."""
    instruction = struct.pack("!HH4x", _APPLY, 8 + len(entry.actions)) + entry.actions
    return encode_message(version, FLOW_MOD, xid, _changed(_ADD, entry, cookie, 0) + instruction)


def delete_entry(version: int, xid: int, entry: FlowEntry, cookie: int, which: int) -> bytes:
    """The message that deletes this one flow, if it has the cookie, in the bits `which`."""
    return encode_message(version, FLOW_MOD, xid, _changed(_DELETE_STRICT, entry, cookie, which))


def ask_entries(version: int, xid: int, table: int, cookie: int, which: int) -> bytes:
    """The message that asks for the flows of the table with the cookie, in the bits `which`; 0 for all flows."""
    body = struct.pack("!HH4x", _FLOWS, 0) + struct.pack("!B3xII4xQQ", table, _ANY, _ANY, cookie, which) + encode_match(b"")
    return encode_message(version, _STATISTICS, xid, body)


def read_entries(answer: OpenflowMessage) -> tuple[list[FoundEntry], bool]:
    """The flows in a message, and whether it is the last of the answer. Raises Unavailable for any other message."""
    if answer.kind != _STATISTICS + 1 or answer.version not in ENTRY_VERSIONS or len(answer.body) < 8:
        raise Unavailable(f"OpenFlow: a message of type {answer.kind} came instead of flows", "is it a bridge's .mgmt socket?")
    return list(_entries(answer.body)), not answer.body[3] & _MORE


def _entries(body: bytes) -> Iterator[FoundEntry]:
    at = 8
    while at + _ENTRY.size <= len(body):
        length, table, priority, idle, hard, flags, cookie = _ENTRY.unpack_from(body, at)
        if length < _ENTRY.size:
            raise Unavailable(f"OpenFlow: a flow of {length} bytes came", "see the log of ovs-vswitchd")
        rest = struct.pack("!HHH", idle, hard, flags) + body[at + _ENTRY.size : at + length]
        yield FoundEntry(table, priority, cookie, rest)
        at += length


def _changed(command: int, entry: FlowEntry, cookie: int, which: int) -> bytes:
    """ofp_flow_mod up to its match, and that. ValueError for a cookie that is not ours."""
    if cookie >> 40 != COOKIE_PREFIX:
        raise ValueError(f"cookie {cookie:#x} is of flows of others")
    head = struct.pack("!QQBBHHH", cookie, which, entry.table, command, 0, 0, entry.priority)
    return head + struct.pack("!IIIHH", _NO_BUFFER, _ANY, _ANY, 0, 0) + encode_match(entry.match)


def _conntrack(flags: int, zone: int, table: int) -> bytes:
    head = struct.pack("!HHIHH", _EXPERIMENTER, 24, _NICIRA, _CT, flags)
    return head + struct.pack("!IHB3xH", 0, zone, table, 0)


def _oxm(field: int, value: bytes) -> bytes:
    return struct.pack("!HBB", 0x8000, field << 1, len(value)) + value
