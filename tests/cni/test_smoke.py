"""The shortest test of the whole: one pod, one interface, and nothing left."""

from __future__ import annotations

import pytest

from tests.lab.node.node import Node


@pytest.fixture
def node_kind() -> type[Node]:
    """The plugin is started as a runtime starts it, by its launcher."""
    return Node


def test_attach_and_detach(node: Node, sandbox: str) -> None:
    """A runtime attaches an interface with an address to a real OVS-DPDK bridge, and DEL leaves nothing behind."""
    network = node.network("1.0.0", ipam=node.host_local())
    added = node.run("ADD", network, sandbox)
    assert added.status == 0, (added.stdout, added.stderr)
    assert added.document["ips"][0]["address"] == "10.56.0.2/24"
    assert node.switch
    assert len(node.switch.ports("br-test")) == 1
    deleted = node.run("DEL", network, sandbox)
    assert (deleted.status, deleted.stdout) == (0, b""), deleted.stderr
    assert node.leftovers() == {}
