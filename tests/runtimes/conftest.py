"""Real container runtimes as callers of the plugin.

The plugin, its records and the switch are the node's; the runtime has a network namespace, plugins, networks and a state of its
own. Some runtimes make files outside of these, which no setting prevents; the fixtures remove them at the end.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.lab.node.agent import running
from tests.lab.node.node import Node
from tests.lab.runtimes.containerd import Containerd
from tests.lab.runtimes.containerd_host import RuntimeHost, mount_points, runtime_host, shared_mounts
from tests.lab.runtimes.podman import Podman

_SHIMS = Path("/run/containerd/s")
_NAMESPACES = Path("/run/netns")
_FIXED = (_SHIMS, _SHIMS.parent, _NAMESPACES, Path("/run/runc"), Path("/var/lib/cni/results"), Path("/var/lib/cni"))
"""Directories that the runtimes make in any case, the inner ones first."""


@pytest.fixture
def runtime_node(node: Node) -> Iterator[Node]:
    """The node whose `plugin` the runtimes call, with the environment `environ`. Its mounts are seen in every mount namespace."""
    with shared_mounts(node.directory.parent), running(node):  # the mount first: the agent opens what is below it
        yield node


@pytest.fixture(scope="session")
def machine_as_it_was() -> Iterator[None]:
    """Remove the empty directories, mounts and dead sockets that did not exist before."""
    new = [path for path in _FIXED if not path.exists()]
    mounts = len(mount_points(_NAMESPACES))
    yield
    while len(mount_points(_NAMESPACES)) > mounts and not any(_NAMESPACES.iterdir()):
        subprocess.run(["umount", str(_NAMESPACES)], check=True)
    alive = Path("/proc/net/unix").read_text()
    for socket in _SHIMS.glob("*"):
        if str(socket) not in alive:
            socket.unlink()
    for path in new:
        with suppress(OSError):  # it is not there, or another test has something in it
            path.rmdir()


@pytest.fixture
def host(runtime_node: Node) -> Iterator[RuntimeHost]:
    """The directories and settings that the runtimes of this test use."""
    with runtime_host(runtime_node) as made:
        yield made


@pytest.fixture
def containerd(host: RuntimeHost, machine_as_it_was: None) -> Iterator[Containerd]:
    """A containerd that is not started yet."""
    with Containerd(host) as made:
        yield made


@pytest.fixture
def podman(host: RuntimeHost, machine_as_it_was: None) -> Iterator[Podman]:
    """A podman without networks yet."""
    with Podman(host) as made:
        yield made
