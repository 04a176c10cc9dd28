"""Connections between pods, tried for a bounded time: servers that answer in the pods' network namespaces, and clients
that say what came of each try.

All sockets are this process's: a socket belongs for good to the namespace in which it was made. One thread serves all
pods, and one call tries many connections at once, so that a matrix of them takes as long as its slowest one.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Self

from tests.lab.frames.taps import SECONDS, entered
from tests.lab.ovn.started import Started

SMALL: Final = 64
"""Bytes of a request or an answer that fits into one packet."""
LARGE: Final = 4000
"""Of one that is larger than the MTU: three fragments."""
_TOKEN: Final = 8
_AGAIN_S: Final = 0.25
"""A datagram may be lost, as the first ones to a chassis are: the client sends the same request again."""
_WAIT_S: Final = 0.05
_LONGEST: Final = 65535


class Outcome(StrEnum):
    """What came of a try."""

    ALLOWED = "allowed"
    REFUSED = "refused"
    TIMED_OUT = "timed out"


@dataclass(frozen=True)
class Attempt:
    """A request of this size from a namespace to an address and port, and the size of the answer that it asks for.

    `source` is the address that the client binds, by default what the kernel chooses; `token` tells it from all others.
    """

    netns: str
    address: str
    port: int
    protocol: str = "tcp"
    request: int = SMALL
    answer: int = SMALL
    source: str = ""
    source_port: int = 0
    token: bytes = field(default_factory=lambda: os.urandom(_TOKEN))

    @property
    def wanted(self) -> bytes:
        """The request: token, size of the answer, padding."""
        return (self.token + self.answer.to_bytes(4, "big")).ljust(self.request, b".")

    def again(self) -> Attempt:
        return replace(self, token=os.urandom(_TOKEN))


class PodServers(Started):
    """TCP and UDP in namespaces, for both families: each request is answered with its token and as many bytes as it asks for.

    `received`: the tokens of all requests that have come, whether or not the answer arrives.
    """

    def __init__(self) -> None:
        self.received: set[bytes] = set()
        self._selector = selectors.DefaultSelector()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve)

    def begin(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join(SECONDS)
        for key in tuple(self._selector.get_map().values()):
            self._close(key.fileobj)
        self._selector.close()

    def listen(self, netns: str, ports: Iterable[int], protocols: Sequence[str] = ("tcp", "udp")) -> None:
        """Serve these ports of the namespace, on all its addresses of both families."""
        for made in entered(netns, lambda: [_listening(port, protocol) for port in ports for protocol in protocols]):
            self._selector.register(made, selectors.EVENT_READ, made)

    def _serve(self) -> None:
        while not self._over.is_set():
            for key, _ in self._selector.select(_WAIT_S):
                found = key.data
                if found.type == socket.SOCK_DGRAM:
                    self._answer_datagram(found)
                elif found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    self._accept(found)
                else:
                    self._answer_stream(found)

    def _answer_datagram(self, served: socket.socket) -> None:
        try:
            request, client = served.recvfrom(_LONGEST)
            self.received.add(request[:_TOKEN])
            served.sendto(_answered(request), client)
        except OSError:  # an ICMP error of a former answer, or no way to the client
            return

    def _accept(self, served: socket.socket) -> None:
        try:
            client, _ = served.accept()
        except OSError:  # it has gone meanwhile
            return
        client.setblocking(False)
        self._selector.register(client, selectors.EVENT_READ, client)

    def _answer_stream(self, client: socket.socket) -> None:
        try:
            if request := client.recv(_LONGEST):
                self.received.add(request[:_TOKEN])
                client.send(_answered(request))
                return
        except OSError:
            pass
        self._close(client)

    def _close(self, found: object) -> None:
        assert isinstance(found, socket.socket)
        self._selector.unregister(found)
        found.close()


def tried(attempts: Sequence[Attempt], seconds: float = 1.5) -> list[Outcome]:
    """What came of each; all are tried at once, and after so many seconds the others have timed out."""
    with _Clients(attempts) as clients:
        clients.run(time.monotonic() + seconds)
        return [clients.outcomes.get(attempt.token, Outcome.TIMED_OUT) for attempt in attempts]


def unexpected(expected: Mapping[Attempt, Outcome], seconds: float = 1.5) -> dict[Attempt, Outcome]:
    """Those with another outcome than is expected. What should answer and did not is tried again for as long as tests wait: a
    machine with other work may be slow. What should not have passed counts at once."""
    end = time.monotonic() + SECONDS
    found = dict(zip(expected, tried(list(expected), seconds), strict=True))
    while late := [each for each, outcome in found.items() if outcome is Outcome.TIMED_OUT is not expected[each]]:
        if time.monotonic() > end:
            break
        found |= zip(late, tried([each.again() for each in late], seconds), strict=True)
    return {attempt: outcome for attempt, outcome in found.items() if outcome is not expected[attempt]}


class Conversation:
    """A TCP connection that stays open, to a port that a PodServers serves."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt

    def __enter__(self) -> Self:
        self._socket = entered(self._attempt.netns, lambda: _client(self._attempt))
        self._socket.settimeout(SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def answers(self, seconds: float = SECONDS) -> bool:
        """Whether a further request is answered in time."""
        token = os.urandom(_TOKEN)
        end, got = time.monotonic() + seconds, b""
        self._socket.send(replace(self._attempt, token=token).wanted)
        while token not in got and (left := end - time.monotonic()) > 0:
            self._socket.settimeout(left)
            try:
                got += self._socket.recv(_LONGEST)
            except TimeoutError:
                break
        return token in got


class _Clients:
    """The sockets of attempts while they are tried."""

    def __init__(self, attempts: Sequence[Attempt]) -> None:
        self.outcomes: dict[bytes, Outcome] = {}
        self._selector = selectors.DefaultSelector()
        self._datagrams: list[tuple[socket.socket, Attempt]] = []
        for attempt in attempts:
            self._begin(attempt)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for key in tuple(self._selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self._selector.close()

    def run(self, end: float) -> None:
        due = 0.0
        while (now := time.monotonic()) < end and self._selector.get_map():
            if now >= due:
                due = now + _AGAIN_S
                for made, attempt in self._datagrams:
                    if attempt.token not in self.outcomes:
                        self._send(made, attempt)
            for key, events in self._selector.select(min(_WAIT_S, end - now)):
                assert isinstance(key.fileobj, socket.socket)
                if outcome := _outcome(key.fileobj, key.data, events, self._selector):
                    self._end(key.fileobj, key.data, outcome)

    def _begin(self, attempt: Attempt) -> None:
        made = entered(attempt.netns, lambda: _client(attempt))
        if attempt.protocol == "udp":
            self._datagrams.append((made, attempt))
            self._selector.register(made, selectors.EVENT_READ, attempt)
        else:
            self._selector.register(made, selectors.EVENT_WRITE, attempt)

    def _send(self, made: socket.socket, attempt: Attempt) -> None:
        try:
            made.send(attempt.wanted)
        except ConnectionRefusedError:
            self._end(made, attempt, Outcome.REFUSED)
        except OSError:  # no neighbour yet
            return

    def _end(self, made: socket.socket, attempt: Attempt, outcome: Outcome) -> None:
        self.outcomes[attempt.token] = outcome
        self._selector.unregister(made)
        made.close()


def _outcome(made: socket.socket, attempt: Attempt, events: int, selector: selectors.BaseSelector) -> Outcome | None:
    """What an event of the socket says; None while it is not over."""
    try:
        if events & selectors.EVENT_WRITE:
            if error := made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(error, os.strerror(error))
            made.send(attempt.wanted)
            selector.modify(made, selectors.EVENT_READ, attempt)
            return None
        if made.recv(_LONGEST)[:_TOKEN] == attempt.token:
            return Outcome.ALLOWED
    except (ConnectionRefusedError, ConnectionResetError):
        return Outcome.REFUSED
    except OSError:  # no way there
        return Outcome.TIMED_OUT
    return None if attempt.protocol == "udp" else Outcome.REFUSED


def _answered(request: bytes) -> bytes:
    size = int.from_bytes(request[_TOKEN : _TOKEN + 4], "big")
    return request[:_TOKEN].ljust(min(size, _LONGEST - 28), b".")


def _kind(protocol: str) -> socket.SocketKind:
    return socket.SOCK_DGRAM if protocol == "udp" else socket.SOCK_STREAM


def _listening(port: int, protocol: str) -> socket.socket:
    made = socket.socket(socket.AF_INET6, _kind(protocol))
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    made.bind(("::", port))
    made.setblocking(False)
    if protocol != "udp":
        made.listen()
    return made


def _client(attempt: Attempt) -> socket.socket:
    made = socket.socket(socket.AF_INET6 if ":" in attempt.address else socket.AF_INET, _kind(attempt.protocol))
    made.setblocking(False)
    if attempt.source or attempt.source_port:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((attempt.source, attempt.source_port))
    made.connect_ex((attempt.address, attempt.port))
    return made
