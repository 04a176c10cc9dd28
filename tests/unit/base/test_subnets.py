"""Subnet objects: what is read, what is refused by field, and what a node may give out."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from userspace_cni.base.errors import InvalidConfig, Unavailable
from userspace_cni.base.subnets import Span, node_ranges, place, read_subnet, read_vlan, without

CIDR = {"cidrBlock": "10.56.0.0/16"}
NO_VLAN = (None, "")


def spans(*texts: str) -> tuple[Span, ...]:
    pairs = [each.split("..") for each in texts]
    return tuple((ip_address(low), ip_address(high)) for low, high in pairs)


def pool_of(spec: dict[str, Any], *ranges: str) -> tuple[str, tuple[Span, ...], str]:
    """Network, spans and gateway of the only pool of a node with these ranges."""
    [pool] = place(read_subnet("pods", spec), NO_VLAN, [ip_network(each) for each in ranges]).pools
    return str(pool.network), pool.spans, str(pool.gateway or "")


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({}, "cidrBlock"),
        ({"cidrBlock": "10.56.0.0"}, "cidrBlock"),
        ({"cidrBlock": "10.56.0.1/16"}, "cidrBlock"),
        ({"cidrBlock": "10.56.0.0/31"}, "cidrBlock"),
        ({"cidrBlock": "10.56.0.0/16,10.57.0.0/16"}, "cidrBlock"),
        ({"cidrBlock": 7}, "cidrBlock"),
        ({**CIDR, "gateway": "10.57.0.1"}, "gateway"),
        ({**CIDR, "gateway": "fe80::1%eth0"}, "gateway"),
        ({**CIDR, "gatewayType": "both"}, "gatewayType"),
        ({**CIDR, "excludeIps": ["10.56.0.9..10.56.0.2"]}, "excludeIps"),
        ({**CIDR, "excludeIps": "10.56.0.9"}, "excludeIps"),
        ({**CIDR, "excludeIps": ["10.56.0.2.."]}, "excludeIps"),
        ({**CIDR, "excludeIps": ["..10.56.0.2"]}, "excludeIps"),
        ({**CIDR, "excludeIps": ["10.56.0.2..10.56.0.3..10.56.0.4"]}, "excludeIps"),
        ({**CIDR, "bridge": "../x"}, "bridge"),
        ({**CIDR, "bridge": "br-of-sixteen-ch"}, "bridge"),
        ({**CIDR, "mtu": 67}, "mtu"),
        ({**CIDR, "mtu": True}, "mtu"),
        ({**CIDR, "perNodePrefix": 15}, "perNodePrefix"),
        ({**CIDR, "perNodePrefix": 31}, "perNodePrefix"),
        ({"cidrBlock": "10.56.0.0/16,fd00::/64", "perNodePrefix": 24}, "perNodePrefix"),
        ({**CIDR, "namespaces": [1]}, "namespaces"),
    ],
)
def test_what_cannot_be_meant(spec: dict[str, Any], named: str) -> None:
    """An invalid value refuses the Subnet, with its name and the field's."""
    with pytest.raises(InvalidConfig) as caught:
        read_subnet("pods", spec)
    assert "Subnet 'pods'" in caught.value.message
    assert f"'{named}'" in caught.value.message


def test_all_nodes_share_it() -> None:
    """Without ranges of the nodes all is given out but the network's ends, the gateway and what is excluded."""
    spec = {"cidrBlock": "10.56.0.0/28", "gateway": "10.56.0.1", "excludeIps": ["10.56.0.4", "10.56.0.8..10.56.0.10"]}
    expected = spans("10.56.0.2..10.56.0.3", "10.56.0.5..10.56.0.7", "10.56.0.11..10.56.0.14")
    assert pool_of(spec) == ("10.56.0.0/28", expected, "10.56.0.1")


def test_a_node_with_a_gateway_of_its_own() -> None:
    """With a distributed gateway the node's range is a network, whose first address is the node's."""
    spec = {**CIDR, "perNodePrefix": 24, "gatewayType": "distributed", "gateway": "10.56.0.1"}
    assert pool_of(spec, "10.56.1.0/24") == ("10.56.1.0/24", spans("10.56.1.2..10.56.1.254"), "10.56.1.1")


