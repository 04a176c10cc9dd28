"""Ensures that one agent at most, or one `uninstall`, works on the records of a state directory as a whole.

A process that works on an attachment holds its lock, and locks are in `run_dir`. With one `state_dir` and two run directories, as
an incomplete environment gives, each of two agents would take the other's work for a dead process's and undo it.

It must never stop an agent because the disk is full or read-only: that does not prove a second agent.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from typing import Final

from userspace_cni.base.errors import Unavailable

_NAME: Final = "agent.lock"
_HOLDER_MAX: Final = 512


class AnotherAgent(Unavailable):
    """Another process works on the records; `holder` says which: what it is, its number and `run_dir`."""

    def __init__(self, message: str, details: str, holder: str) -> None:
        super().__init__(message, details)
        self.holder = holder


class Singleton:
    """The lock of the one agent, from `claim` to `release` or the end of the process.

    The file stays: if it were removed, two agents could lock two files of its name.
    """

    def __init__(self) -> None:
        self._fd = -1

    def claim(self, state_dir: str, run_dir: str, what: str = "the agent") -> None:
        """Become the agent of these records, or `what` takes its place; a second call does nothing. `run_dir`: of the locks.

        Raises AnotherAgent while there is one. Does nothing where the file cannot be made.
        """
        if self._fd >= 0:
            return
        with suppress(OSError):
            # for reading: a file that is open for writing keeps its file system from being remounted read-only
            self._fd = os.open(f"{state_dir}/{_NAME}", os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        if self._fd < 0:
            return
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._fd, _HOLDER_MAX, 0).decode(errors="replace").strip() or "a process that gives no details"
            self.release()
            raise AnotherAgent(
                f"{what} cannot begin: other work on the records in {state_dir} goes on: {holder}",
                f"end that first, or give this process, whose run_dir is {run_dir}, another state_dir",
                holder,
            ) from None
        except OSError:  # the file system has no locks, or none left: the agent starts without one
            self.release()
            return
        with suppress(OSError):  # on a full disk the lock holds all the same
            fd = os.open(f"{state_dir}/{_NAME}", os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                os.write(fd, os.fsencode(f"{what}, process {os.getpid()}, run_dir {run_dir}\n"))
            finally:
                os.close(fd)

    def release(self) -> None:
        """Let another agent have the records."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
