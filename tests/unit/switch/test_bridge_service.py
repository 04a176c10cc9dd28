"""Whether bridges are served, by their management sockets: here those of programs that greet, wait, or have gone."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from userspace_cni.switch.bridge_service import BridgeService
from userspace_cni.switch.openflow import openflow_messages
from userspace_cni.switch.vswitchd import JUDGED_SECONDS

HELLO = openflow_messages.encode_message(4, openflow_messages.HELLO, 1)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[BridgeService]:
    found = BridgeService(lambda bridge: f"{tmp_path}/{bridge}.mgmt")
    yield found
    found.forget()


def bridge(directory: Path, name: str, backlog: int = 8) -> socket.socket:
    """Listens as that bridge."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(f"{directory}/{name}.mgmt")
    listening.listen(backlog)
    listening.settimeout(60)
    return listening


def test_a_bridge_that_greets(tmp_path: Path, service: BridgeService) -> None:
    """It is greeted first, and the connection is closed when it has answered."""
    with closing(bridge(tmp_path, "br1")) as listening:
        assert service.look(["br1"]) == "asked"
        accepted, _ = listening.accept()
        with accepted:
            accepted.settimeout(60)
            accepted.sendall(HELLO)
            assert service.look(["br1"]) == "alive"
            assert openflow_messages.decode_header(accepted.recv(8))[0].kind == openflow_messages.HELLO
            assert len(accepted.recv(4096)) == 8
            assert accepted.recv(1) == b""


def test_a_bridge_that_does_not_answer(tmp_path: Path, service: BridgeService, monkeypatch: pytest.MonkeyPatch) -> None:
    """One question waits, however often one looks, and silence counts only when it has lasted."""
    clock = [10.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    with closing(bridge(tmp_path, "br1")) as listening:
        assert [service.look(["absent", "br1"]) for _ in range(20)] == ["asked"] * 20
        clock[0] += JUDGED_SECONDS
        assert service.look(["absent", "br1"]) == "silent"
        accepted, _ = listening.accept()
        listening.setblocking(False)
        with accepted, pytest.raises(BlockingIOError):
            listening.accept()
        assert service.look(["br1"]) == "dead", "the daemon has ended"
        assert service.look(["br1"]) == "asked", "it is another one"


def test_a_bridge_that_is_not_there(tmp_path: Path, service: BridgeService) -> None:
    """Another one answers for it; where none is there, the daemon has none; what cannot be reached is unknown."""
    bridge(tmp_path, "gone").close()
    assert service.look([]) == "unknown"
    assert service.look(["absent"]) == service.look(["gone"]) == "dead"
    with closing(bridge(tmp_path, "other")):
        assert service.look(["absent", "gone", "other"]) == "asked"
    assert BridgeService(lambda name: f"{tmp_path}/gone.mgmt/{name}").look(["br1"]) == "unknown"


def test_a_bridge_at_which_many_wait(tmp_path: Path, service: BridgeService) -> None:
    """There is no room for another question: those that wait are not answered either."""
    with closing(bridge(tmp_path, "br1", backlog=0)), socket.socket(socket.AF_UNIX) as first:
        first.connect(f"{tmp_path}/br1.mgmt")
        assert service.look(["br1"]) == "silent"
