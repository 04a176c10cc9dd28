"""Sockets in the file system: listens and connects at paths of any length, in directories that users of a pod may write.

The kernel takes at most 107 bytes as path of a unix socket, and follows every link in it. So the directory is opened first,
without following links below its trusted part, and only its descriptor and one name are used: bind(2) and connect(2) reach it by
/proc/self/fd. A socket gets its name when it has its final owner and mode and listens: no process meets a half-made one.

Must not connect to a socket to see whether it is alive: a vhost-user back-end would take that for its front-end, and OVS would
take the port from the application that has it. A connect with another socket type is refused before the listener notices.
"""
# Descriptors and single names rather than paths: pathlib cannot express them.
# ruff: noqa: PTH101, PTH119

from __future__ import annotations

import errno
import os
import secrets
import select
import socket
import stat
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from userspace_cni.fastpath.fastpath_errors import Closed, MemoryShort, SocketRefused, TimedOut
from userspace_cni.linux import paths
from userspace_cni.linux.closing import Closing
from userspace_cni.linux.instant import Instant

BACKLOG: Final = 16
_TYPE: Final = socket.SOCK_STREAM | socket.SOCK_CLOEXEC
_TRIES: Final = 3
_TIMEVAL: Final = struct.Struct("@ll")

_REASONS: Final = {
    errno.ENOENT: ("nothing is there", "the port: Interface.status and error in OVSDB, ovs-vswitchd.log"),
    errno.ECONNREFUSED: (
        "the socket is dead: no process listens",
        "the process that made it has ended; a pod's socket that OVS lost in a restart is made again by userspace-cni gc",
    ),
    errno.EACCES: ("permission denied", "connecting needs write permission for the socket, and search for each directory"),
    errno.EPERM: ("permission denied", "owner and mode of the directory"),
    errno.ELOOP: ("there is a symbolic link in the path, and none is followed", "the directory below its trusted part"),
    errno.EXDEV: ("it leads out of the directory that it must be below", "the path"),
    errno.ENOTDIR: ("a part of the path is no directory", "the path"),
    errno.ENAMETOOLONG: ("the path is too long", "255 bytes for each name, 4095 for all"),
    errno.EPROTOTYPE: ("the socket there is of another type", "the process that made it"),
    errno.EROFS: ("the file system is read-only", "the mount of the directory"),
}
_NO_DIRECTORY: Final = ("its directory is not there", "the path, and whether the volume is mounted there")
_SHORT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})


@dataclass(frozen=True)
class SocketAccess:
    """The permissions of a socket that we make. `mode` of the file; `owner` and `group`: numbers, None keeps this process's own.

    Connecting needs write permission: OVS's user must have it.
    """

    mode: int = 0o660
    owner: int | None = None
    group: int | None = None


def connect(path: str, deadline: Instant, *, trusted: str = "") -> socket.socket:
    """Connect a stream socket to `path`. Below `trusted`, when it is given, no link in the path is followed.

    Raises SocketRefused, MemoryShort, and TimedOut when the listener's queue is full and it accepts no connection.
    """
    step = f"connecting to {path or repr(path)}"
    with _translated(step, path), _opened(path, trusted) as fd:
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            raise SocketRefused(step, "what is there is not a socket", "the path")
        sock = socket.socket(socket.AF_UNIX, _TYPE)
        try:
            left = max(deadline.remaining(), 0.001)
            if left < 1e9:  # connect(2) waits that long for room in the listener's queue
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(int(left), int(left % 1 * 1e6) or 1))
            sock.connect(_proc_path(fd))
        except BlockingIOError:
            sock.close()
            raise TimedOut(step, "the listener accepts no connection", "its process: ovs-vswitchd.log") from None
        except BaseException:
            sock.close()
            raise
        return sock


def is_alive(path: str) -> bool:
    """Whether a process has the socket at `path`; that process does not notice the check. Raises SocketRefused."""
    with _translated(f"looking at the socket {path}", path), _opened(path, "") as fd:
        return _is_alive(fd)


def is_dead(dirfd: int, name: str) -> bool:
    """Whether `name` in the directory is a socket that no process has; False for another file or none. Raises OSError."""
    return is_alive_in(dirfd, name) is False


def is_alive_in(dirfd: int, name: str) -> bool | None:
    """As `is_alive`, of the socket `name` in the directory; None for another file or none. Raises OSError."""
    fd = _socket(dirfd, name)
    if fd is None:
        return None
    try:
        return _is_alive(fd)
    finally:
        os.close(fd)


