"""What is found wrong in a cluster's logical network, and the packet that follows a way through it."""

from __future__ import annotations

from ipaddress import IPv4Address, ip_address

import pytest

from userspace_cni.base.errors import NotAttached, UnsupportedField
from userspace_cni.ovn.desired_rows import Changes, RowChange, RowKey
from userspace_cni.ovn.known_cluster import FoundCluster, KnownNode
from userspace_cni.ovn.ovn_facts import ChassisFact, NorthFacts, PortFact
from userspace_cni.ovn.ovn_findings import find_network_faults, find_node_faults
from userspace_cni.ovn.tracing import find_port, write_packet

CONFIGURATIONS = {"nb_cfg": 3, "sb_cfg": 3, "hv_cfg": 3}
CLUSTER = FoundCluster("r", nodes={"n1": KnownNode("n1", "n1", ())})
SOUND = NorthFacts(CONFIGURATIONS, CLUSTER)
CHASSIS = ChassisFact("c1", "n1.example", (("geneve", "192.0.2.1"),), 2)
IDS = {
    "system-id": "c1",
    "ovn-remote": "tcp:192.0.2.1:6642",
    "ovn-encap-type": "geneve",
    "ovn-encap-ip": "192.0.2.1",
    "ovn-bridge-datapath-type": "netdev",
}
ADDRESSES = frozenset({ip_address("192.0.2.1"), ip_address("2001:db8::1")})
PORTS = (
    PortFact("ns_a", "n1", ("0a:58:0a:f4:01:05 10.244.1.5 fd00::5",), True),
    PortFact("ns_b", "n1", ("0a:58:0a:f4:01:06 10.244.1.6",), True),
    PortFact("other_b", "n2", ("0a:58:0a:f4:02:06 10.244.2.6",), False),
    PortFact("ns_v", "n1", ("unknown",), None),
)


def test_nothing_is_found_where_all_is_well() -> None:
    """Of network and node."""
    assert [*find_network_faults(SOUND, [CHASSIS]), *find_node_faults(IDS, [CHASSIS], ADDRESSES)] == []


def test_each_fault_has_its_finding() -> None:
    """With what it is about."""
    key = RowKey("Logical_Switch", "join")
    facts = NorthFacts(
        {**CONFIGURATIONS, "sb_cfg": 1},
        CLUSTER,
        PORTS,
        {"Logical_Switch": ("twin",)},
        {"cluster": Changes((RowChange("insert", key, key.row_id),), {})},
        fragmented=("NetworkPolicy ns/p",),
    )
    again = ChassisFact("c2", "n1.example", (("geneve", "192.0.2.1"),), 0)
    found = {(each.name, each.subject) for each in find_network_faults(facts, [CHASSIS, again])}
    assert found == {
        ("ovn-name-twice", "twin"),
        ("ovn-row-differs", "cluster"),
        ("ovn-northd-behind", "ovn-northd"),
        ("ovn-chassis-twice", "n1.example"),
        ("ovn-chassis-twice", "192.0.2.1"),
        ("ovn-ports-down", "logical ports"),
        ("ovn-policy-fragments", "policies"),
    }
    assert {each.name for each in find_network_faults(NorthFacts(CONFIGURATIONS, FoundCluster()), [])} == {"ovn-no-cluster"}
    assert {each.name for each in find_network_faults(SOUND, [])} == {"ovn-node-without-chassis"}
    assert {each.name for each in find_node_faults({}, [], ADDRESSES)} == {"ovn-chassis-incomplete"}
    assert {each.name for each in find_node_faults({**IDS, "ovn-bridge-datapath-type": ""}, [], ADDRESSES)} == {
        "ovn-chassis-absent",
        "ovn-kernel-datapath",
    }


def test_the_packet_of_a_trace() -> None:
    """On one switch it is for the other's MAC; on another switch for the router's."""
    assert find_port(PORTS, "ns/a") is find_port(PORTS, "a") is find_port(PORTS, "ns_a") is PORTS[0]
    near = write_packet(PORTS[0], PORTS[1], {})
    assert 'inport == "ns_a"' in near
    assert "eth.dst == 0a:58:0a:f4:01:06 && ip4.src == 10.244.1.5 && ip4.dst == 10.244.1.6" in near
    assert "eth.dst == 0a:58:0a:f4:01:01" in write_packet(PORTS[0], PORTS[2], {"n1": "0a:58:0a:f4:01:01"})


def test_ports_that_cannot_be_traced() -> None:
    """Names that are none, or several ports', and ports without addresses, are told."""
    with pytest.raises(NotAttached, match="several logical ports are called b"):
        find_port(PORTS, "b")
    with pytest.raises(NotAttached, match="no logical port ns/z"):
        find_port(PORTS, "ns/z")
    with pytest.raises(UnsupportedField, match="addresses of ns_v are unknown"):
        write_packet(PORTS[0], PORTS[3], {})
    with pytest.raises(UnsupportedField, match="no port to a router"):
        write_packet(PORTS[0], PORTS[2], {})


def test_an_end_of_tunnels_that_is_not_here() -> None:
    """It is told, of several the one; where the node's addresses are not known, nothing is."""
    for said, addresses, absent in (
        ("192.0.2.1,2001:db8::1", ADDRESSES, ""),
        ("192.0.2.1, 192.0.2.9", ADDRESSES, "192.0.2.9"),
        ("192.0.2.1", frozenset[IPv4Address](), "192.0.2.1"),
        ("192.0.2.9", None, ""),
    ):
        found = [*find_node_faults({**IDS, "ovn-encap-ip": said}, [CHASSIS], addresses)]
        assert [each.name for each in found] == (["ovn-encap-ip-absent"] if absent else [])
        assert all(f" has {absent}, which" in each.message for each in found)
