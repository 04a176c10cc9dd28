"""One agent for the records of one state directory.

A process that works on an attachment holds its lock, and locks are in `run_dir`. Two agents with one `state_dir` and two run
directories, as half an environment makes them, would each take what the other is doing for what a dead one left, and undo it.

It must not keep an agent from its work where nothing can be written: a full or read-only disk is no second agent.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from typing import Final

from userspace_cni.base.errors import Unavailable

_NAME: Final = "agent.lock"
_TOLD_MAX: Final = 512


class Singleton:
    """The place of the one agent, from `claim` to `release` or the end of the process.

    The file stays: were it removed, two could lock two files of its name.
    """

    def __init__(self) -> None:
        self._fd = -1

    def claim(self, state_dir: str, run_dir: str) -> None:
        """Be the agent of these records, which has its locks in `run_dir`; a second call does nothing.

        Raises Unavailable while another agent is. Does nothing where the file cannot be made.
        """
        if self._fd >= 0:
            return
        with suppress(OSError):
            self._fd = os.open(f"{state_dir}/{_NAME}", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        if self._fd < 0:
            return
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._fd, _TOLD_MAX, 0).decode(errors="replace").strip() or "which does not say more"
            self.release()
            raise Unavailable(
                f"starting the agent: another one works on the records in {state_dir} ({holder})",
                f"stop it first, or give this one, whose run_dir is {run_dir}, another state_dir",
            ) from None
        except OSError:  # no locks, or none left: what holds records must not be refused for that
            self.release()
            return
        with suppress(OSError):  # a full disk must not cost us the lock
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, os.fsencode(f"process {os.getpid()}, run_dir {run_dir}\n"), 0)

    def release(self) -> None:
        """Let another agent have the records."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
