"""Counters are asked for on a connection that ends with the answer, whatever the server does."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import SwitchRefused, Unavailable
from userspace_cni.dataplane.counters import Counters, ask

SECONDS = 20.0
Script = Callable[[socket.socket], object]


def row(name: str, **statistics: int) -> dict[str, Any]:
    """A row as ovsdb-server sends it."""
    marks = ["map", [["owner", "userspace-cni"], ["ifname", 'é{}"\\']]]
    return {"name": name, "external_ids": marks, "statistics": ["map", list(statistics.items())]}


def answer(*rows: dict[str, Any], number: int = 1) -> bytes:
    """A message with a result, as it is on the wire."""
    return json.dumps({"id": number, "error": None, "result": [{"rows": list(rows)}]}, ensure_ascii=False).encode()


@contextmanager
def serving(script: Script, server: socket.socket) -> Iterator[list[bytes]]:
    """A server that reads one request and does as the script says. What it has read is given."""
    asked: list[bytes] = []

    def serve() -> None:
        with suppress(OSError):
            connection, _ = server.accept()
            with connection:
                asked.append(connection.recv(1 << 16))
                script(connection)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield asked
    finally:
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(SECONDS)
        assert not thread.is_alive()


@contextmanager
def on_unix(script: Script) -> Iterator[tuple[str, list[bytes]]]:
    """The server on a unix socket whose path is too long for its address."""
    with TemporaryDirectory(prefix="uc-") as directory:
        place = Path(directory) / ("d" * 120)
        place.mkdir()
        short = Path(directory) / "s"
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(short))
        server.listen()
        short.rename(place / "db.sock")
        with serving(script, server) as asked:
            yield f"unix:{place}/db.sock", asked


def hang(connection: socket.socket) -> None:
    """Say nothing until the peer goes."""
    connection.settimeout(SECONDS)
    connection.recv(1)


def in_pieces(*data: bytes, size: int) -> Script:
    """Send it in pieces of that size."""

    def send(connection: socket.socket) -> None:
        whole = b"".join(data)
        for start in range(0, len(whole), size):
            connection.sendall(whole[start : start + size])

    return send


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_an_answer_in_pieces(size: int) -> None:
    """However the answer is cut, also within a character, and whatever else the server says before it."""
    echo = json.dumps({"id": "echo", "method": "echo", "params": []}).encode()
    with on_unix(in_pieces(echo, b"\n", answer(number=7), answer(row("a", rx_packets=7), row("b")), size=size)) as (ovsdb, asked):
        found = ask(ovsdb, Deadline.after(SECONDS))
    marks = {"owner": "userspace-cni", "ifname": 'é{}"\\'}
    assert found == [Counters("a", marks, {"rx_packets": 7}), Counters("b", marks, {})]
    request = json.loads(asked[0])
    assert (request["method"], request["params"][1]["op"]) == ("transact", "select")
    assert request["params"][1]["where"] == [["external_ids", "includes", ["map", [["owner", "userspace-cni"]]]]]


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "[::1]")])
def test_over_tcp(family: socket.AddressFamily, host: str) -> None:
    """A database behind TCP, by either kind of address."""
    server = socket.create_server((host.strip("[]"), 0), family=family)
    ovsdb = f"tcp:{host}:{server.getsockname()[1]}"
    with serving(in_pieces(answer(), size=100), server):
        assert ask(ovsdb, Deadline.after(SECONDS)) == []


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (b'{"id":1,"error":"unknown database","result":null}', SwitchRefused),
        (b'{"id":1,"error":null,"result":[{"error":"timed out","details":"x"}]}', SwitchRefused),
        (b'{"id":1,"error":null,"result":[]}', SwitchRefused),
        (b'{"id":1,"error":null,"result":[{"rows":[{"name":"a"}]}]}', SwitchRefused),
        (answer({**row("a"), "statistics": ["set", []]}), SwitchRefused),
        (answer({**row("a"), "statistics": 7}), SwitchRefused),
        (b"HTTP/1.1 400 Bad Request\r\n", SwitchRefused),
        (b'{"id":1,}', SwitchRefused),
        (b'{"id":1,', Unavailable),
        (b"", Unavailable),
    ],
)
def test_another_answer(said: bytes, error: type[Exception]) -> None:
    """An error, an answer of another shape, nonsense and an early end are each an error that names the database."""
    with on_unix(in_pieces(said, size=1 << 16)) as (ovsdb, _), pytest.raises(error, match=r"db\.sock"):
        ask(ovsdb, Deadline.after(SECONDS))


@pytest.mark.parametrize("said", [b"", b'{"id":1,"res'])
def test_silence(said: bytes) -> None:
    """A server that says nothing, or stops within its answer, is given up at the deadline."""

    def say(connection: socket.socket) -> None:
        connection.sendall(said)
        hang(connection)

    with on_unix(say) as (ovsdb, _), pytest.raises(Unavailable, match=r"no answer in time|out of time"):
        ask(ovsdb, Deadline.after(0.2))


@pytest.mark.parametrize("ovsdb", ["unix:/no/such/db.sock", "unix:/", "ssl:127.0.0.1:6640", "tcp:127.0.0.1:1", "tcp:", ""])
def test_nobody_there(ovsdb: str) -> None:
    """A database that is not there, or of a kind that is not spoken, is unavailable."""
    with pytest.raises(Unavailable, match="OVSDB at"):
        ask(ovsdb, Deadline.after(SECONDS))


def test_nothing_stays_open() -> None:
    """A connection that failed or ended is closed at once."""
    open_files = Path("/proc/self/fd")
    before = len(list(open_files.iterdir()))
    for script in (in_pieces(answer(row("a")), size=100), in_pieces(b"x", size=1), hang):
        with on_unix(script) as (ovsdb, _), suppress(SwitchRefused, Unavailable):
            ask(ovsdb, Deadline.after(0.2))
        with suppress(Unavailable):
            ask("unix:/no/such/db.sock", Deadline.after(0.2))
    assert len(list(open_files.iterdir())) == before
