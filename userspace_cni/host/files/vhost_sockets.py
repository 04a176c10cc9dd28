"""The shared directory, and the name of the socket, by which a vhost-user application and OVS connect.

In client mode the application listens and OVS connects: the name must be free, and is removed with the attachment. In server
mode OVS listens in its own directory, and `placement` moves the socket to where the pod sees it. Pods may write the shared
directories: see `beneath`. Nothing here connects to a socket: a vhost-user application would take that for OVS.

A killed application leaves its socket, and the next one cannot bind: so a dead socket is removed, a living one never.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress

from userspace_cni.attachment.drift import Dead, Drift, Other
from userspace_cni.attachment.steps import Directory, Driver, SharedReads, SharedResource, SocketFile
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
    stamp_directory,
    translate_errors,
)
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import DirectoryRefused
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.fastpath.vhost import socket_paths
from userspace_cni.host.files.mounts import remove_directory
from userspace_cni.host.files.ownership import Ownership, ownership_drift, set_ownership

_DEAD = (
    "the application was killed and left it, and the next one cannot bind: the agent removes it within a second or two, "
    "`userspace-cni gc` does so without an agent; then the application has to be started again"
)

_NO_SOCKET, _ALIVE = "no socket", "alive"


class DirectoryDriver(Driver[Directory]):
    """Directories shared with a pod.

    `made_before`: whether an attachment of ours made the resource. A directory that was there before keeps owner, mode and label
    unless the step says that it is ours: it was made for other purposes, and a network's author could name it.
    """

    def __init__(self, root: HostRoot = HERE, made_before: Callable[[SharedResource], bool] = lambda _: False) -> None:
        self._root = root
        self._made_before = made_before

    def apply(self, step: Directory, deadline: Deadline) -> None:
        """Open the directory, or make it when the step says so; then set owner, mode and label when it is ours."""
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
        """Remove the directory when it is empty; its parents stay, and so do files that a pod left in it."""
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
        """A missing directory, another file in its place, or another owner, mode or label than was set."""
        what = f"directory {step.path}"
        deadline.require(what)
        try:
            fd = open_directory(step.path, step.trusted, self._root)
        except DirectoryRefused as error:
            return [Drift(what, "", "a directory", f"that {error.message}", error.details)]
        try:
            with translate_errors(what):
                return ownership_drift(fd, Ownership.of(step, self._root), what) if self._is_ours_to_own(step) else []
        finally:
            os.close(fd)

    def find_changes(self, step: Directory, seen: SharedReads, deadline: Deadline) -> list[Drift]:
        """Another owner, mode or label of a directory that is ours. One that is not there takes the pod's own sockets along."""
        del seen
        try:
            return [drift for drift in self.check(step, deadline) if drift.field]
        except DirectoryRefused:
            return []

    def signs(self, step: Directory, seen: SharedReads, before: object) -> object:  # noqa: ARG002 - the directory alone tells
        """The times of the directory. What a name of a user means on this node may change without it, and hardly ever does."""
        return seen.once(stamp_directory, step.path, step.trusted, self._root)

    def _is_ours_to_own(self, step: Directory) -> bool:
        return step.own or (step.create and self._made_before(step.resource))

    def is_present(self, step: Directory) -> bool:
        try:
            fd = open_if_there(step.path, step.trusted, self._root)
        except DirectoryRefused:
            return True  # something is there; `apply` says what
        if fd is None:
            return False
        os.close(fd)
        return True


class SocketFileDriver(Driver[SocketFile]):
    """Names under which applications create their sockets."""

    def __init__(self, root: HostRoot = HERE) -> None:
        self._root = root

    def apply(self, step: SocketFile, deadline: Deadline) -> None:
        """Free the name: remove a former application's dead socket. A living one stays, another file is refused."""
        deadline.require(_what(step))
        with directory(step.directory, step.trusted, self._root) as dirfd:
            facts = look(dirfd, plain(step.name))
            if facts is None:
                return
            if not stat.S_ISSOCK(facts.st_mode):
                raise DirectoryRefused(f"{_what(step)}: {kind(facts.st_mode)} is in its place", "the pod has to remove it")
            socket_paths.remove_dead(dirfd, step.name)

    def undo(self, step: SocketFile, deadline: Deadline) -> None:
        """Remove the socket; another file stays, because it is not the application's socket."""
        deadline.require(_what(step))
        with directory_if_there(step.directory, step.trusted, self._root) as dirfd:
            if dirfd is not None:
                facts = look(dirfd, plain(step.name))
                if facts is not None and stat.S_ISSOCK(facts.st_mode):
                    remove_name(dirfd, step.name)

    def check(self, step: SocketFile, deadline: Deadline) -> list[Drift]:
        """A dead socket, or another file. No socket yet is normal; a missing directory is a drift of the directory's step."""
        deadline.require(_what(step))
        with directory_if_there(step.directory, step.trusted, self._root) as dirfd:
            facts = None if dirfd is None else look(dirfd, plain(step.name))
            if dirfd is None or facts is None:
                return []
            if not stat.S_ISSOCK(facts.st_mode):
                return [Drift(_what(step), "", "a socket or nothing", Other(kind(facts.st_mode)))]
            if not socket_paths.is_dead(dirfd, step.name):
                return []
            return [Drift(_what(step), "", "an application that listens, or nothing", Dead("a dead socket"), _DEAD)]

    def is_lost(self, step: SocketFile, seen: SharedReads, deadline: Deadline) -> bool:  # noqa: ARG002 - each has a directory of its own
        """Whether the application has ended and left its socket, so that the next one cannot bind."""
        with directory_if_there(step.directory, step.trusted, self._root) as dirfd:
            return dirfd is not None and socket_paths.is_dead(dirfd, plain(step.name))

    def signs(self, step: SocketFile, seen: SharedReads, before: object) -> object:
        """Where there was no socket, the times of the directory, in which one appears. Of one that is there only a look at it
        tells that its application has ended."""
        stamp = seen.once(stamp_directory, step.directory, step.trusted, self._root)
        if stamp is None or before == (stamp, _NO_SOCKET):
            return stamp and before
        with directory_if_there(step.directory, step.trusted, self._root) as dirfd:
            if dirfd is None:
                return None
            lives = socket_paths.is_alive_in(dirfd, plain(step.name))
        return None if lives is False else (stamp, _NO_SOCKET if lives is None else _ALIVE)


def remove_name(dirfd: int, name: str) -> None:
    """Unlink a name in the directory, if it is there. Follows no link: a pod can only swap in a name of its own directory."""
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=dirfd)


def _what(step: SocketFile) -> str:
    return f"socket {step.directory}/{step.name}"
