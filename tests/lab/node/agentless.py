"""The shim without an agent: builds and calls of it, and a scripted server in the agent's place."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import struct
import subprocess
import termios
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

from tests.lab.node.belongings import descriptors
from tests.lab.switch.switch import wait_until
from userspace_cni import shim
from userspace_cni.base.settings import Settings

SOURCE: Final = Path(__file__).resolve().parents[3] / "userspace_cni" / "shim" / "shim.c"
ANSWER_MAX: Final = 16 << 20
BODY_MAX: Final = 4 << 20
RESULT: Final = b'{"cniVersion":"1.1.0","interfaces":[{"name":"net1","sandbox":"/run/netns/x"}]}\n'
TROUBLE: Final = b'{"cniVersion":"1.1.0","code":104,"msg":"no"}\n'
NETWORK: Final = b'{"cniVersion":"1.1.0","name":"net","type":"userspace"}'
STRICT: Final = ("-std=c11", "-Wall", "-Wextra", "-Werror")
PLAIN: Final = ("musl-gcc", *STRICT, "-Os", "-static", "-s")
SANITIZED: Final = ("gcc", *STRICT, "-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
IMPATIENT: Final = ("-DDEADLINE_MS=2500", "-DPATIENCE_MS=1500", "-DSTATUS_MS=1000", "-DBACKLOG_MS=300", "-DRETURN_MS=600")
HEAD_END: Final = b"\r\n\r\n"


def build(target: Path, *command: str) -> str:
    """Compile the shim; its path. `command` is a compiler with its options."""
    subprocess.run([*command, "-o", str(target), str(SOURCE)], check=True)
    return str(target)


def filled(binary: bytes, settings: Settings) -> bytes:
    """The shim as `install` writes it with these settings."""
    return shim.fill(
        binary,
        socket=settings.socket,
        run_dir=settings.run_dir,
        state_dir=settings.state_dir,
        spool_max=settings.spool_max,
    )


def installed(program: str, directory: Path) -> str:
    """A copy of the shim as `install` makes it, for the agent whose socket and state directory are in `directory`; its path."""
    path = directory / "userspace"
    settings = Settings(socket=str(directory / "s"), run_dir=str(directory / "run"), state_dir=str(directory / "state"))
    path.write_bytes(filled(Path(program).read_bytes(), settings))
    path.chmod(0o755)
    return str(path)


@dataclass
class Caller:
    """A runtime that executes the shim: `directory` has the agent's socket and the state directory."""

    program: str
    directory: Path
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def socket(self) -> Path:
        return self.directory / "s"

    @property
    def spool(self) -> Path:
        return self.directory / "state" / "spool"

    @property
    def entries(self) -> list[Path]:
        return sorted(self.spool.iterdir()) if self.spool.exists() else []

    def environ(self, verb: str, **changes: str | bytes | None) -> dict[str, str | bytes]:
        """The variables of a call: those of one attachment with changes; None removes one."""
        variables: dict[str, str | bytes | None] = {
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": "0123456789ab",
            "CNI_NETNS": "/run/netns/x",
            "CNI_IFNAME": "net1",
            "CNI_ARGS": "K8S_POD_NAME=web;K8S_POD_NAMESPACE=default",
            "CNI_PATH": "/opt/cni/bin",
            "USERSPACE_CNI_SOCKET": str(self.socket),
            "USERSPACE_CNI_STATE_DIR": str(self.directory / "state"),
            "ASAN_OPTIONS": "detect_leaks=0",
            **self.variables,
            **changes,
        }
        return {name: value for name, value in variables.items() if value is not None}

    def start(
        self, verb: str, stdin: Any = subprocess.PIPE, stdout: Any = subprocess.PIPE, **changes: str | bytes | None
    ) -> Process:
        environ: Mapping[str, Any] = self.environ(verb, **changes)
        return subprocess.Popen([self.program], env=environ, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE)

    def run(self, verb: str, stdin: bytes = NETWORK, /, **changes: str | bytes | None) -> Done:
        with self.start(verb, **changes) as process:
            return finish(process, stdin)


Process = subprocess.Popen[bytes]


@dataclass(frozen=True)
class Done:
    """The outcome of a call."""

    code: int
    stdout: bytes
    stderr: str


def finish(process: Process, stdin: bytes | None = NETWORK) -> Done:
    """Write the call's stdin and wait for its end; a finding of a sanitizer fails the test."""
    out, err = process.communicate(stdin, timeout=60)
    text = err.decode()
    assert "Sanitizer" not in text, text
    assert "runtime error" not in text, text
    return Done(process.returncode, out or b"", text)


def refused(done: Done, code: int, *said: str) -> dict[str, Any]:
    """The error object, which is all of stdout; it has this code and contains these words."""
    assert done.code == 1, done
    error: dict[str, Any] = json.loads(done.stdout)
    assert done.stdout.count(b"\n") == 1
    assert (error["cniVersion"], error["code"]) == ("1.1.0", code), error
    assert [text for text in said if text not in error["msg"] + error.get("details", "")] == [], error
    assert set(error) <= {"cniVersion", "code", "msg", "details"}
    return error


def give_stdin(process: Process, stdin: bytes = NETWORK) -> None:
    """Write the call's stdin without waiting for its end; a call that has ended or never reads is no error."""
    assert process.stdin
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(stdin)
        process.stdin.close()
    process.stdin = None


def waits(process: Process) -> bool:
    """Whether the process is waiting in poll(2)."""
    return "poll" in Path(f"/proc/{process.pid}/wchan").read_text()


