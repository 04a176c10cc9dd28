"""An agent and the controller, which meet at the API server alone: the node's report, and its range of a Subnet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.agent.living import LiveNode, container
from tests.cni.spec import refused, succeeded, switch_of
from tests.lab.kube.apiserver import ApiServer
from tests.lab.kube.cluster_objects import node, ours
from tests.lab.kube.definitions import defined_server
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.switch import wait_until
from userspace_cni.base.root import HERE
from userspace_cni.base.settings import Settings
from userspace_cni.controller.controller_service import Controller
from userspace_cni.controller.status_rounds import RoundTimes
from userspace_cni.kube.kubeconfig import KubeconfigBounds
from userspace_cni.kube.list_watch import WatchTimes
from userspace_cni.kube.pod_requests import Clients
from userspace_cni.node.state import CHASSIS

NAME = "n1"
AT_ONCE = WatchTimes(page=100, confirm_s=0)
"""Watches with short waits for the lists that confirm theirs."""
STATES = "nodestates.userspace-cni.io"
PODNET = {
    "cniVersion": "1.0.0",
    "name": "podnet",
    "type": "userspace",
    "subnet": "pods",
    "host": {"iftype": "veth", "port": "system"},
    "ipam": {"routes": []},
}


@pytest.fixture
def api() -> Iterator[ApiServer]:
    """An API server with this node, and a Subnet of which no node has a range."""
    with defined_server() as started:
        started.add(node(NAME, "192.0.2.11"))
        started.add(ours("Subnet", "pods", cidrBlock="10.56.0.0/16", bridge="br-test", perNodePrefix=24))
        yield started


@pytest.fixture
def agent(live: LiveNode, api: ApiServer) -> LiveNode:
    """A node whose agent reads objects; it is not started yet."""
    live.follow(api, NAME)
    live.settings["USERSPACE_CNI_NETWORK_OBJECTS"] = "true"
    return live


@pytest.fixture
def controller(agent: LiveNode) -> Iterator[Controller]:
    """A controller, which is not started yet."""
    path = agent.settings["USERSPACE_CNI_KUBECONFIG"]
    session = Clients(KubeconfigBounds.of(Settings()), HERE, path).of("").session
    made = Controller(session, "userspace-cni", RoundTimes(rounds_s=0.1), AT_ONCE)
    yield made
    made.stop()


def state(api: ApiServer) -> dict[str, Any]:
    """The node's report; {} until there is one."""
    store = api.objects(STATES)
    found: dict[str, Any] = store.get("", NAME)["status"] if ("", NAME) in store.names() else {}
    return found


def test_a_node_reports_and_gets_its_range(agent: LiveNode, api: ApiServer, controller: Controller) -> None:
    """Without a controller ADD says what it waits for. Then the node gets a range, reports it, and ADD gives an address of it."""
    agent.start()
    wait_until(lambda: state(api))
    chassis = switch_of(agent).vsctl("--if-exists", "get", "Open_vSwitch", ".", "external_ids:system-id").strip('"')
    assert (state(api).get("chassis", ""), state(api)["addresses"]) == (chassis, ["192.0.2.11"])
    with netns() as sandbox:
        refused(agent.run("ADD", PODNET, sandbox, container(1), "eth0"), 11, "no range for this node yet", "controller")
        controller.start()
        wait_until(lambda: state(api)["subnets"] == [{"name": "pods", "range": "10.56.0.0/24"}])
        [given] = api.objects("subnets.userspace-cni.io").get("", "pods")["status"]["nodeRanges"]
        assert given == {"node": NAME, "range": "10.56.0.0/24", "address": "192.0.2.11"}
        result = succeeded(agent.run("ADD", PODNET, sandbox, container(1), "eth0"))
        assert result["ips"][0]["address"].startswith("10.56.0.")
        succeeded(agent.run("DEL", PODNET, sandbox, container(1), "eth0"))


def test_an_agent_that_starts_again_has_nothing_to_write(agent: LiveNode, api: ApiServer) -> None:
    """After SIGKILL the next agent finds its report unchanged on the server, and writes nothing."""
    agent.start()
    wait_until(lambda: state(api))
    noted = {CHASSIS: state(api)["chassis"]} if "chassis" in state(api) else {}
    wait_until(lambda: api.objects("nodes").get("", NAME)["metadata"].get("annotations", {}) == noted)
    agent.kill()
    before = len(api.requests)
    agent.start()
    reads = f"/apis/userspace-cni.io/v1alpha1/nodestates/{NAME}"
    wait_until(lambda: any(each.path == reads for each in api.requests[before:]))
    writes = [each for each in api.requests[before:] if each.method != "GET" and "/ips" not in each.path]
    assert writes == []
