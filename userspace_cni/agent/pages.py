"""What the agent tells about itself and the node: pages, each made by a thread of its own for all who wait for it.

A page costs processor time, and may wait for disk or switch: none of that may be a verb's. So verbs have their threads
(`workers`), and a page has one, which is there only while a request waits. A request that comes while it is being made waits for
the next one, and one making serves all that have waited for it: none is answered with what was true before it came, and a
thousand who ask at once cost little more than one. Between two makings the thread rests, so that those who ask without pause
get a part of a core and no more.
"""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass
from typing import Final

from userspace_cni.agent.exchange import Exchange
from userspace_cni.base.errors import UNEXPECTED, Unavailable, UserspaceError
from userspace_cni.base.log import say
from userspace_cni.base.threads import refused
from userspace_cni.cni import protocol

WAITING: Final = 1024
"""How many may wait for one page."""
_REST: Final = 4
"""How many times the processor time of its making a page rests after it."""
_REST_MAX_S: Final = 1.0


@dataclass(frozen=True)
class Told:
    """A page as it was made: HTTP status, body and its type."""

    status: int
    body: bytes
    content_type: str = protocol.JSON


class Page:
    """One page, made by `make`, whose errors are the answer. Methods may be called from any thread."""

    def __init__(self, name: str, make: Callable[[], Told], waiting: int = WAITING) -> None:
        self.name = name
        self._make = make
        self._most = waiting
        self._context = copy_context()
        self._lock = threading.Lock()
        self._waiting: list[Exchange] = []
        self._serving = False
        self._since = 0.0

    def ask(self, exchange: Exchange) -> None:
        """Have the exchange answered with the page. Never waits. Raises Unavailable when too many do, or without a thread."""
        with self._lock:
            if len(self._waiting) >= self._most:
                raise Unavailable(f"{self.name}: {self._most} wait for it already", "try again later")
            self._waiting.append(exchange)
            if self._serving:
                return
            try:
                _thread.start_new_thread(self._context.copy().run, (self._serve,))
            except RuntimeError as error:
                self._waiting.remove(exchange)
                raise refused(self.name) from error
            self._serving = True

    @property
    def seconds(self) -> float:
        """How long it has been in the making; 0.0 when it is not."""
        with self._lock:
            return time.monotonic() - self._since if self._since else 0.0

    def _serve(self) -> None:
        while waiting := self._next():
            before = time.thread_time()
            status, whole = self._whole()
            for exchange in waiting:
                exchange.reply(status, whole)
            with self._lock:
                self._since = 0.0
            time.sleep(min(_REST_MAX_S, _REST * (time.thread_time() - before)))

    def _next(self) -> list[Exchange]:
        """Those who wait; without any, this thread is the page's no longer."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            self._serving = bool(waiting)
            self._since = time.monotonic() if waiting else 0.0
            return waiting

    def _whole(self) -> tuple[int, bytes]:
        """Status and the whole answer, which all who wait share."""
        try:
            told = self._make()
        except UserspaceError as error:
            told = Told(*protocol.fault(error))
        except Exception as error:  # noqa: BLE001 -- a bug in one page must cost no request its answer, nor us the thread
            say("error", "making a page failed", page=self.name, error=repr(error))
            what = UserspaceError(f"making {self.name}: {error!r}", "a bug; see the agent's log", code=UNEXPECTED)
            told = Told(*protocol.fault(what))
        return told.status, protocol.reply(told.status, told.body, told.content_type)
