"""A TCP port with pages of the agent, for every peer that reaches it: metrics for scrapers, health for a kubelet's probes.

The same server as that of the agent's own socket (`server`), with a thread and bounds of its own: its peers must never take a
thread or a connection from a verb, nor those of one port from another. It must serve no verb. Malformed requests are answered and
not logged: any peer could fill the log with them.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from userspace_cni.agent.agent_server import PeerLimits, Server
from userspace_cni.agent.exchange import Exchange
from userspace_cni.agent.served_pages import ServedPage
from userspace_cni.base.errors import InvalidConfig, Unavailable, UserspaceError
from userspace_cni.cni.protocol import MalformedRequest

_LISTEN: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([0-9A-Za-z_.-]+)):([0-9]{1,5})")
_LIMITS: Final = PeerLimits(request_s=10.0, taken_s=10.0, unread_s=10.0, connections=128, held=1 << 20)
_BACKLOG: Final = 128


class TcpExchange(Exchange):
    """A connection over TCP: its end is seen once both sides have closed, so our side closes after the answer."""

    __slots__ = ()

    def _send(self) -> None:
        super()._send()
        if not self.unsent:
            with suppress(OSError):  # the peer is gone
                self.socket.shutdown(socket.SHUT_WR)


class TcpListener:
    """The listening socket on `host:port`, IPv6 in brackets."""

    exchange = TcpExchange
    watch_s = float("inf")

    def __init__(self, setting: str, listen: str) -> None:
        self.listening: socket.socket | None = None
        self._setting = setting
        self._listen = listen
        self._host, self._port = parse_listen(setting, listen)

    def claim(self) -> None:
        """Do nothing: `listen` claims the port."""

    def listen(self) -> socket.socket:
        """Make the socket. Raises Unavailable."""
        try:
            family, *_, address = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()  # [::] also takes IPv4
            where = str(address[0]), self._port
            self.listening = socket.create_server(where, family=family, backlog=_BACKLOG, dualstack_ipv6=both)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise Unavailable(f"listening on {self._listen}: {reason}", f"setting {self._setting}") from error
        self.listening.setblocking(False)
        return self.listening

    def keep(self) -> None:
        """Do nothing: no other process can take the port away."""

    def admit(self, sock: socket.socket) -> None: ...

    def unlink(self) -> None:
        """Do nothing: there is no file."""

    def close(self) -> None:
        if self.listening is not None:
            self.listening.close()
            self.listening = None

    release = close


class TcpPages:
    """Serves `pages`, by their paths, on the port that `setting` names, from `start` to `stop`."""

    def __init__(self, setting: str, listen: str, pages: Mapping[str, ServedPage]) -> None:
        self.setting = setting
        self._pages = pages
        self._listener = TcpListener(setting, listen)
        self._server = Server(self._listener, self._serve, limits=_LIMITS)

    def start(self) -> None:
        """Listen. Raises Unavailable."""
        self._server.start()

    @property
    def port(self) -> int:
        """The port's number; the kernel's choice where 0 was asked for."""
        return int(self._listener.listening.getsockname()[1]) if self._listener.listening else 0

    @property
    def connections(self) -> int:
        return self._server.connections

    def problems(self) -> list[str]:
        """That the thread is dead."""
        return [] if self._server.alive else [f"the thread that serves {self.setting} is dead"]

    def stop(self, _within_s: float = 0.0) -> None:
        self._server.stop()

    def _serve(self, exchange: Exchange) -> None:
        try:
            page = self._pages.get(exchange.target.partition("?")[0])
            if exchange.method != "GET" or page is None:
                raise MalformedRequest(404, f"{exchange.method} {exchange.target[:80]} is not served")
            page.ask(exchange)
        except UserspaceError as error:
            exchange.refuse(error)


def parse_listen(setting: str, listen: str) -> tuple[str, int]:
    """Parse `host:port` or `[IPv6]:port`, the value of `setting`, into host and port. Raises InvalidConfig."""
    found = _LISTEN.fullmatch(listen)
    if found is None or int(found[3]) > 65535:
        raise InvalidConfig(f"{setting} is {listen!r}", "it must be HOST:PORT, such as 127.0.0.1:9090 or [::1]:9090")
    return found[1] or found[2], int(found[3])
