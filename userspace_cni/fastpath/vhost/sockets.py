"""Sockets in the file system: listening at a path and connecting to one, of any length, in directories that others may write.

A path of a unix socket has 107 bytes at most, and is walked by the kernel with every link in it. So the directory is opened,
below a trusted part through no link, and only a descriptor and one name are used: /proc/self/fd leads bind(2) and connect(2)
there. A socket appears under its name with its final owner and mode, and listening: nobody meets one that is half made.

Must not connect to a socket to see whether it is alive: a vhost-user back-end would take that for its counterpart, and OVS would
turn the port away from the application that has it. A connect with another socket type is refused before anybody is asked.
"""
# Descriptors and single names rather than paths: pathlib can not express them.
# ruff: noqa: PTH101, PTH119

from __future__ import annotations

import errno
import os
import secrets
import select
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from userspace_cni.fastpath.errors import Closed, MemoryShort, SocketRefused, TimedOut
from userspace_cni.fastpath.sys import paths
from userspace_cni.fastpath.sys.deadline import Deadline

BACKLOG: Final = 16
_TYPE: Final = socket.SOCK_STREAM | socket.SOCK_CLOEXEC
_TRIES: Final = 3
_TIMEVAL: Final = struct.Struct("@ll")

_REASONS: Final = {
    errno.ENOENT: ("nothing is there", "the port: Interface.status and error in OVSDB, ovs-vswitchd.log"),
    errno.ECONNREFUSED: (
        "the socket is dead: nobody listens",
        "the process that made it has ended; a pod's socket that OVS lost in a restart is made anew by userspace-cni gc",
    ),
    errno.EACCES: ("permission denied", "connecting needs write permission for the socket, and search for each directory"),
    errno.EPERM: ("permission denied", "owner and mode of the directory"),
    errno.ELOOP: ("there is a symbolic link on the way, and none is followed", "the directory below its trusted part"),
    errno.EXDEV: ("it leads out of the directory that it must be below", "the path"),
    errno.ENOTDIR: ("a part of the path is no directory", "the path"),
    errno.ENAMETOOLONG: ("the path is too long", "255 bytes for each name, 4095 for all"),
    errno.EPROTOTYPE: ("the socket there is of another type", "what made it"),
    errno.EROFS: ("the file system is read-only", "the mount of the directory"),
}
_NO_DIRECTORY: Final = ("its directory is not there", "the path, and whether the volume is mounted there")
_SHORT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})


@dataclass(frozen=True)
class Access:
    """Who may use a socket that we make. `mode` is that of the file; `owner` and `group` are numbers, None leaves our own.

    Connecting needs write permission: OVS's user must have it.
    """

    mode: int = 0o660
    owner: int | None = None
    group: int | None = None


def connect(path: str, deadline: Deadline, *, trusted: str = "") -> socket.socket:
    """A stream socket connected to `path`. Below `trusted`, when it is given, the path is walked through no link.

    Raises SocketRefused, MemoryShort, and TimedOut when whoever listens does not accept and its queue is full.
    """
    step = f"connecting to {path or repr(path)}"
    with _told(step, path), _opened(path, trusted) as fd:
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            raise SocketRefused(step, "what is there is no socket", "the path")
        sock = socket.socket(socket.AF_UNIX, _TYPE)
        try:
            left = max(deadline.remaining(), 0.001)
            if left < 1e9:  # connect(2) waits that long for room in the queue of whoever listens
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(int(left), int(left % 1 * 1e6) or 1))
            sock.connect(_through(fd))
        except BlockingIOError:
            sock.close()
            raise TimedOut(step, "whoever listens accepts nobody", "the process that has the socket: ovs-vswitchd.log") from None
        except BaseException:
            sock.close()
            raise
        return sock


def is_alive(path: str) -> bool:
    """Whether a process has the socket at `path`; nothing is sent to it and it does not notice. Raises SocketRefused."""
    with _told(f"looking at the socket {path}", path), _opened(path, "") as fd:
        return _is_alive(fd)


def is_dead(dirfd: int, name: str) -> bool:
    """Whether `name` in the directory is a socket that no process has. Nothing, and something else, is not. Raises OSError."""
    fd = _socket(dirfd, name)
    if fd is None:
        return False
    try:
        return not _is_alive(fd)
    finally:
        os.close(fd)


def remove_dead(dirfd: int, name: str) -> bool:
    """Remove the socket `name` of the directory if no process has it; whether that was so. Raises OSError.

    Judged is what was opened, and only that is removed: a dead socket never lives again, but its name may be another's by then.
    """
    fd = _socket(dirfd, name)
    if fd is None:
        return False
    try:
        return not _is_alive(fd) and _remove(dirfd, name, fd)
    finally:
        os.close(fd)


