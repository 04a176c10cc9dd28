"""The unix sockets of this thread's network namespace, as the kernel tells of them: states and attributes.

Must not connect to anything. Needs no privilege. Source: sock_diag(7), linux/unix_diag.h, net/unix/diag.c.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from typing import Final

ESTABLISHED, LISTEN = 1, 10
"""States of a socket."""
SHOW_NAME, SHOW_VFS, SHOW_PEER = 0x1, 0x2, 0x4
"""What is asked for: UDIAG_SHOW_NAME, UDIAG_SHOW_VFS, UDIAG_SHOW_PEER."""
NAME, VFS, PEER, SHUTDOWN = 0, 1, 2, 6
"""Attributes of an answer; the last one is there unasked."""
_SOCK_DIAG: Final = 4
"""NETLINK_SOCK_DIAG."""
_BY_FAMILY: Final = 20
_DUMP: Final = 0x301
"""NLM_F_REQUEST | NLM_F_DUMP."""
_ERROR, _DONE = 2, 3
_HEADER: Final = struct.Struct("=IHHII")
_REQUEST: Final = struct.Struct("=BBHIIIII")
_SOCKET: Final = struct.Struct("=BBBBIQ")
"""struct unix_diag_msg: family, type, state, padding, inode, cookie."""
_ATTRIBUTE: Final = struct.Struct("=HH")
_ANSWER_MAX: Final = 1 << 16
_SECONDS: Final = 1.0


def file_of(facts: os.stat_result) -> tuple[int, int]:
    """Inode (32 bits) and device of a file as attribute VFS has them, two numbers of 32 bits."""
    return facts.st_ino & 0xFFFFFFFF, os.major(facts.st_dev) << 20 | os.minor(facts.st_dev)


def open_sockets(states: tuple[int, ...], show: int) -> Iterator[tuple[int, dict[int, bytes]]]:
    """State and attributes of each that is in one of these states and whose other end has not gone. Raises OSError."""
    return (each for each in _dump(sum(1 << state for state in states), show) if each[1].get(SHUTDOWN, b"\0") == b"\0")


def _dump(states: int, show: int) -> Iterator[tuple[int, dict[int, bytes]]]:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as asked:
        asked.settimeout(_SECONDS)
        request = _REQUEST.pack(socket.AF_UNIX, 0, 0, states, 0, show, 0, 0)
        asked.sendto(_HEADER.pack(_HEADER.size + len(request), _BY_FAMILY, _DUMP, 1, 0) + request, (0, 0))
        while True:
            answer = memoryview(asked.recv(_ANSWER_MAX))
            while answer:
                size, kind, *_ = _HEADER.unpack_from(answer)
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    (number,) = struct.unpack_from("=i", answer, _HEADER.size)
                    raise OSError(-number, os.strerror(-number))
                _, _, state, *_ = _SOCKET.unpack_from(answer, _HEADER.size)
                yield state, _attributes(answer[_HEADER.size + _SOCKET.size : size])
                answer = answer[_aligned(size) :]


def _attributes(rest: memoryview) -> dict[int, bytes]:
    found = {}
    while len(rest) >= _ATTRIBUTE.size:
        size, kind = _ATTRIBUTE.unpack_from(rest)
        found[kind] = bytes(rest[_ATTRIBUTE.size : size])
        rest = rest[_aligned(size) :]
    return found


def _aligned(size: int) -> int:
    return -(-size // 4) * 4
