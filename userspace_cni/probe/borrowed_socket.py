"""Takes the place of an attachment's application at its port for the time of a measurement."""

from __future__ import annotations

import select
import socket
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from userspace_cni.attachment.steps import Socket
from userspace_cni.fastpath.fastpath_errors import SocketRefused, TimedOut
from userspace_cni.fastpath.vhost.front_end import FrontEnd, FrontEndListener, FrontEndOptions
from userspace_cni.fastpath.vhost.socket_paths import SocketAccess
from userspace_cni.linux.instant import Instant
from userspace_cni.linux.unix_sockets import connections_anywhere

LISTEN_S: Final = 10.0
"""A live switch connects within a second. An application cannot use its socket's name for longer than this."""


class BorrowedSocket:
    """An attachment's socket, used in place of its application; a context manager. Raises FastPathError.

    Below its trusted prefix the socket's path is walked without following links, for the pod can write there. Where OVS connects
    to the application (`place`), a dead socket is replaced. Ours is removed as soon as OVS has connected, before any message: an
    application that starts later finds its name free, and OVS connects to it when we leave. If this process is killed before
    that, a dead socket stays, which the run's record names. Where OVS listens, an application that connects takes
    the port over, and keeps it.
    """

    def __init__(self, step: Socket, trusted: str, options: FrontEndOptions, access: SocketAccess) -> None:
        self.place = None if step.switch_path else step
        self._served = Path(step.switch_path).name
        self._path = f"{trusted}{step.directory.removeprefix(step.trusted.rstrip('/'))}/{step.name}"
        self._trusted = trusted
        self._options = options
        self._access = access
        self._stack = ExitStack()
        self._listener: _Once | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    def listen(self) -> AbstractContextManager[object]:
        """Make the socket to which OVS connects; its name is free at the end. SocketRefused: another process has it."""
        self._listener = _Once(self._path, self._options, self._access, trusted=self._trusted, replace_dead=True)
        self._stack.callback(self._listener.drop)
        return self._listener

    def await_switch(self, seconds: float = LISTEN_S) -> None:
        """Wait until OVS has connected; the name is free then. Raises TimedOut."""
        if self._listener:
            self._listener.take(seconds)

    def attach(self, timeout_s: float) -> FrontEnd:
        """Attach to OVS; the connection ends with this context. SocketRefused: an application is connected too."""
        if self._listener:
            return self._stack.enter_context(self._listener.accept(timeout_s))
        front = FrontEnd.connect(self._path, self._options, timeout_s, trusted=self._trusted, connected=self._require_to_be_alone)
        return self._stack.enter_context(front)

    def _require_to_be_alone(self) -> None:
        count = connections_anywhere(self._served)
        if count != 1:
            found = f"{count - 1} connected a moment before us" if count else "our own connection is not seen in proc(5)"
            raise SocketRefused(f"connecting to {self._path}", found, "ss -xp: attaching would cut the port's application off")


class _Once(FrontEndListener):
    """Listens for one connection, and removes its socket as soon as that is accepted."""

    _taken: socket.socket | None = None

    def take(self, seconds: float) -> None:
        """Wait for the connection and accept it. Raises TimedOut."""
        poller = select.poll()
        poller.register(self.fileno(), select.POLLIN)
        if not poller.poll(seconds * 1000):
            raise TimedOut(
                f"listening at {self.path}",
                f"the switch has not connected within {seconds:g} s, though it tries once a second",
                "ovs-vswitchd.log; does the switch see that directory, and may its user write to the socket?",
            )
        self._taken = super().open(Instant.after(seconds), -1, again=False)
        self.close()

    def open(self, deadline: Instant, wake: int, *, again: bool) -> socket.socket | None:  # noqa: ARG002 - the connection is there
        """Give the accepted connection to a front-end."""
        taken, self._taken = self._taken, None
        return taken

    def drop(self) -> None:
        """Close the connection, unless a front-end has it, and the socket."""
        if self._taken:
            self._taken.close()
        self.close()
