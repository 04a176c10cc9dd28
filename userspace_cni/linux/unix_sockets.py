"""The listeners at unix sockets, and the connections to them, as the kernel lists them.

A second connection to a port of type `dpdkvhostuser` takes it from the first, so a program looks here before it connects. The
kernel has two listings, each of one network namespace. The listing of names (proc(5), net/unix) can be read for every process:
there a connection has the name under which its listener was made, accepted or not. The listing of files (sock_diag(7)) can only
be read within the namespace: there a listener and an accepted socket have the listener's file, under any name; connections that
wait to be accepted are missing. A listener is listed in the namespace of the process that made it, a connection in that of the
process that connected (Linux).

Must not connect to anything. Needs no privilege in its own namespace, CAP_SYS_ADMIN for files in others.
Sources: linux/net.h, linux/unix_diag.h, net/unix/af_unix.c, net/unix/diag.c.
"""

from __future__ import annotations

import os
import select
import socket
import stat
import struct
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from userspace_cni.linux import paths
from userspace_cni.linux.netlink import DUMP, SOCK_DIAG, Message, NetlinkConnection, attributes

PROC: Final = Path("/proc")
_WAITING, _CONNECTED = "02", "03"
"""States in the listing of names: SS_CONNECTING, not accepted yet, and SS_CONNECTED."""
_ESTABLISHED, _LISTEN = 1, 10
"""States in the listing of files."""
_SHOW_NAME, _SHOW_VFS, _SHOW_PEER, _SHOW_QUEUE = 0x1, 0x2, 0x4, 0x10
"""Attributes to request: UDIAG_SHOW_NAME, UDIAG_SHOW_VFS, UDIAG_SHOW_PEER, UDIAG_SHOW_RQLEN."""
_NAME, _VFS, _PEER, _QUEUE, _SHUTDOWN = 0, 1, 2, 4, 6
"""Attributes of an answer; every answer has the last one."""
_BY_FAMILY: Final = 20
_REQUEST: Final = struct.Struct("=BBHIIIII")
_SOCKET: Final = struct.Struct("=BBBBIQ")
"""struct unix_diag_msg: family, type, state, padding, inode, cookie."""


@dataclass(frozen=True)
class UnixSocket:
    """A socket that listens or was accepted. `name`: its file was made under it; `inode` (32 bits) and `device`: of the file.

    `unaccepted`: how many connections wait for a listener to accept them, also such as have hung up.
    """

    listens: bool
    name: str
    inode: int
    device: int
    unaccepted: int = 0


def file_of(facts: os.stat_result) -> tuple[int, int]:
    """Inode and device of a file as attribute VFS has them, two numbers of 32 bits."""
    return facts.st_ino & 0xFFFFFFFF, os.major(facts.st_dev) << 20 | os.minor(facts.st_dev)


def connections_here(path: str) -> int:
    """The number of connections from this network namespace to the socket at `path`, with those that wait to be accepted.

    0 when no socket is there. On a kernel without sock_diag, sockets are compared by the last part of their name.
    """
    try:
        facts = Path(path).stat()
    except (OSError, ValueError):
        return 0
    if not stat.S_ISSOCK(facts.st_mode):
        return 0
    states = _states(PROC / "thread-self", Path(path).name)
    waiting = states.count(_WAITING)
    file = struct.pack("=II", *file_of(facts))
    try:
        unaccepted, accepted = 0, 0
        for _, found in _open_sockets((_ESTABLISHED,), _SHOW_VFS | _SHOW_PEER):
            accepted += found.get(_VFS) == file
            unaccepted += found.get(_PEER) == bytes(4)  # the listener has not accepted its other end
    except OSError:
        return len(states)
    return accepted + min(waiting, unaccepted)  # the listing of names keeps a connection that hung up before it was accepted


def connections_anywhere(name: str, proc: Path = PROC) -> int:
    """The number of connections from any network namespace to sockets whose file was made as `name`, in any directory.

    The directory is not compared: the file may be in another mount namespace. `proc`: the /proc whose processes are read.
    """
    seen: set[str] = set()
    count = 0
    for process in (each for each in proc.iterdir() if each.name.isdigit()):
        try:
            namespace = str((process / "ns" / "net").readlink())
            if namespace not in seen:
                count += len(_states(process, name))
                seen.add(namespace)
        except OSError:
            continue  # it has ended, or this process may not look at it
    return count


def unix_sockets(namespaces: Iterable[int]) -> tuple[list[UnixSocket], list[OSError]]:
    """The sockets in each network namespace (open descriptors of namespace files), and an error for each that was unreadable.

    The caller stays in its own namespace: a thread enters the others, and ends.
    """
    found: list[UnixSocket] = []
    refused: list[OSError] = []
    thread = threading.Thread(target=_collect, args=(tuple(namespaces), found, refused), name="netns")
    thread.start()
    thread.join()
    return found, refused


def _collect(namespaces: Iterable[int], found: list[UnixSocket], refused: list[OSError]) -> None:
    for namespace in namespaces:
        try:
            paths.setns(namespace, paths.NETWORK)
            found += _listed()
        except OSError as error:
            refused.append(error)


def _listed() -> Iterator[UnixSocket]:
    """The sockets in this thread's namespace whose other end is still there. Raises OSError."""
    states, show = (_ESTABLISHED, _LISTEN), _SHOW_NAME | _SHOW_VFS | _SHOW_QUEUE
    for state, told in _open_sockets(states, show):
        if _VFS in told:
            inode, device = struct.unpack("=II", told[_VFS])
            name = os.fsdecode(told.get(_NAME, b"").rstrip(b"\0"))
            (queued,) = struct.unpack_from("=I", told.get(_QUEUE, bytes(4)))
            yield UnixSocket(state == _LISTEN, name, inode, device, queued if state == _LISTEN else 0)


def _states(process: Path, name: str) -> list[str]:
    """The states of connections, in the network namespace of `process`, to sockets whose file was made as `name`.

    In any directory. Raises OSError.
    """
    # Num RefCount Protocol Flags Type St Inode Path; connections that are not accepted yet have inode 0
    lines = (process / "net" / "unix").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    fields = (line.split(maxsplit=7) for line in lines)
    named = (each[5] for each in fields if len(each) == 8 and each[7].rpartition("/")[2] == name)
    return [state for state in named if state in (_WAITING, _CONNECTED)]


def _open_sockets(states: tuple[int, ...], show: int) -> Iterator[tuple[int, Mapping[int, bytes]]]:
    """State and attributes of each socket in one of `states` whose other end is still there. Raises OSError."""
    return (each for each in _dump(sum(1 << state for state in states), show) if each[1].get(_SHUTDOWN, b"\0") == b"\0")


def _dump(states: int, show: int) -> Iterator[tuple[int, Mapping[int, bytes]]]:
    request = _REQUEST.pack(socket.AF_UNIX, 0, 0, states, 0, show, 0, 0)
    with NetlinkConnection(SOCK_DIAG) as kernel:
        for _, payload in kernel.ask(Message(_BY_FAMILY, DUMP, request)):
            _, _, state, *_ = _SOCKET.unpack_from(payload)
            yield state, attributes(payload[_SOCKET.size :])


def hung_up(connection: int) -> bool:
    """Whether the other side of a connected socket has closed it; False for -1, which is no socket."""
    asked = select.poll()
    if connection >= 0:
        asked.register(connection, select.POLLRDHUP)
    return bool(asked.poll(0))
