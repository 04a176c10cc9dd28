"""The agent's socket file: which process may serve it, and how it appears.

One agent serves a socket: the one that holds the lock of `<socket>.lock`. The lock ends with its process, so an agent simply
replaces a socket that was left after kill -9. A rename makes the file appear once the socket listens with its final mode: a
connect never meets a half-made one. The lock's file stays: if it were removed, two agents could lock two files of one name.

Another process may remove or replace the file while the agent lives. `keep` looks for that and makes again what is missing. It
does not watch the directory, which may itself be removed.

It must never replace anything that is no socket, nor use a directory in which another user could put one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from userspace_cni.agent.exchange import Exchange
from userspace_cni.base.errors import InvalidConfig, Unavailable
from userspace_cni.base.log import say
from userspace_cni.cni.protocol import MalformedRequest
from userspace_cni.pod.socket_path import SUN_PATH_MAX

_NEW: Final = ".new"
_PATH_MAX: Final = SUN_PATH_MAX - len(_NEW)
"""Bytes that sockaddr_un leaves to a path (unix(7)), with the temporary name."""
_BACKLOG: Final = 4096
"""How many connections may wait to be accepted; the kernel takes the lesser of this and net.core.somaxconn."""


class Listener:
    """The agent's lock and its listening, non-blocking socket at `path`."""

    exchange = Exchange
    watch_s = 1.0
    """Seconds between two calls of `keep`, which takes two system calls."""

    def __init__(self, path: str) -> None:
        self.listening: socket.socket | None = None
        self._path = path
        self._lock = -1
        self._made: tuple[int, int] | None = None

    def claim(self) -> None:
        """Take the lock; a second call does nothing.

        Raises InvalidConfig for a path that cannot be used, Unavailable while another agent has it.
        """
        if self._lock >= 0:
            return
        if len(os.fsencode(self._path)) > _PATH_MAX:
            advice = f"at most {_PATH_MAX} bytes: setting socket or run_dir"
            raise InvalidConfig(f"the agent's socket {self._path}: too long", advice)
        with _translated(self._path):
            _prepare_directory(Path(self._path).parent)
            self._lock = _take_lock(self._path)

    def listen(self) -> socket.socket:
        """Make the socket; only after `claim`. Raises InvalidConfig, Unavailable."""
        with _translated(self._path):
            self.listening = _listen(self._path)
        self._made = _identity(self._path)
        return self.listening

    def keep(self) -> socket.socket | None:
        """Make again what is missing of lock and socket; return the new socket, None when the old one is in place.

        The caller owns the old socket then and may still accept its connections. Raises InvalidConfig, Unavailable.
        """
        with _translated(self._path):
            locked, found = _identity(f"{self._path}.lock") == _of(self._lock), _identity(self._path) == self._made
            if locked and found:
                return None
            _prepare_directory(Path(self._path).parent)
            if not locked:
                lock, self._lock = self._lock, _take_lock(self._path)
                os.close(lock)
                say("warning", "the lock of the agent's socket was gone, and is taken again", socket=self._path)
            if found:
                return None
            self.listening = _listen(self._path)
        self._made = _identity(self._path)
        say("warning", "the agent's socket was gone, or another one was in its place: it is made again", socket=self._path)
        return self.listening

    def admit(self, sock: socket.socket) -> None:
        """Raise MalformedRequest unless the peer is root or our own user."""
        _, uid, _ = peer_of(sock)
        if uid not in (0, os.geteuid()):
            say("warning", "a connection to the agent was refused", uid=uid)
            raise MalformedRequest(403, f"user {uid} may not call; only root and the agent's own user may")

    def unlink(self) -> None:
        """Remove the socket file if it is still ours: no caller can connect then, but those in the queue can be accepted."""
        if self._made is not None and _identity(self._path) == self._made:
            with suppress(OSError):
                Path(self._path).unlink()
        self._made = None

    def close(self) -> None:
        """Remove the file and close the socket; the lock is kept while this process lives."""
        self.unlink()
        if self.listening is not None:
            self.listening.close()
            self.listening = None

    def release(self) -> None:
        """Close, and release the lock for another agent."""
        self.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


@contextmanager
def _translated(path: str) -> Iterator[None]:
    """Within this block an OSError becomes Unavailable naming the socket."""
    try:
        yield
    except OSError as error:
        where = "" if error.filename in (None, path) else f" at {os.fsdecode(error.filename)}"
        raise Unavailable(
            f"making the agent's socket {path}: {error.strerror}{where}", "setting socket or run_dir names it"
        ) from error


def _prepare_directory(directory: Path) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    facts = directory.stat()
    if facts.st_uid not in (0, os.geteuid()) or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise InvalidConfig(
            f"the agent's socket cannot be in {directory}: other users may write there",
            f"owner {facts.st_uid}, mode {stat.S_IMODE(facts.st_mode):o}; it should be 0700",
        )


def _take_lock(path: str) -> int:
    """Take the lock that makes this process the agent; its descriptor. The file's text is for messages only."""
    fd = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with suppress(OSError):  # on a full disk the lock holds all the same
            os.ftruncate(fd, 0)
            os.pwrite(fd, b"%d\n" % os.getpid(), 0)
    except BlockingIOError:
        holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(fd)
        raise Unavailable(
            f"starting the agent: another one serves {path} (process {holder})", "stop it first, or give this one another run_dir"
        ) from None
    except BaseException:
        os.close(fd)
        raise
    return fd


def _listen(path: str) -> socket.socket:
    found = _mode(path)
    if found is not None and not stat.S_ISSOCK(found):
        raise InvalidConfig(f"the agent's socket {path}: something else is in its place", "remove it, or change setting socket")
    temporary = Path(path + _NEW)
    temporary.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        sock.bind(str(temporary))
        temporary.chmod(0o600)
        sock.listen(_BACKLOG)
        temporary.rename(path)
    except BaseException:
        sock.close()
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    return sock


def _mode(path: str) -> int | None:
    try:
        return os.lstat(path).st_mode
    except OSError as error:
        if error.errno == errno.ENOENT:
            return None
        raise


def _of(fd: int) -> tuple[int, int]:
    facts = os.fstat(fd)
    return facts.st_dev, facts.st_ino


def _identity(path: str) -> tuple[int, int] | None:
    try:
        facts = os.lstat(path)
    except OSError:
        return None
    return facts.st_dev, facts.st_ino


def peer_of(sock: socket.socket) -> tuple[int, int, int]:
    """Process, user and group of the peer, from the kernel (SO_PEERCRED, unix(7))."""
    pid, uid, gid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return pid, uid, gid
