"""Fixtures of the agent's tests, beside a sandbox and a switch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.agent.living import LiveNode
from tests.lab.node.node import clean
from tests.lab.switch.switch import Switch


@pytest.fixture
def live(switch: Switch) -> Iterator[LiveNode]:
    """A node with the shim, whose agent is not started yet."""
    with node_with_shim(switch) as node:
        yield node


@pytest.fixture
def other(switch: Switch) -> Iterator[LiveNode]:
    """A second node beside `live`, with an agent of its own."""
    with node_with_shim(switch) as node:
        yield node


@contextmanager
def node_with_shim(switch: Switch) -> Iterator[LiveNode]:
    """A node in a directory of its own; its agent is stopped at the end, if it was started."""
    with TemporaryDirectory(prefix="uc-") as directory, clean(LiveNode(Path(directory) / "n", switch)) as node:
        assert isinstance(node, LiveNode)
        try:
            yield node
        finally:
            node.close()
