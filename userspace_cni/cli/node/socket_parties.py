"""Asks this node's kernel whether QEMU listens at a VM's socket, and whether the switch is connected.

OVS says `disconnected` of a guest whose driver is not up (paused, in its boot loader, crashed, the target of a migration) as of
one that is not there. The kernel tells them apart. Nothing here connects to anything.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from userspace_cni.consumers.kubevirt.guests import Party
from userspace_cni.linux.unix_sockets import UnixSocket, file_of, unix_sockets
from userspace_cni.probe.cores import switches

_OPEN: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True)
class UnixSockets:
    """The unix sockets of a node. `is_whole`: those at VMs' sockets are all known, for the switch and the VMs' pods are seen."""

    sockets: tuple[UnixSocket, ...] = ()
    is_whole: bool = False

    def at(self, path: Path, facts: os.stat_result) -> Party:
        """Which parties are at the socket at `path`.

        The file decides. Where only its name and inode are a listener's it is not known: some file systems (btrfs) have a device
        for the kernel and another one for programs.
        """
        file = file_of(facts)
        alike = [each for each in self.sockets if each.inode == file[0] and each.name.rpartition("/")[2] == path.name]
        mine = [each for each in self.sockets if (each.inode, each.device) == file]
        if any(not each.listens for each in mine):
            return "connected"
        if not self.is_whole or (alike and not mine):
            return ""
        return "listening" if mine else "none"


def look(proc: Path, netns: Sequence[str]) -> UnixSockets:
    """Those of each network namespace that a process of `proc` is in, and of those at the paths `netns`, the VMs' pods'.

    A process that may not be looked at hides nothing: the switch's and the pods' namespaces are what counts.
    """
    of_switches = [f"{each}/ns/net" for each in switches(proc)] if proc.is_dir() else []
    needed = [*of_switches, *netns]
    others = [f"{each}/ns/net" for each in proc.iterdir() if each.name.isdecimal()] if of_switches else []
    is_whole = bool(of_switches)
    with ExitStack() as stack:
        opened: dict[tuple[int, int], int] = {}
        for number, path in enumerate((*needed, *others)):
            try:
                facts = Path(path).stat()
                if (facts.st_dev, facts.st_ino) not in opened:
                    descriptor = os.open(path, _OPEN)
                    stack.callback(os.close, descriptor)
                    opened[facts.st_dev, facts.st_ino] = descriptor
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended
            except OSError:
                is_whole = is_whole and number >= len(needed)
        found, refused = unix_sockets(opened.values())
    return UnixSockets(tuple(found), is_whole and not refused)
