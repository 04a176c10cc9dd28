"""Places sockets that OVS made (server mode) where the pod sees them.

OVS binds in its own directory. On the same device the socket is renamed into the pod's directory: a socket is bound to an inode,
and goes on accepting under its new name. Across devices it cannot be renamed, so an empty file in the pod's directory is covered
with a mount of the socket, and the socket's own name is unlinked at once: it still accepts through the mount, while a stale name
would make OVS's next bind fail.

    source            at the pod's name           apply
    live socket       nothing, socket, our mount  place it (OVS restarted when there was one: the old one is dead)
    dead socket       -                           as absent: OVS was killed before it was placed
    absent            live socket, our mount      done before
    absent            nothing, dead socket        wait for OVS until the deadline
    anything else     -                           refused
    -                 anything else               refused

A dead socket at OVS's own name makes its next bind fail. It has to go before that (`free_source`), and must not go after it, as
long as that daemon lives: see `node.switch_sockets`, which knows both.

A placeholder without a mount (a crash between the two) is known by being empty, ours and without any permission. A pod may rename
it, and our mount moves with it: so our mounts are found in the mount table, by the object that they show.
A running pod sees a mount that is made later only when its volume has mountPropagation HostToContainer; without that, only
sockets on the same device survive a restart of OVS under a running pod. `pod_view` checks what the pod sees.
"""

from __future__ import annotations

import errno
import math
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from userspace_cni.attachment.drift import Absent, Dead, Drift, Other
from userspace_cni.attachment.steps import Driver, PlacedSocket, SharedReads
from userspace_cni.base.beneath import directory, directory_if_there, kind, look, plain, translate_errors
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import DirectoryRefused, Unavailable
from userspace_cni.base.log import say
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.fastpath.vhost import socket_paths
from userspace_cni.host.files import pod_view
from userspace_cni.host.files.mountinfo import Mount, list_below, mount_id, mount_of, place_of, read
from userspace_cni.host.files.mounts import detach_all, protected_clone
from userspace_cni.host.files.ownership import Ownership, ownership_drift, set_ownership
from userspace_cni.host.files.vhost_sockets import remove_name
from userspace_cni.linux import paths

_POLL_S = 0.005
"""Between two looks for OVS's socket. Usually the first look finds it: it is bound when the port's read-back is done."""
_AGAIN_S: Final = 0.05
"""How long a socket is awaited that is to be placed again, from the first look on: OVS has made it anew, or there is nothing to
wait for. A pod that removes its own socket must not delay every call on its node."""
_DELETED: Final = "//deleted"
"""The mount table appends this to the path of an object that was unlinked; proc_pid_mountinfo(5), d_path(9)."""
_DEAD: Final = (
    "ovs-vswitchd has ended, or could not make it again: Interface.error, ovs-vswitchd.log; the agent frees the name, and places "
    "the new socket when OVS has made it"
)


