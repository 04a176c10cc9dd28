"""OpenFlow messages for the flows of probes, and for the counters of a bridge's ports. Pure: no socket, no clock.

A flow sends the frames of one port out of the same or another port, or to the connection; all flows of a run are deleted by
their cookie. The wire
formats are those of the OpenFlow specifications 1.0 and 1.3 (1.2 to 1.5 have the same layout for this part). 1.0 has no masked
cookies, so a bridge that is restricted to it gets Nicira's extended FLOW_MOD, which every Open vSwitch has. It must never make a
message that could change a flow without our cookie.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from userspace_cni.base.errors import SwitchRefused, Unavailable

VERSION_10: Final = 0x01
VERSION_13: Final = 0x04
VERSIONS: Final = frozenset({VERSION_10, 0x03, VERSION_13, 0x05, 0x06})
"""The versions whose messages are made here: 1.0 and 1.2 to 1.5."""

HELLO: Final = 0
ERROR: Final = 1
ECHO_REQUEST: Final = 2
ECHO_REPLY: Final = 3
_EXPERIMENTER: Final = 4
FLOW_MOD: Final = 14

HEADER: Final = struct.Struct("!BBHI")
"""version, type, length of the whole message in bytes, transaction id."""

COOKIE_PREFIX: Final = 0x55636E
"""The upper 24 bits of every cookie of ours; 32 bits of the run's number follow, and 8 of the port's."""
ALL_BITS: Final = 0xFFFF_FFFF_FFFF_FFFF
ONE_PORT: Final = ALL_BITS
ONE_RUN: Final = ALL_BITS ^ 0xFF
"""Which bits of a cookie say whose flows are meant (`cookie_of`)."""
PRIORITY: Final = 0xFFFF
"""The highest: an administrator's own flows must not take the frames of a probe."""

_ADD: Final = 0
_DELETE: Final = 3
_NO_BUFFER: Final = 0xFFFF_FFFF
_ANY: Final = 0xFFFF_FFFF
_ANY_10: Final = 0xFFFF
_IN_PORT: Final = 0xFFFF_FFF8
_IN_PORT_10: Final = 0xFFF8
_EVERY_TABLE: Final = 0xFF
_VERSION_BITMAP: Final = 1

_NICIRA: Final = 0x0000_2320
_VENDORS: Final = 0xFFFF
"""The type of actions that a vendor has added."""
_NXT_FLOW_MOD: Final = 13
_NXM_OF_IN_PORT: Final = 0x0000_0002
_NXM_OF_ETH_DST: Final = 0x0000_0206
_NXM_NX_COOKIE_W: Final = 0x0001_0000 | 30 << 9 | 1 << 8 | 16
_OXM_IN_PORT: Final = 0x8000_0004
_OXM_ETH_DST: Final = 0x8000_0606
_NXT_SET_CONTROLLER_ID: Final = 20
_NXAST_CONTROLLER: Final = 20
CONTROLLER: Final = 0xFFFF_FFFD
"""As `Flow.output`: to the connections that have claimed our frames (`claim_frames`)."""
_OUR_ID: Final = 0x5563
"""The number of these connections, which otherwise is 0. An ovn-controller 23.03 aborts at a frame that is not for it."""
_ACTION: Final = 1
"""Why a frame is sent to a connection: an action says so."""
_WHOLE: Final = 0xFFFF
"""Bytes of a frame that a connection is sent."""

_STATISTICS_10: Final = 16
_STATISTICS: Final = 18
"""The type of the request; the answer's type is one more."""
_PORT_STATISTICS: Final = 4
_MORE: Final = 1
_COUNTERS: Final = tuple(f"{way}_{what}" for what in ("packets", "bytes", "dropped", "errors") for way in ("rx", "tx"))
_COUNTED: Final = {
    VERSION_10: struct.Struct("!H6x8Q32x"),
    0x03: struct.Struct("!I4x8Q32x"),
    VERSION_13: struct.Struct("!I4x8Q40x"),
}
"""ofp_port_stats: the port's number and its first eight counters."""
COUNTED_VERSIONS: Final = frozenset(_COUNTED)
"""Without 1.4 and later, which send dozens of named counters for each port."""


@dataclass(frozen=True)
class Flow:
    """A flow that sends the frames from `in_port` out of `output`, or back out of `in_port` for None.

    `eth_dst`: six bytes; only frames to that MAC, b"" for all.
    `cookie`: 64 bits. `idle_s`: the switch removes the flow after so many seconds without a frame; `hard_s`: after so many
    seconds in any case; 0 for never. The port numbers are Interface.ofport.
    """

    in_port: int
    output: int | None
    cookie: int
    idle_s: int = 0
    hard_s: int = 0
    eth_dst: bytes = b""


@dataclass(frozen=True)
class OpenflowMessage:
    """A received message; `body` is all after the header."""

    version: int
    kind: int
    xid: int
    body: bytes


def cookie_of(number: int, port: int = 0) -> int:
    """The cookie of the flows of one port (0 to 255) of a run, by its number (32 bits)."""
    return COOKIE_PREFIX << 40 | (number & 0xFFFF_FFFF) << 8 | port & 0xFF


