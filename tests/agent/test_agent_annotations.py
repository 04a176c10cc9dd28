"""Addresses, MAC, VLAN and limits that a controller writes into a pod's annotations: ADD waits for them, and the pod has them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.agent.living import LiveNode
from tests.cni.spec import refused, succeeded, switch_of
from tests.lab.kube.apiserver import ApiServer
from tests.lab.kube.pods import Pod
from tests.lab.node.links import addresses, links, routes
from tests.lab.runtimes.runtime import Call
from tests.lab.switch.switch import wait_until

OVN = "ovn.kubernetes.io/"
KUBEOVN = {
    "ip_address": "10.16.0.7,fd00:16::7",
    "cidr": "10.16.0.0/16,fd00:16::/112",
    "gateway": "10.16.0.1,fd00:16::1",
    "mac_address": "00:00:00:16:00:07",
    "vlan_id": "100",
    "ingress_rate": "100",
}


@pytest.fixture
def api(live: LiveNode) -> Iterator[ApiServer]:
    """An API server with the pod `app` on the agent's node, which reads kube-ovn's annotations."""
    with ApiServer() as started:
        live.follow(started)
        live.settings["USERSPACE_CNI_KUBEOVN_ANNOTATIONS"] = "true"
        yield started


def podnet(**keys: Any) -> dict[str, Any]:
    """A network of ordinary pods whose addresses a controller decides."""
    host = {"iftype": "veth", "bridge": {"bridgeName": "br-test"}}
    return {"cniVersion": "1.0.0", "name": "podnet", "type": "userspace", "host": host, "addresses": "annotations", **keys}


def pod_on_the_node(api: ApiServer) -> Pod:
    """A pod that the agent's watch knows."""
    pod = Pod()
    manifest = pod.manifest()
    manifest["spec"]["nodeName"] = "n1"
    api.add_pod(manifest)
    return pod


def annotate(api: ApiServer, **values: str) -> None:
    """What kube-ovn's controller writes."""
    api.change("default", "app", {"metadata": {"annotations": {OVN + key: value for key, value in values.items()}}})


def test_kube_ovns_addresses(live: LiveNode, sandbox: str, api: ApiServer) -> None:
    """ADD waits without asking the API server, and the pod, the port and the result have what the controller wrote."""
    pod = pod_on_the_node(api)
    live.start()
    with ThreadPoolExecutor() as threads:
        adding: Future[Call] = threads.submit(live.run, "ADD", podnet(), sandbox, ifname="eth0", CNI_ARGS=pod.args)
        wait_until(lambda: adding.done() or live.metric("adds_waiting") == 1)
        annotate(api, **KUBEOVN)
        result = succeeded(adding.result(60))
    assert [ip["address"] for ip in result["ips"]] == ["10.16.0.7/16", "fd00:16::7/112"]
    assert {route["dst"]: route["gw"] for route in result["routes"]} == {"0.0.0.0/0": "10.16.0.1", "::/0": "fd00:16::1"}
    assert addresses(sandbox, "eth0") == ["10.16.0.7/16", "fd00:16::7/112"]
    assert links(sandbox)["eth0"]["address"] == KUBEOVN["mac_address"]
    assert [route["gateway"] for route in routes(sandbox)] == ["10.16.0.1"]
    port = switch_of(live).port(result["interfaces"][0]["name"])
    assert (port["tag"], bool(port["qos"])) == (100, True)
    assert live.run("CHECK", {**podnet(), "prevResult": result}, sandbox, ifname="eth0", CNI_ARGS=pod.args).status == 0
    assert live.run("DEL", podnet(), sandbox, ifname="eth0", CNI_ARGS=pod.args).status == 0
    live.require_clean()


def test_addresses_that_never_come(live: LiveNode, sandbox: str, api: ApiServer) -> None:
    """ADD answers "try again", names what is missing, and leaves nothing."""
    pod = pod_on_the_node(api)
    live.settings["USERSPACE_CNI_DEADLINE_S"] = "2"
    live.start()
    error = refused(live.run("ADD", podnet(), sandbox, ifname="eth0", CNI_ARGS=pod.args), 11)
    assert f"pod default/app has no annotation {OVN}ip_address (with {OVN}cidr)" in error["msg"]
    live.require_clean()


def test_an_address_outside_its_subnet(live: LiveNode, sandbox: str, api: ApiServer) -> None:
    """An address outside of the subnet is one error with annotation and value, and nothing changes."""
    pod = pod_on_the_node(api)
    annotate(api, ip_address="10.17.0.7", cidr="10.16.0.0/16")
    live.start()
    error = refused(live.run("ADD", podnet(), sandbox, ifname="eth0", CNI_ARGS=pod.args), 7)
    assert f"annotation '{OVN}ip_address' is '10.17.0.7': 10.17.0.7 is not in 10.16.0.0/16" in error["msg"]
    live.require_clean()