def remove_dead(dirfd: int, name: str) -> bool:
    """Remove the socket `name` of the directory if no process has it; returns whether it was removed. Raises OSError.

    Only the file that was opened and checked is removed: a dead socket never lives again, but another file may get its name.
    """
    fd = _socket(dirfd, name)
    if fd is None:
        return False
    try:
        return not _is_alive(fd) and _remove(dirfd, name, fd)
    finally:
        os.close(fd)


class ListeningSocket(Closing):
    """A socket that listens at `path` from construction to `close`, which removes the file if it is still this one.

    `trusted`: a directory above it; no link between the two is followed. `replace_dead`: remove a socket there that no process
    has. SocketRefused is raised for a dead socket without `replace_dead`, for a living socket, and for another file.
    """

    def __init__(self, path: str, access: SocketAccess | None = None, *, trusted: str = "", replace_dead: bool = False) -> None:
        self.path = path
        self._maker = os.getpid()
        self._step = f"listening at {path or repr(path)}"
        self._name = ""
        self._directory = -1
        self._identity: tuple[int, int] | None = None
        self._closed = True  # until there is something to close
        self._sock = socket.socket(socket.AF_UNIX, _TYPE | socket.SOCK_NONBLOCK)
        self._closed = False
        try:
            with _translated(self._step, path):
                self._name = os.path.basename(path)
                self._directory = _directory(path, trusted)
                self._publish(access or SocketAccess(), replace_dead)
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int:
        """The descriptor, for poll(2): readable when a process has connected; -1 when closed."""
        return self._sock.fileno()

    def accept(self, deadline: Instant, wake: int = -1) -> socket.socket | None:
        """Wait for the next connection; None when the descriptor `wake` is readable. Raises TimedOut, Closed."""
        while True:
            fd = self.fileno()
            if fd < 0:
                raise Closed(self._step, "it was closed by us")
            poller = select.poll()
            poller.register(fd, select.POLLIN)
            if wake >= 0:
                poller.register(wake, select.POLLIN)
            ready = dict(poller.poll(deadline.milliseconds()))
            if not ready:
                raise TimedOut(self._step, "no connection came before the deadline", self._advice())
            if wake in ready:
                return None
            if ready[fd] & (select.POLLHUP | select.POLLERR | select.POLLNVAL):
                raise Closed(self._step, "it was closed by us or by a child process")
            try:
                return self._sock.accept()[0]
            except BlockingIOError:
                continue  # another thread accepted it
            except OSError as error:
                if error.errno in _SHORT:
                    raise MemoryShort(self._step, os.strerror(error.errno), "limit of open files (ulimit -n)") from error
                raise Closed(self._step, "it was closed by us") from error

    def __del__(self) -> None:
        if not self._closed:
            if self._maker == os.getpid():
                warnings.warn(f"unclosed socket {self.path}: use `with`, or close()", ResourceWarning, 2, source=self)
            self.close()

    def is_in_place(self) -> bool:
        """Whether the path still leads to this socket; False when another process removed or replaced it, or it is closed."""
        try:
            return _identity(Path(self.path).lstat()) == self._identity
        except OSError:
            return False

    def close(self) -> None:
        """Stop listening, and remove the file if it is still this socket's. May be called again.

        In a child after fork(2) it only closes the child's descriptors: the socket is its parent's.
        """
        self._closed = True
        ours = self._maker == os.getpid()
        if self._identity is not None and ours:
            with suppress(OSError):
                if _identity(os.stat(self._name, dir_fd=self._directory, follow_symlinks=False)) == self._identity:
                    os.unlink(self._name, dir_fd=self._directory)
        self._identity = None
        if ours:
            with suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)  # wakes a thread that polls it
        self._sock.close()
        if self._directory >= 0:
            os.close(self._directory)
            self._directory = -1

    def _publish(self, access: SocketAccess, replace_dead: bool) -> None:
        """Make the socket under a temporary name, and give it its own name when it is complete.

        link(2) never replaces a file, and links the very file that was opened: in a directory of a pod, the temporary name could
        lead to another file by then.
        """
        os.fchmod(self._sock.fileno(), 0o600)  # the mode of the new file, less the umask
        temporary = f".vhost-{secrets.token_hex(6)}"
        self._sock.bind(f"/proc/self/fd/{self._directory}/{temporary}")
        try:
            fd = paths.openat2(self._directory, temporary, os.O_PATH)
            try:
                self._listen_as(fd, access)
                self._link(fd, replace_dead)
            finally:
                os.close(fd)
        finally:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=self._directory)

    def _listen_as(self, fd: int, access: SocketAccess) -> None:
        facts = os.fstat(fd)
        if not stat.S_ISSOCK(facts.st_mode) or facts.st_uid != os.geteuid():
            raise SocketRefused(self._step, "another process replaced it", "who may write in the directory")
        if access.owner is not None or access.group is not None:
            os.chown(_proc_path(fd), -1 if access.owner is None else access.owner, -1 if access.group is None else access.group)
        os.chmod(_proc_path(fd), access.mode)
        self._sock.listen(BACKLOG)

    def _link(self, fd: int, replace_dead: bool) -> None:
        """Give the socket its name; a dead socket there is removed when `replace_dead` says so."""
        for _ in range(_TRIES):
            try:
                os.link(_proc_path(fd), self._name, dst_dir_fd=self._directory, follow_symlinks=True)
            except FileExistsError:
                self._remove_old(replace_dead)
                continue
            self._identity = _identity(os.fstat(fd))
            return
        raise SocketRefused(self._step, "another process keeps taking the name", "who makes sockets in the directory")

    def _remove_old(self, replace_dead: bool) -> None:
        """Remove the dead socket that has our name. Raises SocketRefused for anything else."""
        try:
            fd = paths.openat2(self._directory, self._name, os.O_PATH | os.O_NOFOLLOW)
        except FileNotFoundError:
            return
        try:
            facts = os.fstat(fd)
            if not stat.S_ISSOCK(facts.st_mode):
                raise SocketRefused(self._step, "something that is no socket is there", "remove it, or choose another path")
            if _is_alive(fd):
                raise SocketRefused(
                    self._step,
                    "another process has a socket there",
                    "choose another path; ss -xlp shows which process, and it may be a pod's",
                )
            if not replace_dead:
                raise SocketRefused(self._step, "a dead socket is there: its process has ended", "remove the file")
            _remove(self._directory, self._name, fd)
        finally:
            os.close(fd)

    def _advice(self) -> str:
        return (
            "the port (type dpdkvhostuserclient, options:vhost-server-path with this path), Interface.error, ovs-vswitchd.log; "
            "OVS tries once a second, and its user must be able to write to the socket"
        )


