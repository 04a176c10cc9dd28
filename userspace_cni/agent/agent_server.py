"""The agent's server: one thread that accepts connections, reads whole requests, hands them on, and ends answered connections.

It must never run a verb, wait for a peer or block except in epoll (and in the file system of its socket, to check that it is
there): a thousand idle connections, a peer that sends a byte per second or one that never reads must not delay the others. The
thread that has an answer writes it (`exchange`); this thread sends only what the peer's buffer did not take at once.

Bounds: the time from accept to a whole request, its size, the bytes of all unfinished requests, the number of connections, and
the time that an answered one may stay. A connection beyond the bound ends the oldest that is not served. So does one for which no
descriptor is left; if none can be ended, it waits in the kernel's queue.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from itertools import takewhile
from typing import Final, Protocol

from userspace_cni.agent.exchange import Exchange, ExchangeState, refusing
from userspace_cni.base.errors import Unavailable, UserspaceError
from userspace_cni.base.log import limit_repeats, say
from userspace_cni.base.repeats import Repeats
from userspace_cni.base.threads import start
from userspace_cni.cni import protocol
from userspace_cni.cni.protocol import MalformedRequest

_EVENTS: Final = 256
_ACCEPTS: Final = 64
"""Connections accepted before the existing ones have their turn."""
_TICK_S: Final = 1.0
"""While requests run, this thread looks for answered ones at least so often: other threads do not have to wake it."""
_PAUSE_S: Final = 0.1
_STOP_S: Final = 2.0
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_NEVER: Final = float("inf")
_GONE: Final = select.EPOLLHUP | select.EPOLLERR


@dataclass(frozen=True)
class PeerLimits:
    """The bounds on what peers may use; seconds, connections, bytes."""

    request_s: float = 10.0
    """From accept to a whole request."""
    taken_s: float = 5.0
    """From an answer to the peer's close. An answer that is not sent by then is lost."""
    unread_s: float = 60.0
    """The same for an answer that is sent whole and not read: the peer may be stopped and read it later."""
    connections: int = 4096
    held: int = 64 * 1024 * 1024
    """All unfinished requests together."""
    round_s: float = 30.0
    """Of its thread, which blocks in nothing but epoll: one that takes longer never ends."""


class ServerListener(Protocol):
    """The place where the server listens. Methods raise InvalidConfig or Unavailable; one thread at a time calls them."""

    listening: socket.socket | None
    """Non-blocking, from `listen` to `close`."""

    @property
    def exchange(self) -> type[Exchange]: ...

    @property
    def watch_s(self) -> float:
        """Seconds between two calls of `keep`."""
        ...

    def claim(self) -> None:
        """Become the only process that may listen; a second call does nothing."""
        ...

    def listen(self) -> socket.socket: ...

    def keep(self) -> socket.socket | None:
        """Make the socket again if peers no longer find it; the new one, None when the old one is in place."""
        ...

    def admit(self, sock: socket.socket) -> None:
        """Raise UserspaceError unless this peer may speak to us."""
        ...

    def unlink(self) -> None:
        """Remove the socket's name; connections in the queue can still be accepted."""
        ...

    def close(self) -> None: ...

    def release(self) -> None:
        """Close, and let other processes listen."""
        ...


