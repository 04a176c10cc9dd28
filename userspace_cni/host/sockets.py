"""The directory, the name and the socket by which a vhost-user application and OVS meet.

In client mode the application listens and OVS connects: the name must be free, and is removed with the attachment. In server
mode OVS listens in a directory of its own and the socket is moved to where the pod sees it. All of this is done in directories
that a pod may write: see `beneath`. Nothing here connects to a socket: a vhost-user peer would take that for its counterpart.

An application that is killed leaves its socket, and the next one cannot bind: a dead socket has to go, one that lives never does.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress

from userspace_cni.attachment.drift import Dead, Drift, Other
from userspace_cni.attachment.steps import Directory, Driver, Resource, Seen, SocketFile
from userspace_cni.base.beneath import (
    DIRECTORY_MODE,
    directory,
    directory_if_there,
    kind,
    look,
    make_directory,
    open_directory,
    open_if_there,
    plain,
    translated,
)
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import DirectoryRefused
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.fastpath.vhost import sockets
from userspace_cni.host.mounts import remove_directory
from userspace_cni.host.ownership import Ownership, ownership_drift, set_ownership

_DEAD = (
    "the application was killed and left it, and the next one cannot bind: the agent removes it within a second or two, "
    "`userspace-cni gc` does so without an agent; then the application has to be started again"
)


class DirectoryDriver(Driver[Directory]):
    """Directories shared with a pod.

    `made_before`: whether an attachment of ours made the thing. What was there before keeps owner, mode and label unless the step
    says that it is ours all the same: it was made for other purposes, and a network's author could name it.
    """

    def __init__(self, root: HostRoot = HERE, made_before: Callable[[Resource], bool] = lambda _: False) -> None:
        self._root = root
        self._made_before = made_before

    def apply(self, step: Directory, deadline: Deadline) -> None:
        """Open it, or make it when the step says so; then set owner, mode and label when they are ours to set."""
        what = f"directory {step.path}"
        deadline.require(what)
        wanted = Ownership.of(step, self._root)
        made = False
        if step.create:
            mode = DIRECTORY_MODE if step.mode is None else step.mode
            fd, made = make_directory(step.path, step.trusted, mode, self._root, parents=step.parents)
        else:
            fd = open_directory(step.path, step.trusted, self._root)
        try:
            if made or self._is_ours_to_own(step):
                set_ownership(fd, wanted, what)
        finally:
            os.close(fd)

    def undo(self, step: Directory, deadline: Deadline) -> None:
        """Remove it when it is empty; its parents stay, and so does everything that a pod left in it."""
        deadline.require(f"directory {step.path}")
        if not step.create:
            return
        path = step.path.rstrip("/")
        parent, _, name = path.rpartition("/")
        trusted = step.trusted.rstrip("/")
        if path == trusted:
            trusted = parent
        with directory_if_there(parent or "/", trusted or "/", self._root) as dirfd:
            if dirfd is not None:
                remove_directory(dirfd, plain(name), path)

    def check(self, step: Directory, deadline: Deadline) -> list[Drift]:
        """A missing directory, something else in its place, or another owner, mode or label than was set."""
        what = f"directory {step.path}"
        deadline.require(what)
        try:
            fd = open_directory(step.path, step.trusted, self._root)
        except DirectoryRefused as error:
            return [Drift(what, "", "a directory", f"that {error.message}", error.details)]
        try:
            with translated(what):
                return ownership_drift(fd, Ownership.of(step, self._root), what) if self._is_ours_to_own(step) else []
        finally:
            os.close(fd)

    def _is_ours_to_own(self, step: Directory) -> bool:
        return step.own or (step.create and self._made_before(step.resource))

    def present(self, step: Directory) -> bool:
        """Whether anything is at the path."""
        try:
            fd = open_if_there(step.path, step.trusted, self._root)
        except DirectoryRefused:
            return True  # something is there, and it is for `apply` to say what
        if fd is None:
            return False
        os.close(fd)
        return True


class SocketFileDriver(Driver[SocketFile]):
    """Names under which applications create their sockets."""

    def __init__(self, root: HostRoot = HERE) -> None:
        self._root = root

    def apply(self, step: SocketFile, deadline: Deadline) -> None:
        """Free the name: remove the dead socket of a former application. One that lives stays, anything else is refused."""
        deadline.require(_what(step))
        with directory(step.directory, step.trusted, self._root) as dirfd:
            facts = look(dirfd, plain(step.name))
            if facts is None:
                return
            if not stat.S_ISSOCK(facts.st_mode):
                raise DirectoryRefused(f"{_what(step)}: {kind(facts.st_mode)} is in its place", "the pod's own directory")
            sockets.remove_dead(dirfd, step.name)

    def undo(self, step: SocketFile, deadline: Deadline) -> None:
        """Remove the socket; what is no socket was not put there for us."""
        deadline.require(_what(step))
        with directory_if_there(step.directory, step.trusted, self._root) as dirfd:
            if dirfd is not None:
                facts = look(dirfd, plain(step.name))
                if facts is not None and stat.S_ISSOCK(facts.st_mode):
                    remove_name(dirfd, step.name)

    def check(self, step: SocketFile, deadline: Deadline) -> list[Drift]:
        """A dead socket, or something that is none. No socket yet is normal, a missing directory the directory's own drift."""
        deadline.require(_what(step))
        with directory_if_there(step.directory, step.trusted, self._root) as dirfd:
            facts = None if dirfd is None else look(dirfd, plain(step.name))
            if dirfd is None or facts is None:
                return []
            if not stat.S_ISSOCK(facts.st_mode):
                return [Drift(_what(step), "", "a socket or nothing", Other(kind(facts.st_mode)))]
            if not sockets.is_dead(dirfd, step.name):
                return []
            return [Drift(_what(step), "", "an application that listens, or nothing", Dead("a dead socket"), _DEAD)]

    def lost(self, step: SocketFile, seen: Seen, deadline: Deadline) -> bool:  # noqa: ARG002 - each has a directory of its own
        """Whether the application has ended and left its socket, so that the next one cannot have the name."""
        with directory_if_there(step.directory, step.trusted, self._root) as dirfd:
            return dirfd is not None and sockets.is_dead(dirfd, plain(step.name))


def remove_name(dirfd: int, name: str) -> None:
    """Unlink a name in the directory; gone is fine. Never follows: what a pod swaps in is a name in its own directory."""
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=dirfd)


def _what(step: SocketFile) -> str:
    return f"socket {step.directory}/{step.name}"
