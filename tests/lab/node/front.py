"""The agent's front end with a script in place of the verbs: the test can look at requests, hold them and answer them."""

from __future__ import annotations

import queue
import socket
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

from tests.lab.switch.switch import wait_until
from userspace_cni.agent.agent_server import PeerLimits, Server
from userspace_cni.agent.exchange import Exchange
from userspace_cni.agent.listener import Listener
from userspace_cni.cni import protocol

HEALTH = protocol.request_bytes("/healthz", {}, method="GET")
ADD = protocol.request_bytes("/api/v1/add", {"CNI_CONTAINERID": "c0ffee", "CNI_IFNAME": "net1"}, b'{"cniVersion":"1.1.0"}')
SECONDS = 60.0
"""How long a test waits for anything."""


class Front:
    """A server on a socket of its own. GET /healthz is answered at once; everything else is held for the test."""

    def __init__(self, limits: PeerLimits | None = None) -> None:
        self._directory = TemporaryDirectory(prefix="uc-")
        self.path = str(Path(self._directory.name) / "agent.sock")
        self.held: queue.SimpleQueue[Exchange] = queue.SimpleQueue()
        self._seen: list[Exchange] = []
        self.lost: list[Exchange] = []
        self.script: Callable[[Exchange], None] = self.held.put
        """What is done with a request other than for /healthz, on the server's thread."""
        self.server = Server(Listener(self.path), self._serve, self.lost.append, limits)

    def __enter__(self) -> Self:
        self.server.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.server.stop()
        for exchange in self._seen:
            exchange.close()  # a test may leave a request unanswered, a worker never does
        self._directory.cleanup()

    def _serve(self, exchange: Exchange) -> None:
        self._seen.append(exchange)
        if exchange.target == "/healthz":
            exchange.answer(200, b"well\n", "text/plain")
        else:
            self.script(exchange)

    def connect(self) -> socket.socket:
        """A new connection, whose reads have a timeout."""
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(SECONDS)
        try:
            client.connect(self.path)
        except BaseException:
            client.close()
            raise
        return client

    def send(self, raw: bytes = ADD) -> socket.socket:
        """A new connection on which `raw` was sent."""
        client = self.connect()
        client.sendall(raw)
        return client

    def ask(self, raw: bytes) -> protocol.Reply:
        with self.send(raw) as client:
            return answer_on(client)

    def next(self) -> Exchange:
        """The next request that the server handed on."""
        return self.held.get(timeout=SECONDS)

    def well(self) -> bool:
        """Whether a well-behaved client is served now."""
        return self.server.alive and self.ask(HEALTH).body == b"well\n"

    def wait_for(self, connections: int) -> None:
        """Wait until the server has so many connections."""
        wait_until(lambda: self.server.connections == connections, SECONDS, f"{connections} connections")


def answer_on(client: socket.socket) -> protocol.Reply:
    """What comes on a connection until its end, which may be a reset after the answer."""
    raw = bytearray()
    try:
        while chunk := client.recv(65536):
            raw += chunk
            if _whole(raw):
                break
    except ConnectionResetError:
        pass
    return protocol.read_reply(bytes(raw))


def _whole(raw: bytearray) -> bool:
    head, separator, body = bytes(raw).partition(protocol.HEAD_END)
    length = next((line.split(b":")[1] for line in head.split(b"\r\n") if line.startswith(b"Content-Length:")), b"0")
    return bool(separator) and len(body) >= int(length)
