"""The mount table of a process, as the kernel tells it (proc_pid_mountinfo(5)). It only reads.

Paths in it are of the process whose table it is, below that process's root.
"""
# Descriptors rather than paths.
# ruff: noqa: PTH115, PTH123

from __future__ import annotations

import os
import re
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
        """The peer group, as `shared:N`; empty for a mount that is in none."""
        return frozenset(group for group in self.groups if group.startswith("shared:"))


def read(path: str = "/proc/self/mountinfo") -> dict[int, Mount]:
    """The table in the file `path`, by the mounts' ids and in its order: a mount comes after what it covers. Raises OSError."""
    mounts = {}
    # a carriage return in a path, which a pod may choose, is not escaped and ends no line
    with open(path, encoding="utf-8", errors="surrogateescape", newline="\n") as lines:
        for line in lines:
            fields = line.split(" ")
            groups = frozenset(field for field in fields[6 : fields.index("-")] if ":" in field)
            mount = Mount(int(fields[0]), fields[2], _unescaped(fields[3]), _unescaped(fields[4]), groups)
            mounts[mount.ident] = mount
    return mounts


def below(dirfd: int, mounts: Iterable[Mount]) -> list[tuple[Mount, str]]:
    """The mounts below a directory, each with its path from there, the latest first: in this order they can be taken off."""
    directory = os.readlink(f"/proc/self/fd/{dirfd}")
    found = ((mount, _below(mount.point, directory)) for mount in mounts)
    return [(mount, rest) for mount, rest in found if rest][::-1]


def mount_id(fd: int) -> int:
    """The mount that the object behind `fd` is on (proc_pid_fdinfo(5)): st_dev does not tell a bind mount from what it covers."""
    with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("mnt_id:"))


def mount_of(fd: int, mounts: Mapping[int, Mount]) -> Mount | None:
    """The mount that the descriptor is on; None when the table does not have it. Raises OSError."""
    return mounts.get(mount_id(fd))


def place_of(fd: int, mount: Mount) -> str:
    """Where the directory behind `fd`, which is on `mount`, is in its file system, whatever is mounted where."""
    seen = os.readlink(f"/proc/self/fd/{fd}")
    return _joined(mount.root, _below(seen, mount.point) or "")


def seen_as(place: str, mount: Mount) -> str | None:
    """What who has `mount` calls the place of its file system; None when the mount does not show it."""
    below = _below(place, mount.root)
    return None if below is None else _joined(mount.point, below)


def _below(path: str, top: str) -> str | None:
    """The rest of `path` below `top`, "" for itself; None when it is elsewhere."""
    top = top.rstrip("/")
    if path != top and not path.startswith(f"{top}/"):
        return None
    return path[len(top) :].strip("/")


def _joined(top: str, below: str) -> str:
    return f"{top.rstrip('/')}/{below}".rstrip("/") or "/"


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text) if "\\" in text else text