class ListeningSocket:
    """A socket that listens at `path` from construction to `close`, which removes the file if it is still this one.

    `trusted`: a directory above it; what is between the two is walked through no link. `replace_dead`: a socket there which no
    process has is removed; without it, as with one that is alive or is something else, SocketRefused is raised.
    """

    def __init__(self, path: str, access: Access | None = None, *, trusted: str = "", replace_dead: bool = False) -> None:
        self.path = path
        self._maker = os.getpid()
        self._step = f"listening at {path or repr(path)}"
        self._name = ""
        self._directory = -1
        self._identity: tuple[int, int] | None = None
        self._sock = socket.socket(socket.AF_UNIX, _TYPE | socket.SOCK_NONBLOCK)
        try:
            with _told(self._step, path):
                self._name = os.path.basename(path)
                self._directory = _directory(path, trusted)
                self._appear(access or Access(), replace_dead)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def fileno(self) -> int:
        """The descriptor, for poll(2): readable when somebody has connected; -1 when closed."""
        return self._sock.fileno()

    def accept(self, deadline: Deadline, wake: int = -1) -> socket.socket | None:
        """Who connects next; None when the descriptor `wake` is readable. Raises TimedOut, Closed."""
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
                raise TimedOut(self._step, "nobody connected before the deadline", self._advice())
            if wake in ready:
                return None
            if ready[fd] & (select.POLLHUP | select.POLLERR | select.POLLNVAL):
                raise Closed(self._step, "it was closed, by us or by a process that has it from us")
            try:
                return self._sock.accept()[0]
            except BlockingIOError:
                continue  # another thread was faster
            except OSError as error:
                if error.errno in _SHORT:
                    raise MemoryShort(self._step, os.strerror(error.errno), "limit of open files (ulimit -n)") from error
                raise Closed(self._step, "it was closed by us") from error

    def in_place(self) -> bool:
        """Whether its path leads to this socket still; False when somebody has removed or replaced it, or it is closed."""
        try:
            return _identity(Path(self.path).lstat()) == self._identity
        except OSError:
            return False

    def close(self) -> None:
        """Remove the file unless somebody has put something else there, and listen no more. Again is fine.

        In a child after fork(2) it only gives back the child's descriptors: the socket is its parent's.
        """
        ours = self._maker == os.getpid()
        if self._identity is not None and ours:
            with suppress(OSError):
                if _identity(os.stat(self._name, dir_fd=self._directory, follow_symlinks=False)) == self._identity:
                    os.unlink(self._name, dir_fd=self._directory)
        self._identity = None
        if ours:
            with suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)  # whoever polls it in another thread sees the end
        self._sock.close()
        if self._directory >= 0:
            os.close(self._directory)
            self._directory = -1

    def _appear(self, access: Access, replace_dead: bool) -> None:
        """Make the socket under a passing name, and give it its own once it is all that it shall be.

        link(2) takes a name only when it is free, and takes it for the very file that was opened: in a directory of a pod, the
        name alone could be another file by then.
        """
        os.fchmod(self._sock.fileno(), 0o600)  # with which the file is made; the umask can only take more away
        passing = f".vhost-{secrets.token_hex(6)}"
        self._sock.bind(f"/proc/self/fd/{self._directory}/{passing}")
        try:
            fd = paths.openat2(self._directory, passing, os.O_PATH)
            try:
                self._listen_as(fd, access)
                self._take_name(fd, replace_dead)
            finally:
                os.close(fd)
        finally:
            with suppress(OSError):
                os.unlink(passing, dir_fd=self._directory)

    def _listen_as(self, fd: int, access: Access) -> None:
        facts = os.fstat(fd)
        if not stat.S_ISSOCK(facts.st_mode) or facts.st_uid != os.geteuid():
            raise SocketRefused(self._step, "somebody put something else in its place", "who may write in the directory")
        if access.owner is not None or access.group is not None:
            os.chown(_through(fd), -1 if access.owner is None else access.owner, -1 if access.group is None else access.group)
        os.chmod(_through(fd), access.mode)
        self._sock.listen(BACKLOG)

    def _take_name(self, fd: int, replace_dead: bool) -> None:
        for _ in range(_TRIES):
            try:
                os.link(_through(fd), self._name, dst_dir_fd=self._directory, follow_symlinks=True)
            except FileExistsError:
                self._free_name(replace_dead)
                continue
            self._identity = _identity(os.fstat(fd))
            return
        raise SocketRefused(self._step, "somebody else takes the name again and again", "who makes sockets in the directory")

    def _free_name(self, replace_dead: bool) -> None:
        """Remove the dead socket that has our name; anything else is refused."""
        try:
            fd = paths.openat2(self._directory, self._name, os.O_PATH | os.O_NOFOLLOW)
        except FileNotFoundError:
            return
        try:
            facts = os.fstat(fd)
            if not stat.S_ISSOCK(facts.st_mode):
                raise SocketRefused(self._step, "something that is no socket is there", "remove it, or choose another path")
            if _is_alive(fd):
                raise SocketRefused(self._step, "another process has a socket there", "ss -xlp; stop it, or choose another path")
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
def _told(step: str, path: str) -> Iterator[None]:
    """Errors of the system about `path` become ours, with the step and advice."""
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
    """What is at the path, opened with O_PATH: connect(2) through this reaches nothing else."""
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
    """The socket, opened with O_PATH; None when there is none of that name."""
    try:
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dirfd)
    except FileNotFoundError:
        return None
    if stat.S_ISSOCK(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    return None


def _remove(dirfd: int, name: str, fd: int) -> bool:
    """Take the name away if it still is that of what `fd` was opened on; whether it was."""
    with suppress(FileNotFoundError):
        if _identity(os.stat(name, dir_fd=dirfd, follow_symlinks=False)) == _identity(os.fstat(fd)):
            os.unlink(name, dir_fd=dirfd)
            return True
    return False


def _through(fd: int) -> str:
    return f"/proc/self/fd/{fd}"


def _identity(facts: os.stat_result) -> tuple[int, int]:
    return facts.st_dev, facts.st_ino


def _is_alive(fd: int) -> bool:
    """Whether a process has the socket; yes when that can not be known. The kernel finds a peer before it compares the types."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as other:
        try:
            other.connect(_through(fd))
        except ConnectionRefusedError:
            return False
        except OSError:
            return True
        return True
