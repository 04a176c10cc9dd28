"""The whole agent as in a container: in a mount namespace of its own, with the host's root mounted elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.lab.node.agent import Agent, install_shim
from tests.lab.node.node import Node, mounts_below
from tests.lab.runtimes.containerd_host import shared_mounts

UID = "7d1a2c00-0000-4000-8000-000000000001"


@pytest.fixture
def contained(node: Node, sandbox: str) -> Iterator[Agent]:
    """An agent that sees the host's root below a directory of its own, and no later mount below a private mount."""
    with TemporaryDirectory(prefix="uc-") as directory, shared_mounts(node.directory.parent):
        seen_at = Path(directory)
        install_shim(node)
        script = 'mount --rbind / "$USERSPACE_CNI_HOST_ROOT" && exec "$@"'
        prefix = ("unshare", "--mount", "--propagation", "unchanged", "sh", "-c", script, "sh")
        agent = Agent(node, prefix, USERSPACE_CNI_HOST_ROOT=str(seen_at))
        try:
            yield agent.start()
        finally:
            agent.close()


def test_attach_from_another_root(node: Node, contained: Agent, sandbox: str) -> None:
    """ADD makes port, mount and lease as on the host, records hold the host's paths, and DEL removes everything."""
    volume = node.empty_dir(UID)
    network = node.network("1.0.0", ipam=node.host_local())
    added = node.run("ADD", network, sandbox, CNI_ARGS=f"IgnoreUnknown=1;K8S_POD_UID={UID}")
    assert added.status == 0, added.stdout
    assert node.switch
    [port] = node.switch.ports("br-test")
    assert node.switch.interface(port)["options"]["vhost-server-path"] == f"{node.short}/{UID}/{port}"
    assert mounts_below(node.short) == [f"{node.short}/{UID}"]
    assert added.document["ips"][0]["address"].startswith("10.56.0.")
    [record] = (node.state / "attachments").iterdir()
    assert str(volume) in record.read_text()
    assert str(contained.node.environ["USERSPACE_CNI_STATE_DIR"]) == str(node.state)
    assert "/host/" not in record.read_text()
    listed = json.loads(contained.get("/api/v1/attachments")[1])
    assert [each["port"] for each in listed] == [port]
    assert node.run("DEL", network, sandbox).status == 0
    assert node.leftovers() == {}
