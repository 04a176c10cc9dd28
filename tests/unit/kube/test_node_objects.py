"""From objects of the API server to the specs of one node, which watches them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.lab.kube.apiserver import ApiServer, Fault
from tests.lab.kube.definitions import defined_server
from tests.lab.runtimes.dockerfile import ROOT
from tests.lab.switch.switch import wait_until
from userspace_cni.base.back_off import BackOff
from userspace_cni.base.gateways import Gateway
from userspace_cni.base.provider_networks import ProviderNetwork
from userspace_cni.kube.list_watch import WatchTimes
from userspace_cni.kube.pod_requests import KubeClient
from userspace_cni.network.object_specs import read_desired
from userspace_cni.network.spec_list import PROVIDER_NETWORK, Desired
from userspace_cni.node.objects import NodeObjects

QUICK = WatchTimes(watch_s=1, slack_s=1, back_off=BackOff(0.005, 0.02), good_s=0.2, fresh_s=30, confirm_s=0)
EXAMPLE = ROOT / "deploy" / "examples" / "provider-network.yaml"
NETWORKS = "provider-networks.userspace-cni.io"
VERSION = "userspace-cni.io/v1alpha1"
UPLINK = ProviderNetwork("net1", "enp2s0", vlans=(100,), vlans_by="objects")
RANGES = [{"node": "worker-1", "range": "10.56.1.0/24"}, {"node": "worker-2", "range": "10.56.2.0/24", "address": "192.0.2.12"}]

Begin = Callable[[str], NodeObjects]


@pytest.fixture
def api() -> Iterator[ApiServer]:
    """A server with the example's objects and three nodes."""
    with defined_server() as started:
        for each in yaml.safe_load_all(EXAMPLE.read_text()):
            started.add(each)
        for number in (1, 2, 9):
            add_node(started, f"worker-{number}")
        yield started


@pytest.fixture
def begin(api: ApiServer, tmp_path: Path) -> Iterator[Begin]:
    """Begins the watches of a node, and ends them after the test."""
    begun: list[NodeObjects] = []

    def make(node: str) -> NodeObjects:
        begun.append(NodeObjects(KubeClient(api.kubeconfig(tmp_path)).session, node, lambda: None, times=QUICK))
        begun[-1].start()
        return begun[-1]

    yield make
    for each in begun:
        each.stop()


def add_node(api: ApiServer, name: str, **labels: str) -> None:
    status = {"addresses": [{"type": "Hostname", "address": name}, {"type": "InternalIP", "address": f"192.0.2.1{name[-1]}"}]}
    api.add({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "status": status})


def add(api: ApiServer, kind: str, name: str, **spec: Any) -> None:
    api.add({"apiVersion": VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec})


def settled(objects: NodeObjects) -> Desired:
    """The specs once everything is known."""
    wait_until(lambda: read_desired(objects.read_known()).complete and not objects.problem)
    return read_desired(objects.read_known())


def test_the_example_is_what_it_says(api: ApiServer, begin: Begin) -> None:
    """There is an uplink with its VLAN on each node but one, and a gateway on a node with a range; no field is refused."""
    pods = next(each for each in yaml.safe_load_all(EXAMPLE.read_text()) if each["metadata"]["name"] == "pods")
    api.add({**pods, "status": {"nodeRanges": RANGES}})
    one, nine = settled(begin("worker-1")), settled(begin("worker-9"))
    assert one.provider_networks == (UPLINK,)
    blocks = ("10.56.0.0/16", "198.51.100.0/24")
    [gateway] = one.gateways
    assert gateway == Gateway(
        "pods-gw", "br-pods", ("10.56.1.1/24",), masquerade=True, not_masqueraded=blocks, routes=gateway.routes
    )
    assert [(route.dst, route.gw) for route in gateway.routes] == [("10.56.2.0/24", "192.0.2.12")]
    assert one.refused == {}
    assert nine.provider_networks == ()


