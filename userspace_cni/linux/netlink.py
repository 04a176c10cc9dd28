"""Messages, attributes, and a connection on which several messages are sent at once, with what came of each.

A message is handled before its send returns, and one send is one system call: a killed process leaves all of its messages done or
none. One that the kernel refuses does not stop those after it, but in a batch of nfnetlink. Source: netlink(7), RFC 3549.
"""

from __future__ import annotations

import errno
import itertools
import os
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from sys import byteorder
from typing import Final

from userspace_cni.linux.closing import Closing

ROUTE: Final = 0
SOCK_DIAG: Final = 4
NETFILTER: Final = 12
"""Protocols of AF_NETLINK: NETLINK_ROUTE, NETLINK_SOCK_DIAG, NETLINK_NETFILTER."""
EXCHANGE_MAX: Final = 128
"""Messages of one exchange. A socket's usual buffer of 208 KiB has room for the answers to about 250."""
LISTED_MAX: Final = 1 << 15
"""Links, addresses or routes that a pod may have: who may change its network could fill our memory with them."""

REPLACE: Final = 0x100
EXCL: Final = 0x200
CREATE: Final = 0x400
DUMP: Final = 0x300
"""Flags of a message; the first four are of those that make something, the last is of those that ask."""

_REQUEST: Final = 0x1
_ACK: Final = 0x4
_DUMP_INTR: Final = 0x10
_CAPPED: Final = 0x100
_ACK_TLVS: Final = 0x200
_ERROR: Final = 2
_DONE: Final = 3
_NESTED: Final = 0x8000
_TYPE_MASK: Final = 0x3FFF
_EXT_ACK_TEXT: Final = 1
_SOL_NETLINK: Final = 270
_OPTIONS: Final = (10, 11, 12)
"""NETLINK_CAP_ACK, NETLINK_EXT_ACK, NETLINK_GET_STRICT_CHK: short errors, with their text, and listings of what is asked for."""
_PATIENCE: Final = struct.pack("ll", 5, 0)
"""struct timeval. The kernel has answered before a send returns, so that only a fault takes so long."""
_HEADER: Final = struct.Struct("=IHHII")
_ATTRIBUTE: Final = struct.Struct("=HH")
_AT_ONCE: Final = 1 << 16
"""The kernel puts 32 KiB of a listing into one answer at most."""
_TRIES: Final = 5
_RCVBUF_FORCE: Final = 33
"""SO_RCVBUFFORCE: more than the limit for all sockets."""
_ATTACH_FILTER: Final = 26
_INSTRUCTION: Final = 8
"""SO_ATTACH_FILTER, and the bytes of one struct sock_filter."""
_NETNS_COOKIE: Final = 71
"""SO_NETNS_COOKIE, since Linux 5.14."""
_TRUNCATED: Final = int(socket.MSG_TRUNC)
"""As a number: the enumeration's own operator takes longer than the kernel for a short answer."""
_NOTICES: Final = 1 << 20
"""Bytes of notices that may wait: some thousands of them."""


@dataclass(frozen=True)
class Message:
    """One request. `payload`: the header of its family and its attributes; `flags` beside REQUEST and ACK.

    `silent`: not to be acknowledged, as the messages around a batch of nfnetlink; its failure is that of the whole.
    """

    type: int
    flags: int
    payload: bytes
    silent: bool = False


@dataclass
class Answer:
    """What came of one message: the kernel's refusal, or None; `replies` to one that asked, each with its type and payload."""

    error: OSError | None = None
    replies: list[tuple[int, bytes]] = field(default_factory=list)


