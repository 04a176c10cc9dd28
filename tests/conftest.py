"""Fixtures and hooks of all tests."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

import pytest
from hypothesis import HealthCheck, settings

from tests.lab.node.forked_node import ForkedNode
from tests.lab.node.node import Node, clean
from tests.lab.node.served import HandedNode, ServedNode, served
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.switch import Switch
from userspace_cni.cli import view

settings.register_profile(
    "suite",
    settings.get_profile("default"),  # not what hypothesis chooses where the variable CI is set
    deadline=None,  # a busy machine is no fault of an example, nor of how it is drawn
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    derandomize=False,  # each run draws others: fifty are enough for one
    max_examples=50,
    print_blob=True,
)
settings.load_profile("suite")
_OWN_PID = os.getpid()


def _interrupted(number: int, _frame: FrameType | None) -> None:
    """A run that is ended, or whose terminal is closed, ends as by Ctrl-C: what it made is removed, above all a switch."""
    if os.getpid() == _OWN_PID:
        raise KeyboardInterrupt
    signal.signal(number, signal.SIG_DFL)  # a process that a test has forked
    os.kill(os.getpid(), number)


for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1):
    # nohup(1), and a shell for what runs in its background, have signals ignored, and so would every program that a test starts.
    # A handler that does nothing keeps this process from them as well, and no program that it starts has it
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, lambda _number, _frame: None)
    elif number in (signal.SIGHUP, signal.SIGTERM) and signal.getsignal(number) == signal.SIG_DFL:
        signal.signal(number, _interrupted)
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or each start of the program compiles it anew, which is half of a start
sys.dont_write_bytecode = False
os.environ.pop("COLUMNS", None)  # the width of the terminal of who runs the tests is nothing to the commands under test


def pytest_keyboard_interrupt() -> None:
    """A second Ctrl-C does not stop the cleanup that the first one began; Ctrl-\\ does."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: None)


def pytest_collection_finish() -> None:
    """Exclude the objects that the import of the tests made from garbage collection, which some tests run often."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that runs in the test's own process prints the same on a loaded machine as on an idle one."""
    monkeypatch.setattr(view, "PATIENCE_S", 120.0)


@pytest.fixture(scope="session")
def switch() -> Iterator[Switch]:
    """A private OVS-DPDK for the whole run; a test leaves no ports or bridges in it."""
    with Switch() as started:
        yield started


@pytest.fixture
def node_kind() -> type[Node]:
    """The class of the node, whose plugin serves calls as a process. Modules about the launcher override it with `Node`."""
    return ForkedNode


@pytest.fixture
def node(switch: Switch, request: pytest.FixtureRequest, node_kind: type[Node]) -> Iterator[Node]:
    """A node of this test's own, with the plugin installed as a runtime finds it, on the run's switch.

    With the indirect parameter "agent", the plugin is the shim, with an agent behind it; with "handed", it is the launcher, and
    there is an agent.
    """
    kinds = {"agent": ServedNode, "handed": HandedNode}
    with _short_directory() as directory:
        kind = kinds.get(getattr(request, "param", ""))
        made = served(directory / "n", switch, kind) if kind else clean(node_kind(directory / "n", switch))
        with made as node:
            yield node


@pytest.fixture
def bare_node(node_kind: type[Node]) -> Iterator[Node]:
    """A node without any switch: OVSDB is unreachable."""
    with _short_directory() as directory, clean(node_kind(directory / "n")) as made:
        yield made


@contextmanager
def _short_directory() -> Iterator[Path]:
    """A directory whose path is short enough for socket paths; pytest's own directories are too long."""
    with TemporaryDirectory(prefix="uc-") as directory:
        yield Path(directory)


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory whose path is short enough for sockets in it."""
    with _short_directory() as directory:
        yield directory


@pytest.fixture
def sandbox() -> Iterator[str]:
    """A network namespace as a runtime makes it; its path."""
    with netns() as path:
        yield path
