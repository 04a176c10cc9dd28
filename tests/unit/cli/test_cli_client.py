"""Asking the agent on its socket: every answer, and every failure, ends in time and with a message."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from userspace_cni.base.errors import Unavailable
from userspace_cni.cli import client
from userspace_cni.cli.client import Client, NoAgent
from userspace_cni.cni import protocol


@contextmanager
def answering(path: Path, answer: bytes | None, *, cut: bool = False) -> Iterator[list[bytes]]:
    """A server that gives this answer to every request and, as the agent, waits for the peer to close; `cut`: it closes itself.

    None: it takes the request and says nothing.
    """
    heard: list[bytes] = []
    ended = threading.Event()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(0.05)

        def serve() -> None:
            while not ended.is_set():
                try:
                    peer, _ = listener.accept()
                except TimeoutError:
                    continue
                with peer:
                    heard.append(peer.recv(65536))
                    if answer is None:
                        ended.wait(30)
                    else:
                        peer.sendall(answer)
                        peer.settimeout(0 if cut else 5)
                        with suppress(BlockingIOError):
                            peer.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield heard
        finally:
            ended.set()
            thread.join()


def told(status: int, value: object) -> bytes:
    """A whole answer with a JSON body."""
    return protocol.reply(status, json.dumps(value).encode())


def test_all_is_well(tmp_path: Path) -> None:
    """An agent without problems returns none, and was asked for the page in the protocol."""
    with answering(tmp_path / "s", told(200, {"problems": []})) as heard:
        assert Client(str(tmp_path / "s")).problems("healthz") == []
    [request] = heard
    head, body = protocol.read_request(request)
    assert (head.method, head.target, body) == ("GET", "/healthz", b"")


@pytest.mark.parametrize(
    ("answer", "problems"),
    [
        (told(503, {"problems": ["no session with OVSDB", "a worker is dead"]}), ["no session with OVSDB", "a worker is dead"]),
        (told(503, {"problems": []}), ['it answered 503: {"problems": []}']),
        (told(500, "?"), ['it answered 500: "?"']),
        (protocol.reply(403, b""), ["it answered 403: without a body"]),
        (protocol.reply(404, b"\xff\xfe"), ["it answered 404: \ufffd\ufffd"]),
    ],
)
def test_problems(tmp_path: Path, answer: bytes, problems: list[str]) -> None:
    """Every answer but 200 is a problem, in the agent's words where it has any."""
    with answering(tmp_path / "s", answer):
        assert Client(str(tmp_path / "s")).problems("readyz") == problems


def test_about_the_agent(tmp_path: Path) -> None:
    """Version and problems come from one page; a missing version is not asked for again."""
    path = tmp_path / "s"
    with answering(path, told(200, {"problems": [], "version": "1.2"})):
        assert Client(str(path)).about() == {"version": "1.2", "problems": []}
    path.unlink()
    with answering(path, told(200, {"problems": []})):
        assert Client(str(path)).about() == {"version": "", "problems": []}


def test_reconcile(tmp_path: Path) -> None:
    """The actions of a pass are counted by name."""
    with answering(tmp_path / "s", told(200, {"actions": {"removed-unfinished": 2}})) as heard:
        assert Client(str(tmp_path / "s")).reconcile() == {"removed-unfinished": 2}
    assert heard[0].startswith(b"POST /api/v1/reconcile HTTP/1.1\r\n")


@pytest.mark.parametrize("answer", [told(503, {"code": 11, "msg": "it takes longer"}), told(200, []), told(200, {"actions": 3})])
def test_reconciliation_that_did_not_happen(tmp_path: Path, answer: bytes) -> None:
    """Anything but counted actions is an error that names the socket."""
    with answering(tmp_path / "s", answer), pytest.raises(Unavailable, match=f"{tmp_path}/s to reconcile: it answered"):
        Client(str(tmp_path / "s")).reconcile()


def test_no_socket(tmp_path: Path) -> None:
    """Without a socket there is no agent: that is an error of its own."""
    with pytest.raises(NoAgent, match="no such socket"):
        Client(str(tmp_path / "s")).problems("healthz")


def test_no_process_listens(tmp_path: Path) -> None:
    """A socket that a dead agent left refuses, which is not the same as no agent."""
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with pytest.raises(Unavailable, match="no process listens") as caught:
        Client(str(path)).problems("healthz")
    assert not isinstance(caught.value, NoAgent)


def test_something_else_is_there(tmp_path: Path) -> None:
    """A file in the socket's place, and a path that is too long, are named in the error."""
    (tmp_path / "s").touch()
    with pytest.raises(Unavailable):
        Client(str(tmp_path / "s")).problems("healthz")
    with pytest.raises(Unavailable, match="path too long"):
        Client(f"{tmp_path}/{'x' * 120}").problems("healthz")


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\n\r\n", b"\0" * 100, told(200, {"problems": []})[:-3]])
def test_half_an_answer(tmp_path: Path, answer: bytes) -> None:
    """An incomplete answer is refused."""
    with answering(tmp_path / "s", answer, cut=True), pytest.raises(Unavailable, match="agent's answer"):
        Client(str(tmp_path / "s")).problems("healthz")


def test_an_agent_that_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hanging agent is given up when its time is over."""
    monkeypatch.setattr(client, "LOOK_S", 0.1)
    with answering(tmp_path / "s", None), pytest.raises(Unavailable, match="no answer within"):
        Client(str(tmp_path / "s")).problems("healthz")
