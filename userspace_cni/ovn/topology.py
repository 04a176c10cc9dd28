"""The logical network of a cluster and of each of its nodes, as rows that the northbound database is to have. Pure.

    router  rtoj-ROUTER ── jtor-ROUTER  switch `join`           (gateways are joined here)
            rtos-NODE   ── stor-NODE    switch NODE ── k8s-NODE (the node itself: its management port)
                                                    ── pods' ports

Names and external_ids are those of ovn-kubernetes' first tools, by which people and programs find them. MAC addresses follow from
the addresses, as in its later ones, so that no two ports on the router have one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final

from userspace_cni.ovn.desired_rows import DesiredRow, Members, RowKey, Within
from userspace_cni.ovn.northbound_tables import (
    CONNECTION,
    GLOBAL,
    LOAD_BALANCER,
    LOAD_BALANCER_GROUP,
    ROUTER,
    ROUTER_PORT,
    SWITCH,
    SWITCH_PORT,
)

Address = IPv4Address | IPv6Address
Subnet = IPv4Network | IPv6Network

CLUSTER_SCOPE: Final = "cluster"
DEFAULT_ROUTER: Final = "ovn_cluster_router"
NODE_LENGTH_LEFT: Final = 3
"""Those of a node's: router and node have the first two addresses, and the first and the last one are no machine's."""
JOIN_SWITCH: Final = "join"
MANAGEMENT_PREFIX: Final = "k8s-"
"""Before a node's name: its management port."""
CLUSTER_ROUTER: Final[Mapping[str, str]] = {"k8s-cluster-router": "yes"}
"""By which the tools find the router."""
HAIRPIN_SOURCES: Final = ("169.254.169.5", "fd69::5")
"""From whom a pod gets what it has sent to itself by a Service: the load balancers' `hairpin_snat_ip`. No port may use it."""
SUBNETS_KEY: Final = "k8s-cluster-subnets"
"""The key of the router's external_ids with the cluster's subnets, which nodes need."""
NODE_KEY: Final = "k8s-node"
"""The key of a node's switch with its name as it was given."""
OVNS_LENGTH: Final = 64
"""Of an `ipv6_prefix` that says none. OVN's own allocation, which is not used here, gives addresses of no other length."""
CLUSTER_GROUP: Final = "cluster-load-balancers"
"""The load balancers of Services' own addresses: every node's switch has them."""
GATEWAY_GROUP: Final = "gateway-load-balancers"
"""Those of addresses by which Services are reached from outside: every gateway's router has them, and the nodes' switches."""
_PROTOCOLS: Final = ("tcp", "udp")
_OWN_MAC: Final = "0a:58"


@dataclass(frozen=True)
class LogicalCluster:
    """What the cluster has once. `subnets`: of all pods, one for each version of IP; `joins`: of the switch `join`, the same.

    `pair`: two load balancers, of TCP and UDP, instead of groups: for servers without groups, and as the first tools made them.
    `connections`: where the northbound database is to listen beside its socket, as "ptcp:6641".
    """

    subnets: tuple[Subnet, ...]
    joins: tuple[Subnet, ...]
    router: str = DEFAULT_ROUTER
    pair: bool = False
    connections: tuple[str, ...] = ()

    @property
    def balancers(self) -> tuple[RowKey, ...]:
        return balancer_keys(self.router, pair=self.pair)


@dataclass(frozen=True)
class LogicalNode:
    """What a node has. `name` in small letters; `given_name` as it was given. `subnets`: of its pods, by version of IP.

    `management`: it has a port of its own on its switch. `balancers`: what the cluster has, `LogicalCluster.balancers`.
    `cluster_subnets`: of all pods, () where they are not known. `chassis`: what its own port is bound to alone, "" to leave that.
    """

    name: str
    given_name: str
    subnets: tuple[Subnet, ...]
    router: str
    management: bool
    balancers: tuple[RowKey, ...]
    cluster_subnets: tuple[Subnet, ...] = ()
    chassis: str = ""

    @property
    def scope(self) -> str:
        return node_scope(self.name)


def node_scope(name: str) -> str:
    return f"node {name}"


def balancer_keys(router: str, *, pair: bool) -> tuple[RowKey, ...]:
    """The load balancers, or their groups, that every node's switch has."""
    if not pair:
        return tuple(RowKey(LOAD_BALANCER_GROUP, name) for name in (CLUSTER_GROUP, GATEWAY_GROUP))
    return tuple(RowKey(LOAD_BALANCER, f"{router}_{protocol}") for protocol in _PROTOCOLS)


def router_address(subnet: Subnet) -> Address:
    """The router's own: the first that a machine can have."""
    return subnet.network_address + 1


def management_address(subnet: Subnet) -> Address:
    return subnet.network_address + 2


