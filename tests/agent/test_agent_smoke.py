"""Shim, agent and switch together: the shortest way through all of them."""

from __future__ import annotations

from tests.lab.agent import running
from tests.lab.node import Node


def test_attach_and_detach(node: Node, sandbox: str) -> None:
    """ADD through shim and agent makes the port, DEL removes everything, and the agent stops in good order."""
    with running(node) as agent:
        added = node.run("ADD", node.network(), sandbox)
        assert (added.status, node.switch and len(node.switch.ports("br-test"))) == (0, 1), added.stdout
        assert node.run("STATUS", node.network()).status == 0
        assert node.run("DEL", node.network(), sandbox).status == 0
        assert node.leftovers() == {}
        assert agent.stop() == 0
