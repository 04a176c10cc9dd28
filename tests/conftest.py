"""What tests of several kinds share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.node import Node, clean
from tests.lab.runtime import netns
from tests.lab.switch import Switch


@pytest.fixture(scope="session")
def switch() -> Iterator[Switch]:
    """A private OVS-DPDK for the whole run; a test leaves no ports or bridges in it."""
    with Switch() as started:
        yield started


@pytest.fixture
def node(tmp_path: Path, switch: Switch) -> Iterator[Node]:
    """A node of this test's own, with the plugin installed as a runtime finds it, on the run's switch."""
    with clean(Node(tmp_path / "node", switch)) as made:
        yield made


@pytest.fixture
def bare_node(tmp_path: Path) -> Iterator[Node]:
    """The same without any switch: OVSDB is unreachable."""
    with clean(Node(tmp_path / "node")) as made:
        yield made


@pytest.fixture
def sandbox() -> Iterator[str]:
    """A network namespace as a runtime makes it; its path."""
    with netns() as path:
        yield path
