"""The mounts and modes of directories that the node needs."""
# Paths of another root rather than pathlib's.
# ruff: noqa: PTH112, PTH116

from __future__ import annotations

import os
import stat
from dataclasses import dataclass

from userspace_cni.base.errors import DirectoryRefused
from userspace_cni.base.root import HERE, HostRoot


@dataclass(frozen=True)
class DirectoryState:
    """A directory, by the host's path. `name`: the setting that names it. `mount`: the mount point on which it is.

    `exists`: false for one that is made when it is needed; then the rest is its nearest parent's. `open_to`: "" or who beside its
    owner and group may write in it. `problem`: why nothing can be written there, "" if something can.
    """

    name: str
    path: str
    exists: bool = True
    mount: str = "/"
    filesystem: str = ""
    read_only: bool = False
    no_exec: bool = False
    open_to: str = ""
    problem: str = ""


def look_at_directory(name: str, path: str, root: HostRoot = HERE) -> DirectoryState | None:
    """The directory; None where it cannot be seen."""
    import psutil

    try:
        seen = os.path.realpath(root.path(path))
        exists = os.path.isdir(seen)
        while not os.path.isdir(seen):
            seen = os.path.dirname(seen)  # noqa: PTH120
        flags = os.statvfs(seen).f_flag
        mode = os.stat(seen).st_mode
        mounts = psutil.disk_partitions(all=True)
    except (OSError, DirectoryRefused, psutil.Error):
        return None
    below = [each for each in mounts if seen == each.mountpoint or seen.startswith(f"{each.mountpoint.rstrip('/')}/")]
    mount = max(below, key=lambda each: len(each.mountpoint), default=None)
    at = mount.mountpoint if mount else "/"
    if root.elsewhere and at.startswith(root.directory):
        at = at.removeprefix(root.directory) or "/"
    return DirectoryState(
        name,
        path,
        exists,
        at,
        mount.fstype if mount else "",
        read_only=bool(flags & os.ST_RDONLY),
        no_exec=bool(flags & os.ST_NOEXEC),
        open_to=_open_to(mode) if exists else "",
    )


def _open_to(mode: int) -> str:
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        return "all users"
    return ""
