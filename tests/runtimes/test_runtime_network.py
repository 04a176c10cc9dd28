"""The network that the agent installs, as a runtime uses it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.kube.pods import Pod
from tests.lab.node.agent import running
from tests.lab.node.forked_node import run_command
from tests.lab.node.node import Node
from tests.lab.runtimes.containerd import Containerd
from tests.lab.runtimes.containerd_host import shared_mounts
from tests.lab.runtimes.cri import CriError
from tests.lab.switch.switch import wait_until
from tests.runtimes.seen import addressed, attached, conflist


@pytest.fixture
def runtime_node(node: Node) -> Iterator[Node]:
    """A node whose agent puts networks into the directory of its runtime."""
    node.settings["USERSPACE_CNI_CNI_CONF_DIR"] = str(node.directory.parent / "host" / "net.d")
    with shared_mounts(node.directory.parent), running(node):
        yield node


def test_containerd_takes_it(runtime_node: Node, containerd: Containerd, tmp_path: Path) -> None:
    """A containerd without a network has one, with its mark, as soon as the
    agent has installed it, and none after its removal.
    """
    cri = containerd.start()
    assert not cri.network_ready()
    file = tmp_path / "10-net.conflist"
    file.write_text(json.dumps(conflist(addressed(runtime_node))))

    def install(network: str) -> None:
        argv = ["install", f"--bin-dir={tmp_path}/bin", f"--network={network}"]
        done = run_command(runtime_node.environ, *argv)
        assert done.returncode == 0, done.stderr

    install(str(file))
    wait_until(cri.network_ready, what="the runtime to take the network")
    sandbox = cri.run(Pod())
    assert attached(runtime_node, sandbox)
    install("none")
    wait_until(lambda: not cri.network_ready(), what="the runtime to lose the network")
    with pytest.raises(CriError, match="cni"):  # why the file stays while the agent is away
        cri.stop(sandbox)
    install(str(file))
    wait_until(cri.network_ready, what="the runtime to take the network again")
    cri.stop(sandbox)
    cri.remove(sandbox)
    assert runtime_node.leftovers() == {}
    install("none")
    assert list(containerd.host.networks_dir.iterdir()) == []
