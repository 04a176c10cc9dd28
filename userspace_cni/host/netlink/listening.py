"""Threads that wait until the kernel tells of a change, and pass that on: nothing is looked at while nothing happens."""

# A path of the host may lead through another root: pathlib cannot express it.
# ruff: noqa: PTH116

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from userspace_cni.base.back_off import BackOff
from userspace_cni.base.errors import DirectoryRefused, Unavailable
from userspace_cni.base.log import say
from userspace_cni.base.loops import Loop
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.linux import paths

AGAIN_S: Final = 5.0
"""After which it listens again, where that failed: what it listens to may come later."""
_READ: Final = 1 << 16


class KernelWatch(Loop):
    """A daemon thread from `start` to `stop`, which waits for it. `meanwhile`: what is true while it cannot listen.

    A subclass says in `_round` how it listens, until `_waited` says that it is to end, or until it has to begin anew.
    """

    end_s = threading.TIMEOUT_MAX

    def __init__(self, name: str, does: str, meanwhile: str) -> None:
        super().__init__(name, does)
        self.failing = f"{meanwhile}: "
        self.back_off = BackOff(AGAIN_S, AGAIN_S)
        self._told, self._tell = os.pipe2(os.O_CLOEXEC)

    def stop(self, within_s: float = threading.TIMEOUT_MAX) -> None:
        """End the thread, and wait for it. It may not have been started."""
        if self._stopping:
            return
        os.write(self._tell, b"x")
        super().stop(within_s)
        for each in () if self.alive else (self._told, self._tell):
            os.close(each)

    def _waited(self, fd: int) -> bool:
        """Wait until the descriptor can be read; False at the end. For who listens now."""
        self._note("")
        waiting = select.poll()
        for each in (fd, self._told):
            waiting.register(each, select.POLLIN)
        found = waiting.poll()
        return all(ready != self._told for ready, _ in found)


class DirectoryWatch(KernelWatch):
    """Hears of files that are written, renamed or removed in `directory`, as the host calls it; `what` it is, for messages.

    `changed` may not wait, nor fail; it is called, too, when it has begun to listen. A directory that comes later is waited for.
    """

    def __init__(self, changed: Callable[[], object], directory: str, what: str, root: HostRoot = HERE) -> None:
        super().__init__("directory-watch", f"watches {what}", f"changes of {what} are noticed by the passes alone")
        self._changed = changed
        self._directory = directory
        self._what = what
        self._root = root
        self._awaits = False
        """Whether it is told that there is no such directory."""

    def _round(self) -> float:
        """Listen until the end, or until the directory is another one."""
        try:
            listened_to = self._identity()
            fd = paths.inotify(self._root.path(self._directory))
        except FileNotFoundError:
            text = f"{self._directory}, for {self._what}, is not there: it is listened to once it is"
            self._awaits = self._awaits or say("info", text)
            return AGAIN_S
        except (OSError, DirectoryRefused) as error:
            raise Unavailable(f"listening to changes of {self._directory}: {error}", "it is tried again") from error
        try:
            self._awaits = False
            self._changed()
            # looked at before each wait: it may have come, or become another one, since it was looked at first
            while listened_to and self._identity() == listened_to and self._waited(fd):
                with suppress(BlockingIOError):
                    while os.read(fd, _READ):
                        pass
                self._changed()
        finally:
            os.close(fd)
        return 0.0

    def _identity(self) -> tuple[int, int] | None:
        """What tells the directory from another one at its path; None while there is none."""
        try:
            facts = os.stat(self._root.path(self._directory))
        except (OSError, DirectoryRefused):
            return None
        return facts.st_dev, facts.st_ino