class PlacedSocketDriver(Driver[PlacedSocket]):
    """Sockets of OVS in pod directories.

    `free`: removes a dead socket at the path where OVS is to make the one that is awaited, if it may (see `node.switch_sockets`).
    """

    def __init__(self, root: HostRoot = HERE, free: Callable[[str, Deadline], object] = lambda *_: None) -> None:
        self._root = root
        self._free = free

    def apply(self, step: PlacedSocket, deadline: Deadline) -> None:
        """Place OVS's socket; owner, mode and label are set before the pod can see it."""
        self._apply(step, deadline, math.inf)

    def make_again(self, step: PlacedSocket, deadline: Deadline) -> None:
        """The same, if OVS has made the socket anew."""
        self._apply(step, deadline, _AGAIN_S)

    def _apply(self, step: PlacedSocket, deadline: Deadline, patience_s: float) -> None:
        deadline.require(_what(step))
        self._free(step.source, deadline)
        wanted = Ownership.of(step, self._root)
        with directory(step.directory, step.trusted, self._root) as dirfd:
            lives = _placed(dirfd, step) and not socket_paths.is_dead(dirfd, step.name)
            with translate_errors(f"socket {step.source}"):
                source = self._await_source(step, deadline.within(patience_s), needed=not lives)
            if source is None:
                _own_placed(dirfd, step, wanted)
                return
            try:
                with translate_errors(_what(step)):
                    _place(source, dirfd, step, wanted)
            finally:
                os.close(source)

    def undo(self, step: PlacedSocket, deadline: Deadline) -> None:
        """Unmount and remove the placed socket. OVS removes its own name with the port."""
        deadline.require(_what(step))
        with directory_if_there(step.directory, step.trusted, self._root) as dirfd:
            if dirfd is not None:
                _clear(dirfd, step)
        self._detach_elsewhere(step)

    def is_lost(self, step: PlacedSocket, seen: SharedReads, deadline: Deadline) -> bool:  # noqa: ARG002 - each has a place of its own
        """Whether to report anything about it: placing it again puts all of that right."""
        return bool(self.check(step, deadline))

    def is_mounted(self, step: PlacedSocket, seen: SharedReads) -> bool:
        """Whether a mount of ours shows the socket in the pod's directory, also when the pod has moved it there."""
        with directory_if_there(step.directory, step.trusted, self._root) as dirfd:
            return dirfd is not None and any(_is_of(mount, step) for mount, _ in list_below(dirfd, seen.once(read).values()))

    def check(self, step: PlacedSocket, deadline: Deadline) -> list[Drift]:
        """A missing socket, another owner, mode or label, a dead socket, or a newer socket of OVS that is not placed."""
        what = _what(step)
        deadline.require(what)
        drift: list[Drift] = []
        with directory_if_there(step.directory, step.trusted, self._root) as dirfd:
            facts = None if dirfd is None else look(dirfd, plain(step.name))
            if dirfd is None or facts is None:
                drift.append(Drift(what, "", "a socket", Absent()))
            elif not stat.S_ISSOCK(facts.st_mode):
                drift.append(Drift(what, "", "a socket", Other(kind(facts.st_mode))))
            else:
                fd = _open_socket(dirfd, step.name)
                try:
                    drift += ownership_drift(fd, Ownership.of(step, self._root), what)
                finally:
                    os.close(fd)
            dead = dirfd is not None and socket_paths.is_dead(dirfd, step.name)
        newer = self._newer(step)
        if newer:
            words = f"{newer} at {step.source}"
            drift.append(Drift(what, "", "OVS to listen on it", Dead(words) if dead else words))
        elif dead:
            drift.append(Drift(what, "", "OVS to listen on it", Dead("a dead socket"), _DEAD))
        return drift

    def find_unseen(self, step: PlacedSocket, netns_inode: int, deadline: Deadline) -> list[Drift]:
        """False: a socket that is there already is a dead one of ours, or refused."""
        return pod_view.find_hidden(step, netns_inode, deadline, self._root)

    def _detach_elsewhere(self, step: PlacedSocket) -> None:
        """Unmount mounts of OVS's socket elsewhere below `trusted`: a pod may move its directory with the mounts in it."""
        sockdir, name = _split(step.source)
        with directory_if_there(step.trusted, step.trusted, self._root) as top, _sockdir(self._root.path(sockdir)) as source:
            table = {} if top is None or source is None else read()
            home = None if source is None else mount_of(source, table)
            if top is None or source is None or home is None:
                return
            wanted = home.device, f"{place_of(source, home).rstrip('/')}/{name}"
            for mount, path in list_below(top, table.values()):
                if (mount.device, mount.root.removesuffix(_DELETED)) == wanted:
                    _detach_moved(top, mount, path)

    def _newer(self, step: PlacedSocket) -> str:
        """The socket at OVS's own name, in words; "" if there is none, as after `apply`."""
        sockdir, name = _split(step.source)
        with translate_errors(f"socket {step.source}"), _sockdir(self._root.path(sockdir)) as dirfd:
            if dirfd is None or look(dirfd, name) is None:
                return ""
            return "a dead socket of a killed OVS" if socket_paths.is_dead(dirfd, name) else "a newer socket"

    def _await_source(self, step: PlacedSocket, deadline: Deadline, *, needed: bool) -> int | None:
        """Wait for a living socket of OVS; returns OVS's directory, opened. None when there is none and it is not `needed`."""
        sockdir, name = _split(step.source)
        what = f"socket {step.source}"
        while True:
            with _sockdir(self._root.path(sockdir)) as dirfd:
                facts = None if dirfd is None else look(dirfd, name)
                if facts is not None and not stat.S_ISSOCK(facts.st_mode):
                    raise DirectoryRefused(f"{what}: {kind(facts.st_mode)} is in its place", "setting ovs_sockdir")
                if dirfd is not None and facts is not None and not socket_paths.is_dead(dirfd, name):
                    return os.dup(dirfd)
            if not needed:
                return None
            left = deadline.remaining()
            if left <= 0:
                raise Unavailable(f"{what}: OVS did not make it in time", "setting ovs_sockdir; ovs-vswitchd's log")
            time.sleep(min(_POLL_S, left))


