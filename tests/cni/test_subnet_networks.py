"""Networks that name a Subnet, without an agent: each ADD reads the objects itself, and no other verb asks the server."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.cni.spec import refused, succeeded, switch_of
from tests.lab.kube.apiserver import ApiServer, Fault
from tests.lab.kube.definitions import define_all
from tests.lab.kube.network_objects import add
from tests.lab.node.node import Node

SUBNET = {"cidrBlock": "10.56.0.0/16", "vlan": "v100", "perNodePrefix": 24, "gatewayType": "distributed"}
STATUS = {"nodeRanges": [{"node": "n1", "range": "10.56.1.0/24"}]}


@pytest.fixture
def reading(node: Node, api: ApiServer) -> Node:
    """Node n1 with its own credentials, and a server with Subnet `pods` in VLAN 100 of provider network net1."""
    define_all(api)
    add(api, "Subnet", "pods", spec=SUBNET, status=STATUS)
    add(api, "Vlan", "v100", spec={"id": 100, "provider": "net1"})
    node.settings["USERSPACE_CNI_KUBECONFIG"] = api.kubeconfig(node.directory)
    node.settings["USERSPACE_CNI_NODE_NAME"] = "n1"
    node.settings["USERSPACE_CNI_NETWORK_OBJECTS"] = "true"
    return node


def network(**keys: Any) -> dict[str, Any]:
    """A network of vhost-user interfaces that names the Subnet."""
    host = {"vhost": {"mode": "client"}}
    return {"cniVersion": "1.0.0", "name": "dpdknet", "type": "userspace", "subnet": "pods", "host": host, **keys}


def test_without_an_agent(reading: Node, api: ApiServer, sandbox: str) -> None:
    """A vhost-user interface gets bridge, VLAN, address and gateway of the Subnet; CHECK and DEL ask no server.

    ADD does not make the bridge, because it is a provider network's.
    """
    refused(reading.run("ADD", network(), sandbox), 11, "bridge br-net1 of a provider network is not there yet")
    switch_of(reading).vsctl("add-br", "br-net1", "--", "set", "Bridge", "br-net1", "datapath_type=netdev")
    result = succeeded(reading.run("ADD", network(), sandbox))
    assert result["ips"] == [{"address": "10.56.1.2/24", "gateway": "10.56.1.1", "interface": 0}]
    assert result["routes"] == [{"dst": "0.0.0.0/0", "gw": "10.56.1.1"}]
    [port] = switch_of(reading).ports("br-net1")
    assert switch_of(reading).row("Port", port)["tag"] == 100
    asked = len(api.requests)
    succeeded(reading.run("CHECK", network(prevResult=result), sandbox))
    succeeded(reading.run("DEL", network(), sandbox))
    assert len(api.requests) == asked
    switch_of(reading).vsctl("del-br", "br-net1")
    assert reading.leftovers() == {}
    assert not [each for each in (reading.state / "leases" / "pods").iterdir() if each.name[0].isdigit()]


def test_what_is_excluded(reading: Node, api: ApiServer, sandbox: str) -> None:
    """host-local gives out the addresses between gateway and excluded ones, of both families, until none is left."""
    spec = {"cidrBlock": "10.57.0.0/29,fd00:57::/64", "gateway": "10.57.0.1,fd00:57::1", "bridge": "br-test"}
    add(api, "Subnet", "few", spec={**spec, "excludeIps": ["10.57.0.2", "10.57.0.4..10.57.0.5", "fd00:57::2"]})
    few = network(subnet="few", ipam={"type": "host-local"})
    found = [succeeded(reading.run("ADD", few, sandbox, ifname=f"net{number}"))["ips"] for number in range(2)]
    assert [[each["address"] for each in ips] for ips in found] == [
        ["10.57.0.3/29", "fd00:57::3/64"],
        ["10.57.0.6/29", "fd00:57::4/64"],
    ]
    assert [each["gateway"] for each in found[0]] == ["10.57.0.1", "fd00:57::1"]
    error = reading.run("ADD", few, sandbox, ifname="net2").document
    assert "no IP addresses available" in f"{error['msg']} {error['details']}"
    for number in range(2):
        succeeded(reading.run("DEL", few, sandbox, ifname=f"net{number}"))
    assert reading.leftovers() == {}


def test_what_cannot_be_known(reading: Node, api: ApiServer, sandbox: str) -> None:
    """While the server is away, ADD answers "try again".

    Without setting or credentials the network is refused, naming the key.
    """
    for fault in (Fault(status=503), Fault(close=True)):
        api.faults[:] = [dataclasses.replace(fault)]
        refused(reading.run("ADD", network(), sandbox), 11)
    api.faults.clear()
    refused(reading.run("ADD", network(subnet="absent"), sandbox), 7, "Subnet 'absent' does not exist")
    refused(reading.run("ADD", network(ipam={"type": "static"}), sandbox), 2, "ipam.type")
    reading.settings["USERSPACE_CNI_NETWORK_OBJECTS"] = "false"
    refused(reading.run("ADD", network(), sandbox), 7, "key 'subnet' is 'pods'", "network_objects")
    reading.settings |= {"USERSPACE_CNI_NETWORK_OBJECTS": "true", "USERSPACE_CNI_KUBECONFIG": ""}
    refused(reading.run("ADD", network(), sandbox), 7, "key 'subnet' is 'pods'", "credentials")
    assert reading.leftovers() == {}
