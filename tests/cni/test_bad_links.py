"""Combinations of kind and option that cannot work: one error names key and value, and nothing has changed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cni.spec import refused, refused_soon, succeeded, switch_of
from tests.lab.node.links import guards, host_ends, inside
from tests.lab.node.node import Node

VETH = {"iftype": "veth", "bridge": {"bridgeName": "br-test"}}
VHOST = {"iftype": "vhostuser", "vhost": {"mode": "client"}, "bridge": {"bridgeName": "br-test"}}
LIMIT = {"ingressRate": 10_000_000}


def network(node: Node, host: dict[str, Any], *, ipam: bool = True, **keys: Any) -> dict[str, Any]:
    addresses = {"ipam": node.host_local()} if ipam else {}
    return {"cniVersion": "1.0.0", "name": "net", "type": "userspace", "host": host, **addresses, **keys}


@pytest.mark.parametrize(
    ("host", "keys", "code", "named"),
    [
        (VHOST, {"netem": {"latency_ms": 5}}, 2, "netem"),
        ({**VETH, "port": "afxdp", "mtu": 9000}, {}, 2, "host.mtu"),
        ({**VETH, "port": "af_packet", "mtu": 9000}, {}, 2, "host.mtu"),
        ({**VETH, "port": "afxdp"}, {"bandwidth": LIMIT}, 2, "ingressRate"),
        (VETH, {"mirrorOutput": "ids"}, 2, "mirrorOutput"),
        (VETH, {"bandwidth": {"ingressBurst": 100_000}}, 7, "ingressBurst"),
        (VETH, {"bandwidth": {"ingressRate": -1}}, 7, "ingressRate"),
        (VETH, {"bandwidth": {"ingressRate": 10}}, 7, "ingressRate"),
        (VHOST, {"bandwidth": {"egressRate": 10**15}}, 7, "egressRate"),
        (VETH, {"bandwidth": {**LIMIT, "ingressBurst": 100}}, 7, "ingressBurst"),
        (VETH, {"bandwidth": LIMIT, "netem": {"latency_ms": 5}}, 2, "netem"),
        ({**VETH, "iftype": "internal"}, {}, 2, "host.iftype"),
        ({**VETH, "port": "tap"}, {}, 7, "host.port"),
        ({**VHOST, "engine": "ovs"}, {}, 2, "host.engine"),
        ({**VETH, "vhost": {"mode": "client"}}, {}, 2, "host.vhost"),
        (VHOST, {"gatewayCheck": True}, 2, "gatewayCheck"),
        ({**VETH, "engine": "ovs", "port": "afxdp"}, {}, 2, "host.port"),
    ],
)
def test_refused(node: Node, sandbox: str, host: dict[str, Any], keys: dict[str, Any], code: int, named: str) -> None:
    """Each is refused with the key, its value, and what would work; no lease, row, link or guard is there afterwards."""
    refused(node.run("ADD", network(node, host, **keys), sandbox, ifname="eth0"), code, named)
    place = switch_of(node).netns
    assert (node.leftovers(), host_ends(place), guards(place)) == ({}, {}, [])


def test_a_bridge_of_the_other_datapath(node: Node, sandbox: str) -> None:
    """An administrator's bridge of another datapath type is refused by name and stays as it is."""
    switch = switch_of(node)
    switch.vsctl("--no-wait", "add-br", "br-test", "--", "set", "Bridge", "br-test", "datapath_type=netdev")
    refused(node.run("ADD", network(node, {**VETH, "engine": "ovs"}), sandbox, ifname="eth0"), 104, "br-test", "netdev")
    assert switch.ports("br-test") == []
    assert (host_ends(switch.netns), guards(switch.netns)) == ({}, [])


def test_a_gateway_that_nothing_leads_to(node: Node, sandbox: str) -> None:
    """The kernel refuses a route whose gateway is not on the link: the error has its words, and nothing is left."""
    ipam = {**node.host_local(), "routes": [{"dst": "192.0.2.0/24", "gw": "203.0.113.1"}]}
    answer = node.run("ADD", {**network(node, VETH, ipam=False), "ipam": ipam}, sandbox, ifname="eth0")
    refused(answer, 100, "192.0.2.0/24", "203.0.113.1")
    place = switch_of(node).netns
    assert (node.leftovers(), host_ends(place), guards(place)) == ({}, {}, [])


@pytest.mark.parametrize("port", ["system", "af_packet"])
def test_limits_of_both_directions(node: Node, sandbox: str, port: str) -> None:
    """A limit of the network is in force when ADD answers, CHECK reads it back, and DEL leaves no row of it."""
    limits = {"ingressRate": 10_000_000, "egressRate": 20_000_000}
    asked = network(node, {**VETH, "port": port}, bandwidth=limits)
    result = succeeded(node.run("ADD", asked, sandbox, ifname="eth0"))
    switch, name = switch_of(node), result["interfaces"][0]["name"]
    assert ("linux-htb" if port == "system" else "egress-policer") in switch.appctl("qos/show", name)
    if port == "system":
        assert "tbf" in inside(sandbox, "tc", "qdisc", "show", "dev", "eth0")
    else:
        assert switch.interface(name)["ingress_policing_rate"] == 20_000
    checked = {**asked, "prevResult": result}
    assert node.run("CHECK", checked, sandbox, ifname="eth0").status == 0
    [row] = switch.rows("QoS")

    def change() -> None:
        switch.vsctl("clear", "Port", name, "qos")

    change()
    refused_soon(lambda: node.run("CHECK", checked, sandbox, ifname="eth0"), 103, "limit", again=change)
    switch.vsctl("set", "Port", name, f"qos={row['_uuid']}")
    assert node.run("DEL", asked, sandbox, ifname="eth0").status == 0
    assert (node.leftovers(), switch.rows("QoS"), switch.rows("Queue")) == ({}, [], [])
