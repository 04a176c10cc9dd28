"""Sockets that OVS made (server mode), put where the pod sees them.

OVS binds in its own directory. On the same device the socket is renamed into the pod's directory; a socket bound to an inode
goes on accepting under its new name. Across devices it can not be renamed, so an empty file in the pod's directory is covered
with a mount of the socket, and the socket's own name is unlinked at once: it still accepts through the mount, while a stale name
would make OVS's next bind fail.

    source            at the pod's name           apply
    socket            nothing, socket, our mount  place it (OVS restarted when there was one: the old one is dead)
    absent            socket, our mount           done before
    absent            nothing                     wait for OVS until the deadline
    anything else     -                           refused
    -                 anything else               refused

A placeholder without a mount (a crash between the two) is recognised by being empty, ours and without any permission.
A pod that runs already does not see a mount made later on its name, unless its volume has mountPropagation HostToContainer: only
sockets on the same device survive a restart of OVS under a running pod.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from userspace_cni.deadline import Deadline
from userspace_cni.errors import DirectoryRefused, Drift, Unavailable
from userspace_cni.fastpath import paths
from userspace_cni.host.beneath import directory, directory_if_there, kind, look, plain, translated
from userspace_cni.host.mounts import detach_all, mounted, protected_clone
from userspace_cni.host.ownership import Ownership, ownership_drift, set_ownership
from userspace_cni.host.root import HERE, HostRoot
from userspace_cni.host.sockets import remove_name
from userspace_cni.steps import PlacedSocket

_POLL_S = 0.005
"""Between two looks for OVS's socket: it is bound when the port's read-back is done, so that the first look finds it."""


class PlacedSocketDriver:
    """Sockets of OVS in pod directories."""

    def __init__(self, root: HostRoot = HERE) -> None:
        self._root = root

    def apply(self, step: PlacedSocket, deadline: Deadline) -> None:
        """Place OVS's socket, with owner, mode and label set before it can be seen."""
        deadline.require(_what(step))
        wanted = Ownership.of(step, self._root)
        with directory(step.directory, step.trusted, self._root) as dirfd:
            placed = _placed(dirfd, step)
            with translated(f"socket {step.source}"):
                source = self._await_source(step, deadline, needed=not placed)
            if source is None:
                _own_placed(dirfd, step, wanted)
                return
            try:
                with translated(_what(step)):
                    _place(source, dirfd, step, wanted)
            finally:
                os.close(source)

    def undo(self, step: PlacedSocket, deadline: Deadline) -> None:
        """Unmount and remove what was placed. OVS's own name is removed by OVS with its port."""
        deadline.require(_what(step))
        with directory_if_there(step.directory, step.trusted, self._root) as dirfd:
            if dirfd is not None:
                _clear(dirfd, plain(step.name))

    def check(self, step: PlacedSocket, deadline: Deadline) -> list[Drift]:
        """No socket in place, other owners than were set, or a newer socket of OVS that is not placed."""
        what = _what(step)
        deadline.require(what)
        sockdir, name = _split(step.source)
        drift: list[Drift] = []
        with directory_if_there(step.directory, step.trusted, self._root) as dirfd:
            facts = None if dirfd is None else look(dirfd, plain(step.name))
            if dirfd is None or facts is None:
                drift.append(Drift(f"{what}: expected a socket, found nothing"))
            elif not stat.S_ISSOCK(facts.st_mode):
                drift.append(Drift(f"{what}: expected a socket, found {kind(facts.st_mode)}"))
            else:
                fd = _open_socket(dirfd, step.name)
                try:
                    drift += ownership_drift(fd, Ownership.of(step, self._root), what)
                finally:
                    os.close(fd)
        with translated(f"socket {step.source}"):
            if os.path.lexists(f"{self._root.path(sockdir)}/{name}"):
                drift.append(Drift(f"{what}: expected OVS to listen on it, found a newer socket at {step.source}"))
        return drift

    def present(self, step: PlacedSocket) -> bool:  # noqa: ARG002 - the same answer for every step
        """Never: what is there already is a dead socket of ours, or refused."""
        return False

    def _await_source(self, step: PlacedSocket, deadline: Deadline, *, needed: bool) -> int | None:
        """OVS's directory opened, as soon as its socket is there; None when it is not there and not `needed`."""
        sockdir, name = _split(step.source)
        what = f"socket {step.source}"
        while True:
            try:
                dirfd = os.open(self._root.path(sockdir), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except FileNotFoundError:
                facts = None
            else:
                facts = look(dirfd, name)
                if facts is not None and stat.S_ISSOCK(facts.st_mode):
                    return dirfd
                os.close(dirfd)
            if facts is not None:
                raise DirectoryRefused(f"{what}: {kind(facts.st_mode)} is in its place", "setting ovs_sockdir")
            if not needed:
                return None
            left = deadline.remaining()
            if left <= 0:
                raise Unavailable(f"{what}: OVS did not make it in time", "setting ovs_sockdir; ovs-vswitchd's log")
            time.sleep(min(_POLL_S, left))


def _placed(dirfd: int, step: PlacedSocket) -> bool:
    """Whether a socket is at the pod's name; what is neither a socket nor left behind by us is refused."""
    facts = look(dirfd, plain(step.name))
    if facts is None or _is_placeholder(facts):
        return False
    if not stat.S_ISSOCK(facts.st_mode):
        raise DirectoryRefused(f"{_what(step)}: {kind(facts.st_mode)} is in its place", "the pod's own directory")
    return True


def _place(source: int, dirfd: int, step: PlacedSocket, wanted: Ownership) -> None:
    name = plain(step.name)
    _, source_name = _split(step.source)
    fd = _open_socket(source, source_name)
    try:
        set_ownership(fd, wanted, f"socket {step.source}")
    finally:
        os.close(fd)
    # A mount point can not be renamed over; a dead socket without a mount is replaced in one step
    if _is_mounted(dirfd, name) or _is_placeholder(look(dirfd, name)):
        _clear(dirfd, name)
    try:
        os.rename(source_name, name, src_dir_fd=source, dst_dir_fd=dirfd)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _clear(dirfd, name)
        _cover(source, source_name, dirfd, name)
        remove_name(source, source_name)


def _cover(source: int, source_name: str, dirfd: int, name: str) -> None:
    """Mount OVS's socket over an empty file made for it, both named by descriptors."""
    tree = protected_clone(source, source_name)
    try:
        placeholder = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0, dir_fd=dirfd)
        try:
            paths.move_mount(tree, placeholder)
        finally:
            os.close(placeholder)
    finally:
        os.close(tree)


