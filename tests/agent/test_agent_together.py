"""ProviderNetwork, Vlan, Subnet and a pod of a network that names it, at
once: in any order the uplink's agent makes the bridge.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from tests.agent.living import LiveNode
from tests.cni.spec import refused, succeeded, switch_of
from tests.lab.kube.apiserver import ApiServer, Fault
from tests.lab.kube.cluster_objects import node, ours
from tests.lab.kube.definitions import defined_server
from tests.lab.network.outside import wired
from tests.lab.node import agent
from tests.lab.switch.switch import wait_until

RULES = '[[rule]]\nnamespaces = ["default"]\nbridges = ["br-net1", "br-other"]\nvlans = [0, 100]\n'
RANGES = [{"node": "n1", "range": "10.56.1.0/24"}]
OBJECTS = (
    ours("ProviderNetwork", "net1", defaultInterface="nic0", moveAddresses="primary"),
    ours("Vlan", "blue", id=100, provider="net1"),
    ours("Subnet", "pods", cidrBlock="10.56.0.0/16", perNodePrefix=24, vlan="blue") | {"status": {"nodeRanges": RANGES}},
)
HOST = {"iftype": "veth", "port": "system"}
NETWORK = {"cniVersion": "1.0.0", "name": "podnet", "type": "userspace", "subnet": "pods", "host": HOST, "ipam": {"routes": []}}
POD = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=p;K8S_POD_INFRA_CONTAINER_ID=c"
MANIFEST = {"metadata": {"name": "p"}, "spec": {"nodeName": "n1"}}


@pytest.fixture
def api() -> Iterator[ApiServer]:
    """With the definitions, and the node and pod."""
    with defined_server() as started:
        started.add(node("n1", "192.0.2.11"))
        started.add_pod(MANIFEST)
        yield started


@pytest.fixture
def cluster(live: LiveNode, api: ApiServer) -> Iterator[LiveNode]:
    """A node n1 with a NIC, whose agent follows objects and is not started yet."""
    live.follow(api)
    live.settings["USERSPACE_CNI_NETWORK_OBJECTS"] = "true"
    Path(live.environ["USERSPACE_CNI_CONFIG"]).write_text(RULES)
    with wired(switch_of(live).netns):
        yield live


def bridged(bridge: str) -> dict[str, Any]:
    """A network that names the bridge itself."""
    return {**NETWORK, "subnet": "", "ipam": {}, "host": {**HOST, "bridge": {"bridgeName": bridge, "vlanId": 100}}}


def specs(live: LiveNode) -> dict[str, dict[str, Any]]:
    """The agent's status of each provider network."""
    _, body = agent.get(live.socket, "/api/v1/network")
    return {each["name"]: each for each in json.loads(body)["specs"]}


def maker(live: LiveNode, bridge: str = "br-net1") -> str:
    """The kind of owner for which the bridge was made; "" without a mark."""
    found = [row["external_ids"].get("owner-kind", "") for row in switch_of(live).rows("Bridge") if row["name"] == bridge]
    return found[0] if found else ""


def is_added(live: LiveNode, sandbox: str, codes: set[int]) -> bool:
    """Try ADD once more; whether it succeeded. The codes of failures are kept; none of these has made the bridge."""
    done = live.run("ADD", NETWORK, sandbox, CNI_ARGS=POD)
    assert maker(live) in ("", "node")
    if done.status:
        codes.add(done.document["code"])
    return done.status == 0


def test_all_at_once_in_any_order(cluster: LiveNode, api: ApiServer, sandbox: str) -> None:
    """The pod tries from before the first object on; in the end the uplink holds, and the pod is on its bridge in its VLAN.

    While an object is missing ADD answers 7, and until the bridge exists 11.
    """
    cluster.start()
    wait_until(lambda: cluster.run("ADD", NETWORK, sandbox, CNI_ARGS=POD).document["code"] == 7, what="all is known")
    for number, order in enumerate(permutations(OBJECTS)):
        codes: set[int] = set()
        with ThreadPoolExecutor(len(order)) as threads:
            if number % 2:
                list(map(api.add, order))
            else:
                list(threads.map(api.add, order))
            wait_until(partial(is_added, cluster, sandbox, codes), what="ADD")
        assert codes <= {7, 11}
        assert maker(cluster) == "node"
        # the pod may be on the bridge before the agent's round ends, and it tells of a new spec when that has ended
        wait_until(lambda: specs(cluster).get("net1", {}).get("ready"), what="the uplink")
        succeeded(cluster.run("DEL", NETWORK, sandbox, CNI_ARGS=POD))
        for thing in order:
            [store] = [each for each in api.stores() if each.kind == thing["kind"]]
            store.remove("", thing["metadata"]["name"])
        wait_until(lambda: not specs(cluster) and not switch_of(cluster).rows("Bridge"), what="all is gone")


@pytest.mark.parametrize("known", OBJECTS[:2], ids=["ProviderNetwork", "Vlan"])
def test_a_name_that_an_object_owns(cluster: LiveNode, api: ApiServer, sandbox: str, known: dict[str, Any]) -> None:
    """A network that names the bridge itself waits for it (11), even if NIC or ProviderNetwork is missing, with an agent and
    without.

    Other bridges are made as usual.
    """
    absent = {**known, "spec": {**known["spec"], **({"defaultInterface": "absent0"} if known is OBJECTS[0] else {})}}
    api.add(absent)
    cluster.start()
    wait_until(lambda: agent.get(cluster.socket, "/readyz")[0] == 200)
    refused(cluster.run("ADD", bridged("br-net1"), sandbox, CNI_ARGS=POD), 11)
    succeeded(cluster.run("ADD", bridged("br-other"), sandbox, CNI_ARGS=POD))
    succeeded(cluster.run("DEL", bridged("br-other"), sandbox, CNI_ARGS=POD))
    cluster.end()
    refused(cluster.run_standalone("ADD", bridged("br-net1"), sandbox), 11, "is not there yet")
    assert maker(cluster) == ""


def test_before_the_objects_were_read(cluster: LiveNode, api: ApiServer, sandbox: str) -> None:
    """It is unknown then what is a provider network's: a missing bridge may be one (11); one with another name is not."""
    fault = Fault("LIST", status=503, about="/provider-networks")
    api.faults.append(fault)
    cluster.start()
    refused(cluster.run("ADD", bridged("br-net1"), sandbox, CNI_ARGS=POD), 11, "provider-networks.userspace-cni.io are not known")
    assert switch_of(cluster).rows("Bridge") == []
    api.faults.remove(fault)
    wait_until(lambda: cluster.run("ADD", bridged("br-net1"), sandbox, CNI_ARGS=POD).status == 0, what="there is no such network")
    succeeded(cluster.run("DEL", bridged("br-net1"), sandbox, CNI_ARGS=POD))
