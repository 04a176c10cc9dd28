"""A port that DPDK had no memory for when its application connected, and to which it does not connect again by itself."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.living import LiveNode, port_of
from tests.cni.spec import row_of, succeeded
from tests.lab.frames.taps import socket_in
from tests.lab.switch.no_memory import switch_without_memory
from tests.lab.switch.switch import Switch


@pytest.fixture(scope="module")
def scarce() -> Iterator[tuple[Switch, Path]]:
    """The module's switch, and the file: while it exists the switch has no memory for connections."""
    with switch_without_memory() as made:
        yield made


@pytest.fixture(scope="module")
def switch(scarce: tuple[Switch, Path]) -> Switch:
    return scarce[0]


def test_the_agent_makes_it_anew(live: LiveNode, sandbox: str, scarce: tuple[Switch, Path]) -> None:
    """The application's first connection ends at once.

    It goes on listening, and is connected when the agent has made the port anew.
    """
    _, no_memory = scarce
    live.start()
    succeeded(live.run("ADD", live.network(), sandbox))
    before = row_of(live)
    no_memory.touch()
    with socket_in(sandbox, socket.AF_UNIX) as application:
        application.bind(before["options"]["vhost-server-path"])
        application.listen(1)
        with application.accept()[0] as first:
            assert first.recv(1) == b""
        no_memory.unlink()
        with application.accept()[0]:
            live.await_done("again-port", 1)
            after = row_of(live)
    assert before["_uuid"] != after["_uuid"]
    assert {**before, "_uuid": "", "ofport": 0} == {**after, "_uuid": "", "ofport": 0}
    assert f"port {port_of()} is recreated, because DPDK does not connect" in live.log.read_text()
    succeeded(live.run("DEL", live.network(), sandbox))
    live.require_clean()