def test_changes_are_followed(api: ApiServer, begin: Begin) -> None:
    """Changes of objects and of the node's labels are followed. A deleted object is gone; an impossible one is refused alone."""
    objects = begin("worker-1")
    settled(objects)
    add(api, "ProviderNetwork", "net1", defaultInterface="enp2s0", nodeSelector={"matchLabels": {"nic": "fast"}})
    wait_until(lambda: read_desired(objects.read_known()).provider_networks == ())
    add_node(api, "worker-1", nic="fast")
    wait_until(lambda: read_desired(objects.read_known()).provider_networks == (UPLINK,))
    add(api, "ProviderNetwork", "net2", defaultInterface="enp3s0", speed=100)
    why = wait_until(lambda: read_desired(objects.read_known()).refused.get((PROVIDER_NETWORK, "net2")))
    assert "unknown field 'speed'" in why
    assert read_desired(objects.read_known()).provider_networks == (UPLINK,)
    api.objects(NETWORKS).remove("", "net1")
    wait_until(lambda: read_desired(objects.read_known()).provider_networks == ())
    assert read_desired(objects.read_known()).complete


@pytest.mark.parametrize("status", [403, 404, 500])
def test_an_outage_takes_no_uplink_away(api: ApiServer, begin: Begin, status: int) -> None:
    """The specs stay complete, whatever the server answers, and if it does not answer."""
    objects = begin("worker-1")
    before = settled(objects)
    api.faults.append(Fault(status=status))
    api.silent = True
    for _, name in api.objects(NETWORKS).names():
        api.objects(NETWORKS).remove("", name)
        api.objects(NETWORKS).compact()
    api.close_watches()
    api.silent = False
    asked = len(api.requests)
    wait_until(lambda: objects.problem and len(api.requests) > asked + 12)
    assert read_desired(objects.read_known()) == before
    api.stop()
    wait_until(lambda: objects.problem)
    assert read_desired(objects.read_known()) == before


def test_an_agent_that_starts_in_an_outage_concludes_nothing(api: ApiServer, begin: Begin) -> None:
    """Nothing is desired or gone without the Vlans or the node. Uplinks are desired without the Subnets."""
    api.faults.append(Fault("LIST", status=403, about="/vlans"))
    objects = begin("worker-1")
    wait_until(lambda: "vlans" in objects.problem and objects.read_known().subnets is not None)
    assert read_desired(objects.read_known()) == Desired("objects", complete=False)
    api.faults[:] = [Fault("LIST", status=403, about="/subnets")]
    other = begin("worker-1")
    wait_until(lambda: read_desired(other.read_known()).provider_networks)
    assert not read_desired(other.read_known()).complete


def test_a_node_that_the_server_does_not_know(begin: Begin) -> None:
    """A wrong name does not count as a node without labels: nothing is desired or gone, and the setting is named."""
    objects = begin("worker-7")
    wait_until(lambda: "node_name" in objects.problem)
    assert read_desired(objects.read_known()) == Desired("objects", complete=False)


def test_the_node_alone_is_followed_where_no_objects_are_read(api: ApiServer, tmp_path: Path) -> None:
    """A node's annotations are followed even if the resources are not installed: these are not requested, nor known."""
    objects = NodeObjects(KubeClient(api.kubeconfig(tmp_path)).session, "worker-1", lambda: None, specs=(), times=QUICK)
    objects.start()
    wait_until(lambda: objects.read_known().own and not objects.problem)
    assert {request.path.partition("?")[0] for request in api.requests} == {"/api/v1/nodes"}
    assert read_desired(objects.read_known()) == Desired("objects", complete=False)
    objects.stop()


def test_what_the_status_says_wakes_no_agent(api: ApiServer, tmp_path: Path) -> None:
    """The conditions of a thousand nodes in an object's status do not change what is kept of the object."""
    told: list[None] = []
    objects = NodeObjects(KubeClient(api.kubeconfig(tmp_path)).session, "worker-1", lambda: told.append(None), times=QUICK)
    objects.start()
    settled(objects)
    wait_until(lambda: len(told) == 8, what="each first list, and the one that confirms it")
    conditions = [{"node": f"node-{number}", "type": "Ready", "status": "True"} for number in range(1000)]
    network = {key: api.objects(NETWORKS).get("", "net1")[key] for key in ("apiVersion", "kind", "spec")}
    api.add({**network, "metadata": {"name": "net1"}, "status": {"conditions": conditions}})
    add(api, "Vlan", "later", id=7, provider="net9")
    wait_until(lambda: "later" in (objects.read_known().vlans or {}))
    wait_until(lambda: not objects.problem)
    assert len(told) == 9
    objects.stop()
