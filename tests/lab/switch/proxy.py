"""A unix socket between a client and ovsdb-server that forwards everything, until it is told to lose an answer."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path
from types import TracebackType
from typing import Literal, Self


class Proxy:
    """Passes bytes between clients of `path` and the server at `server`, and keeps them for the test to look at.

    `lose_answer_to`: when a client has sent this, its request reaches the server, and the server's next answer is dropped; after
    that the connection is closed (`then="close"`) or stays and is mute (`then="mute"`). It happens once.
    After `lag()`, what the server sends waits until a client sends something.
    """

    def __init__(
        self, path: Path, server: Path, *, lose_answer_to: bytes = b"", then: Literal["close", "mute"] = "close"
    ) -> None:
        self.remote = f"unix:{path}"
        self.sent = bytearray()
        self.received = bytearray()
        self.lost = threading.Event()
        self.prompt = threading.Event()
        self.prompt.set()
        self._server = str(server)
        self._needle = lose_answer_to
        self._then = then
        self._armed = threading.Event()
        self._open: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.prompt.set()
        for each in [self._listener, *self._open]:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(60)
        for each in [self._listener, *self._open]:
            each.close()

    def lag(self) -> None:
        """Hold back what the server sends from now on."""
        self.prompt.clear()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                self._open += [client, server]
                server.connect(self._server)
                for pump in (self._to_server, self._to_client):
                    self._threads.append(threading.Thread(target=pump, args=(client, server), daemon=True))
                    self._threads[-1].start()

    def _to_server(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                self.sent += data
                if self._needle and not self.lost.is_set() and self._needle in data:
                    self._armed.set()
                self.prompt.set()
                server.sendall(data)
            server.shutdown(socket.SHUT_RDWR)

    def _to_client(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                self.received += data
                self.prompt.wait()
                if not self._armed.is_set():
                    client.sendall(data)
                elif b'"result"' in data:
                    self._armed.clear()
                    self.lost.set()
                    if self._then == "mute":
                        continue_reading(server)
                    break
            client.shutdown(socket.SHUT_RDWR)


class Babbler:
    """A server that answers every connection with the same bytes, and then waits."""

    def __init__(self, path: Path, answer: bytes) -> None:
        self.remote = f"unix:{path}"
        self._answer = answer
        self._open: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(60)
        for each in [self._listener, *self._open]:
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._open.append(client)
                with contextlib.suppress(OSError):
                    client.sendall(self._answer)


def continue_reading(server: socket.socket) -> None:
    """Read and drop what the server sends until it ends."""
    while server.recv(65536):
        pass