@contextmanager
def _translated(step: str, path: str) -> Iterator[None]:
    """Turn errors of the system about `path` into ours, with the step and advice."""
    try:
        if os.path.basename(path) in {"", ".", ".."} or "\0" in path:
            raise SocketRefused(step, "this is no path of a socket", "the path: it has to end with a name, without NUL")
        yield
    except OSError as error:
        number = error.errno or 0
        if number in _SHORT:
            raise MemoryShort(step, os.strerror(number), "limits of this process: open files (ulimit -n), memory") from error
        what, look_at = _REASONS.get(number, (os.strerror(number) if number else str(error), "the directory and what is in it"))
        if number == errno.ENOENT and not Path(path).parent.is_dir():
            what, look_at = _NO_DIRECTORY
        raise SocketRefused(step, what, look_at) from error


@contextmanager
def _opened(path: str, trusted: str) -> Iterator[int]:
    """Open the file at `path` with O_PATH: connect(2) through this descriptor reaches no other file."""
    name = os.path.basename(path)
    directory = _directory(path, trusted) if trusted else -1
    try:
        fd = paths.openat2(directory, name, os.O_PATH | os.O_NOFOLLOW) if trusted else os.open(path, os.O_PATH | os.O_CLOEXEC)
    finally:
        if directory >= 0:
            os.close(directory)
    try:
        yield fd
    finally:
        os.close(fd)


def _directory(path: str, trusted: str) -> int:
    parent, _ = os.path.split(path)
    if not trusted:
        return os.open(parent or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    prefix, whole = trusted.rstrip("/") + "/", parent.rstrip("/") + "/"
    if not whole.startswith(prefix):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
    return paths.directory(prefix, whole[len(prefix) :].strip("/"))


def _socket(dirfd: int, name: str) -> int | None:
    """Open the socket `name` with O_PATH; None when no socket has this name."""
    try:
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dirfd)
    except FileNotFoundError:
        return None
    if stat.S_ISSOCK(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    return None


def _remove(dirfd: int, name: str, fd: int) -> bool:
    """Remove `name` if it still leads to the file that `fd` was opened on; returns whether it did."""
    with suppress(FileNotFoundError):
        if _identity(os.stat(name, dir_fd=dirfd, follow_symlinks=False)) == _identity(os.fstat(fd)):
            os.unlink(name, dir_fd=dirfd)
            return True
    return False


def _proc_path(fd: int) -> str:
    return f"/proc/self/fd/{fd}"


def _identity(facts: os.stat_result) -> tuple[int, int]:
    return facts.st_dev, facts.st_ino


def _is_alive(fd: int) -> bool:
    """Whether a process has the socket; True when unknown. The kernel looks for a listener before it compares the types."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as other:
        try:
            other.connect(_proc_path(fd))
        except ConnectionRefusedError:
            return False
        except OSError:
            return True
        return True
