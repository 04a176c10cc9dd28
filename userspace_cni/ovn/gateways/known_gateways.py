"""Which gateways the northbound database has: read before one is written beside the others. Only within `look`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Interface, IPv6Interface, ip_interface
from typing import Any

from userspace_cni.ovn.gateways.gateway_notes import AskedGateway, read_notes
from userspace_cni.ovn.gateways.gateway_rows import (
    EVERYTHING,
    GATEWAY_BALANCERS,
    GATEWAYS_SCOPE,
    GatewayPlace,
    LogicalGateway,
    gateway_router,
    gateway_scope,
    join_port,
)
from userspace_cni.ovn.known_cluster import FoundCluster
from userspace_cni.ovn.northbound import NorthboundSession
from userspace_cni.ovn.northbound_tables import LOAD_BALANCER_GROUP, ROUTER, ROUTER_PORT, STATIC_ROUTE
from userspace_cni.ovn.row_view import scope_of
from userspace_cni.ovn.topology import Address, Subnet
from userspace_cni.ovsdb.column_values import value_of


@dataclass(frozen=True)
class FoundGateways:
    """The gateways, by name, and what a further one has to know.

    `taken`: addresses of router ports, by the port's name. `now`: to which address the default routes lead, by version of IP.
    `lacks_group`: the cluster has a group of load balancers, and not that of gateways: an older `init-cluster` made it.
    """

    gateways: Mapping[str, LogicalGateway] = field(default_factory=dict)
    taken: Mapping[str, tuple[IPv4Interface | IPv6Interface, ...]] = field(default_factory=dict)
    now: Mapping[int, str] = field(default_factory=dict)
    lacks_group: bool = False

    def taken_by_others(self, name: str) -> set[Address]:
        """Addresses on the switch `join`, and elsewhere, that the gateway cannot get there."""
        return {each.ip for port, addresses in self.taken.items() if port != join_port(name) for each in addresses}


def find_gateways(session: NorthboundSession, cluster: FoundCluster) -> FoundGateways:
    """The gateways that are marked as ours, as they were asked for, in the cluster that was found."""
    taken = {value_of(row, "name"): _addresses(row) for row in session.rows(ROUTER_PORT)}
    found: dict[str, LogicalGateway] = {}
    for row in session.rows(ROUTER):
        mark = scope_of(row)
        name = mark.removeprefix(gateway_scope(""))
        if mark != gateway_scope(name) or value_of(row, "name") != gateway_router(name):
            continue
        if (asked := read_notes(name, value_of(row, "external_ids"))) is not None:
            found[name] = LogicalGateway(asked, place_of(asked, cluster, taken.get(join_port(name), ())))
    groups = any(key.table == LOAD_BALANCER_GROUP for key in cluster.balancers)
    return FoundGateways(found, taken, _defaults(session), groups and GATEWAY_BALANCERS not in cluster.balancers)


def place_of(asked: AskedGateway, cluster: FoundCluster, own_joins: tuple[IPv4Interface | IPv6Interface, ...]) -> GatewayPlace:
    """Where the gateway is. Pure."""
    node = None if asked.distributed else cluster.nodes.get(asked.name)
    subnets = node.subnets if node is not None else ()
    return GatewayPlace(
        cluster.router, cluster_joins(cluster), own_joins, cluster.subnets, subnets, GATEWAY_BALANCERS in cluster.balancers
    )


def cluster_joins(cluster: FoundCluster) -> tuple[Subnet, ...]:
    """The subnets of the switch `join`."""
    return cluster.joins.get(f"rtoj-{cluster.router}", ())


def _defaults(session: NorthboundSession) -> dict[int, str]:
    hops = {
        value_of(row, "ip_prefix"): value_of(row, "nexthop")
        for row in session.rows(STATIC_ROUTE)
        if scope_of(row) == GATEWAYS_SCOPE
    }
    return {version: hops[every] for version, every in EVERYTHING.items() if every in hops}


def _addresses(row: Any) -> tuple[IPv4Interface | IPv6Interface, ...]:
    """Those that can be read: another's row may have any text."""
    found = []
    for each in value_of(row, "networks"):
        try:
            found.append(ip_interface(each))
        except ValueError:
            continue
    return tuple(found)