def encode_message(version: int, kind: int, xid: int, body: bytes = b"") -> bytes:
    return HEADER.pack(version, kind, HEADER.size + len(body), xid) + body


def encode_hello(xid: int, versions: frozenset[int] = VERSIONS) -> bytes:
    """The first message: the highest version that we speak, and all of them as a bitmap."""
    bitmap = sum(1 << version for version in versions)
    return encode_message(max(versions), HELLO, xid, struct.pack("!HHI", _VERSION_BITMAP, 8, bitmap))


def negotiate_version(theirs: OpenflowMessage, versions: frozenset[int] = VERSIONS) -> int:
    """The version to speak after the bridge's HELLO `theirs`. Raises SwitchRefused when no version is common."""
    bitmap = _bitmap(theirs.body)
    offered = {version for version in range(32) if bitmap >> version & 1} if bitmap else set(range(1, theirs.version + 1))
    common = versions & offered
    if not common:
        spoken = ", ".join(map(_version_name, sorted(offered)))
        raise SwitchRefused(
            f"OpenFlow: the bridge speaks {spoken}, userspace-cni {', '.join(map(_version_name, sorted(versions)))}",
            "column protocols of the Bridge",
        )
    return max(common)


def add_flow(version: int, xid: int, flow: Flow) -> bytes:
    """The message that adds the flow, or replaces the one of the same port and priority."""
    if version == VERSION_10:
        match = struct.pack("!IH", _NXM_OF_IN_PORT, flow.in_port)
        match += struct.pack("!I6s", _NXM_OF_ETH_DST, flow.eth_dst) if flow.eth_dst else b""
        return _nicira_flow_mod(xid, _ADD, flow, match, encode_output(version, flow.output))
    action = encode_output(version, flow.output)
    instruction = struct.pack("!HH4x", 4, 8 + len(action)) + action
    fixed = _flow_mod(_ADD, flow, 0, 0)
    match = struct.pack("!II", _OXM_IN_PORT, flow.in_port)
    match += struct.pack("!I6s", _OXM_ETH_DST, flow.eth_dst) if flow.eth_dst else b""
    return encode_message(version, FLOW_MOD, xid, fixed + encode_match(match) + instruction)


def encode_output(version: int, port: int | None) -> bytes:
    """The action that sends a frame out of the port, None for the one that it came from, or to CONTROLLER."""
    if port == CONTROLLER:
        return struct.pack("!HHIHHHBx", _VENDORS, 16, _NICIRA, _NXAST_CONTROLLER, _WHOLE, _OUR_ID, _ACTION)
    if version == VERSION_10:
        return struct.pack("!HHHH", 0, 8, _IN_PORT_10 if port is None else port, 0)
    return struct.pack("!HHIH6x", 0, 16, _IN_PORT if port is None else port, 0)


def claim_frames(version: int, xid: int) -> bytes:
    """The message after which the connection gets the frames that flows of ours send to CONTROLLER, and no others."""
    return encode_message(version, _EXPERIMENTER, xid, struct.pack("!II6xH", _NICIRA, _NXT_SET_CONTROLLER_ID, _OUR_ID))


def delete_flows(version: int, xid: int, cookie: int, which: int = ONE_PORT) -> bytes:
    """The message that deletes every flow of all tables with this cookie, in the bits `which`. ValueError for one not ours."""
    if cookie >> 40 != COOKIE_PREFIX:
        raise ValueError(f"cookie {cookie:#x} is of flows of others")
    if version == VERSION_10:
        every = Flow(0, None, ALL_BITS)
        return _nicira_flow_mod(xid, _DELETE, every, struct.pack("!IQQ", _NXM_NX_COOKIE_W, cookie, which), b"")
    fixed = _flow_mod(_DELETE, Flow(0, None, cookie), which, _EVERY_TABLE)
    return encode_message(version, FLOW_MOD, xid, fixed + encode_match(b""))


def encode_barrier(version: int, xid: int) -> bytes:
    """The message that the switch answers when it has carried out everything before it."""
    return encode_message(version, 18 if version == VERSION_10 else 20, xid)


def is_barrier_reply(answer: OpenflowMessage) -> bool:
    return answer.kind == (19 if answer.version == VERSION_10 else 21)


def ask_counters(version: int, xid: int) -> bytes:
    """The message that asks for the counters of every port. `version`: one of COUNTED_VERSIONS."""
    if version == VERSION_10:
        return encode_message(version, _STATISTICS_10, xid, struct.pack("!HHH6x", _PORT_STATISTICS, 0, _ANY_10))
    return encode_message(version, _STATISTICS, xid, struct.pack("!HH4xI4x", _PORT_STATISTICS, 0, _ANY))