def is_source_dead(path: str, root: HostRoot = HERE) -> bool:
    """Whether a killed OVS left a dead socket where the next one has to bind."""
    sockdir, name = _split(path)
    with translate_errors(f"socket {path}"), _sockdir(root.path(sockdir)) as dirfd:
        return dirfd is not None and socket_paths.is_dead(dirfd, name)


def free_source(path: str, root: HostRoot = HERE) -> bool:
    """Remove the socket where OVS has to bind if it is dead; returns whether it was. A living socket stays."""
    sockdir, name = _split(path)
    with translate_errors(f"socket {path}"), _sockdir(root.path(sockdir)) as dirfd:
        removed = dirfd is not None and socket_paths.remove_dead(dirfd, name)
    if removed:
        say("info", f"socket {path}: it was dead, and is removed so that OVS can make it")
    return removed


@contextmanager
def _sockdir(path: str) -> Iterator[int | None]:
    """Open OVS's directory; None when there is none."""
    try:
        dirfd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield None
        return
    try:
        yield dirfd
    finally:
        os.close(dirfd)


def _placed(dirfd: int, step: PlacedSocket) -> bool:
    """Whether a socket has the pod's name. Raises DirectoryRefused for anything but a socket or our placeholder."""
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
    # rename(2) cannot replace a mount point; it replaces a dead socket without a mount in one step
    if _detach(dirfd, step) or _is_placeholder(look(dirfd, name)):
        _clear(dirfd, step)
    try:
        os.rename(source_name, name, src_dir_fd=source, dst_dir_fd=dirfd)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _clear(dirfd, step)
        _cover(source, source_name, dirfd, name)
        remove_name(source, source_name)


def _cover(source: int, source_name: str, dirfd: int, name: str) -> None:
    """Make an empty file and mount OVS's socket over it, both by descriptors."""
    tree = protected_clone(source, source_name)
    try:
        placeholder = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0, dir_fd=dirfd)
        try:
            paths.move_mount(tree, placeholder)
        finally:
            os.close(placeholder)
    finally:
        os.close(tree)


def _clear(dirfd: int, step: PlacedSocket) -> None:
    """Remove a socket, its mounts and their placeholders; other files that a pod put there stay."""
    _detach(dirfd, step)
    name = plain(step.name)
    facts = look(dirfd, name)
    if facts is not None and (stat.S_ISSOCK(facts.st_mode) or _is_placeholder(facts)):
        remove_name(dirfd, name)


def _detach(dirfd: int, step: PlacedSocket) -> int:
    """Unmount our mounts at the pod's name, and where the pod has moved it; returns how many there were."""
    count = detach_all(dirfd, plain(step.name))
    for mount, path in list_below(dirfd, read().values()):
        count += _is_of(mount, step) and _detach_moved(dirfd, mount, path)
    return count


def _is_of(mount: Mount, step: PlacedSocket) -> bool:
    """Whether the mount shows the socket that OVS made at the source, also when its name was removed since."""
    _, name = _split(step.source)
    return mount.root.removesuffix(_DELETED).rpartition("/")[2] == name


def _detach_moved(dirfd: int, mount: Mount, path: str) -> bool:
    """Detach the mount found at `path` below the directory, and remove its placeholder; returns whether it was still there.

    The pod may move it meanwhile, or put another file at that path: only the very mount that was found is detached.
    """
    parent, _, name = path.rpartition("/")
    try:
        where = paths.openat2(dirfd, parent or ".", os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        target = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=where)
        try:
            if mount_id(target) != mount.ident or not stat.S_ISSOCK(os.fstat(target).st_mode):
                return False
            paths.umount2(f"/proc/self/fd/{target}", paths.DETACH)
        finally:
            os.close(target)
        say("info", f"the pod had moved its socket: the mount at {path} is taken off")
        if _is_placeholder(look(where, name)):
            remove_name(where, name)
    except FileNotFoundError:
        return False
    finally:
        os.close(where)
    return True


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
        raise DirectoryRefused(f"socket {name}: {kind(mode)} is in its place", "another process replaced it meanwhile")
    return fd


def _is_placeholder(facts: os.stat_result | None) -> bool:
    return (
        facts is not None
        and stat.S_ISREG(facts.st_mode)
        and stat.S_IMODE(facts.st_mode) == 0
        and facts.st_size == 0
        and facts.st_uid == os.geteuid()
    )


def _split(source: str) -> tuple[str, str]:
    sockdir, _, name = source.rpartition("/")
    return sockdir or "/", plain(name)


def _what(step: PlacedSocket) -> str:
    return f"socket {step.directory}/{step.name}"
