"""The agent's pages about itself and the node, each made by a thread of its own for all requests that wait for it.

Making a page takes processor time, and may wait for disk or switch: verbs must never wait for that. So verbs have their threads
(`workers`), and a page has one, which exists only while a request waits. One making serves all requests that came before it
began; a request that comes during it waits for the next. So no answer is older than its request, and a thousand requests at once
cost little more than one. Between two makings the thread rests: clients that ask without pause get only a part of a core.
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
from userspace_cni.base.log import limit_repeats, say
from userspace_cni.base.repeats import Repeats
from userspace_cni.base.threads import refused
from userspace_cni.cni import protocol

WAITING: Final = 1024
"""How many requests may wait for one page."""
_REST: Final = 4
"""A page rests for this many times the processor time of its making."""
_REST_MAX_S: Final = 1.0


@dataclass(frozen=True)
class PageContent:
    """The content of a page: HTTP status, body and its type."""

    status: int
    body: bytes
    content_type: str = protocol.JSON


class ServedPage:
    """One page, made by `make`, whose errors are the answer. Methods may be called from any thread."""

    def __init__(self, name: str, make: Callable[[], PageContent], waiting: int = WAITING) -> None:
        self.name = name
        self._make = make
        self._most = waiting
        self._context = copy_context()
        self._repeats = Repeats()
        self._lock = threading.Lock()
        self._waiting: list[Exchange] = []
        self._serving = False
        self._since = 0.0

    def ask(self, exchange: Exchange) -> None:
        """Answer the exchange with the page's next making. Raises Unavailable when too many wait or no thread starts."""
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
        """Seconds since its making began; 0.0 when it is not being made."""
        with self._lock:
            return time.monotonic() - self._since if self._since else 0.0

    def _serve(self) -> None:
        while waiting := self._next():
            before = time.thread_time()
            with limit_repeats(self._repeats):
                status, whole = self._whole()
            for exchange in waiting:
                exchange.reply(status, whole)
            with self._lock:
                self._since = 0.0
            time.sleep(min(_REST_MAX_S, _REST * (time.thread_time() - before)))

    def _next(self) -> list[Exchange]:
        """Take the requests that wait; when there are none, this thread ends."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            self._serving = bool(waiting)
            self._since = time.monotonic() if waiting else 0.0
            return waiting

    def _whole(self) -> tuple[int, bytes]:
        """Make the page: status and the whole answer, which all requests that wait share."""
        try:
            content = self._make()
        except UserspaceError as error:
            content = PageContent(*protocol.fault(error))
        except Exception as error:  # noqa: BLE001 -- after a bug in one page, requests are answered and the thread goes on
            say("error", "making a page failed", page=self.name, error=repr(error))
            what = UserspaceError(f"making {self.name}: {error!r}", "a bug; see the agent's log", code=UNEXPECTED)
            content = PageContent(*protocol.fault(what))
        return content.status, protocol.reply(content.status, content.body, content.content_type)
