"""Pods on the uplink of a provider network reach what is beyond the NIC, and pods of another node with the same network."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.cni.spec import succeeded, switch_of
from tests.lab.frames.taps import SECONDS, TapProcess, echoes
from tests.lab.network.kept import kept
from tests.lab.network.outside import NIC
from tests.lab.network.two_nodes import OUTSIDE, common_wire, pod_network
from tests.lab.node.node import Node, clean
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.switch import Switch, wait_until
from userspace_cni.base.provider_networks import ProviderNetwork

NET = ProviderNetwork("net1", NIC, vlans=(100,), said_by="the test")


class Pods:
    """Pods of the test, each in a sandbox of its own."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._calls: list[tuple[Node, dict[str, Any], str, str]] = []

    def add(self, node: Node, network: dict[str, Any]) -> tuple[str, str]:
        """Attach a pod; its namespace and its container."""
        sandbox = self._stack.enter_context(netns())
        container = f"{len(self._calls):012x}" + "e" * 52
        succeeded(node.run("ADD", network, sandbox, container))
        self._calls.append((node, network, sandbox, container))
        return sandbox, container

    def delete(self) -> None:
        while self._calls:
            node, network, sandbox, container = self._calls.pop()
            succeeded(node.run("DEL", network, sandbox, container))


def test_pods_of_two_nodes(node: Node) -> None:
    """With a VLAN of the uplinks, ordinary and vhost-user pods of both nodes reach each other; without a tag they reach what is
    beyond the NIC.

    A VLAN that the uplink does not carry ends at the bridge. The bridge stays until the pods are gone, and says for which pods.
    """
    here = switch_of(node)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="uc-")))
        there = stack.enter_context(Switch())
        other = stack.enter_context(clean(Node(directory / "m", there)))
        stack.enter_context(common_wire(here.netns, there.netns))
        sites = [stack.enter_context(kept(switch, directory / str(switch.dir.name))) for switch in (here, there)]
        for site in sites:
            site.met(NET)
        pods = Pods(stack)
        stack.callback(pods.delete)
        one, _ = pods.add(node, pod_network(node, NET.bridge, "10.56.0.11", 100))
        pods.add(other, pod_network(other, NET.bridge, "10.56.0.12", 100))
        pods.add(other, pod_network(other, NET.bridge, "10.56.0.14", 200))
        plain, _ = pods.add(node, pod_network(node, NET.bridge, "192.0.2.50", None))
        wait_until(lambda: echoes(one, "10.56.0.12"), SECONDS, "pods of both nodes talk")
        wait_until(lambda: echoes(plain, OUTSIDE), SECONDS, "a pod reaches what is beyond the NIC")
        assert not echoes(one, "10.56.0.14")
        vhost_user = other.network()
        vhost_user["host"]["bridge"] = {"bridgeName": NET.bridge, "vlanId": 100}
        sandbox, container = pods.add(other, vhost_user)
        socket = other.shared / container[:12] / f"{container[:12]}-net1"
        stack.enter_context(TapProcess(sandbox, str(socket), "--mode", "server", "--name", "t0", "--address", "10.56.0.13/24"))
        wait_until(lambda: echoes(one, "10.56.0.13"), SECONDS, "an ordinary pod and a vhost-user pod of the other node talk")
        [status] = sites[0].reconcile()
        assert "bridge br-net1 stays while others have ports on it" in status.problem
        pods.delete()
        for site, switch in zip(sites, (here, there), strict=True):
            wait_until(lambda site=site: not site.reconcile(), SECONDS, "the bridge goes")  # type: ignore[misc]
            assert switch.bridges() == []