class _Timed:
    """Exchanges in the order in which they were added, which is that of their deadlines."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._ends: dict[int, tuple[float, Exchange]] = {}

    def add(self, exchange: Exchange) -> None:
        self._ends[exchange.fd] = (time.monotonic() + self._seconds, exchange)

    def drop(self, exchange: Exchange) -> None:
        self._ends.pop(exchange.fd, None)

    def first(self) -> Exchange | None:
        return next((exchange for _, exchange in self._ends.values()), None)

    def next_end(self) -> float:
        return next((end for end, _ in self._ends.values()), _NEVER)

    def over(self, now: float) -> list[Exchange]:
        """The exchanges whose time is over; the caller has to drop them."""
        return [exchange for _, exchange in takewhile(lambda item: item[0] <= now, self._ends.values())]


def _ignore(exchange: Exchange) -> None:
    """Do nothing about a lost answer, or a caller that has gone."""


class Server:
    """The socket of `listener` and its thread.

    `serve(exchange)` is called on the server's own thread for each whole request and must not block: it answers at once or hands
    the exchange to a worker. So is `call(exchange)`, if given, for those that call a verb. `on_lost(exchange)` is called once for
    each served exchange whose answer was proven not to be taken, on any thread, and must not block either; nor must
    `on_hung_up(exchange)`, called on the server's thread when the peer of a request that runs has closed.
    """

    def __init__(
        self,
        listener: ServerListener,
        serve: Callable[[Exchange], None],
        on_lost: Callable[[Exchange], None] = _ignore,
        limits: PeerLimits | None = None,
        on_hung_up: Callable[[Exchange], None] = _ignore,
        call: Callable[[Exchange], None] | None = None,
    ) -> None:
        self._serve = serve
        self._call = call or serve
        self._on_lost = on_lost
        self._on_hung_up = on_hung_up
        self._limits = limits or PeerLimits()
        self._listener = listener
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._all: dict[int, Exchange] = {}
        self._reading = _Timed(self._limits.request_s)
        self._leaving = _Timed(self._limits.taken_s)
        self._doubted = _Timed(self._limits.unread_s)
        self._answered: deque[Exchange] = deque()
        self._running: dict[int, Exchange] = {}
        self._held = 0
        self._paused_until = _NEVER
        self._accepting = False
        self._look_at = _NEVER
        self._displaced = ""
        self._beat = 0.0
        self._stopping = threading.Event()
        self._stopped = threading.Event()
        self._ending = False
        self._thread = threading.Thread(target=copy_context().run, args=(self._run,), name="server", daemon=True)

    # -- for other threads ------------------------------------------------------------------------------------------------

    def claim(self) -> None:
        """Claim the listener without listening yet: what only one agent may do comes between this and `start`.

        Raises InvalidConfig for a listener that cannot be used, Unavailable while another agent has it.
        """
        self._listener.claim()

    def listen(self) -> None:
        """Let peers connect, and wait in the kernel's queue until `start`; claims the listener if need be. Raises as `claim`."""
        self._listener.claim()
        self._epoll.register(self._listener.listen(), select.EPOLLIN)

    def start(self) -> None:
        """Accept connections; listens if need be. Raises as `claim` does."""
        if self._listener.listening is None:
            self.listen()
        self._epoll.register(self._wake, select.EPOLLIN)
        self._accepting = True
        self._beat = time.monotonic()
        self._look_at = self._beat + self._listener.watch_s
        start(self._thread, "the server")

    def stop_accepting(self) -> None:
        """Remove the socket's name, accept those that have connected already, and close the listener. Requests go on."""
        self._stopping.set()
        self._nudge()
        if self._thread.is_alive():
            self._stopped.wait(_STOP_S)

    def problems(self) -> list[str]:
        """That the thread is dead, or that it does not come round: while it accepts, it does after the listener's `watch_s`."""
        if not self.alive:
            return ["the server's thread is dead"]
        late = time.monotonic() - self._beat > self._limits.round_s
        return [f"the server's thread has been stuck for {self._limits.round_s:.0f} s"] if late else []

    def stop(self, _within_s: float = 0.0) -> None:
        """End the thread and all connections, unanswered ones too, and let the next agent listen."""
        self._ending = True
        self._nudge()
        if self._thread.ident is not None:
            self._thread.join(_STOP_S)
        if not self._thread.is_alive():
            for exchange in list(self._all.values()):
                exchange.close()
            self._all.clear()
            self._epoll.close()
            wake, self._wake = self._wake, -1
            if wake >= 0:
                os.close(wake)
        self._listener.release()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def connections(self) -> int:
        return len(self._all)

    def _nudge(self) -> None:
        if self._wake >= 0:
            with suppress(BlockingIOError):
                os.eventfd_write(self._wake, 1)

    # -- the thread -------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        with limit_repeats(Repeats()):  # who may not connect may try for ever
            self._serve_all()

    def _serve_all(self) -> None:
        while not self._ending:
            self._beat = time.monotonic()
            connecting = False
            for fd, events in self._epoll.poll(self._patience(), _EVENTS):
                exchange = self._all.get(fd)
                if exchange is not None:
                    self._attend(exchange, events)
                elif fd == self._wake:
                    os.eventfd_read(self._wake)
                else:
                    connecting = True
            if connecting and self._accepting:
                # last: a new connection can have the descriptor of one that ended, and must not get its event
                self._accept(self._listener.listening)
            self._take_answered()
            self._expire(time.monotonic())
            if self._accepting and time.monotonic() >= self._look_at:
                self._keep_place()
            if self._stopping.is_set() and self._accepting:
                self._stop_listening()

    def _patience(self) -> float | None:
        """Seconds until something has to be done without an event."""
        now = time.monotonic()
        end = min(self._reading.next_end(), self._leaving.next_end(), self._doubted.next_end(), self._paused_until)
        end = min(end, self._look_at)
        if self._running:
            end = min(end, now + _TICK_S)
        return None if end == _NEVER else max(0.0, end - now)

    def _attend(self, exchange: Exchange, events: int) -> None:
        try:
            if exchange.state is ExchangeState.READING:
                self._read(exchange)
            elif events & _GONE:
                if exchange.peer_closed():
                    self._end(exchange)
                else:
                    self._forget(exchange)  # the thread that answers ends it
                    self._on_hung_up(exchange)
            elif events & select.EPOLLOUT:
                exchange.flush()
            elif not exchange.discard():
                self._end(exchange)
        except OSError as error:
            say("warning", "a connection to the agent failed", error=error)
            self._end(exchange)

    # -- coming -----------------------------------------------------------------------------------------------------------

    def _accept(self, listener: socket.socket | None) -> bool:
        """Accept some connections of the queue; False when none is left there, or none can be accepted now."""
        if listener is None:
            return False
        for _ in range(_ACCEPTS):
            try:
                sock, _ = listener.accept()
            except BlockingIOError:
                return False
            except OSError as error:
                if not _has_waiting(listener):  # without descriptors accept(2) fails even when the queue is empty
                    return False
                if error.errno in _EXHAUSTED and self._make_room():
                    continue
                self._pause()
                return False
            self._admit(sock)
        return True

    def _admit(self, sock: socket.socket) -> None:
        """Add a connection whose peer may speak to us, and read what is there of its request."""
        try:
            sock.setblocking(False)
            self._listener.admit(sock)
            if len(self._all) >= self._limits.connections and not self._make_room():
                raise Unavailable(f"the agent serves {len(self._all)} connections already", "try again later")
            exchange = self._listener.exchange(sock, self._epoll, self._on_answered)
        except UserspaceError as error:
            with sock, suppress(OSError):
                sock.send(protocol.reply(*protocol.fault(error)), socket.MSG_NOSIGNAL)
            return
        except OSError as error:
            say("warning", "a connection to the agent failed", error=error)
            sock.close()
            return
        self._all[exchange.fd] = exchange
        self._reading.add(exchange)
        self._attend(exchange, select.EPOLLIN)

    def _read(self, exchange: Exchange) -> None:
        before = exchange.buffered
        try:
            whole = exchange.receive()
        except MalformedRequest as error:
            self._held -= before
            exchange.refuse(error)
            return
        self._held += exchange.buffered - before
        if whole:
            self._reading.drop(exchange)
            self._running[exchange.fd] = exchange
            with refusing(exchange):
                (self._call if exchange.verb else self._serve)(exchange)
        elif self._held > self._limits.held and (oldest := self._reading.first()):
            self._turn_away(oldest, Unavailable("too much is being sent to the agent at once", "try again later"))

    # -- going ------------------------------------------------------------------------------------------------------------

    def _on_answered(self, exchange: Exchange) -> None:
        """Note an answered exchange, on the thread that answered it."""
        if exchange.hung_up:
            exchange.close()
            self._settle(exchange)
        else:
            self._answered.append(exchange)

    def _take_answered(self) -> None:
        """Start the time in which the peers of answered exchanges may take their answers."""
        while self._answered:
            exchange = self._answered.popleft()
            if self._all.get(exchange.fd) is not exchange:
                continue  # over already
            self._running.pop(exchange.fd, None)
            self._reading.drop(exchange)
            if exchange.lost:
                self._end(exchange)
            else:
                self._leaving.add(exchange)

    def _expire(self, now: float) -> None:
        for exchange in self._reading.over(now):
            seconds = self._limits.request_s
            self._turn_away(exchange, MalformedRequest(408, f"it was not complete within {seconds:g} s"))
        for exchange in self._leaving.over(now):
            if exchange.served and not exchange.unsent and exchange.unread():
                self._leaving.drop(exchange)
                self._doubted.add(exchange)
            else:
                self._end(exchange)
        for exchange in self._doubted.over(now):
            self._end(exchange)
        if now >= self._paused_until:
            self._listen(select.EPOLLIN)
            self._paused_until = _NEVER

    def _turn_away(self, exchange: Exchange, error: UserspaceError) -> None:
        """End a connection whose request is not whole, and say why."""
        self._held -= exchange.buffered
        exchange.refuse(error)
        self._end(exchange)

    def _make_room(self) -> bool:
        """End a connection that is not being served; False when there is none."""
        self._take_answered()
        oldest = self._reading.first()
        if oldest is not None:
            self._turn_away(oldest, Unavailable("the agent has too many connections", "try again later"))
            return True
        oldest = self._leaving.first() or self._doubted.first()
        if oldest is not None:
            self._end(oldest)
        return oldest is not None

    def _end(self, exchange: Exchange) -> None:
        self._forget(exchange)
        exchange.close()
        self._settle(exchange)

    def _forget(self, exchange: Exchange) -> None:
        self._all.pop(exchange.fd, None)
        self._running.pop(exchange.fd, None)
        for times in (self._reading, self._leaving, self._doubted):
            times.drop(exchange)

    def _settle(self, exchange: Exchange) -> None:
        if not exchange.lost or not exchange.served:
            return
        try:
            self._on_lost(exchange)
        except Exception as error:  # noqa: BLE001 -- it must not end the thread that serves all
            say("error", "a caller did not take its answer, and handling that failed", target=exchange.target, error=repr(error))

    # -- the listener -----------------------------------------------------------------------------------------------------

    def _listen(self, events: int) -> None:
        if self._accepting and self._listener.listening:
            self._epoll.modify(self._listener.listening, events)

    def _keep_place(self) -> None:
        """Make the socket again if peers no longer find it, and accept what has connected to the old one."""
        self._look_at = time.monotonic() + self._listener.watch_s
        old = self._listener.listening
        try:
            new = self._listener.keep()
        except UserspaceError as error:
            text = "the agent's socket or its lock is not in place, and cannot be made again now"
            if str(error) != self._displaced and say("error", text, error=error):
                self._displaced = str(error)
            return
        self._displaced = ""
        if new is None or old is None:
            return
        self._epoll.register(new, select.EPOLLIN)
        self._take_all(old)
        old.close()

    def _take_all(self, listener: socket.socket | None) -> None:
        for _ in range(self._limits.connections // _ACCEPTS + 1):
            if not self._accept(listener):
                break

    def _pause(self) -> None:
        """Stop accepting for a moment: a queue that cannot be served must not wake us again and again."""
        self._listen(0)
        self._paused_until = time.monotonic() + _PAUSE_S

    def _stop_listening(self) -> None:
        self._listener.unlink()
        self._take_all(self._listener.listening)
        self._accepting = False
        self._look_at = _NEVER
        self._listener.close()
        self._stopped.set()


def _has_waiting(listener: socket.socket) -> bool:
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    return bool(poll.poll(0))
