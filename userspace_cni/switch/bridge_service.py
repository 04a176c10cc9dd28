"""Whether ovs-vswitchd serves its bridges, by whether one of them greets a connection in OpenFlow.

The daemon's main thread greets in the same rounds in which it moves the frames of bridges' own links and of ports that are opened
as system. Without a session with ovsdb-server it makes no such rounds, although it lives and answers on its control socket. It
must never wait longer than for a glance, and leaves one connection open at most.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Iterable
from typing import Final, Literal

from userspace_cni.switch.openflow import openflow_messages
from userspace_cni.switch.openflow.management import connect
from userspace_cni.switch.vswitchd import GLANCE_SECONDS, JUDGED_SECONDS

ServiceState = Literal["alive", "asked", "silent", "dead", "unknown"]

_GREETING_MAX: Final = 4096


class BridgeService:
    """The bridges whose management sockets are at `path_of` their names. For one thread."""

    def __init__(self, path_of: Callable[[str], str]) -> None:
        self._path_of = path_of
        self._asked: socket.socket | None = None
        self._bridge = ""
        self._since = 0.0

    def look(self, bridges: Iterable[str]) -> ServiceState:
        """Whether one of the bridges is served. A question that is not answered at once stays open for the next look.

        `asked`: there is no answer yet; `silent`: there has been none for 2 s; `dead`: the daemon has none of them. `unknown`: no
        bridge is asked for, or its socket is out of reach.
        """
        found: ServiceState = "unknown"
        for bridge in sorted(bridges):
            try:
                return self._answer(bridge)
            except BlockingIOError:  # others wait to be greeted, as many as there is room for
                return "silent"
            except (FileNotFoundError, ConnectionError):
                found = "dead"
            except OSError:
                found = "unknown"
        self.forget()
        return found

    def forget(self) -> None:
        """Close the connection of a question that is open."""
        asked, self._asked = self._asked, None
        if asked:
            asked.close()

    def _answer(self, bridge: str) -> ServiceState:
        asked = self._question(bridge)
        greeted = select.poll()
        greeted.register(asked, select.POLLIN)
        if not greeted.poll(GLANCE_SECONDS * 1000):
            return "silent" if time.monotonic() - self._since >= JUDGED_SECONDS else "asked"
        try:
            greeting = asked.recv(_GREETING_MAX)
        finally:
            self.forget()
        if not greeting:
            raise ConnectionResetError(f"bridge {bridge} has gone")
        return "alive"

    def _question(self, bridge: str) -> socket.socket:
        """The connection to the bridge that waits for its greeting. Raises OSError."""
        if self._asked and self._bridge == bridge:
            return self._asked
        asked = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            asked.setblocking(False)
            connect(asked, self._path_of(bridge))
            # unless it is greeted, too, the daemon logs a lost connection
            asked.sendall(openflow_messages.encode_hello(1))
        except BaseException:
            asked.close()
            raise
        self.forget()
        self._asked, self._bridge, self._since = asked, bridge, time.monotonic()
        return asked
