"""The node's own port, as the settings read it."""

from __future__ import annotations

import tomllib

from userspace_cni.base.gateways import StaticRoute, read_gateways
from userspace_cni.ovn.management_table import management_table
from userspace_cni.ovn.topology import LogicalNode
from userspace_cni.ovn.topology_values import subnets_of


def test_the_table_is_a_gateway() -> None:
    """With the addresses and the MAC of the logical port, and routes to all pods by the router's port."""
    cluster = subnets_of("10.244.0.0/16,fd00:10:244::/56", "--cluster-subnet")
    subnets = subnets_of("10.244.1.0/24,fd00:10:244:1::/64", "--subnet")
    node = LogicalNode("a-long-name.of.a.node", "x", subnets, "r", True, (), cluster)
    (gateway,) = read_gateways(tomllib.loads(management_table(node, "br-int"))["gateway"], "file")
    assert (gateway.bridge, gateway.port, gateway.logical_port) == ("br-int", "k8s-a-long-name", "k8s-a-long-name.of.a.node")
    assert gateway.addresses == ("10.244.1.2/24", "fd00:10:244:1::2/64")
    assert gateway.mac == "0a:58:0a:f4:01:02"
    assert gateway.routes == (StaticRoute("10.244.0.0/16", "10.244.1.1"), StaticRoute("fd00:10:244::/56", "fd00:10:244:1::1"))


def test_routes_to_services() -> None:
    """By the router's port of the same family; none where the node has no subnet of it."""
    cluster, subnets = subnets_of("10.244.0.0/16", "--cluster-subnet"), subnets_of("10.244.1.0/24", "--subnet")
    node = LogicalNode("n1", "n1", subnets, "r", True, (), cluster)
    services = subnets_of("10.96.0.0/12,fd00:10:96::/112", "--service-subnet")
    (gateway,) = read_gateways(tomllib.loads(management_table(node, "br-int", services))["gateway"], "file")
    assert gateway.routes == (StaticRoute("10.244.0.0/16", "10.244.1.1"), StaticRoute("10.96.0.0/12", "10.244.1.1"))
