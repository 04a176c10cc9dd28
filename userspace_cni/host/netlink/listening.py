"""Threads that wait until the kernel tells of a change, and pass that on: nothing is looked at while nothing happens."""

# A path of the host may lead through another root: pathlib cannot express it.
# ruff: noqa: PTH116

from __future__ import annotations

import os
import select
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from userspace_cni.base.errors import DirectoryRefused, Unavailable, UserspaceError
from userspace_cni.base.log import counted, say
from userspace_cni.base.repeats import Repeats
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.base.threads import start
from userspace_cni.linux import paths

AGAIN_S: Final = 5.0
"""After which it listens again, where that failed: what it listens to may come later."""
_READ: Final = 1 << 16


class Listener(ABC):
    """A daemon thread from `start` to `stop`. `purpose`: what it is for; `meanwhile`: what is true while it cannot listen.

    A subclass says in `_listen` how it listens, once, until `_waited` says that it is to end. It may raise UserspaceError.
    """

    def __init__(self, name: str, purpose: str, meanwhile: str) -> None:
        self.purpose = purpose
        self._meanwhile = meanwhile
        self._ending = threading.Event()
        self._end, self._wake = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread. Raises Unavailable."""
        start(self._thread, self.purpose)

    def stop(self) -> None:
        """End the thread, and wait for it. It may not have been started."""
        if self._ending.is_set():
            return
        self._ending.set()
        os.write(self._wake, b"x")
        if self._thread.is_alive():
            self._thread.join()
        for each in (self._end, self._wake):
            os.close(each)

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @abstractmethod
    def _listen(self) -> None:
        """Listen until the end, or until it has to begin anew."""

    def _waited(self, fd: int) -> bool:
        """Wait until the descriptor can be read; False at the end."""
        waiting = select.poll()
        for each in (fd, self._end):
            waiting.register(each, select.POLLIN)
        waiting.poll()
        return not self._ending.is_set()

    def _run(self) -> None:
        with counted(Repeats()):
            while not self._ending.is_set():
                try:
                    self._listen()
                except UserspaceError as error:
                    say("warning", self._meanwhile, error=error)
                    self._ending.wait(AGAIN_S)


class DirectoryWatch(Listener):
    """Hears of files that are written, renamed or removed in `directory`, as the host calls it; `what` it is, for messages.

    `changed` may not wait, nor fail; it is called, too, when it has begun to listen. A directory that comes later is waited for.
    """

    def __init__(self, changed: Callable[[], object], directory: str, what: str, root: HostRoot = HERE) -> None:
        super().__init__("directory-watch", f"watching {what}", f"changes of {what} are noticed by the passes alone")
        self._changed = changed
        self._directory = directory
        self._what = what
        self._root = root
        self._awaits = False
        """Whether it is told that there is no such directory."""

    def _listen(self) -> None:
        """Listen until the end, or until the directory is another one."""
        try:
            listened_to = self._identity()
            fd = paths.inotify(self._root.path(self._directory))
        except FileNotFoundError:
            text = f"{self._directory}, for {self._what}, is not there: it is listened to once it is"
            self._awaits = self._awaits or say("info", text)
            self._ending.wait(AGAIN_S)
            return
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

    def _identity(self) -> tuple[int, int] | None:
        """What tells the directory from another one at its path; None while there is none."""
        try:
            facts = os.stat(self._root.path(self._directory))
        except (OSError, DirectoryRefused):
            return None
        return facts.st_dev, facts.st_ino