def knocks(process: Process) -> bool:
    """Whether the process waits between two attempts to connect, or for an answer after it connected."""
    return waits(process) and any(name.startswith("socket:") for name in descriptors(process.pid))


Script = Callable[[socket.socket], object]


class Agent:
    """A server on the agent's socket. Each connection gets the next script; after the last one, that is repeated.

    A script gets the connection, which is closed when the script returns. `received` has what came, one item per connection, as
    far as the script has read.
    """

    def __init__(self, path: Path, *scripts: Script, backlog: int = 64) -> None:
        self.received: list[bytearray] = []
        self.ended = threading.Event()
        """Set when the shim has closed a connection that a script was holding."""
        self._scripts = scripts
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(backlog)
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for each in [self._listener, *self._open]:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(60)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                script = self._scripts[min(len(self.received), len(self._scripts) - 1)]
                self.received.append(bytearray())
                self._open.append(client)
                self._threads.append(threading.Thread(target=self._play, args=(script, client, self.received[-1]), daemon=True))
                self._threads[-1].start()

    def _play(self, script: Script, client: socket.socket, kept: bytearray) -> None:
        with client, contextlib.suppress(OSError), _Recorded(client, kept, self.ended) as recorded:
            script(recorded)

    @property
    def request(self) -> bytes:
        """The request on the only connection."""
        assert len(self.received) == 1, self.received
        return bytes(self.received[0])


class _Recorded(socket.socket):
    """A connection that keeps what is read from it."""

    def __init__(self, client: socket.socket, kept: bytearray, ended: threading.Event) -> None:
        super().__init__(fileno=os.dup(client.fileno()))
        self.kept = kept
        self.ended = ended

    def recv(self, size: int, flags: int = 0) -> bytes:
        data = super().recv(size, flags)
        self.kept += data
        return data


def read_request(client: socket.socket) -> bytes:
    data = b""
    while HEAD_END not in data:
        chunk = client.recv(65536)
        if not chunk:
            return data
        data += chunk
    head = data[: data.index(HEAD_END)]
    length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length"))
    while len(data) < len(head) + len(HEAD_END) + length and (chunk := client.recv(65536)):
        data += chunk
    return data


def reply(status: int, body: bytes = b"") -> bytes:
    head = f"HTTP/1.1 {status} Reason\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close"
    return head.encode() + HEAD_END + body


def answers(status: int, body: bytes = b"") -> Script:
    """Read the request and answer it."""
    return says(reply(status, body))


def says(data: bytes) -> Script:
    """Read the request, send `data`, and close."""

    def script(client: socket.socket) -> None:
        read_request(client)
        client.sendall(data)

    return script


def dribbles(data: bytes, pieces: int) -> Script:
    """Read the request and say `data`, of which the first `pieces` bytes come one by one, each after the last one was read."""

    def script(client: socket.socket) -> None:
        read_request(client)
        for index in range(pieces):
            client.sendall(data[index : index + 1])
            wait_until(lambda: not _unread(client), what="the shim to read")
        client.sendall(data[pieces:])

    return script


def holds(data: bytes = b"") -> Script:
    """Read the request, say `data`, then be silent until the shim closes."""

    def script(client: socket.socket) -> None:
        read_request(client)
        client.sendall(data)
        with contextlib.suppress(OSError):
            client.recv(1)
        assert isinstance(client, _Recorded)
        client.ended.set()

    return script


def resets(client: socket.socket) -> None:
    """Close with bytes of the request unread, so that the shim gets ECONNRESET."""
    client.recv(1)


def vanishes(client: socket.socket) -> None:
    """Read the request and close without an answer."""
    read_request(client)


NO_ANSWERS: Final[Mapping[str, Script]] = {
    "vanishes": vanishes,
    "resets": resets,
    "no HTTP": says(b"hello\n"),
    "binary": says(bytes(range(256)) * 10),
    "zeros": says(b"\0" * 70000),
    "half a status line": says(b"HTTP/1.1 20"),
    "another protocol": says(reply(200, RESULT).replace(b"HTTP/1.1", b"HTTP/2.0")),
    "four digits": says(reply(200, RESULT).replace(b" 200 ", b" 2000 ")),
    "no number": says(reply(200, RESULT).replace(b" 200 ", b" 2x0 ")),
    "interim": says(reply(100)),
    "an endless head": says(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20000),
    "no length": says(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + RESULT),
    "two lengths": says(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n1"),
    "a negative length": says(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"),
    "an empty length": says(b"HTTP/1.1 200 OK\r\nContent-Length: \r\n\r\n"),
    "a length that overflows": says(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\n"),
    "a length too large": says(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (ANSWER_MAX + 1)),
    "half a head": says(reply(200, RESULT)[:40]),
    "half a body": says(reply(200, RESULT)[:-1]),
    "a refusal of nothing": says(reply(500)),
}
"""Scripts that do not answer a request although they have read it (`resets` leaves part of it unread)."""


def _unread(client: socket.socket) -> int:
    """Bytes that the other side has not read yet."""
    return int(struct.unpack("i", fcntl.ioctl(client, termios.TIOCOUTQ, b"\0" * 4))[0])


def full_pipe() -> tuple[IO[bytes], IO[bytes]]:
    """A pipe that accepts no more bytes: its reading and its writing end."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    return os.fdopen(reader, "rb"), os.fdopen(writer, "wb", buffering=0)
