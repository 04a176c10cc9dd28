"""A scripted back-end: a plain socket, without rings and mapped memory.

It answers correctly unless `answer` returns something else for a message: bytes, sent as they are; Act.SILENT; Act.HANG_UP.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum, auto
from pathlib import Path

from userspace_cni.fastpath.fastpath_errors import FastPathError
from userspace_cni.fastpath.vhost.channel import Channel
from userspace_cni.fastpath.vhost.vhost_messages import (
    Feature,
    ProtocolFeature,
    VhostMessage,
    VhostRequest,
    VringState,
    acknowledge,
    pack_u64,
    reply,
    require_fds,
)
from userspace_cni.linux.instant import Instant

FEATURES = Feature.VERSION_1 | Feature.PROTOCOL_FEATURES | Feature.IN_ORDER | Feature.NET_MRG_RXBUF | Feature.NET_MQ
PROTOCOL = ProtocolFeature.REPLY_ACK | ProtocolFeature.MQ | ProtocolFeature.STATUS


class Act(Enum):
    """What a back-end may do instead of answering."""

    GOOD = auto()
    SILENT = auto()
    HANG_UP = auto()


Answer = Callable[[int, VhostMessage], bytes | Act]


def good(number: int, message: VhostMessage) -> Act:
    return Act.GOOD


class ScriptedBackEnd:
    """Serves front-ends at `path`, listening or connecting, in its own thread. `heard` lists the messages that came."""

    def __init__(
        self, path: Path, answer: Answer = good, *, features: int = FEATURES, protocol: int = PROTOCOL, queues: int = 8
    ) -> None:
        self._path = path
        self.heard: list[VhostMessage] = []
        self.errors: list[FastPathError] = []
        self.answer = answer
        self._numbers = {
            VhostRequest.GET_FEATURES: features,
            VhostRequest.GET_PROTOCOL_FEATURES: protocol,
            VhostRequest.GET_QUEUE_NUM: queues,
        }
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._channel: Channel | None = None
        self._ending = False
        self._thread = threading.Thread(target=self._serve)

    def listen(self) -> None:
        """Serve connections, one after the other."""
        self._listener.bind(str(self._path))
        self._listener.listen(4)
        self._thread.start()

    def dial(self) -> None:
        """Connect, as OVS does for a client port, and serve that connection."""
        self._listener.close()
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.connect(str(self._path))
        self._channel = Channel(sock)
        self._thread = threading.Thread(target=self._serve_one, args=(self._channel,))
        self._thread.start()

    @property
    def names(self) -> list[str]:
        return [message.name for message in self.heard]

    def hang_up(self) -> None:
        if self._channel is not None:
            self._channel.shutdown()

    def close(self) -> None:
        self._ending = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self.hang_up()
        self._thread.join(60)
        assert not self._thread.is_alive()
        self._listener.close()

    def _serve(self) -> None:
        while not self._ending:
            try:
                sock = self._listener.accept()[0]
            except OSError:
                return
            self._channel = Channel(sock)
            self._serve_one(self._channel)

    def _serve_one(self, channel: Channel) -> None:
        with channel, suppress(OSError):
            self._converse(channel)

    def _converse(self, channel: Channel) -> None:
        number = 0
        while not self._ending:
            try:
                message = channel.receive(Instant.after(60))
            except FastPathError as error:
                self.errors.append(error)
                return
            assert message is not None
            for fd in message.fds:
                os.close(fd)
            self.heard.append(message)
            require_fds(message)
            answer = self.answer(number, message)
            number += 1
            if answer is Act.HANG_UP:
                return
            text = answer if isinstance(answer, bytes) else b"" if answer is Act.SILENT else self._usual(message)
            with suppress(FastPathError):
                channel.send(text)

    def _usual(self, message: VhostMessage) -> bytes:
        if message.request in self._numbers:
            return reply(message, pack_u64(self._numbers[VhostRequest(message.request)]))
        if message.request == VhostRequest.GET_VRING_BASE:
            return reply(message, VringState(VringState.unpack(message).vring, 0).pack())
        return acknowledge(message) if message.need_reply else b""


@contextmanager
def back_end(path: Path, answer: Answer = good, **offers: int) -> Iterator[ScriptedBackEnd]:
    made = ScriptedBackEnd(path, answer, **offers)
    made.listen()
    try:
        yield made
    finally:
        made.close()


@contextmanager
def dialling_back_end(path: Path, answer: Answer = good, **offers: int) -> Iterator[ScriptedBackEnd]:
    """A ScriptedBackEnd that connects to `path`, and is closed at the end."""
    made = ScriptedBackEnd(path, answer, **offers)
    made.dial()
    try:
        yield made
    finally:
        made.close()
