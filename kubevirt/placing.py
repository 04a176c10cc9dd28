"""Puts the sidecar's socket into the directory that virt-launcher scans, once it is served.

virt-launcher dials every file there, and ends when one does not answer: a socket must not appear before it is served. It knows
sockets by file name, without the directory: of two with one name it never asks the second. So a socket is bound in a directory of
its own, which virt-launcher does not scan, and renamed into place: of two that start at once under one name, the one that renames
last is asked. It must never remove another process's file, nor a directory where another process still serves.

Sources: KubeVirt's pkg/hooks/manager.go (collectSideCarSockets); unix(7) for the length of a path.
"""

from __future__ import annotations

import fcntl
import os
import re
from binascii import crc32
from contextlib import suppress
from pathlib import Path
from typing import Final

from kubevirt.sidecar_errors import DefinitionRefused
from userspace_cni.pod.socket_path import SUN_PATH_MAX

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]")
_FILE: Final = "s"


def socket_file(binding: str, container: str) -> str:
    """The socket's name, unique in the pod. `container`: the container's name, or another text that is unique to it."""
    return "-".join(_UNSAFE.sub("_", part) for part in (binding, container)) + ".sock"


class SidecarSocket:
    """A socket at `path`. In this order: `prepare`, serve at `address`, `publish`; `withdraw` ends it in whatever state it is.

    `seen` is the path by which the other side knows it, when that is another one.
    """

    def __init__(self, path: Path, seen: Path | None = None) -> None:
        self.path = path
        self._seen = seen or path
        # begins alike for all of one name: what a killed process left is found by the next one
        self._prefix = f".{crc32(os.fsencode(path.name)):08x}-"
        self._room = path.parent / f"{self._prefix}{os.urandom(4).hex()}"
        self.address = self._room / _FILE
        self._lock: int | None = None
        self._identity: tuple[int, int] | None = None

    def prepare(self) -> None:
        """Make the directory in which to bind. Raises Refused."""
        longest = max((os.fsencode(path) for path in (self.path, self._seen, self.address)), key=len)
        if len(longest) > SUN_PATH_MAX:
            raise DefinitionRefused(
                "path-too-long",
                f"the sidecar's socket would be at {os.fsdecode(longest)}, "
                f"{len(longest)} bytes where {SUN_PATH_MAX} are possible",
                "give the binding or the directory a shorter name",
            )
        try:
            self._clear_stale()
            while self._lock is None:  # another may take the room for stale before it is locked
                self._room.mkdir(0o700, exist_ok=True)
                self._lock = _locked(self._room, fcntl.LOCK_EX)
        except OSError as error:
            raise self._refused("making a directory for", error) from error

    def publish(self) -> None:
        """Move the served socket to `path`, replacing one of the same name. Raises Refused."""
        try:
            self._identity = _identity(self.address)
            self.address.rename(self.path)
            self._leave()
        except OSError as error:
            raise self._refused("placing", error) from error

    def withdraw(self) -> None:
        """Remove what `prepare` and `publish` made, unless another process has replaced it. Never fails."""
        with suppress(OSError):
            self._leave()
        with suppress(OSError):
            # the number of an inode is not given again while the server holds its socket
            if _identity(self.path) == self._identity:
                self.path.unlink()

    def _leave(self) -> None:
        """Remove our room, and let its lock go."""
        if self._lock is None:
            return
        lock, self._lock = self._lock, None
        try:
            _remove(self._room)
        finally:
            os.close(lock)

    def _clear_stale(self) -> None:
        """Remove the rooms of this name whose processes have ended. One that cannot be removed does no harm."""
        for room in self.path.parent.glob(f"{self._prefix}*"):
            with suppress(OSError):
                lock = _locked(room, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if lock is not None:
                    try:
                        _remove(room)
                    finally:
                        os.close(lock)

    def _refused(self, tried: str, error: OSError) -> DefinitionRefused:
        return DefinitionRefused(
            "no-hook-directory",
            f"{tried} the sidecar's socket {self.path}: {error.strerror} (as uid {os.getuid()}, gid {os.getgid()})",
            f"{self.path.parent} must be a directory that this user can write in, as KubeVirt's volume for hook sidecars is",
        )


def _remove(room: Path) -> None:
    (room / _FILE).unlink(missing_ok=True)
    room.rmdir()


def _locked(room: Path, how: int) -> int | None:
    """A descriptor that holds the room's lock until it is closed or its process ends; None for a room that is gone."""
    try:
        lock = os.open(room, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, how)
        if os.path.samestat(os.fstat(lock), room.lstat()):
            return lock
    except FileNotFoundError:
        pass
    except OSError:
        os.close(lock)
        raise
    os.close(lock)
    return None


def _identity(path: Path) -> tuple[int, int]:
    status = path.lstat()
    return status.st_dev, status.st_ino