def test_a_range_of_one_network() -> None:
    """With a router outside all nodes share the network, and each gives out its part of it, to the last address."""
    spec = {**CIDR, "perNodePrefix": 24, "gateway": "10.56.0.1"}
    assert pool_of(spec, "10.56.1.0/24") == ("10.56.0.0/16", spans("10.56.1.0..10.56.1.255"), "10.56.0.1")
    assert pool_of(spec, "10.56.0.0/24")[1] == spans("10.56.0.2..10.56.0.255")
    assert pool_of(spec, "10.56.255.0/24")[1] == spans("10.56.255.0..10.56.255.254")


def test_both_families() -> None:
    """A Subnet of both families gives an address of each, with the gateway of its family."""
    subnet = read_subnet("pods", {"cidrBlock": "10.56.0.0/24, fd00:56::/64", "gateway": "fd00:56::1"})
    first, second = place(subnet, NO_VLAN, ()).pools
    assert (first.gateway, str(second.gateway)) == (None, "fd00:56::1")
    assert second.spans == spans("fd00:56::2..fd00:56::ffff:ffff:ffff:ffff")


def test_where_its_ports_are() -> None:
    """The bridge is the Subnet's own, else that of its VLAN's provider network; the VLAN is the Vlan object's."""
    own = read_subnet("pods", {**CIDR, "bridge": "br0", "vlan": "v100", "mtu": 1400})
    of_vlan = read_subnet("pods", {**CIDR, "vlan": "v100"})
    vlan = read_vlan("v100", {"id": 100, "provider": "net1"})
    assert [(each.bridge, each.vlan, each.mtu) for each in (place(own, vlan, ()), place(of_vlan, vlan, ()))] == [
        ("br0", 100, 1400),
        ("br-net1", 100, 0),
    ]
    assert read_vlan("untagged", {"id": 0, "provider": "net1"}) == (None, "net1")
    for spec in ({"id": 4095}, {"id": -1}, {"id": "100"}, {"id": 1, "provider": "../x"}):
        with pytest.raises(InvalidConfig, match="Vlan 'v'"):
            read_vlan("v", spec)


def test_ranges_of_the_nodes() -> None:
    """A node takes the ranges that the status has for it, and none that is not the Subnet's; without one it waits."""
    subnet = read_subnet("pods", {**CIDR, "perNodePrefix": 24})
    status = {"nodeRanges": [{"node": "n1", "range": "10.56.1.0/24"}, {"node": "n2", "range": "10.57.0.0/24"}, "odd"]}
    assert node_ranges(subnet, status, "n1") == (ip_network("10.56.1.0/24"),)
    assert node_ranges(subnet, {}, "n1") == node_ranges(subnet, status, "n3") == ()
    with pytest.raises(InvalidConfig, match=r"10\.57\.0\.0/24 of node n2"):
        node_ranges(subnet, status, "n2")
    with pytest.raises(Unavailable, match="Subnet 'pods' has no range for this node yet"):
        place(subnet, NO_VLAN, ())


def test_nothing_left() -> None:
    """A Subnet whose addresses are all excluded is refused, and not given out."""
    with pytest.raises(InvalidConfig, match=r"no address of 10\.56\.0\.0/29"):
        pool_of({"cidrBlock": "10.56.0.0/29", "excludeIps": ["10.56.0.0..10.56.0.7"]})


@given(st.lists(st.tuples(st.integers(0, 255), st.integers(0, 255)).map(sorted), max_size=8))
def test_without(excluded: list[list[int]]) -> None:
    """What is left are exactly the addresses outside of the excluded spans, in order and without overlap."""
    network = ip_network("10.56.1.0/24")
    start = int(network.network_address)
    taken = [(ip_address(start + low), ip_address(start + high)) for low, high in excluded]
    left = [(int(low) - start, int(high) - start) for low, high in without(network, taken)]
    expected = [number for number in range(256) if not any(low <= number <= high for low, high in excluded)]
    assert [number for low, high in left for number in range(low, high + 1)] == expected
