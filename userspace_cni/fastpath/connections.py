"""Who is connected to a socket that somebody else has, without asking him.

A second connection to a port of type `dpdkvhostuser` takes it from the first, so whoever connects looks here before. The kernel
knows an accepted socket by the file of the listener, whatever name that has had or has in another mount namespace; one that waits
to be accepted only by the name under which the listener was made. It lists both in the network namespace of who has connected
(Linux): so what is seen are connections of our own namespace, a pod's for instance, and no others.

Must not connect to anything. Needs no privilege. Source: sock_diag(7), linux/unix_diag.h, net/unix/diag.c.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_SOCK_DIAG: Final = 4
"""NETLINK_SOCK_DIAG."""
_BY_FAMILY: Final = 20
_DUMP: Final = 0x301
"""NLM_F_REQUEST | NLM_F_DUMP."""
_ERROR, _DONE = 2, 3
_ESTABLISHED: Final = 1
_SHOW: Final = 0x2 | 0x4
"""UDIAG_SHOW_VFS, UDIAG_SHOW_PEER; _VFS, _PEER and _SHUTDOWN are the attributes of an answer."""
_VFS, _PEER, _SHUTDOWN = 1, 2, 6
_HEADER: Final = struct.Struct("=IHHII")
_REQUEST: Final = struct.Struct("=BBHIIIII")
_SOCKET_BYTES: Final = 16
"""Of struct unix_diag_msg, which is before the attributes."""
_ATTRIBUTE: Final = struct.Struct("=HH")
_ANSWER_MAX: Final = 1 << 16
_SECONDS: Final = 1.0
_LISTING: Final = Path("/proc/thread-self/net/unix")
_WAITING, _ACCEPTED = "02", "03"
"""SS_CONNECTING, not accepted yet, and SS_CONNECTED of <linux/net.h>."""


def connections(path: str) -> int:
    """How many are connected from this network namespace to the socket at `path`, or wait there to be accepted.

    0 when no socket is there. Where the kernel can not be asked about files (no sock_diag) all go by the last part of the name.
    """
    try:
        facts = Path(path).stat()
    except (OSError, ValueError):
        return 0
    if not stat.S_ISSOCK(facts.st_mode):
        return 0
    file = struct.pack("=II", facts.st_ino & 0xFFFFFFFF, os.major(facts.st_dev) << 20 | os.minor(facts.st_dev))
    states = _states(Path(path).name)
    waiting = states.count(_WAITING)
    try:
        unheard, accepted = 0, 0
        for attributes in _connected():
            if attributes.get(_SHUTDOWN, b"\0") == b"\0":  # else the other end has gone
                accepted += attributes.get(_VFS) == file
                unheard += attributes.get(_PEER) == bytes(4)  # whose other end nobody has accepted
    except OSError:
        return waiting + states.count(_ACCEPTED)
    return accepted + min(waiting, unheard)  # who hung up before he was accepted still waits in the listing


def _states(name: str) -> list[str]:
    """The states of the unix sockets of this namespace whose file was made as `name`, in whatever directory."""
    # Num RefCount Protocol Flags Type St Inode Path
    lines = _LISTING.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    fields = (line.split(maxsplit=7) for line in lines)
    return [each[5] for each in fields if len(each) == 8 and each[7].rpartition("/")[2] == name]


def _connected() -> Iterator[dict[int, bytes]]:
    """The attributes of each connected unix socket of this namespace. Raises OSError."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as asked:
        asked.settimeout(_SECONDS)
        request = _REQUEST.pack(socket.AF_UNIX, 0, 0, 1 << _ESTABLISHED, 0, _SHOW, 0, 0)
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
                yield _attributes(answer[_HEADER.size + _SOCKET_BYTES : size])
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
