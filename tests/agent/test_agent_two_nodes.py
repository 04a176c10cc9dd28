"""Two nodes, each with a switch and an agent of its own, and one provider network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.agent.conftest import node_with_shim
from tests.agent.living import LiveNode
from tests.cni.spec import succeeded
from tests.lab.frames.taps import SECONDS, echoes
from tests.lab.network.outside import NIC
from tests.lab.network.two_nodes import common_wire, pod_network
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.switch import Switch, wait_until

BRIDGE = "br-net1"
TABLE = f"""
[[provider_network]]
name = "net1"
interface = "{NIC}"
vlans = [100]
"""
CONTAINERS = ("a" * 64, "b" * 64)
ADDRESSES = ("10.56.0.11", "10.56.0.12")


@pytest.fixture
def nodes(live: LiveNode) -> Iterator[tuple[LiveNode, LiveNode]]:
    """Both nodes, on one wire, with agents that have the uplink, which they do not have any more at the end."""
    assert live.switch
    with Switch() as switch, node_with_shim(switch) as other, common_wire(live.switch.netns, switch.netns):
        both = live, other
        for node in both:
            settings = node.directory / "network.toml"
            settings.write_text(TABLE)
            node.settings["USERSPACE_CNI_CONFIG"] = str(settings)
            node.start()
        for node in both:
            wait_until(lambda node=node: has_uplink(node), SECONDS, "the uplink is there")  # type: ignore[misc]
        yield both
        for node in both:
            (node.directory / "network.toml").write_text("")
            node.end()
            node.start()
            wait_until(lambda node=node: not node.switch.bridges(), SECONDS, "bridge and uplink are gone")  # type: ignore[misc]


def has_uplink(node: LiveNode) -> bool:
    specs = node.page("/api/v1/network")[1]["specs"]
    return [(each["name"], each["ready"]) for each in specs] == [("net1", True)]


def test_pods_of_two_agents(nodes: tuple[LiveNode, LiveNode]) -> None:
    """Pods of both reach each other over a VLAN of the uplink, also while one agent is dead and after its successor started."""
    with ExitStack() as stack:
        sandboxes = [stack.enter_context(netns()) for _ in nodes]
        calls = list(zip(nodes, ADDRESSES, sandboxes, CONTAINERS, strict=True))
        for node, address, sandbox, container in calls:
            succeeded(node.run("ADD", pod_network(node, BRIDGE, address, 100), sandbox, container))
        wait_until(lambda: echoes(sandboxes[0], ADDRESSES[1]), SECONDS, "the pods talk")
        nodes[1].kill()
        assert echoes(sandboxes[0], ADDRESSES[1])
        nodes[1].start()
        wait_until(lambda: has_uplink(nodes[1]), SECONDS, "the next agent has the uplink")
        assert echoes(sandboxes[1], ADDRESSES[0])
        for node, address, sandbox, container in calls:
            succeeded(node.run("DEL", pod_network(node, BRIDGE, address, 100), sandbox, container))
