"""Reading and writing whole files so that a crash at any point leaves the old content or the new, never a mixture.

Theory of operation: content goes to a temporary file in the same directory and is renamed over the old file. That is enough for
the death of a process. What is to survive a power cut is flushed before the rename, and the directory after it, because until
then the rename itself may be lost. A writer holds the directory's own kernel lock shared for as long; a process that moves a
file aside or sweeps temporary files holds it exclusively. So a temporary file seen under
the exclusive lock has no living writer. Neither a pid in the name nor an age could say that: pids differ between the pid
namespaces of an agent in a container and a plugin on its host, and clocks jump at boot.

This module must never write into a file that has its final name, follow a symbolic link to a record, or wait without a bound.
"""
# Strings and descriptors rather than paths: pathlib would cost the short-lived process more than a write.
# ruff: noqa: PTH102, PTH120, PTH208

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from typing import TYPE_CHECKING

from localdb.errors import Foreign
from localdb.records import LARGEST

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

TEMPORARY = ".localdb-"  # no record's name starts with a dot
OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# A record may have been replaced by anything: do not follow a link, do not hang on a FIFO.
OPEN_RECORD = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
OPEN_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
SHORTEST_NAP, LONGEST_NAP = 0.0005, 0.02  # seconds between two looks at a lock


def make_directory(path: str) -> None:
    """Make `path` and what is missing above it, each 0700 and flushed into its parent. What is there already stays as it is."""
    parent = os.path.dirname(path.rstrip("/")) or "."
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        # Its maker may have died before the flush below. ext4, xfs and btrfs bring a new directory's own entry to disk with
        # the first flush of a file in it, so this is not worth a flush in every process.
        return
    except FileNotFoundError:
        if parent in (path, "."):
            raise
        make_directory(parent)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
    fd = os.open(parent, OPEN_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def within(take: Callable[[], None], seconds: float) -> bool:
    """Call `take` at growing intervals until it raises no `BlockingIOError`; False when it still does after `seconds`."""
    deadline = time.monotonic() + seconds
    nap = SHORTEST_NAP
    while True:
        try:
            take()
        except BlockingIOError:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return False
            time.sleep(min(nap, remaining))
            nap = min(nap * 2, LONGEST_NAP)
        else:
            return True


class Directory:
    """One open directory of the store; a context manager. Its files are reached through the descriptor, not the path.

    Methods raise `OSError`; `read` raises `Foreign` besides. The caller holds the lock the method's text asks for.
    """

    __slots__ = ("fd", "path")

    def __init__(self, path: str, *, create: bool = False) -> None:
        """Open `path`; make it first when `create` is set and it is missing. Raises `FileNotFoundError` otherwise."""
        self.path = path
        try:
            self.fd = os.open(path, OPEN_DIRECTORY)
        except FileNotFoundError:
            if not create:
                raise
            make_directory(path)
            self.fd = os.open(path, OPEN_DIRECTORY)

    def __enter__(self) -> Self:
        """Return the directory itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close the descriptor, and with it the lock on it."""
        os.close(self.fd)

    def hold(self, operation: int, seconds: float) -> None:
        """Take the directory's lock, `fcntl.LOCK_SH` or `LOCK_EX`, until `loose` or close. Raises `TimeoutError`."""
        if not within(lambda: fcntl.flock(self.fd, operation | fcntl.LOCK_NB), seconds):
            raise TimeoutError(errno.ETIMEDOUT, f"another process has been busy in this directory for {seconds:g} s", self.path)

    def loose(self) -> None:
        """Give the lock back."""
        fcntl.flock(self.fd, fcntl.LOCK_UN)

    def names(self) -> list[str]:
        """Return the names of what lies here, in no way filtered. Whole only while nobody writes: a listing may miss a file
        that is being replaced, for to it that is one name going and one coming.
        """
        return os.listdir(self.fd)

    def read(self, name: str) -> bytes:
        """Return the content of the regular file `name`. Raises `Foreign` when it is anything else, or far too large."""
        try:
            fd = os.open(name, OPEN_RECORD, dir_fd=self.fd)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO, errno.ENODEV):
                raise Foreign("is not a regular file") from error
            raise
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise Foreign("is not a regular file")
            if status.st_size > LARGEST:
                raise Foreign(f"has {status.st_size} bytes")
            data = b""
            # Files never change under their final name, so the size is the size; and a foreign one that grows is bounded.
            while len(data) < status.st_size and (chunk := os.read(fd, status.st_size - len(data))):
                data += chunk
            return data
        finally:
            os.close(fd)

    def links(self, name: str) -> int:
        """Return how many names the file has."""
        return os.stat(name, dir_fd=self.fd, follow_symlinks=False).st_nlink

    def replace(self, name: str, data: bytes, *, durable: bool) -> None:
        """Put `data` in the place of `name`, flushed if `durable`. The lock is held shared."""
        temporary = self._write_beside(data, durable=durable)
        try:
            os.replace(temporary, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        except BaseException:
            self._discard(temporary)
            raise
        if durable:
            self.flush()

    def create(self, name: str, data: bytes) -> None:
        """Put `data` durably under `name`, which is free. The lock is held exclusively.

        The file has two names until the directory is flushed, so a reader can tell a file that might still be lost.
        """
        temporary = self._write_beside(data, durable=True)
        try:
            os.link(temporary, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
            self.flush()
        finally:
            self._discard(temporary)

    def remove(self, name: str, *, durable: bool) -> None:
        """Remove `name`, flushed if `durable`: also when it is gone already, for its remover may have died before that."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.fd)
        if durable:
            self.flush()

    def flush(self) -> None:
        """Make durable what names lie here."""
        os.fsync(self.fd)

    def sweep(self) -> None:
        """Remove the temporary files. The lock is held exclusively, so all of them belong to the dead."""
        for name in self.names():
            if name.startswith(TEMPORARY):
                self._discard(name)

    def _write_beside(self, data: bytes, *, durable: bool) -> str:
        """Write `data` to a new file next to its later place; on failure nothing is left. Returns its name."""
        name = f"{TEMPORARY}{os.getpid()}-{os.urandom(8).hex()}"
        fd = os.open(name, OPEN_NEW, 0o600, dir_fd=self.fd)
        try:
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(fd, rest) :]
                if durable:
                    os.fsync(fd)
            finally:
                os.close(fd)
        except BaseException:
            self._discard(name)
            raise
        return name

    def _discard(self, name: str) -> None:
        """Remove a temporary file; one that cannot be removed is ignored by readers and met again by the next sweep."""
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=self.fd)
