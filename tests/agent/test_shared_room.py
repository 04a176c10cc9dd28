"""Claims and the device plugin on one bridge: what one kind takes the other has not, and what comes second is refused."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest
import yaml

from tests.agent.living import LiveNode
from tests.lab.dra.claiming_node import BRIDGE, ClaimingNode, claiming
from tests.lab.dra.plugin_registry import KubeletError
from tests.lab.kube.daemonset import CLUSTER
from tests.lab.kube.kubelet import Kubelet
from tests.lab.kube.resource_definitions import SLICES
from tests.lab.switch.switch import wait_until

ROLE = CLUSTER / "overlays" / "dra" / "component" / "cluster-role.yaml"
RESOURCE = f"userspace-cni.io/{BRIDGE}"
SLICE = "n1-userspace-cni-0"


@pytest.fixture
def node(live: LiveNode) -> Iterator[ClaimingNode]:
    """A node whose bridge has room for two ports, which are offered to the device plugin, too."""
    live.settings |= {"USERSPACE_CNI_DEVICES_PER_BRIDGE": "2", "USERSPACE_CNI_PORTS_PER_BRIDGE": "1"}
    with claiming(live) as made:
        made.api.add({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
        yield made


@pytest.fixture
def plugins(node: ClaimingNode) -> Iterator[Kubelet]:
    """The part of the node's kubelet that is about device plugins."""
    with Kubelet(node.live.kubelet) as started:
        yield started


def capacity(node: ClaimingNode) -> str:
    """How many ports claims may have on the bridge, as the scheduler sees it; "" for none."""
    store = node.api.objects(SLICES)
    found = store.read("", SLICE)["spec"]["devices"] if ("", SLICE) in store.names() else []
    return next((each["capacity"]["ports"]["value"] for each in found), "")


def health(plugins: Kubelet) -> list[str]:
    return [health for _, (health, _) in sorted(plugins.offered(RESOURCE).items())]


def test_one_room(node: ClaimingNode, plugins: Kubelet) -> None:
    """A claim closes a device; a pod's device is one port less for claims. Neither gets the room that the other has."""
    node.start()
    wait_until(lambda: health(plugins) == ["Healthy", "Healthy"] and capacity(node) == "2", what="all of the room")
    first, second = node.pod("first"), node.pod("second")
    node.claim("one", first)
    node.claim("two", second)
    node.kubelet.prepare(first, "one")
    wait_until(lambda: health(plugins) == ["Healthy", "Unhealthy"], what="a device that is closed")
    assert capacity(node) == "2"
    plugins.give("default/third", RESOURCE, f"{BRIDGE}-0")
    wait_until(lambda: capacity(node) == "1", what="less for claims")
    with pytest.raises(KubeletError, match=f"bridge {BRIDGE} has no room for 1 more: of its 2 ports claims have 1, and pods 1"):
        node.kubelet.prepare(second, "two")
    assert len(node.ports()) == 1
    with pytest.raises(grpc.RpcError, match="no room for 1 more"):
        plugins.allocate(RESOURCE, f"{BRIDGE}-1")
    node.kubelet.unprepare(first)
    wait_until(lambda: health(plugins) == ["Healthy", "Healthy"], what="a device that is open again")
    node.kubelet.admit(second, "two")
    plugins.pods.clear()
    wait_until(lambda: capacity(node) == "2", what="all of the room for claims")
    node.kubelet.unprepare(second)


def test_rights_to_claims(node: ClaimingNode) -> None:
    """What the agent asks of claims, from the call to the status, is what overlays/dra allows it, and no more."""
    node.start()
    pod = node.pod()
    node.claim("one", pod)
    node.kubelet.prepare(pod, "one")
    wait_until(lambda: node.scheduler.read("default", "one")["status"].get("devices"), what="the claim's status")
    node.kubelet.unprepare(pod)
    asked = [each for each in node.api.requests if "/resourceclaims" in each.path]
    used = {("resourceclaims/status" if "/status" in each.path else "resourceclaims", each.verb.lower()) for each in asked}
    rules = yaml.safe_load(ROLE.read_text())["rules"]
    allowed = {(name, verb) for rule in rules for name in rule["resources"] for verb in rule["verbs"] if "claims" in name}
    # what newer servers ask themselves, when devices of this driver are in a status that is written
    assert used == allowed - {("resourceclaims/driver", "associated-node:patch")}
