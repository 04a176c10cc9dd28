"""One connection: it reads a request, sends one answer, and finds out whether the peer took the answer.

    reading ──whole──▶ running ──answer()──▶ answered ──peer closed──▶ over
       │                  └─ peer hung up: the answer is lost
       └─ malformed, too slow, too much ──▶ answered (with the fault)

The selector thread owns the connection while it reads and once it is answered. Between the two any thread may answer, so a lock
guards the state and the socket's writing end. A thread must never wait while it holds that lock.

On a unix socket the kernel tells whether the answer was taken: a peer that closes with unread bytes gives us ECONNRESET, one that
closed before we wrote gives EPIPE, and one that read all of it an ordinary end. A half close (SHUT_WR) proves nothing: some
clients do it after their request. An answer to a peer that neither reads nor closes does not count as lost.
"""

from __future__ import annotations

import enum
import errno
import fcntl
import select
import socket
import struct
import termios
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from userspace_cni.base.errors import UNEXPECTED, UserspaceError
from userspace_cni.base.log import say
from userspace_cni.cni import protocol
from userspace_cni.cni.protocol import Head, MalformedRequest
from userspace_cni.cni.request import Verb

_READ: Final = 64 * 1024
_GONE: Final = frozenset({errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.EBADF})


class ExchangeState(enum.Enum):
    """The state of a connection; see the module's drawing."""

    READING = enum.auto()
    RUNNING = enum.auto()
    ANSWERED = enum.auto()
    OVER = enum.auto()


