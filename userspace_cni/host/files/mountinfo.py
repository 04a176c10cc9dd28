"""Reads the mount table of a process (proc_pid_mountinfo(5)).

Its paths are those of the process whose table it is, below that process's root.
"""
# Descriptors rather than paths.
# ruff: noqa: PTH115, PTH123

from __future__ import annotations

import os
import re
import select
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Mount:
    """One mount: `device` as MAJOR:MINOR, `root` the directory or file of that file system that is mounted, `point` where.

    `groups` are the optional fields: `shared:N`, `master:N`. A private mount has none.
    """

    ident: int
    device: str
    root: str
    point: str
    groups: frozenset[str] = frozenset()

    @property
    def shared(self) -> frozenset[str]:
        """The peer group, as `shared:N`; empty for a mount without one."""
        return frozenset(group for group in self.groups if group.startswith("shared:"))


def read(path: str = "/proc/self/mountinfo") -> dict[int, Mount]:
    """The table in the file `path`, by mount id, in its order: a mount comes after the mounts that it covers. Raises OSError."""
    mounts = {}
    # newline: the kernel does not escape a carriage return, which a pod may put into a path; it must not end a line
    with open(path, encoding="utf-8", errors="surrogateescape", newline="\n") as lines:
        for line in lines:
            fields = line.split(" ")
            groups = frozenset(field for field in fields[6 : fields.index("-")] if ":" in field)
            mount = Mount(int(fields[0]), fields[2], _unescaped(fields[3]), _unescaped(fields[4]), groups)
            mounts[mount.ident] = mount
    return mounts


class MountPoints:
    """The mount points of this process's mount namespace, read again when the kernel says that the table has changed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fd = -1
        self._poll = select.poll()
        self._points: frozenset[str] | None = None

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def read(self) -> frozenset[str]:
        """All of them. Raises OSError."""
        with self._lock:
            if self._fd < 0:
                self._fd = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
                self._poll.register(self._fd, select.POLLPRI)
            if self._poll.poll(0):  # each open file is told once of what has changed since
                self._points = None
            if self._points is None:
                self._points = frozenset(mount.point for mount in read().values())
            return self._points


def list_below(dirfd: int, mounts: Iterable[Mount]) -> list[tuple[Mount, str]]:
    """The mounts below a directory, each with its path from there, the latest first: they can be unmounted in this order."""
    directory = os.readlink(f"/proc/self/fd/{dirfd}")
    found = ((mount, _below(mount.point, directory)) for mount in mounts)
    return [(mount, rest) for mount, rest in found if rest][::-1]


def mount_id(fd: int) -> int:
    """The id of the mount on which `fd` is (proc_pid_fdinfo(5)): st_dev of a bind mount may equal that of what it covers."""
    with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("mnt_id:"))


def mount_of(fd: int, mounts: Mapping[int, Mount]) -> Mount | None:
    """The mount that the descriptor is on; None when the table does not have it. Raises OSError."""
    return mounts.get(mount_id(fd))


def place_of(fd: int, mount: Mount) -> str:
    """The path of the directory `fd`, which is on `mount`, within its file system, independent of mounts."""
    seen = os.readlink(f"/proc/self/fd/{fd}")
    return _joined(mount.root, _below(seen, mount.point) or "")


def seen_as(place: str, mount: Mount) -> str | None:
    """The path at which `mount` shows `place`, a path within its file system; None when the mount does not show it."""
    below = _below(place, mount.root)
    return None if below is None else _joined(mount.point, below)


def _below(path: str, top: str) -> str | None:
    """The rest of `path` below `top`, "" when both are equal; None when `path` is elsewhere."""
    top = top.rstrip("/")
    if path != top and not path.startswith(f"{top}/"):
        return None
    return path[len(top) :].strip("/")


def _joined(top: str, below: str) -> str:
    return f"{top.rstrip('/')}/{below}".rstrip("/") or "/"


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text) if "\\" in text else text
