"""Sends traces of calls to a collector, on a thread of its own.

A verb hands its trace over after its answer and never waits. What the collector does not take in time is kept up to a bound, and
the oldest is given up first: neither a collector that is away nor one that is slow, never answers or answers without an end costs
a verb anything, or the agent more memory than that bound.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import Final
from urllib.parse import urlsplit

from userspace_cni.agent.call_trace import CallTrace
from userspace_cni.base.back_off import BackOff
from userspace_cni.base.errors import Unavailable, shorten
from userspace_cni.base.loops import Loop

KEPT: Final = 512
"""Traces that wait for the collector at most: some kilobytes each."""
BATCH: Final = 128
SETTLE_S: Final = 1.0
"""How long calls are gathered for one request."""
SILENCE_S: Final = 5.0
"""How long the collector may be silent."""
SENDING_S: Final = 10.0
"""How long one request may take, also with a collector that sends a byte now and then."""
FINAL_S: Final = 0.4
"""How long the last request may take. The agent must end within five seconds, and running calls may need more than four."""
_ANSWER_MAX: Final = 1 << 16
_GIVEN_UP: Final = range(400, 500)
_BUSY: Final = (408, 429)
_HEADERS: Final = {"Content-Type": "application/x-protobuf", "Connection": "close", "User-Agent": "userspace-cni"}


class TraceExport(Loop):
    """Where traces are put. `dropped` is called with the number of those that are given up.

    `endpoint`: the setting. `resource`: attributes of this agent. Raises ImportError where the package is missing that knows the
    collector's form.
    """

    failing = "sending traces failed, which affects no call: "
    first_s = None
    back_off = BackOff()

    def __init__(self, endpoint: str, resource: Mapping[str, str], dropped: Callable[[int], None]) -> None:
        from userspace_cni.agent.otlp_spans import encode_traces, read_refusal

        super().__init__("traces", "sends traces")
        self.settle_s, self.end_s = SETTLE_S, FINAL_S
        self._url = urlsplit(endpoint)
        self._encode, self._read_refusal = encode_traces, read_refusal
        self._resource = dict(resource)
        self._dropped = dropped
        self._kept: deque[CallTrace] = deque()

    def put(self, trace: CallTrace) -> None:
        """Have it sent soon. Never waits and never fails."""
        with self._wake:
            full = len(self._kept) >= KEPT
            if full:
                self._kept.popleft()
            self._kept.append(trace)
            self._asked = True
            self._wake.notify_all()
        if full:
            self._dropped(1)

    @property
    def waiting(self) -> int:
        return len(self._kept)

    # -- the thread -------------------------------------------------------------------------------------------------------

    def _round(self) -> float | None:
        while batch := self._first():
            if refusal := self._send(batch, SENDING_S):
                self._remove(batch)
                raise Unavailable(f"{self._url.geturl()}: {refusal}", "they are not sent again")
            self._remove(batch)
        return None

    def _end(self) -> None:
        if batch := self._first():
            with suppress(Unavailable):
                self._send(batch, FINAL_S)

    def _first(self) -> list[CallTrace]:
        with self._wake:
            return [self._kept[place] for place in range(min(BATCH, len(self._kept)))]

    def _remove(self, batch: list[CallTrace]) -> None:
        """Those of a batch that have not been given up meanwhile."""
        with self._wake:
            for each in batch:
                if self._kept and self._kept[0] is each:
                    self._kept.popleft()

    def _send(self, batch: list[CallTrace], seconds: float) -> str:
        """Send them in one request; why the collector will never take them, or left some out; "" if it took all.

        Raises Unavailable where they may be sent again.
        """
        try:
            body = self._encode(batch, self._resource)
        except (TypeError, ValueError) as error:  # the next ones may do better
            self._dropped(len(batch))
            return f"they cannot be encoded: {error}"
        try:
            with closing(self._connection(min(seconds, SILENCE_S))) as connection:
                connection.connect()
                with _cut_after(seconds, connection.sock):
                    connection.request("POST", f"{self._url.path.rstrip('/')}/v1/traces", body, _HEADERS)
                    answer = connection.getresponse()
                    content = answer.read(_ANSWER_MAX)
        except (OSError, http.client.HTTPException, ValueError) as error:
            what = shorten(str(error)) or type(error).__name__
            raise Unavailable(f"{self._url.geturl()}: {what}", "the setting otlp_endpoint") from error
        if answer.status in _GIVEN_UP and answer.status not in _BUSY:
            self._dropped(len(batch))
            return f"status {answer.status}"
        if answer.status // 100 != 2:
            raise Unavailable(f"{self._url.geturl()} answered with status {answer.status}", "the setting otlp_endpoint")
        with suppress(Exception):  # an answer in another form says nothing of what was left out
            return self._read_refusal(content)
        return ""

    def _connection(self, seconds: float) -> http.client.HTTPConnection:
        host, port = self._url.hostname or "", self._url.port
        if self._url.scheme == "https":
            return http.client.HTTPSConnection(host, port, timeout=seconds, context=ssl.create_default_context())
        return http.client.HTTPConnection(host, port, timeout=seconds)


@contextmanager
def _cut_after(seconds: float, connection: socket.socket) -> Iterator[None]:
    """Cut the connection if the block has not ended by then: what waits for it in the block gets its end. Raises TimeoutError."""
    over = threading.Event()

    def cut() -> None:
        over.set()
        with suppress(OSError):
            socket.socket.shutdown(connection, socket.SHUT_RDWR)

    timer = threading.Timer(seconds, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
    if over.is_set():  # the end may look like that of an answer
        raise TimeoutError(f"no whole answer within {seconds:g} s")
