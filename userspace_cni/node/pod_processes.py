"""The processes of a pod as this node sees them: whether they see the directory of a socket, and which sockets they name.

They are found by their network namespace. A pod chooses its command lines and its mounts: of both a bounded part is read, and
nothing in them is followed.
"""
# Single names rather than paths: pathlib cannot express them.
# ruff: noqa: PTH116, PTH208

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from userspace_cni.attachment.steps import Directory
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.root import HostRoot
from userspace_cni.host.files.pod_view import sees_directory

_PROCESSES_MAX: Final = 256
_COMMAND_MAX: Final = 1 << 15
_PAUSE: Final = ("pause", "catatonit")
"""Programs that only keep a sandbox alive, and have none of the pod's volumes."""
_VDEV: Final = re.compile(r"(?:^|[=\s\0])(?:net_)?virtio_user[0-9]{0,4},([^\s\0]{1,4096})")
"""DPDK's device of an application at a vhost-user socket, with its arguments, as `pod.eal` prints it."""


@dataclass(frozen=True)
class VhostArgument:
    """A vhost-user interface on the command line of a process. `role`: the application's at the socket."""

    pid: int
    path: str
    role: Literal["client", "server"]


@dataclass(frozen=True)
class PodProcesses:
    """The pod's processes. `count`: without what only keeps its sandbox; `see_directory`: whether one of them sees the directory
    of the socket, None where there is none, or that cannot be seen."""

    count: int
    see_directory: bool | None = None
    arguments: tuple[VhostArgument, ...] = ()


def see_processes(netns_inode: int, directory: Directory | None, deadline: Deadline, root: HostRoot) -> PodProcesses:
    """Look at the processes in that network namespace. Raises Unavailable at the deadline."""
    proc = root.path("/proc")
    found = list(_in_namespace(proc, netns_inode, deadline))
    seen = sees_directory(directory, found, deadline, root) if directory else None
    arguments = [each for pid in found for each in _arguments(proc, pid)]
    return PodProcesses(len(found), seen, tuple(dict.fromkeys(arguments)))


def _in_namespace(proc: str, netns_inode: int, deadline: Deadline) -> Iterator[int]:
    count = 0
    for name in os.listdir(proc):
        deadline.require("looking at the pod's processes")
        with suppress(OSError):  # it has ended, or may not be looked at
            if name.isdigit() and os.stat(f"{proc}/{name}/ns/net").st_ino == netns_inode:
                if Path(f"{proc}/{name}/comm").read_text(encoding="utf-8", errors="replace").strip() in _PAUSE:
                    continue
                count += 1
                yield int(name)
        if count >= _PROCESSES_MAX:
            return


def _arguments(proc: str, pid: int) -> Iterator[VhostArgument]:
    try:
        with Path(f"{proc}/{pid}/cmdline").open("rb") as file:
            text = file.read(_COMMAND_MAX).decode("utf-8", "surrogateescape")
    except OSError:
        return
    for match in _VDEV.finditer(text):
        values = dict(each.partition("=")[::2] for each in match[1].split(","))
        if path := values.get("path", ""):
            yield VhostArgument(pid, path, "server" if values.get("server") == "1" else "client")
