"""The calls of a storm: through the shim, and in-process with a process for each, which may be killed at any moment.

A start of Python takes as long as ten calls. So the processes of the plugin in-process are forked from one that has imported
everything: `python -m tests.crash.storm_calls FD`.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal

from tests.agent.living import LiveNode
from tests.lab.node.forked import imported
from tests.lab.runtimes.runtime import call

How = Literal["shim", "handed", "forked", "executed"]
"""`executed`: in-process as `install --standalone` makes it; `forked`: the same without the start. `handed`: forked, and handed
to the agent where one serves."""
PATIENCE_S: Final = 90.0
"""Seconds after which a call is killed and counts as hung."""
_LONGEST: Final = 1 << 17


@dataclass(frozen=True)
class Reply:
    """Result of a call. `status`: the exit code, or minus the signal that ended it."""

    status: int
    stdout: bytes
    stderr: str
    hung: bool = False


@dataclass(frozen=True)
class Death:
    """The caller gets this signal this long after its call began."""

    after_s: float
    sign: signal.Signals = signal.SIGKILL


class Plugin:
    """Make the calls of one thread, in either way."""

    def __init__(self, node: LiveNode) -> None:
        self._node = node
        self._zygote = _Zygote()

    def call(self, how: How, environ: Mapping[str, str], stdin: bytes, death: Death | None) -> Reply:
        """Make one call. Only a forked one can get another signal than SIGKILL."""
        environ = {**environ, "USERSPACE_CNI_HAND_OVER": "true" if how == "handed" else "false"}
        if how in ("forked", "handed"):
            return self._zygote.call(environ, stdin, death)
        path = self._node.plugin if how == "shim" else self._node.standalone
        done = call(path, None, environ, stdin, death.after_s if death else PATIENCE_S)
        return Reply(done.status, done.stdout, done.stderr.decode(errors="replace"), hung=done.wall >= PATIENCE_S)

    def close(self) -> None:
        """End the process that forks."""
        self._zygote.close()


class _Zygote:
    """The process that forks; it serves one call at a time."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            argv = [sys.executable, "-m", "tests.crash.storm_calls", str(theirs.fileno())]
            self._process = subprocess.Popen(argv, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL)
        self._socket = ours

    def call(self, environ: Mapping[str, str], stdin: bytes, death: Death | None) -> Reply:
        files = [os.memfd_create(name, os.MFD_CLOEXEC) for name in ("stdin", "stdout", "stderr")]
        try:
            os.write(files[0], stdin)
            os.lseek(files[0], 0, os.SEEK_SET)
            self._socket.settimeout(PATIENCE_S)
            socket.send_fds(self._socket, [json.dumps(dict(environ)).encode()], files)
            _, descriptors, _, _ = socket.recv_fds(self._socket, _LONGEST, 1)
            try:
                status, hung = self._await(descriptors[0], death)
            finally:
                os.close(descriptors[0])
            out, err = (os.pread(fd, os.fstat(fd).st_size, 0) for fd in files[1:])
            return Reply(status, out, err.decode(errors="replace"), hung)
        finally:
            for fd in files:
                os.close(fd)

    def _await(self, pidfd: int, death: Death | None) -> tuple[int, bool]:
        """The status of a call, and whether it hung."""
        began = time.monotonic()
        ends = [*([death] if death else []), Death(PATIENCE_S)]
        for end in ends:
            self._socket.settimeout(max(0.001, began + end.after_s - time.monotonic()))
            try:
                return int(self._socket.recv(_LONGEST)), False
            except TimeoutError:
                with suppress(ProcessLookupError):  # it has just ended
                    signal.pidfd_send_signal(pidfd, end.sign)
        self._socket.settimeout(PATIENCE_S)
        return int(self._socket.recv(_LONGEST)), True

    def close(self) -> None:
        self._socket.close()
        self._process.wait(PATIENCE_S)


def _serve(connection: socket.socket) -> None:
    """Serve in the process that forks: one child for each message, its pidfd and later its status in return."""
    for name in imported():
        importlib.import_module(name)
    while True:
        try:
            message, files, _, _ = socket.recv_fds(connection, _LONGEST, 3)
        except ConnectionResetError:
            return
        if not message:
            return
        pid = os.fork()
        if pid == 0:
            connection.close()
            _be_the_plugin(json.loads(message), files)
        for fd in files:
            os.close(fd)
        pidfd = os.pidfd_open(pid)
        socket.send_fds(connection, [str(pid).encode()], [pidfd])
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        connection.send(str(os.waitstatus_to_exitcode(status)).encode())


def _be_the_plugin(environ: Mapping[str, str], files: list[int]) -> None:
    from userspace_cni.__main__ import main

    code = 70
    try:
        for number, fd in enumerate(files):
            os.dup2(fd, number)
        os.closerange(3, max(files) + 1)
        os.environ.clear()
        os.environ.update(environ)
        sys.argv = ["userspace"]
        code = main()
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
