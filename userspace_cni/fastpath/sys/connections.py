"""Who is connected to a socket that somebody else has, without asking him.

A second connection to a port of type `dpdkvhostuser` takes it from the first, so whoever connects looks here before. The kernel
knows an accepted socket by the file of the listener, whatever name that has had or has in another mount namespace; one that waits
to be accepted only by the name under which the listener was made. It lists both in the network namespace of who has connected
(Linux): so what is seen are connections of our own namespace, a pod's for instance, and no others.

Must not connect to anything. Needs no privilege.
"""

from __future__ import annotations

import stat
import struct
from pathlib import Path
from typing import Final

from userspace_cni.fastpath.sys import sock_diag

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
    file = struct.pack("=II", *sock_diag.file_of(facts))
    states = _states(Path(path).name)
    waiting = states.count(_WAITING)
    try:
        unheard, accepted = 0, 0
        for _, attributes in sock_diag.open_sockets((sock_diag.ESTABLISHED,), sock_diag.SHOW_VFS | sock_diag.SHOW_PEER):
            accepted += attributes.get(sock_diag.VFS) == file
            unheard += attributes.get(sock_diag.PEER) == bytes(4)  # whose other end nobody has accepted
    except OSError:
        return waiting + states.count(_ACCEPTED)
    return accepted + min(waiting, unheard)  # who hung up before he was accepted still waits in the listing


def _states(name: str) -> list[str]:
    """The states of the unix sockets of this namespace whose file was made as `name`, in whatever directory."""
    # Num RefCount Protocol Flags Type St Inode Path
    lines = _LISTING.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    fields = (line.split(maxsplit=7) for line in lines)
    return [each[5] for each in fields if len(each) == 8 and each[7].rpartition("/")[2] == name]
