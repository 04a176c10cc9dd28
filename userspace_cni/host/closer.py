"""Closes sockets off the path of a verb.

The kernel closes a packet socket only when no core can have it in its hands any more, and after a deletion a netlink socket of
nftables, too: 7 to 25 ms each, and in the second case with all transactions behind it.
"""

from __future__ import annotations

import time
from collections import deque
from threading import Lock, Thread
from typing import Protocol

from userspace_cni.base.errors import Unavailable
from userspace_cni.base.threads import start


class Closeable(Protocol):
    """What `Closer` closes."""

    def close(self) -> None:
        """Close it. Raises nothing."""


class Closer:
    """Closes sockets for which the kernel makes their owner wait, `delay_s` later and in a thread of its own.

    The thread is there while a socket waits for it, and keeps no process from ending: the kernel closes the rest then.
    """

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._lock = Lock()
        self._waiting: deque[tuple[float, Closeable]] = deque()
        self._running = False

    def close(self, thing: Closeable) -> None:
        """Have it closed; at once when no thread can be started."""
        with self._lock:
            self._waiting.append((time.monotonic() + self._delay_s, thing))
            if self._running:
                return
            try:
                start(Thread(target=self._run, name="closer", daemon=True), "closing sockets")
                self._running = True
            except Unavailable:
                self._waiting.pop()[1].close()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._running = False
                    return
                at, thing = self._waiting.popleft()
            time.sleep(max(0.0, at - time.monotonic()))
            thing.close()