def read_counters(answer: OpenflowMessage) -> tuple[dict[int, dict[str, int]], bool]:
    """The counters in a message, by port number and OVSDB's names, without those that the port does not have; and whether it is
    the last message of the answer. Raises Unavailable for any other message."""
    old = answer.version == VERSION_10
    start = 4 if old else 8
    entry = _COUNTED.get(answer.version)
    if answer.kind != (_STATISTICS_10 if old else _STATISTICS) + 1 or entry is None or (len(answer.body) - start) % entry.size:
        raise Unavailable(f"OpenFlow: a message of type {answer.kind} came instead of counters", "is it a bridge's .mgmt socket?")
    found = {}
    for port, *numbers in entry.iter_unpack(memoryview(answer.body)[start:]):
        found[port] = {name: number for name, number in zip(_COUNTERS, numbers, strict=True) if number != ALL_BITS}
    return found, not answer.body[3] & _MORE


def explain_refusal(error: OpenflowMessage, what: str) -> SwitchRefused:
    """The error of an ERROR message about `what`, with OpenFlow's names for type and code."""
    if len(error.body) < 4:
        return SwitchRefused(f"{what}: the switch answers with an error of {len(error.body)} bytes", "see its log")
    kind, code = struct.unpack_from("!HH", error.body)
    names = _ERRORS_10 if error.version == VERSION_10 else _ERRORS
    name, codes = names.get(kind, (f"error type {kind}", ()))
    reason = codes[code] if code < len(codes) else f"code {code}"
    text = error.body[4:].decode("ascii", "replace") if kind == 0 else ""
    return SwitchRefused(f"{what}: {name}, {reason}" + (f": {text}" if text else ""), "see the log of ovs-vswitchd")


def decode_header(data: bytes) -> tuple[OpenflowMessage, int]:
    """The message without its body, and how many bytes of body follow. Raises Unavailable for bytes that are no OpenFlow."""
    version, kind, length, xid = HEADER.unpack(data)
    if length < HEADER.size:
        raise Unavailable(f"OpenFlow: a message of {length} bytes came", "is it a bridge's .mgmt socket?")
    return OpenflowMessage(version, kind, xid, b""), length - HEADER.size


def _flow_mod(command: int, flow: Flow, mask: int, table: int) -> bytes:
    """ofp_flow_mod up to its match, with the flow's cookie and timeouts; 1.4 calls the last two bytes `importance`."""
    head = struct.pack("!QQBBHHH", flow.cookie, mask, table, command, flow.idle_s, flow.hard_s, PRIORITY)
    return head + struct.pack("!IIIHH", _NO_BUFFER, _ANY, _ANY, 0, 0)


def encode_match(fields: bytes) -> bytes:
    """ofp_match with these OXM fields; its length does not count the padding."""
    return _padded(struct.pack("!HH", 1, 4 + len(fields)) + fields)


def _nicira_flow_mod(xid: int, command: int, flow: Flow, match: bytes, actions: bytes) -> bytes:
    timeouts = (flow.idle_s, flow.hard_s)
    fixed = struct.pack("!IIQHHHHI", _NICIRA, _NXT_FLOW_MOD, flow.cookie, command, *timeouts, PRIORITY, _NO_BUFFER)
    sizes = struct.pack("!HHH6x", _ANY_10, 0, len(match))
    return encode_message(VERSION_10, _EXPERIMENTER, xid, fixed + sizes + _padded(match) + actions)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


def _bitmap(elements: bytes) -> int:
    """The version bitmap among the elements of a HELLO; 0 if there is none. A malformed element ends the search."""
    while len(elements) >= 4:
        kind, length = struct.unpack_from("!HH", elements)
        if length < 4 or length > len(elements):
            return 0
        if kind == _VERSION_BITMAP and length >= 8:
            return int(struct.unpack_from("!I", elements, 4)[0])
        elements = elements[-(-length // 8) * 8 :]
    return 0


def _version_name(version: int) -> str:
    return f"1.{version - 1}" if version else "0.0"


_REQUESTS: Final = (
    "bad version",
    "bad type",
    "bad statistics",
    "bad experimenter",
    "bad experimenter type",
    "not permitted",
    "bad length",
    "buffer empty",
    "buffer unknown",
    "bad table",
)
_ACTIONS: Final = (
    "bad type",
    "bad length",
    "bad experimenter",
    "bad experimenter type",
    "bad output port",
    "bad argument",
    "not permitted",
    "too many",
)
_HELLOS: Final = ("incompatible versions", "not permitted")
_Errors = Mapping[int, tuple[str, Sequence[str]]]
_ERRORS: Final[_Errors] = {
    0: ("HELLO failed", _HELLOS),
    1: ("bad request", _REQUESTS),
    2: ("bad action", _ACTIONS),
    3: ("bad instruction", ()),
    4: ("bad match", ()),
    5: (
        "flow refused",
        ("unknown", "table full", "bad table", "overlap", "not permitted", "bad timeout", "bad command", "bad flags"),
    ),
}
"""OpenFlow 1.3, 7.4.4: by type, what each code means."""
_ERRORS_10: Final[_Errors] = {
    0: ("HELLO failed", _HELLOS),
    1: ("bad request", _REQUESTS),
    2: ("bad action", _ACTIONS),
    3: ("flow refused", ("tables full", "overlap", "not permitted", "bad timeout", "bad command", "unsupported")),
}
"""OpenFlow 1.0, 5.4.4."""
