"""The unix sockets that have a file, as the kernel has them in whichever network namespace: who listens, who is connected.

A listener is listed in the namespace of who made it, an accepted socket in that of who has connected (Linux), and both know the
listener's file, whatever name that has or had since. One that waits to be accepted is not among them.

Must not connect to anything. Needs no privilege in one's own namespace, CAP_SYS_ADMIN for others.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from userspace_cni.fastpath.sys import paths, sock_diag


@dataclass(frozen=True)
class UnixSocket:
    """One that listens, or that was accepted. `name`: under which its file was made; `inode` (32 bits) and `device` of that."""

    listens: bool
    name: str
    inode: int
    device: int


def unix_sockets(namespaces: Iterable[int]) -> tuple[list[UnixSocket], list[OSError]]:
    """Those of each network namespace, an open descriptor of its file; and why some could not be looked into.

    The caller's own namespace stays: they are entered by a thread that ends right after.
    """
    found: list[UnixSocket] = []
    refused: list[OSError] = []
    thread = threading.Thread(target=_look, args=(tuple(namespaces), found, refused), name="netns")
    thread.start()
    thread.join()
    return found, refused


def _look(namespaces: Iterable[int], found: list[UnixSocket], refused: list[OSError]) -> None:
    for namespace in namespaces:
        try:
            paths.setns(namespace, paths.NETWORK)
            found += _listed()
        except OSError as error:
            refused.append(error)


def _listed() -> Iterator[UnixSocket]:
    """Those of this thread's namespace, whose other end has not gone. Raises OSError."""
    states, show = (sock_diag.ESTABLISHED, sock_diag.LISTEN), sock_diag.SHOW_NAME | sock_diag.SHOW_VFS
    for state, attributes in sock_diag.open_sockets(states, show):
        if sock_diag.VFS in attributes:
            inode, device = struct.unpack("=II", attributes[sock_diag.VFS])
            name = os.fsdecode(attributes.get(sock_diag.NAME, b"").rstrip(b"\0"))
            yield UnixSocket(state == sock_diag.LISTEN, name, inode, device)
