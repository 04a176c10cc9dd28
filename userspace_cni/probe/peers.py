"""Who is connected to the sockets of a switch, as the kernel has it: sooner than the switch says it, and without asking it.

A second connection to a port of type dpdkvhostuser takes it from the first, and Interface.link_state can be a second old. A
connection has the name of the socket that it was made to, and is listed in the network namespace of who has connected (Linux); so
those of all processes are looked at, as far as they are seen from here. Nothing here connects to anything.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from userspace_cni.probe.cores import PROC

_CONNECTED: Final = frozenset({"02", "03"})
"""Of <linux/net.h>: SS_CONNECTING, which is how one is listed that has connected and was not accepted yet, and SS_CONNECTED."""


def connections(name: str, proc: Path = PROC) -> int:
    """How many have connected to a socket whose file was made as `name`, in whatever directory, accepted or not yet."""
    # Num RefCount Protocol Flags Type St Inode Path; those that were not accepted yet all have inode 0
    fields = (line.split(maxsplit=7) for lines in _listings(proc) for line in lines)
    return sum(len(each) == 8 and each[5] in _CONNECTED and each[7].rpartition("/")[2] == name for each in fields)


def _listings(proc: Path) -> list[list[str]]:
    """The unix sockets of each network namespace in which there is a process."""
    seen: set[str] = set()
    found = []
    for process in proc.iterdir():
        if not process.name.isdigit():
            continue
        try:
            namespace = str((process / "ns" / "net").readlink())
            if namespace not in seen:
                found.append((process / "net" / "unix").read_text(encoding="utf-8", errors="surrogateescape").splitlines())
                seen.add(namespace)
        except OSError:
            continue  # it has ended, or is not ours to look at
    return found