def _clear(dirfd: int, name: str) -> None:
    """Remove a socket, its mount and its placeholder; whatever else a pod put there stays."""
    detach_all(dirfd, name)
    facts = look(dirfd, name)
    if facts is not None and (stat.S_ISSOCK(facts.st_mode) or _is_placeholder(facts)):
        remove_name(dirfd, name)


def _own_placed(dirfd: int, step: PlacedSocket, wanted: Ownership) -> None:
    fd = _open_socket(dirfd, step.name)
    try:
        set_ownership(fd, wanted, _what(step))
    finally:
        os.close(fd)


def _open_socket(dirfd: int, name: str) -> int:
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dirfd)
    mode = os.fstat(fd).st_mode
    if not stat.S_ISSOCK(mode):
        os.close(fd)
        raise DirectoryRefused(f"socket {name}: {kind(mode)} is in its place", "somebody replaced it meanwhile")
    return fd


def _is_placeholder(facts: os.stat_result | None) -> bool:
    return (
        facts is not None
        and stat.S_ISREG(facts.st_mode)
        and stat.S_IMODE(facts.st_mode) == 0
        and facts.st_size == 0
        and facts.st_uid == os.geteuid()
    )


def _is_mounted(dirfd: int, name: str) -> bool:
    target = mounted(dirfd, name)
    if target is None:
        return False
    os.close(target)
    return True


def _split(source: str) -> tuple[str, str]:
    sockdir, _, name = source.rpartition("/")
    return sockdir or "/", plain(name)


def _what(step: PlacedSocket) -> str:
    return f"socket {step.directory}/{step.name}"
