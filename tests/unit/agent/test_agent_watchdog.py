"""The watchdog's thread on a node in memory: what it looks at without being asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.node.world import World
from tests.lab.switch.switch import wait_until
from userspace_cni.agent.watchdog import LOOKS_S, Watchdog


def test_a_socket_that_outlives_its_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a connection is looked at again: of a killed process the connection may be closed before the socket."""
    looked: list[str] = []
    watchdog = Watchdog(World(tmp_path, resident=True), lambda _: None, lambda: None, 10_000.0)
    monkeypatch.setattr(watchdog._reconciliation, "look_at", looked.append)
    watchdog.start()
    try:
        watchdog.on_disconnect("port-1")
        wait_until(lambda: len(looked) == len(LOOKS_S), what="every look")
    finally:
        watchdog.stop()
    assert set(looked) == {"port-1"}
