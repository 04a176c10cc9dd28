"""Asking the agent on its socket: every answer, and every failure, ends in time and with a message."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from userspace_cni.base.errors import Unavailable
from userspace_cni.cli import agent_client, node_load
from userspace_cni.cli.agent_client import AgentClient, NoAgent, SlowAgent
from userspace_cni.cli.node_load import NodeLoad
from userspace_cni.cni import protocol

FOREIGN = "the answer has another form than expected: is the agent of another release than this command?"


@contextmanager
def answering(path: Path, answer: bytes | None, *, cut: bool = False, late_s: float = 0.0) -> Iterator[list[bytes]]:
    """A server that gives this answer to every request and, like the agent, waits for the peer to close; `cut`: it closes itself.

    None: it reads the request and answers nothing. `late_s`: it answers so much later.
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
                        ended.wait(60)
                    else:
                        ended.wait(late_s)
                        with suppress(BlockingIOError, BrokenPipeError):
                            peer.sendall(answer)
                            peer.settimeout(0 if cut else 5)
                            peer.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield heard
        finally:
            ended.set()
            thread.join()


def told(status: int, value: object) -> bytes:
    """A complete answer with a JSON body."""
    return protocol.reply(status, json.dumps(value).encode())


def test_all_is_well(tmp_path: Path) -> None:
    """An agent without problems returns none, and was asked for the page in the protocol."""
    with answering(tmp_path / "s", told(200, {"problems": []})) as heard:
        assert AgentClient(str(tmp_path / "s")).problems("healthz") == []
    [request] = heard
    head, body = protocol.read_request(request)
    assert (head.method, head.target, body) == ("GET", "/healthz", b"")


@pytest.mark.parametrize(
    ("answer", "problems"),
    [
        (told(503, {"problems": ["no session with OVSDB", "a worker is dead"]}), ["no session with OVSDB", "a worker is dead"]),
        (told(503, {"problems": []}), [f"it answered 503: {FOREIGN}"]),
        (told(500, "?"), [f"it answered 500: {FOREIGN}"]),
        (told(503, {"cniVersion": "1.1.0", "code": 11, "msg": "too many wait"}), ["it answered 503: too many wait"]),
        (told(500, {"code": 999, "msg": "making it failed", "details": "a bug"}), ["it answered 500: making it failed; a bug"]),
        (protocol.reply(502, b"no agent\n", "text/plain"), ["it answered 502: no agent"]),
        (protocol.reply(403, b""), ["it answered 403: without a body"]),
        (protocol.reply(404, b"\xff\xfe"), ["it answered 404: \ufffd\ufffd"]),
    ],
)
def test_problems(tmp_path: Path, answer: bytes, problems: list[str]) -> None:
    """Every answer but 200 is a problem, in the agent's words if it has any."""
    with answering(tmp_path / "s", answer):
        assert AgentClient(str(tmp_path / "s")).problems("readyz") == problems


def test_about_the_agent(tmp_path: Path) -> None:
    """Version and problems come from one page; a missing version costs no second request."""
    path = tmp_path / "s"
    with answering(path, told(200, {"problems": [], "version": "1.2", "commit": "c0ffee"})):
        assert AgentClient(str(path)).about() == {"version": "1.2", "commit": "c0ffee", "problems": []}
    path.unlink()
    with answering(path, told(200, {"problems": []})):
        assert AgentClient(str(path)).about() == {"version": "", "commit": "", "problems": []}


def test_reconcile(tmp_path: Path) -> None:
    """The actions of a pass are counted by name."""
    with answering(tmp_path / "s", told(200, {"actions": {"removed-unfinished": 2}})) as heard:
        assert AgentClient(str(tmp_path / "s")).reconcile() == {"removed-unfinished": 2}
    assert heard[0].startswith(b"POST /api/v1/reconcile HTTP/1.1\r\n")


@pytest.mark.parametrize("answer", [told(503, {"code": 11, "msg": "it takes longer"}), told(200, []), told(200, {"actions": 3})])
def test_reconciliation_that_did_not_happen(tmp_path: Path, answer: bytes) -> None:
    """Anything but counted actions is an error that names the socket."""
    with answering(tmp_path / "s", answer), pytest.raises(Unavailable, match=f"{tmp_path}/s to reconcile: it answered"):
        AgentClient(str(tmp_path / "s")).reconcile()