class NetlinkConnection(Closing):
    """A netlink socket, in the namespace of the thread that makes it. For one thread at a time. Raises OSError.

    `groups`: a mask of those of which the kernel sends notices; such a connection is for `read_notices` alone. `chosen`: a
    program of classic BPF that says which of them it sends. `most`: how many replies to one message are taken, 0 for any
    number; E2BIG for more.
    """

    def __init__(self, protocol: int, groups: int = 0, most: int = 0, chosen: bytes = b"") -> None:
        self._most = most
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        try:
            for option in _OPTIONS:
                with suppress(OSError):  # kernels before 4.20 answer at greater length
                    self._socket.setsockopt(_SOL_NETLINK, option, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _PATIENCE)
            if groups:
                with suppress(OSError):  # without CAP_NET_ADMIN in the first user namespace the usual one has to do
                    self._socket.setsockopt(socket.SOL_SOCKET, _RCVBUF_FORCE, _NOTICES)
            if chosen:
                import ctypes

                program = ctypes.create_string_buffer(chosen, len(chosen))
                fprog = struct.pack("HP", len(chosen) // _INSTRUCTION, ctypes.addressof(program))
                self._socket.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, fprog)
            self._socket.bind((0, groups))
        except BaseException:
            self._socket.close()
            raise
        self._numbers = itertools.count(1)

    def close(self) -> None:
        self._socket.close()

    def fileno(self) -> int:
        """The descriptor of the socket, for an ioctl in its namespace (netdevice(7))."""
        return self._socket.fileno()

    def cookie(self) -> int:
        """The number of the socket's network namespace, which the kernel gives to no other one until it boots again."""
        return int.from_bytes(self._socket.getsockopt(socket.SOL_SOCKET, _NETNS_COOKIE, 8), byteorder)

    def exchange(self, *messages: Message) -> list[Answer]:
        """Send the messages in one system call, and return what came of each. Raises OSError when the exchange itself fails."""
        numbered = dict(zip(self._numbers, messages, strict=False))
        answers = {number: Answer() for number in numbered}
        awaited = _awaited(numbered)
        self._socket.send(b"".join(_packed(number, each, acknowledged=number in awaited) for number, each in numbered.items()))
        while awaited:
            for number, kind, flags, payload in _messages(self._received()):
                if number not in answers:
                    continue  # of an exchange that was given up
                answer = answers[number]
                if kind in (_ERROR, _DONE):
                    answer.error = answer.error or _error(flags, payload)
                    if answer.error and numbered[number].silent:
                        raise answer.error
                    awaited.discard(number)
                else:
                    answer.replies.append((kind, payload))
                    if 0 < self._most < len(answer.replies):
                        raise OSError(errno.E2BIG, f"more than {self._most} entries are listed")
                if flags & _DUMP_INTR:
                    answer.error = InterruptedError(errno.EINTR, "the list changed meanwhile")
        return list(answers.values())

    def read_notices(self) -> list[tuple[int, bytes]]:
        """Wait for notices; type and payload of each. ENOBUFS: some were lost."""
        return [(kind, payload) for _, kind, _, payload in _messages(self._received())]

    def drain(self) -> None:
        """Throw away the notices that wait, where it matters only that there were some. Never waits."""
        while True:
            try:
                self._socket.recv(_AT_ONCE, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise

    def send(self, *messages: Message) -> None:
        """Send the messages; raise the first refusal, an OSError with errno and the kernel's own text."""
        for answer in self.exchange(*messages):
            if answer.error:
                raise answer.error

    def ask(self, message: Message) -> list[tuple[int, bytes]]:
        """The replies to one message, each with its type and payload; a listing that was disturbed is asked for again."""
        for _ in range(_TRIES):
            (answer,) = self.exchange(message)
            if not isinstance(answer.error, InterruptedError):
                break
        if answer.error:
            raise answer.error
        return answer.replies

    def _received(self) -> bytes:
        data, _, flags, _ = self._socket.recvmsg(_AT_ONCE)
        if flags & _TRUNCATED:
            raise OSError(errno.EMSGSIZE, "an answer of netlink is larger than a buffer")
        return data


def attribute(kind: int, value: bytes) -> bytes:
    """An attribute, padded to four bytes."""
    length = _ATTRIBUTE.size + len(value)
    return _ATTRIBUTE.pack(length, kind) + value + bytes(-length % 4)


def nest(kind: int, *attributes: bytes) -> bytes:
    """An attribute that consists of attributes."""
    return attribute(kind | _NESTED, b"".join(attributes))


def text(kind: int, value: str) -> bytes:
    """An attribute with a string that ends in NUL."""
    return attribute(kind, os.fsencode(value) + b"\0")


def u8(kind: int, value: int) -> bytes:
    """An attribute with a number of eight bits."""
    return attribute(kind, struct.pack("=B", value))


def u32(kind: int, value: int) -> bytes:
    """An attribute with a number of 32 bits in the machine's order."""
    return attribute(kind, struct.pack("=I", value))


def be32(kind: int, value: int) -> bytes:
    """An attribute with a number of 32 bits in the network's order, as nftables has them."""
    return attribute(kind, struct.pack("!I", value))


def each_attribute(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and value of each attribute in `data`, in order; a type may come more than once."""
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < _ATTRIBUTE.size:
            return
        yield kind & _TYPE_MASK, data[at + _ATTRIBUTE.size : at + length]
        at += (length + 3) & ~3


def attributes(data: bytes) -> dict[int, bytes]:
    """The attributes in `data` by type; of several of one type, the last."""
    return dict(each_attribute(data))


def as_text(value: bytes | None) -> str:
    """The string of an attribute, "" for one that is not there."""
    return os.fsdecode((value or b"").partition(b"\0")[0])


def as_u32(value: bytes | None) -> int:
    """The number of an attribute in the machine's order, 0 for one that is not there."""
    return int.from_bytes((value or b"")[:4], byteorder)


def _awaited(numbered: Mapping[int, Message]) -> set[int]:
    """Those of an exchange whose answers tell that all have been handled: the last one, and listings, which go on by themselves.

    The kernel handles messages in order, and answers those that it refuses in any case: an acknowledgement of each other one
    would only be read and thrown away.
    """
    ending = [number for number, each in numbered.items() if not each.silent][-1:]
    return {*ending, *(number for number, each in numbered.items() if each.flags & DUMP == DUMP)}


def _packed(number: int, message: Message, *, acknowledged: bool) -> bytes:
    flags = message.flags | _REQUEST | (_ACK if acknowledged else 0)
    length = _HEADER.size + len(message.payload)
    return _HEADER.pack(length, message.type, flags, number, 0) + message.payload + bytes(-length % 4)


def _messages(data: bytes) -> Iterable[tuple[int, int, int, bytes]]:
    """Number, type, flags and payload of each message in what was received."""
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind, flags, number, _ = _HEADER.unpack_from(data, at)
        if length < _HEADER.size:
            return
        yield number, kind, flags, data[at + _HEADER.size : at + length]
        at += (length + 3) & ~3


def _error(flags: int, payload: bytes) -> OSError | None:
    """The refusal in an acknowledgement or at a listing's end, None for success. Source: linux/netlink.h, struct nlmsgerr."""
    code = -int.from_bytes(payload[:4], byteorder, signed=True)
    if not code:
        return None
    said = ""
    if flags & _ACK_TLVS and len(payload) >= 4 + _HEADER.size:
        (echoed,) = struct.unpack_from("=I", payload, 4)
        behind = 4 + (_HEADER.size if flags & _CAPPED else (echoed + 3) & ~3)
        said = as_text(attributes(payload[behind:]).get(_EXT_ACK_TEXT))
    return OSError(code, f"{os.strerror(code)} ({said})" if said else os.strerror(code))
