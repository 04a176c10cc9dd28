"""Locks between processes that die with their holder and leave no files behind.

Theory of operation: a lock is a kernel lock (flock) on a file named after it. The holder removes the file before it lets go.
Somebody may have opened the file before that and get the kernel lock on it afterwards, on a file nobody else will ever find; so
whoever gets the kernel lock compares what it locked with what the path names now, and starts over when they differ. Only a
holder that passed this test removes the file, so it removes its own.

A child process that inherits the descriptor holds the same kernel lock. A lock that is shared with one is therefore neither
unlocked nor removed at release, only closed: the kernel lets go when the last of them is gone, and the next holder cleans up.

Threads of one process queue for a name among themselves before they look at the kernel's lock: that has no queue, and a crowd
that looks at it in turns would let one starve.

This module must never unlink a file it does not hold, block without a bound, or trust the pid in a file for more than a message.
"""
# Strings and descriptors rather than paths: pathlib would cost the short-lived process more than a lock.
# ruff: noqa: PTH108, PTH116

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from typing import TYPE_CHECKING

from localdb.errors import Attempt, LockTimeout
from localdb.files import flock_within, make_directory
from localdb.names import encode_name

if TYPE_CHECKING:
    from threading import RLock
    from types import TracebackType
    from typing import Self

OPEN_LOCK = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class Gates:
    """A queue per name for the threads of one process.

    A thread may pass a gate in which it is: the kernel's lock is what excludes. So a gate that a signal's exception left behind
    does not shut out the thread that cleans up after it.
    """

    def __init__(self) -> None:
        """Make it empty."""
        self._guard = threading.Lock()
        self._gates: dict[str, tuple[RLock, int]] = {}

    def enter(self, name: str, seconds: float) -> bool:
        """Pass the gate of that name within `seconds`, at once with 0 or less; False when somebody stayed in it."""
        with self._guard:
            gate, users = self._gates.get(name, (threading.RLock(), 0))
            self._gates[name] = (gate, users + 1)
        if gate.acquire(timeout=seconds) if seconds > 0 else gate.acquire(blocking=False):
            return True
        self._forget(name)
        return False

    def leave(self, name: str) -> None:
        """Let the next one pass."""
        self._gates[name][0].release()
        self._forget(name)

    def _forget(self, name: str) -> None:
        with self._guard:
            gate, users = self._gates.pop(name)
            if users > 1:
                self._gates[name] = (gate, users - 1)


class Lock:
    """A lock that is held, until `release` or the end of the `with` block. Not reentrant."""

    __slots__ = ("_gates", "_holder", "_path", "_shared", "fd", "name")

    def __init__(self, name: str, path: str, fd: int, gates: Gates) -> None:
        """Wrap a lock already taken on `fd`, whose gate was passed; for `take_lock`."""
        self.name = name
        self.fd = fd
        self._path = path
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
        """Let go; a second call does nothing. Never fails: what was done under the lock is done."""
        fd, self.fd = self.fd, -1
        if fd < 0:
            return
        try:
            # A forked child that unwinds its copy of this object must not let go of what its parent holds.
            if not self._shared and self._holder == os.getpid():
                remove(fd, self._path)
                # Not left to close: a process forked elsewhere in this one may hold a copy of the descriptor unawares.
                with contextlib.suppress(OSError):
                    fcntl.flock(fd, fcntl.LOCK_UN)
        finally:
            with contextlib.suppress(OSError):  # it is closed all the same (close(2)), and its content was for a message only
                os.close(fd)
            if self._holder == os.getpid():
                self._gates.leave(self.name)

    def __enter__(self) -> Self:
        """Return the lock itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Let go."""
        self.release()


def take_lock(directory: str, name: str, timeout: float, gates: Gates) -> Lock:
    """Take the lock `name` within `timeout` seconds; with 0 or less, only if it is free. Raises `LockTimeout`, `StoreError`."""
    path = f"{directory}/{encode_name(name, '.lock')}"
    deadline = time.monotonic() + timeout
    if not gates.enter(name, timeout):
        held = f"held by another thread of this process for all of {max(timeout, 0):g} s"
        raise LockTimeout(f"take the lock {name!r} on {path}: {held}")
    try:
        return take_file_lock(directory, name, path, deadline, gates)
    except BaseException:
        gates.leave(name)
        raise


def take_file_lock(directory: str, name: str, path: str, deadline: float, gates: Gates) -> Lock:
    """Take the kernel's lock on the file of that name, whose gate was passed."""
    with Attempt(f"take the lock {name!r} on", path):
        began = time.monotonic()
        while True:
            fd = open_lock_file(directory, path)
            held = False
            try:
                if not flock_within(fd, fcntl.LOCK_EX, deadline - time.monotonic()):
                    waited = f"for all of {max(deadline - began, 0):.3g} s"
                    raise LockTimeout(f"take the lock {name!r} on {path}: held by {describe_holder(fd)} {waited}")
                held = is_still_named(fd, path)
                if held:
                    write_holder(fd)
                    return Lock(name, path, fd, gates)
            finally:
                if not held:
                    os.close(fd)


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


def write_holder(fd: int) -> None:
    """Leave our pid in the file for the message of whoever waits in vain. A full disk must not cost us the lock."""
    with contextlib.suppress(OSError):
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"%d\n" % os.getpid(), 0)


def describe_holder(fd: int) -> str:
    """Name the process that last took the lock, or say that it is not known."""
    try:
        pid = os.pread(fd, 32, 0).strip()
    except OSError:
        pid = b""
    return f"pid {pid.decode('ascii')} (or a child of it)" if pid.isdigit() else "an unknown process"


def remove(fd: int, path: str) -> None:
    """Remove the file of a lock we hold. If that fails it stays behind, which harms nothing: the next holder takes it over."""
    with contextlib.suppress(OSError):
        # A cleaner of old files may have removed ours and somebody else have made the next.
        if is_still_named(fd, path):
            os.unlink(path)
