"""Where a command listens for the switch for a moment: a directory of its own, or the name of a pod's socket.

Root makes the directory where no pod can write; OVS's group may enter it and connect to its sockets. Paths of sockets in it have
at most 107 bytes, because `settings` limits short_dir. Must never remove a socket that a process has, or any other file; and
never connect to one, because OVS may be the other side.
"""
# Single names in a directory of ours rather than pathlib's.
# ruff: noqa: PTH101, PTH102, PTH106, PTH108, PTH116, PTH208

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from typing import Final

from userspace_cni.attachment.drift import Absent, Drift
from userspace_cni.attachment.steps import BorrowedName, Driver, SocketDirectory
from userspace_cni.base.beneath import directory_if_there, plain, translate_errors
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.log import say
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.fastpath.vhost.socket_paths import remove_dead
from userspace_cni.host.files.mounts import make_short_dir

_MODE: Final = 0o2750
"""Set-group-id: a socket made in it gets OVS's group."""
_TEMPORARY: Final = re.compile(r"\.vhost-[0-9a-f]{12}")
"""The temporary name of a socket, before it has its own (`fastpath.vhost.sockets`)."""


class SocketDirectoryDriver(Driver[SocketDirectory]):
    """Directories of runs."""

    def __init__(self, root: HostRoot = HERE) -> None:
        self._root = root

    def apply(self, step: SocketDirectory, deadline: Deadline) -> None:
        """Make it, which OVS's group may enter. Raises DirectoryRefused, Unavailable."""
        deadline.require(step.summary)
        with translate_errors(step.summary):
            path, rundir = self._root.path(step.path), self._root.path(step.ovs_rundir)
            make_short_dir(self._root.path(step.short_dir), rundir)
            with suppress(FileExistsError):
                os.mkdir(path, 0o700)
            with suppress(FileNotFoundError):
                os.chown(path, -1, os.stat(rundir).st_gid)
            os.chmod(path, _MODE)

    def undo(self, step: SocketDirectory, deadline: Deadline) -> None:
        """Remove it with its sockets. It may be gone; another file in it stays, with a warning."""
        deadline.require(step.summary)
        path = self._root.path(step.path)
        with translate_errors(step.summary), suppress(FileNotFoundError, NotADirectoryError):
            for name in os.listdir(path):
                if stat.S_ISSOCK(os.stat(f"{path}/{name}", follow_symlinks=False).st_mode):
                    os.unlink(f"{path}/{name}")
                else:
                    say("warning", f"directory {path}: {name} is not a socket of ours; left there")
                    return
            os.rmdir(path)

    def check(self, step: SocketDirectory, deadline: Deadline) -> list[Drift]:
        deadline.require(step.summary)
        there = self._root.is_directory(step.path)
        return [] if there else [Drift(step.summary, "", "a directory of ours", Absent())]


class BorrowedNameDriver(Driver[BorrowedName]):
    """Names of pods' sockets. The process that borrows one makes the socket itself."""

    def __init__(self, root: HostRoot = HERE) -> None:
        self._root = root

    def apply(self, step: BorrowedName, deadline: Deadline) -> None:
        """Nothing: the record has the name before its socket is there."""

    def undo(self, step: BorrowedName, deadline: Deadline) -> None:
        """Remove a dead socket of that name, and those that had no name yet. Raises DirectoryRefused, Unavailable."""
        deadline.require(f"socket {step.thing}")
        with directory_if_there(step.directory, step.trusted, self._root) as dirfd:
            if dirfd is not None:
                temporary = [name for name in os.listdir(dirfd) if _TEMPORARY.fullmatch(name)]
                for name in (plain(step.name), *temporary):
                    remove_dead(dirfd, name)

    def check(self, step: BorrowedName, deadline: Deadline) -> list[Drift]:
        """What is there is the pod's or the run's."""
        del step, deadline
        return []