def with_length(address: Address, subnet: Subnet) -> str:
    return f"{address}/{subnet.prefixlen}"


def mac_of(addresses: Sequence[Address]) -> str:
    """The MAC of a port with these addresses: it has the octets of IPv4's, else some that follow from IPv6's."""
    first = min(addresses, key=lambda each: each.version)
    octets = first.packed if first.version == 4 else hashlib.sha256(first.packed).digest()[:4]
    return f"{_OWN_MAC}:{octets.hex(':')}"


def cluster_rows(cluster: LogicalCluster) -> tuple[DesiredRow, ...]:
    """What the cluster has once: a router, the switch `join`, and what Services will be written into."""
    router, join = RowKey(ROUTER, cluster.router), RowKey(SWITCH, JOIN_SWITCH)
    routed = RowKey(ROUTER_PORT, f"rtoj-{cluster.router}")
    subnets = ",".join(map(str, cluster.subnets))
    return (
        *_balancers(cluster),
        DesiredRow(router, {"external_ids": {**CLUSTER_ROUTER, SUBNETS_KEY: subnets}}),
        DesiredRow(join, {}),
        DesiredRow(routed, _router_port(cluster.joins, {"connect_to_join": "yes"}), Within(router, "ports")),
        DesiredRow(RowKey(SWITCH_PORT, f"jtor-{cluster.router}"), _to_router(routed), Within(join, "ports")),
        *(
            DesiredRow(RowKey(CONNECTION, target), {"target": target}, Within(RowKey(GLOBAL, ""), "connections"))
            for target in cluster.connections
        ),
    )


def node_rows(node: LogicalNode) -> tuple[DesiredRow, ...]:
    """What a node has: a switch, its ends of the way to the router, and the node's own port.

    The node's address is kept from pods from the start, and not when its port comes: a pod may be there before.
    """
    switch, routed = RowKey(SWITCH, node.name), RowKey(ROUTER_PORT, f"rtos-{node.name}")
    reached = [(router_address(each), each) for each in node.subnets]
    config: dict[str, str | None] = {"subnet": None, "exclude_ips": None, "ipv6_prefix": None}
    for each in node.subnets:
        if each.version == 4:
            config |= {"subnet": str(each), "exclude_ips": str(management_address(each))}
        else:
            config["ipv6_prefix"] = str(each.network_address if each.prefixlen == OVNS_LENGTH else each)
    ids = {"gateway_ip": with_length(*reached[0]), NODE_KEY: node.given_name}
    return (
        DesiredRow(
            switch,
            {
                "other_config": config,
                "external_ids": ids,
                **{_balancer_column(keys[0]): Members(keys) for keys in (node.balancers,) if keys},
            },
        ),
        DesiredRow(routed, _router_port(node.subnets, {}), Within(RowKey(ROUTER, node.router), "ports")),
        DesiredRow(RowKey(SWITCH_PORT, f"stor-{node.name}"), _to_router(routed), Within(switch, "ports")),
        *([_management(node, switch)] if node.management else []),
    )


def management_port(node: str) -> str:
    """The logical port of the node itself."""
    return f"{MANAGEMENT_PREFIX}{node}"


def _management(node: LogicalNode, switch: RowKey) -> DesiredRow:
    own = [management_address(each) for each in node.subnets]
    addresses = " ".join([mac_of(own), *map(str, own)])
    bound = {"options": {"requested-chassis": node.chassis}} if node.chassis else {}
    return DesiredRow(
        RowKey(SWITCH_PORT, management_port(node.name)), {"addresses": [addresses], **bound}, Within(switch, "ports")
    )


def _balancers(cluster: LogicalCluster) -> tuple[DesiredRow, ...]:
    if not cluster.pair:
        return tuple(DesiredRow(each, {}) for each in cluster.balancers)
    return tuple(
        DesiredRow(key, {"protocol": [protocol], "external_ids": {f"k8s-cluster-lb-{protocol}": "yes"}})
        for key, protocol in zip(cluster.balancers, _PROTOCOLS, strict=True)
    )


def _balancer_column(key: RowKey) -> str:
    return "load_balancer_group" if key.table == LOAD_BALANCER_GROUP else "load_balancer"


def _router_port(subnets: Sequence[Subnet], ids: Mapping[str, str]) -> dict[str, object]:
    own = [router_address(each) for each in subnets]
    networks = [with_length(address, subnet) for address, subnet in zip(own, subnets, strict=True)]
    return {"mac": mac_of(own), "networks": networks, **({"external_ids": dict(ids)} if ids else {})}


def _to_router(port: RowKey) -> dict[str, object]:
    return {"type": "router", "addresses": ["router"], "options": {"router-port": port.name}}
