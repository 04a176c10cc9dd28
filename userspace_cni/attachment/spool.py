"""Reads the DELs that were called while no agent answered, in the order of their calls.

The shim writes them (shim/shim.c): one file per DEL, with the request for the agent, and the boot and the time since boot of the
call. An entry is never lost: it is removed when a record durably says `deleting`, and an unreadable one is put aside. Nothing
here decides what an entry means.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from userspace_cni.base.errors import PASSING, RecordRefused, Unavailable, UserspaceError
from userspace_cni.base.log import say
from userspace_cni.cni import protocol
from userspace_cni.cni.request import Called

_TEMPORARY: Final = ".tmp-"
_LONGEST: Final = protocol.HEAD_MAX + protocol.BODY_MAX


@dataclass(frozen=True)
class Entry:
    """One DEL: its CNI_* variables, its stdin, and when it was called."""

    name: str
    environ: Mapping[str, str]
    stdin: bytes
    called: Called


class Spool:
    """The spool directory.

    Methods raise RecordRefused when it cannot be read or written, Unavailable when that will pass by itself.
    """

    def __init__(self, directory: str, quarantine: str) -> None:
        self._directory = Path(directory)
        self._quarantine = Path(quarantine)

    def __len__(self) -> int:
        """How many entries there are; 0 for a directory that cannot be read."""
        with suppress(UserspaceError):
            return len(self._names())
        return 0

    def entries(self, *, keep: bool = False) -> Iterator[Entry]:
        """Every entry, oldest first. Files that are no entries are put aside; with `keep` they are left alone."""
        for name in self._names():
            try:
                entry = _entry(name, self._read(name))
            except FileNotFoundError:
                continue  # another process has removed it
            except OSError as error:  # it stays, and does not block the others
                say("warning", "a spooled DEL cannot be read now", entry=name, error=error.strerror)
                continue
            except (ValueError, UserspaceError) as error:
                if not keep:
                    self.put_aside(name, str(error))
            else:
                yield entry

    def remove(self, name: str) -> None:
        """Forget an entry, durably."""
        try:
            with suppress(FileNotFoundError):
                (self._directory / name).unlink()
            self._flush(self._directory)
        except OSError as error:
            raise _refusal(f"removing {self._directory / name}", error) from error

    def put_aside(self, name: str, reason: str) -> None:
        """Move an entry that cannot be used to the quarantine of records; if that fails it stays."""
        say("warning", "a spooled DEL cannot be used and is put aside", entry=name, reason=reason, into=self._quarantine)
        try:
            self._quarantine.mkdir(mode=0o700, parents=True, exist_ok=True)
            with suppress(FileNotFoundError):
                (self._directory / name).rename(self._quarantine / f"spool-{name}-{os.urandom(4).hex()}")
            self._flush(self._quarantine)
            self._flush(self._directory)
        except OSError as error:
            say("warning", "the spooled DEL cannot be put aside", entry=name, error=error.strerror)

    def sweep(self) -> None:
        """Remove half-written files of dead writers."""
        with suppress(OSError):
            fd = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a living writer holds it
                for path in self._directory.glob(f"{_TEMPORARY}*"):
                    path.unlink(missing_ok=True)
            finally:
                os.close(fd)

    def _names(self) -> list[str]:
        try:
            return sorted(entry.name for entry in os.scandir(self._directory) if not entry.name.startswith("."))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _refusal(f"reading the spool {self._directory}", error) from error

    def _read(self, name: str) -> bytes:
        """Read a file. Raises ValueError unless it is a regular file: others are put aside, so that none blocks later entries."""
        path = self._directory / name
        if not stat.S_ISREG(path.lstat().st_mode):
            raise ValueError("it is not a regular file")
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:  # noqa: PTH123 -- a descriptor
            return file.read(_LONGEST + 1)

    def _flush(self, directory: Path) -> None:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _refusal(what: str, error: OSError) -> UserspaceError:
    return (Unavailable if error.errno in PASSING else RecordRefused)(what, error.strerror or "")


def _entry(name: str, raw: bytes) -> Entry:
    """An entry from its file's content. Raises UserspaceError or ValueError for anything else."""
    head, body = protocol.read_request(raw)
    environ = protocol.environment(head)
    if environ["CNI_COMMAND"] != "DEL":
        raise ValueError("it is no DEL")
    called = protocol.read_call_time(head)
    if called is None:
        raise ValueError(f"it does not say when it was called: {protocol.BOOT_ID} or {protocol.BOOTTIME_NS} is missing")
    return Entry(name, environ, body, called)
