"""Closes sockets off the path of a verb.

The kernel closes a packet socket only when no core can have it in its hands any more, and after a deletion a netlink socket of
nftables, too: 7 to 25 ms each, and in the second case with all transactions behind it.
"""

from __future__ import annotations

import atexit
import os
import time
from collections import deque
from threading import Event, Lock, Thread
from typing import Protocol

from userspace_cni.base.errors import Unavailable
from userspace_cni.base.threads import start


class Closeable(Protocol):
    """What `Closer` closes."""

    def close(self) -> None:
        """Close it. Raises nothing."""


class Closer:
    """Closes sockets `delay_s` after they are not needed any more, in a thread of its own.

    The thread is there while a socket waits for it. It ends before the interpreter does, which waits for no socket: the kernel
    closes the rest with the process.
    """

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._waiting: deque[tuple[float, Closeable]] = deque()
        self._have_no_thread()
        atexit.register(self._end)
        os.register_at_fork(after_in_child=self._have_no_thread)

    def _have_no_thread(self) -> None:
        """Begin anew: a forked process lacks the thread, which may have held the lock just then."""
        self._lock = Lock()
        self._thread: Thread | None = None
        self._ending = Event()

    def close(self, thing: Closeable) -> None:
        """Have it closed; at once when no thread can be started."""
        with self._lock:
            self._waiting.append((time.monotonic() + self._delay_s, thing))
            if self._thread and self._thread.is_alive():
                return
            thread = Thread(target=self._run, name="closer", daemon=True)
            try:
                start(thread, "closing sockets")
                self._thread = thread
            except Unavailable:
                self._waiting.pop()[1].close()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                at, thing = self._waiting.popleft()
            if self._ending.wait(max(0.0, at - time.monotonic())):
                return
            thing.close()

    def _end(self) -> None:
        self._ending.set()
        thread = self._thread
        if thread:
            thread.join()
