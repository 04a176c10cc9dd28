"""An application at a vhost-user socket, as a process of its own in the pod's network namespace.

It sets up two queues over shared memory, as a DPDK application does, and sends nothing. It connects again after a hang-up.
"""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress
from pathlib import Path
from typing import Literal

from tests.lab.frames.lender import Lender
from tests.lab.node.forked import server

_AGAIN_S = 0.05
"""How soon it connects again; DPDK's virtio_user does so once a second."""


class PodApplication:
    """The process. `role`: `server` makes the socket at `path`, `client` connects to it; `silent` makes it and says nothing."""

    def __init__(self, netns: str, path: Path, role: Literal["client", "server", "silent"]) -> None:
        work = {"server": _serve, "client": _call, "silent": _listen}[role]
        self._process = server().Process(target=work, args=(netns, str(path)))
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process.is_alive()

    def kill(self) -> None:
        """SIGKILL: a socket that it made stays, at which no process listens."""
        if self._process.is_alive():
            os.kill(self.pid, signal.SIGKILL)
        self._process.join()


def _enter(netns: str, path: str) -> str:
    """Enter the network namespace, and the socket's directory, because its path may be too long; the socket's name."""
    from userspace_cni.linux import paths

    fd = os.open(netns, os.O_RDONLY)
    paths.setns(fd, paths.NETWORK)
    os.close(fd)
    os.chdir(Path(path).parent)
    return Path(path).name


def _serve(netns: str, path: str) -> None:
    name = _enter(netns, path)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(name)
    listener.listen(4)
    while True:
        _lend(listener.accept()[0])


def _listen(netns: str, path: str) -> None:
    name = _enter(netns, path)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(name)
    listener.listen(4)
    taken = []
    while True:
        taken.append(listener.accept())


def _call(netns: str, path: str) -> None:
    name = _enter(netns, path)
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(name)
        except OSError:
            connection.close()
        else:
            _lend(connection)
        signal.sigtimedwait((), _AGAIN_S)


def _lend(connection: socket.socket) -> None:
    """Be an application until the switch hangs up."""
    with Lender(connection) as lender, suppress(EOFError, OSError):
        lender.attach()
        connection.settimeout(None)
        while connection.recv(4096):
            pass
