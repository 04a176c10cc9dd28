"""Locks between processes that die with their holder.

Theory of operation: all locks of a directory are bytes of one file, which is empty and is never removed. A lock is a kernel lock
(open file description lock, fcntl(2)) on one byte, whose offset is a hash of the lock's name. Two names with one hash would only
wait for each other, and 62 bits make that unlikely. Each lock has an open file description of its own, so that a child can be
given one lock and no other. Another program may remove the file while locks are held. Therefore a process that has got the
kernel's lock compares the locked file with the one that the path names now, and starts over when they differ.

A child process that inherits the descriptor holds the same kernel lock. A lock that is shared with one is therefore not unlocked
at release, only closed: the kernel lets go when the last of them is gone.

Threads of one process queue for a name among themselves before they look at the kernel's lock: that has no queue, and a crowd
that looks at it in turns would let one starve.

This module must never write into or remove the file, or block without a bound.
"""
# Strings and descriptors rather than paths: pathlib would cost the short-lived process more than a lock.
# ruff: noqa: PTH116, PTH208

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import threading
import time
from typing import TYPE_CHECKING

from localdb.atomic_files import make_directory, retry
from localdb.store_errors import Attempt, LockTimeout

if TYPE_CHECKING:
    from threading import RLock
    from types import TracebackType
    from typing import Self

FILE = "bytes"
OPEN_LOCK = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
LAST_BYTE = (1 << 62) - 1
SEARCH = 0.1  # seconds that finding out who holds a lock may take, for a message


class ThreadQueues:
    """A queue per name for the threads of one process.

    A thread may enter a gate twice: the kernel's lock is what excludes. So a thread that an exception of a signal handler kept
    from leaving a gate can still enter it to clean up.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._gates: dict[str, tuple[RLock, int]] = {}

    def enter(self, name: str, seconds: float) -> bool:
        """Enter the gate `name` within `seconds`, with 0 or less only if it is free; False when another thread stayed in it."""
        with self._guard:
            gate, users = self._gates.get(name, (threading.RLock(), 0))
            self._gates[name] = (gate, users + 1)
        if gate.acquire(timeout=seconds) if seconds > 0 else gate.acquire(blocking=False):
            return True
        self._forget(name)
        return False

    def leave(self, name: str) -> None:
        """Let the next thread enter the gate."""
        self._gates[name][0].release()
        self._forget(name)

    def _forget(self, name: str) -> None:
        with self._guard:
            gate, users = self._gates.pop(name)
            if users > 1:
                self._gates[name] = (gate, users - 1)


class Lock:
    """A lock that is held, until `release` or the end of the `with` block. Not reentrant."""

    __slots__ = ("_byte", "_gates", "_holder", "_shared", "fd", "name")

    def __init__(self, name: str, fd: int, byte: int, gates: ThreadQueues) -> None:
        """Wrap a lock that `take_lock` has taken on this byte of `fd`, after entering its gate."""
        self.name = name
        self._byte = byte
        self.fd = fd
        self._gates = gates
        self._shared = False
        self._holder = os.getpid()

    def share(self) -> int:
        """Return the descriptor to hand to a child (`pass_fds`): from now on the lock lives until the last of them is gone."""
        if self.fd < 0:
            raise ValueError(f"the lock {self.name!r} was released")
        self._shared = True
        return self.fd

    def release(self) -> None:
        """Release the lock; a second call does nothing. Never fails: the work under the lock is done already."""
        fd, self.fd = self.fd, -1
        if fd < 0:
            return
        try:
            # A forked child that unwinds its copy of this object must not release its parent's lock.
            if not self._shared and self._holder == os.getpid():
                # Closing is not enough: a child forked by another thread may hold a copy of the descriptor without knowing.
                with contextlib.suppress(OSError):
                    set_lock(fd, fcntl.F_UNLCK, self._byte)
        finally:
            with contextlib.suppress(OSError):  # it is closed all the same (close(2))
                os.close(fd)
            if self._holder == os.getpid():
                self._gates.leave(self.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


def take_lock(directory: str, name: str, timeout: float, gates: ThreadQueues) -> Lock:
    """Take the lock `name` within `timeout` seconds; with 0 or less, only if it is free. Raises `LockTimeout`, `StoreError`."""
    path = f"{directory}/{FILE}"
    deadline = time.monotonic() + timeout
    if not gates.enter(name, timeout):
        held = f"held by another thread of this process for all of {max(timeout, 0):g} s"
        raise LockTimeout(f"take the lock {name!r} on {path}: {held}")
    try:
        return take_byte(directory, name, path, deadline, gates)
    except BaseException:
        gates.leave(name)
        raise


def take_byte(directory: str, name: str, path: str, deadline: float, gates: ThreadQueues) -> Lock:
    """Take the kernel's lock on the byte of `name`. The caller has entered the gate of that name."""
    byte = byte_of(name)
    with Attempt(f"take the lock {name!r} on", path):
        began = time.monotonic()
        while True:
            fd = open_lock_file(directory, path)
            held = False
            try:
                if not retry(lambda: set_lock(fd, fcntl.F_WRLCK, byte), deadline - time.monotonic()):  # noqa: B023
                    if deadline <= began:  # `try_lock` drops the message, so it need not name the holder
                        raise LockTimeout(f"take the lock {name!r} on {path}: it is held")
                    waited = f"for all of {deadline - began:.3g} s"
                    raise LockTimeout(f"take the lock {name!r} on {path}: held by {describe_holder(fd, byte)} {waited}")
                held = is_still_named(fd, path)
                if held:
                    return Lock(name, fd, byte, gates)
            finally:
                if not held:
                    os.close(fd)