def test_no_socket(tmp_path: Path) -> None:
    """Without a socket there is no agent: that is an error of its own."""
    with pytest.raises(NoAgent, match="no such socket"):
        AgentClient(str(tmp_path / "s")).problems("healthz")


def test_no_process_listens(tmp_path: Path) -> None:
    """The socket of a dead agent refuses connections: another error than a missing agent."""
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with pytest.raises(Unavailable, match="no process listens") as caught:
        AgentClient(str(path)).problems("healthz")
    assert not isinstance(caught.value, NoAgent)


def test_something_else_is_there(tmp_path: Path) -> None:
    """A file in the socket's place, and a path that is too long, are named in the error."""
    (tmp_path / "s").touch()
    with pytest.raises(Unavailable):
        AgentClient(str(tmp_path / "s")).problems("healthz")
    with pytest.raises(Unavailable, match="path too long"):
        AgentClient(f"{tmp_path}/{'x' * 120}").problems("healthz")


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\n\r\n", b"\0" * 100, told(200, {"problems": []})[:-3]])
def test_half_an_answer(tmp_path: Path, answer: bytes) -> None:
    """An incomplete answer is refused."""
    with answering(tmp_path / "s", answer, cut=True), pytest.raises(Unavailable, match="agent's answer"):
        AgentClient(str(tmp_path / "s")).problems("healthz")


@pytest.mark.parametrize(
    ("load", "busy", "said"),
    [
        (NodeLoad(0.3, 2), False, "within 0 s; the node is not busy: see the agent's log"),
        (NodeLoad(50, 2), True, "within 1 s; the node is busy: 50 processes for 2 CPUs; ask again"),
    ],
)
def test_an_agent_that_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load: NodeLoad, busy: bool, said: str
) -> None:
    """A living agent that does not answer is given up after a limit that is longer on a busy node; its process is named."""
    monkeypatch.setattr(agent_client, "LOOK_S", 0.1)
    monkeypatch.setattr(node_load, "look", lambda: load)
    with answering(tmp_path / "s", None), pytest.raises(SlowAgent, match="it lives") as caught:
        AgentClient(str(tmp_path / "s")).problems("healthz")
    assert f"(process {os.getpid()}, which holds the socket)" in str(caught.value)
    assert str(caught.value).endswith(said)
    assert caught.value.busy is busy


def test_a_late_answer_of_a_busy_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that late counts on a busy node, and is too late on others."""
    monkeypatch.setattr(agent_client, "LOOK_S", 0.3)
    for load in (NodeLoad(0, 2), NodeLoad(200, 2)):
        monkeypatch.setattr(node_load, "look", lambda load=load: load)
        with answering(tmp_path / "s", told(200, {"problems": []}), late_s=1.0):
            if load.is_busy:
                assert AgentClient(str(tmp_path / "s")).problems("healthz") == []
            else:
                with pytest.raises(SlowAgent):
                    AgentClient(str(tmp_path / "s")).problems("healthz")
        (tmp_path / "s").unlink()


def test_the_load_of_this_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The larger of what runs now and the last minute's average counts; an invalid file counts as no load."""
    cpus = len(os.sched_getaffinity(0))
    assert node_load.look().cpus == cpus
    assert node_load.look().processes > 0
    monkeypatch.setattr(node_load, "_LOAD", tmp_path / "loadavg")
    for text, processes in (
        ("1.50 0.40 0.30 52/1210 999\n", 52.0),
        ("60.1 0.40 0.30 3/1210 999\n", 60.1),
        ("", 0.0),
        ("x y\n", 0.0),
    ):
        (tmp_path / "loadavg").write_text(text)
        assert node_load.look() == NodeLoad(processes, cpus)
    assert [NodeLoad(load, 4).patience(3.0) for load in (0.0, 2.0, 8.0, 4000.0)] == [3.0, 3.0, 6.0, 30.0]
