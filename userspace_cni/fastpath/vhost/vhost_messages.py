"""The vhost-user protocol as bytes, for both directions: requests of a front-end, replies of a back-end.

Pure: no sockets and no clocks; descriptors are only numbers beside a message. Decoders accept exactly what QEMU's "Vhost-user
Protocol" describes; everything else is a PeerError that says how it is wrong. All integers are in the byte order of the machine,
because both ends are on one machine.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum, IntFlag
from typing import NamedTuple

from userspace_cni.fastpath.fastpath_errors import BreachReason, PeerError

HEADER_BYTES = 12
PAYLOAD_MAX = 4096
"""Far above any known message; a longer one is refused before memory is allocated for it."""

REGIONS_MAX = 8
"""Regions of a memory table, and so the most descriptors of a message."""
FDS_MAX = REGIONS_MAX
VRING_MAX = 256
"""Vrings that the eight bits of SET_VRING_KICK and its like can name."""
RING_SIZE_MAX = 32768

_HEADER = struct.Struct("=III")
_U64 = struct.Struct("=Q")
_STATE = struct.Struct("=II")
_ADDRESS = struct.Struct("=IIQQQQ")
_COUNT = struct.Struct("=II")
_REGION = struct.Struct("=QQQQ")
_U32 = 0xFFFF_FFFF

_NO_FD = 1 << 8
_INDEX = 0xFF


class Flag(IntEnum):
    """Second word of the header; the two lowest bits are the version, 1."""

    VERSION = 0x1
    VERSION_MASK = 0x3
    REPLY = 0x4
    NEED_REPLY = 0x8


_VERSION, _VERSION_MASK, _REPLY, _NEED_REPLY = map(int, Flag)  # a member's lookup costs as much as the rest of reading a header
_FLAGS = _VERSION_MASK | _REPLY | _NEED_REPLY


class VhostRequest(IntEnum):
    """The request's number in the header; the reply carries the same number."""

    GET_FEATURES = 1
    SET_FEATURES = 2
    SET_OWNER = 3
    RESET_OWNER = 4
    SET_MEM_TABLE = 5
    SET_LOG_BASE = 6
    SET_LOG_FD = 7
    SET_VRING_NUM = 8
    SET_VRING_ADDR = 9
    SET_VRING_BASE = 10
    GET_VRING_BASE = 11
    SET_VRING_KICK = 12
    SET_VRING_CALL = 13
    SET_VRING_ERR = 14
    GET_PROTOCOL_FEATURES = 15
    SET_PROTOCOL_FEATURES = 16
    GET_QUEUE_NUM = 17
    SET_VRING_ENABLE = 18
    SEND_RARP = 19
    NET_SET_MTU = 20
    SET_BACKEND_REQ_FD = 21
    IOTLB_MSG = 22
    SET_VRING_ENDIAN = 23
    GET_CONFIG = 24
    SET_CONFIG = 25
    CREATE_CRYPTO_SESSION = 26
    CLOSE_CRYPTO_SESSION = 27
    POSTCOPY_ADVISE = 28
    POSTCOPY_LISTEN = 29
    POSTCOPY_END = 30
    GET_INFLIGHT_FD = 31
    SET_INFLIGHT_FD = 32
    GPU_SET_SOCKET = 33
    RESET_DEVICE = 34
    VRING_KICK = 35
    GET_MAX_MEM_SLOTS = 36
    ADD_MEM_REG = 37
    REM_MEM_REG = 38
    SET_STATUS = 39
    GET_STATUS = 40
    GET_SHARED_OBJECT = 41
    SET_DEVICE_STATE_FD = 42
    CHECK_DEVICE_STATE = 43


class Feature(IntFlag):
    """Bits of GET_FEATURES and SET_FEATURES that matter to a network device (virtio 1.2, 5.1.3 and 6)."""

    NET_CSUM = 1 << 0
    NET_GUEST_CSUM = 1 << 1
    NET_MTU = 1 << 3
    NET_GUEST_TSO4 = 1 << 7
    NET_GUEST_TSO6 = 1 << 8
    NET_GUEST_ECN = 1 << 9
    NET_HOST_TSO4 = 1 << 11
    NET_HOST_TSO6 = 1 << 12
    NET_HOST_ECN = 1 << 13
    NET_MRG_RXBUF = 1 << 15
    NET_CTRL_VQ = 1 << 17
    NET_MQ = 1 << 22
    LOG_ALL = 1 << 26
    RING_INDIRECT_DESC = 1 << 28
    RING_EVENT_IDX = 1 << 29
    PROTOCOL_FEATURES = 1 << 30
    VERSION_1 = 1 << 32
    ACCESS_PLATFORM = 1 << 33
    RING_PACKED = 1 << 34
    IN_ORDER = 1 << 35