def byte_of(name: str) -> int:
    """Return the byte that stands for a lock: FNV-1a of its UTF-8 form, in 62 bits. The same in every version and process."""
    value = 0xCBF29CE484222325
    for octet in name.encode("utf-8", "surrogatepass"):
        value = ((value ^ octet) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return (value ^ value >> 62) & LAST_BYTE


def set_lock(fd: int, kind: int, byte: int) -> None:
    """Take (`fcntl.F_WRLCK`) or give back (`F_UNLCK`) the byte for this description. Raises `BlockingIOError` if it is taken."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi", kind, os.SEEK_SET, byte, 1, 0))
    except OSError as error:
        if error.errno == errno.EACCES:  # POSIX allows either
            raise BlockingIOError(errno.EAGAIN, error.strerror) from error
        raise


def open_lock_file(directory: str, path: str) -> int:
    """Open the lock file, making it and its directory as needed."""
    try:
        return os.open(path, OPEN_LOCK, 0o600)
    except FileNotFoundError:
        make_directory(directory)
        return os.open(path, OPEN_LOCK, 0o600)


def is_still_named(fd: int, path: str) -> bool:
    """Whether the path still names the file that was locked, and not a successor or nothing."""
    ours = os.fstat(fd)
    try:
        named = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return (ours.st_dev, ours.st_ino) == (named.st_dev, named.st_ino)


def describe_holder(fd: int, byte: int) -> str:
    """Name the process that holds the byte, for a message: F_OFD_GETLK names none, but /proc shows the locks of each descriptor.

    The files behind the descriptors are never touched, because their file system may hang. The search ends after `SEARCH`.
    """
    end = time.monotonic() + SEARCH
    wanted = [b"%d" % byte] * 2
    inode = b"%d" % os.fstat(fd).st_ino
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # the process has ended, or we may not see it
            for number in os.listdir(f"/proc/{pid}/fdinfo"):
                if time.monotonic() > end:
                    return "an unknown process"
                with open(f"/proc/{pid}/fdinfo/{number}", "rb") as file:  # noqa: PTH123
                    words = [line.split() for line in file if line.startswith(b"lock:")]
                if any(line[-2:] == wanted and line[-3].rpartition(b":")[2] == inode for line in words):
                    return f"pid {pid} (or a child of it)"
    return "an unknown process"
