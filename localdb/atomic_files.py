"""Reading and writing whole files so that a crash at any point leaves the old content or the new, never a mixture.

Theory of operation: content goes to a temporary file in the same directory and is renamed over the old file. That survives the
death of a process. To survive a power cut, the file is flushed before the rename and the directory after it, because until then
the rename itself may be lost. A writer holds the directory's own kernel lock shared during all of this; a process that moves a
file aside or sweeps temporary files holds it exclusively. So a temporary file seen under the exclusive lock has no living
writer. A pid in the name or the file's age could not show that: pids differ between the pid namespaces of an agent in a
container and a plugin on its host, and clocks jump at boot.

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

from localdb.record_format import LARGEST
from localdb.store_errors import Foreign

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

TEMPORARY = ".localdb-"  # no record's name starts with a dot
OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# A record may have been replaced by anything: do not follow a link, do not hang on a FIFO.
OPEN_RECORD = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
OPEN_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
SETTLED_NS = 50_000_000  # several ticks of the clock that the kernel takes a file's times from
SHORTEST_NAP, LONGEST_NAP = 0.0005, 0.02  # seconds between two looks at a lock

Stamp = tuple[int, ...]
"""What tells whether a name still has the same file with the same content, or a directory the same files; empty where that cannot
be told."""


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


def read_regular(path: str, dirfd: int | None = None) -> bytes:
    """Return the content of the regular file at `path`. Raises `Foreign` when it is anything else, or far too large."""
    try:
        fd = os.open(path, OPEN_RECORD, dir_fd=dirfd)
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
        # A record's file never changes under its final name, so its size is final. A foreign file may grow: read no more.
        while len(data) < status.st_size and (chunk := os.read(fd, status.st_size - len(data))):
            data += chunk
        return data
    finally:
        os.close(fd)


def stamp_of(path: str, dirfd: int | None = None) -> Stamp:
    """Return the stamp of the file or directory at `path`; empty when it is gone, or changed so lately that another change may
    have the same time: a new file can get the number of the one before the last.
    """
    try:
        status = os.stat(path, dir_fd=dirfd, follow_symlinks=False)
    except FileNotFoundError:
        return ()
    if not 0 <= status.st_ctime_ns < time.time_ns() - SETTLED_NS:
        return ()
    return status.st_dev, status.st_ino, status.st_ctime_ns, status.st_size


def retry(take: Callable[[], None], seconds: float) -> bool:
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


class StoreDirectory:
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
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close the descriptor, and with it the lock on it."""
        os.close(self.fd)

    def lock(self, operation: int, seconds: float) -> None:
        """Take the directory's lock, `fcntl.LOCK_SH` or `LOCK_EX`, until `unlock` or close. Raises `TimeoutError`."""
        if not retry(lambda: fcntl.flock(self.fd, operation | fcntl.LOCK_NB), seconds):
            raise TimeoutError(errno.ETIMEDOUT, f"another process has been busy in this directory for {seconds:g} s", self.path)

    def unlock(self) -> None:
        fcntl.flock(self.fd, fcntl.LOCK_UN)

    def names(self) -> list[str]:
        """Return all names in the directory, unfiltered. The list is complete only while no process writes: it may miss a file
        that is being replaced, because a replacement removes one name and adds another.
        """
        return os.listdir(self.fd)

    def read(self, name: str) -> bytes:
        """As `read_regular`."""
        return read_regular(name, self.fd)

    def stamp(self, name: str) -> Stamp:
        """Return the stamp of the file `name`; empty when it is gone, or changed too lately, see `stamp_of`."""
        return stamp_of(name, self.fd)

    def has(self, name: str) -> bool:
        """Whether something has that name."""
        try:
            os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def links(self, name: str) -> int:
        return os.stat(name, dir_fd=self.fd, follow_symlinks=False).st_nlink

    def replace(self, name: str, data: bytes, *, durable: bool) -> None:
        """Replace the file `name` by `data`, flushed if `durable`. The caller holds the lock shared."""
        temporary = self._write_beside(data, durable=durable)
        try:
            os.replace(temporary, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        except BaseException:
            self._discard(temporary)
            raise
        if durable:
            self.flush()

    def create(self, name: str, data: bytes) -> None:
        """Write `data` durably to the new file `name`. The caller holds the lock exclusively.

        The file has two names until the directory is flushed, so a reader can tell a file that might still be lost.
        """
        temporary = self._write_beside(data, durable=True)
        try:
            os.link(temporary, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
            self.flush()
        finally:
            self._discard(temporary)

    def remove(self, name: str, *, durable: bool) -> None:
        """Remove `name`; flush if `durable`, also when it is gone already: its remover may have died before its own flush."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.fd)
        if durable:
            self.flush()

    def flush(self) -> None:
        """Make the directory's list of names durable."""
        os.fsync(self.fd)

    def sweep(self) -> None:
        """Remove the temporary files. The caller holds the lock exclusively, so none of them has a living writer."""
        for name in self.names():
            if name.startswith(TEMPORARY):
                self._discard(name)

    def _write_beside(self, data: bytes, *, durable: bool) -> str:
        """Write `data` to a new temporary file in this directory, and return its name; on failure no file is left."""
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
        """Remove a temporary file. If that fails, readers ignore the file and the next sweep tries again."""
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=self.fd)