class ProtocolFeature(IntFlag):
    """Bits of GET_PROTOCOL_FEATURES and SET_PROTOCOL_FEATURES."""

    MQ = 1 << 0
    LOG_SHMFD = 1 << 1
    RARP = 1 << 2
    REPLY_ACK = 1 << 3
    NET_MTU = 1 << 4
    BACKEND_REQ = 1 << 5
    CONFIG = 1 << 9
    BACKEND_SEND_FD = 1 << 10
    RESET_DEVICE = 1 << 13
    CONFIGURE_MEM_SLOTS = 1 << 15
    STATUS = 1 << 16


class Header(NamedTuple):
    """The first 12 bytes of a message: request number, flags, bytes of payload."""

    request: int
    flags: int
    size: int


class VhostMessage(NamedTuple):
    """A whole message. The function that received it closes the descriptors that came with it."""

    request: int
    flags: int
    payload: bytes
    fds: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """The request's name, or its number when it is unknown."""
        return name_of(self.request)

    @property
    def is_reply(self) -> bool:
        return bool(self.flags & _REPLY)

    @property
    def need_reply(self) -> bool:
        """Whether the front-end wants an acknowledgement: to be answered by `acknowledge`."""
        return bool(self.flags & _NEED_REPLY)


class VringState(NamedTuple):
    """Payload of SET_VRING_NUM, SET_VRING_BASE, SET_VRING_ENABLE and of both directions of GET_VRING_BASE."""

    vring: int
    value: int

    def pack(self) -> bytes:
        return _STATE.pack(self.vring, self.value)

    @classmethod
    def unpack(cls, message: VhostMessage) -> VringState:
        """From the payload; its vring is below VRING_MAX."""
        state = cls(*_exactly(_STATE, message))
        _require_vring(state.vring, message)
        return state


class VringAddress(NamedTuple):
    """Payload of SET_VRING_ADDR: where the three rings are, in *user* addresses of the front-end."""

    vring: int
    flags: int
    descriptors: int
    used: int
    available: int
    log: int = 0

    def pack(self) -> bytes:
        return _ADDRESS.pack(*self)

    @classmethod
    def unpack(cls, message: VhostMessage) -> VringAddress:
        """From the payload; its vring is below VRING_MAX."""
        address = cls(*_exactly(_ADDRESS, message))
        _require_vring(address.vring, message)
        return address


class VringFd(NamedTuple):
    """Payload of SET_VRING_KICK, SET_VRING_CALL and SET_VRING_ERR: which vring, and whether a descriptor comes with it."""

    vring: int
    attached: bool = True

    def pack(self) -> bytes:
        return _U64.pack(self.vring | (0 if self.attached else _NO_FD))

    @classmethod
    def unpack(cls, message: VhostMessage) -> VringFd:
        """From the payload. PeerError when it has bits other than the index and "no descriptor"."""
        value = unpack_u64(message)
        if value & ~(_INDEX | _NO_FD):
            raise PeerError(BreachReason.BAD_VALUE, message.name, f"payload {value:#x}")
        return cls(value & _INDEX, not value & _NO_FD)


class Region(NamedTuple):
    """Memory of the front-end: `size` bytes from `offset` on in the file that comes with it."""

    guest: int
    size: int
    user: int
    offset: int


def name_of(request: int) -> str:
    try:
        return VhostRequest(request).name
    except ValueError:
        return f"message {request}"


def encode(request: int, payload: bytes = b"", flags: int = 0) -> bytes:
    """Header and payload, of version 1."""
    return _HEADER.pack(request, _VERSION | flags, len(payload)) + payload


def reply(message: VhostMessage, payload: bytes) -> bytes:
    """The answer of a back-end to a request that has one."""
    return encode(message.request, payload, _REPLY)


def acknowledge(message: VhostMessage, *, refused: bool = False) -> bytes:
    """The answer of a back-end to a request with `need_reply` that has none of its own."""
    return reply(message, _U64.pack(1 if refused else 0))