class Exchange:
    """A request and the way to answer it. `method`, `target`, `headers` and `body` are valid once the request is whole.

    `answered(exchange)` is called on the thread that answered; part of the answer may be unsent then. `epoll` is where the
    selector thread waits; the connection keeps its registration there in line with its state.
    """

    __slots__ = (
        "_answered",
        "_buffer",
        "_discarded",
        "_epoll",
        "_head",
        "_lock",
        "_scanned",
        "_unsent",
        "answered_ns",
        "body",
        "fd",
        "hung_up",
        "lost",
        "served",
        "socket",
        "state",
        "status",
    )

    def __init__(self, sock: socket.socket, epoll: select.epoll, answered: Callable[[Exchange], None]) -> None:
        self.socket = sock
        self.fd = sock.fileno()
        self.state = ExchangeState.READING
        self.served = False
        """Whether the request was whole and handed on."""
        self.status = 0
        """The HTTP status of the answer, 0 before there is one."""
        self.answered_ns = 0
        """CLOCK_BOOTTIME of the answer: an attachment made later is not the one in the answer."""
        self.hung_up = False
        """Whether the peer has closed while its request was running."""
        self.lost = False
        """Whether it is proven that the peer has not taken the whole answer."""
        self.body = b""
        self._answered = answered
        self._epoll = epoll
        self._buffer = bytearray()
        self._scanned = 0
        self._discarded = 0
        self._head: Head | None = None
        self._unsent = memoryview(b"")
        self._lock = threading.Lock()
        epoll.register(self.fd, select.EPOLLIN)

    # -- the request ----------------------------------------------------------------------------------------------------

    @property
    def head(self) -> Head:
        """The request's head; ValueError before it was read."""
        if self._head is None:
            raise ValueError("the request is not complete")
        return self._head

    @property
    def method(self) -> str:
        """The HTTP method: GET, POST or another."""
        return self.head.method

    @property
    def target(self) -> str:
        return self.head.target

    @property
    def headers(self) -> protocol.Headers:
        return self.head.headers

    @property
    def verb(self) -> Verb | None:
        """The CNI verb that the request calls; None when it is none, or not known yet."""
        return self._head.verb if self._head else None

    @property
    def buffered(self) -> int:
        """Bytes received of a request that is not whole yet."""
        return len(self._buffer)

    def receive(self) -> bool:
        """Read once; True when the request is whole. Raises MalformedRequest. For the selector thread."""
        try:
            chunk = self.socket.recv(_READ)
        except BlockingIOError:
            return False
        except OSError as error:
            raise MalformedRequest(400, f"the connection broke: {error.strerror}") from error
        if not chunk:
            raise MalformedRequest(400, f"it ended early, after {len(self._buffer)} bytes")
        self._buffer += chunk
        head = self._head or self._read_head()
        if head is None or len(self._buffer) < head.length:
            return False
        if len(self._buffer) > head.length:
            raise MalformedRequest(400, "more bytes came than Content-Length says")
        self.body = bytes(self._buffer)
        self._buffer = bytearray()
        with self._lock:
            self.state = ExchangeState.RUNNING
            self.served = True
            self._epoll.modify(self.fd, 0)  # the kernel reports EPOLLHUP and EPOLLERR always
        return True

    def _read_head(self) -> Head | None:
        """Parse the head and take it from the buffer; None while its end is not received."""
        end = self._buffer.find(protocol.HEAD_END, self._scanned)
        if end < 0:
            if len(self._buffer) >= protocol.HEAD_MAX:
                raise MalformedRequest(431, f"its head is longer than {protocol.HEAD_MAX} bytes")
            self._scanned = max(0, len(self._buffer) - len(protocol.HEAD_END) + 1)
            return None
        end += len(protocol.HEAD_END)
        self._head = protocol.parse_head(bytes(self._buffer[:end]))
        del self._buffer[:end]
        return self._head

    # -- the answer -------------------------------------------------------------------------------------------------------

    def answer(self, status: int, body: bytes, content_type: str = protocol.JSON, warnings: Sequence[str] = ()) -> bool:
        """Answer, from any thread and without waiting; False when the request is answered already or the connection is over.

        `warnings` are for the caller's stderr. What the peer's buffer does not take at once is sent by the selector thread.
        """
        return self.reply(status, protocol.reply(status, body, content_type, warnings))

    def reply(self, status: int, whole: bytes) -> bool:
        """Answer with `whole`, which includes status line and headers: many exchanges can share its bytes. See `answer`."""
        with self._lock:
            if self.state not in (ExchangeState.READING, ExchangeState.RUNNING):
                return False
            refused = self.state is ExchangeState.READING
            self.state = ExchangeState.ANSWERED
            self.status = status
            self.answered_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            self._buffer = bytearray()
            if self.hung_up:
                self.lost = True
            else:
                self._unsent = memoryview(whole)
                self._send()
                wanted = (select.EPOLLOUT if self._unsent else 0) | (select.EPOLLIN if refused else 0)
                if wanted:
                    self._epoll.modify(self.fd, wanted)
        self._answered(self)
        return True

    def refuse(self, error: UserspaceError) -> bool:
        """Answer that the request was not served, with the error as the plugin prints it."""
        return self.answer(*protocol.fault(error))

    @property
    def unsent(self) -> int:
        """Bytes of the answer that did not fit into the peer's buffer yet."""
        return len(self._unsent)

    def flush(self) -> None:
        """Send more of the answer. For the selector thread."""
        with self._lock:
            self._send()
            if self.lost or not self._unsent:
                self._epoll.modify(self.fd, 0 if self.served else select.EPOLLIN)

    def _send(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[self.socket.send(self._unsent, socket.MSG_NOSIGNAL) :]
        except BlockingIOError:
            return
        except OSError as error:
            # sending is tried again after ENOBUFS and ENOMEM, until the answer's time is over
            self.lost = error.errno in _GONE

    # -- the end, for the selector thread ------------------------------------------------------------------------------------

    def peer_closed(self) -> bool:
        """Note that the peer has closed. True when the connection is over, False while its request still runs.

        In the latter case epoll reports nothing of the connection any more: the thread that answers ends it.
        """
        with self._lock:
            if self.state is ExchangeState.RUNNING:
                self.hung_up = True
                self._epoll.unregister(self.fd)  # epoll would report it again and again
                return False
            if self._unsent or self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) in _GONE:
                self.lost = True
            return True

    def unread(self) -> bool:
        """Whether the peer has not read part of the answer in its buffer."""
        waiting: int = struct.unpack("i", fcntl.ioctl(self.socket, termios.TIOCOUTQ, b"\0" * 4))[0]
        return waiting > 0

    def discard(self) -> bool:
        """Read on from a peer whose request was refused, so that it stops sending and reads why; False at end or bound."""
        try:
            chunk = self.socket.recv(_READ)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._discarded += len(chunk)
        return bool(chunk) and self._discarded <= protocol.HEAD_MAX + protocol.BODY_MAX

    def close(self) -> None:
        """Close the connection; an answer that is not wholly sent is lost."""
        with self._lock:
            self.state = ExchangeState.OVER
            if self._unsent:
                self.lost = True
            self.socket.close()


@contextmanager
def refusing(exchange: Exchange) -> Iterator[None]:
    """An error of the block becomes the answer, so that the caller never waits for ever."""
    try:
        yield
    except UserspaceError as error:
        exchange.refuse(error)
    except Exception as error:  # noqa: BLE001 -- a bug in one request must cost neither its caller nor the thread
        say("error", "serving a request failed", target=exchange.target, error=repr(error))
        what = f"serving {exchange.method} {exchange.target[:80]}: {error!r}"
        exchange.refuse(UserspaceError(what, "a bug; see the agent's log", code=UNEXPECTED))