def decode_header(data: bytes | bytearray | memoryview) -> Header:
    """The header in the first 12 bytes. Its request may be unknown: see `is_known`."""
    header = Header(*_HEADER.unpack_from(data))
    if header.flags & _VERSION_MASK != _VERSION:
        raise PeerError(BreachReason.BAD_VERSION, name_of(header.request), f"flags {header.flags:#x}")
    if header.flags & ~_FLAGS & _U32:
        raise PeerError(BreachReason.BAD_FLAGS, name_of(header.request), f"flags {header.flags:#x}")
    if header.size > PAYLOAD_MAX:
        raise PeerError(BreachReason.OVERSIZED, name_of(header.request), f"{header.size} bytes")
    return header


def is_known(request: int) -> bool:
    return request in VhostRequest._value2member_map_


def require_reply(message: VhostMessage, request: VhostRequest) -> bytes:
    """The payload of a message that a front-end received. PeerError unless it answers `request`."""
    if not message.is_reply:
        raise PeerError(BreachReason.NOT_A_REPLY, request.name, f"got {message.name}, flags {message.flags:#x}")
    if message.request != request:
        raise PeerError(BreachReason.WRONG_REPLY, request.name, f"got that of {message.name}")
    return message.payload


def require_empty(message: VhostMessage) -> None:
    """PeerError when the message has a payload."""
    if message.payload:
        raise PeerError(BreachReason.BAD_SIZE, message.name, f"{len(message.payload)} bytes instead of none")


def pack_u64(value: int) -> bytes:
    return _U64.pack(value)


def unpack_u64(message: VhostMessage) -> int:
    """The number that is the whole payload."""
    return int(_exactly(_U64, message)[0])


def pack_table(regions: Sequence[Region]) -> bytes:
    """Payload of SET_MEM_TABLE; the descriptors go beside it, one for each region in the same order."""
    return _COUNT.pack(len(regions), 0) + b"".join(_REGION.pack(*region) for region in regions)


def unpack_table(message: VhostMessage) -> list[Region]:
    """Regions of SET_MEM_TABLE: 1 to REGIONS_MAX. Their values are not checked here."""
    if len(message.payload) < _COUNT.size:
        raise PeerError(BreachReason.BAD_SIZE, message.name, f"{len(message.payload)} bytes")
    count = _COUNT.unpack_from(message.payload)[0]
    if not 1 <= count <= REGIONS_MAX:
        raise PeerError(BreachReason.BAD_VALUE, message.name, f"{count} regions, 1 to {REGIONS_MAX} are possible")
    if len(message.payload) != _COUNT.size + count * _REGION.size:
        raise PeerError(BreachReason.BAD_SIZE, message.name, f"{len(message.payload)} bytes for {count} regions")
    return [Region(*fields) for fields in _REGION.iter_unpack(message.payload[_COUNT.size :])]


_ONE_FD = frozenset(
    {
        VhostRequest.SET_LOG_BASE,
        VhostRequest.ADD_MEM_REG,
        VhostRequest.SET_BACKEND_REQ_FD,
        VhostRequest.SET_INFLIGHT_FD,
        VhostRequest.SET_DEVICE_STATE_FD,
    }
)
_VRING_FD = frozenset({VhostRequest.SET_VRING_KICK, VhostRequest.SET_VRING_CALL, VhostRequest.SET_VRING_ERR})
_MAY_HAVE_FD = frozenset({VhostRequest.SET_LOG_FD, VhostRequest.REM_MEM_REG, VhostRequest.GPU_SET_SOCKET})


def require_fds(message: VhostMessage) -> None:
    """PeerError unless a front-end's request came with exactly as many descriptors as it needs."""
    if message.request in _MAY_HAVE_FD and len(message.fds) <= 1:
        return
    if message.request == VhostRequest.SET_MEM_TABLE:
        needed = len(unpack_table(message))
    elif message.request in _VRING_FD:
        needed = int(VringFd.unpack(message).attached)
    else:
        needed = int(message.request in _ONE_FD)
    if len(message.fds) != needed:
        reason = BreachReason.FDS_MISSING if len(message.fds) < needed else BreachReason.FDS_EXTRA
        raise PeerError(reason, message.name, f"{len(message.fds)} instead of {needed}")


def _exactly(layout: struct.Struct, message: VhostMessage) -> tuple[int, ...]:
    if len(message.payload) != layout.size:
        raise PeerError(BreachReason.BAD_SIZE, message.name, f"{len(message.payload)} bytes instead of {layout.size}")
    return layout.unpack(message.payload)


def _require_vring(vring: int, message: VhostMessage) -> None:
    if vring >= VRING_MAX:
        raise PeerError(BreachReason.BAD_VALUE, message.name, f"vring {vring}")
