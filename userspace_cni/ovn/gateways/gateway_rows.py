"""The rows of a gateway, which joins the cluster's router to a network outside. Pure.

    router of the cluster ── switch `join` ── jtor-GR_NAME  rtoj-GR_NAME  router GR_NAME  rtoe-GR_NAME ── etor-GR_NAME
                                                     switch ext_NAME  NETWORK_NAME ── a bridge of the chassis, and its NIC

A gateway of a node is a router of one chassis. A distributed one has its port to the outside on one of several chassis, the first
that lives; it is a router of its own, too, because OVN takes load balancers on no router with two such ports. So the cluster's
router translates no addresses, and does not follow what pods send to each other.

A node's pods leave by the gateway of their node: a policy of the cluster's router, and no route by source, because a route to the
cluster's own subnets with a shorter prefix would count less. Others leave by the default gateway. Names are those of
ovn-kubernetes' first tools.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv6Interface
from itertools import product
from typing import Final

from userspace_cni.ovn.desired_rows import DesiredRow, Members, RowKey, Within
from userspace_cni.ovn.gateways.gateway_notes import AskedGateway, write_notes
from userspace_cni.ovn.northbound_tables import (
    HA_CHASSIS,
    HA_GROUP,
    LOAD_BALANCER_GROUP,
    NAT,
    ROUTER,
    ROUTER_POLICY,
    ROUTER_PORT,
    STATIC_ROUTE,
    SWITCH,
    SWITCH_PORT,
)
from userspace_cni.ovn.topology import GATEWAY_GROUP, JOIN_SWITCH, Address, Subnet, mac_of, management_address, router_address

GATEWAY_BALANCERS: Final = RowKey(LOAD_BALANCER_GROUP, GATEWAY_GROUP)
Interface = IPv4Interface | IPv6Interface

GATEWAYS_SCOPE: Final = "gateways"
"""The mark of what all gateways share: the default routes of the cluster's router."""
EVERYTHING: Final[Mapping[int, str]] = {4: "0.0.0.0/0", 6: "::/0"}
"""By version of IP."""
_ANNOUNCED: Final = {"nat-addresses": "router", "exclude-lb-vips-from-garp": "true"}
"""The network outside is told where the gateway's own addresses are, because a distributed one moves. Those of load balancers are
all gateways' together."""
_OF_NODE, _OF_SOURCE = 500, 600
"""Priorities of policies: of a node's subnet, and of a chosen one, to which its prefix length is added. Others' may be above."""
_TO_NODE: Final = 800
"""That of policies to the node itself, where it shares its address with the gateway: above those by which pods leave."""
_FIRST: Final = 100
"""The priority of the first chassis of a distributed gateway."""


@dataclass(frozen=True)
class GatewayPlace:
    """Where a gateway is in the logical network. `joins`: the subnets of the switch `join`; `own_joins`: its addresses there.

    `cluster_subnets`: of all pods. `node_subnets`: of its node's pods. `groups`: there is the group of
    load balancers for gateways.
    """

    router: str
    joins: tuple[Subnet, ...]
    own_joins: tuple[Interface, ...]
    cluster_subnets: tuple[Subnet, ...]
    node_subnets: tuple[Subnet, ...] = ()
    groups: bool = True


@dataclass(frozen=True)
class LogicalGateway:
    """A gateway as it was asked for, in its place."""

    asked: AskedGateway
    place: GatewayPlace

    @property
    def scope(self) -> str:
        return gateway_scope(self.asked.name)

    @property
    def router(self) -> str:
        return gateway_router(self.asked.name)

    def own_join(self, version: int) -> Address | None:
        """Its address on the switch `join`, None where it has no part in this version of IP."""
        if version not in {each.version for each in self.asked.addresses}:
            return None
        return next((each.ip for each in self.place.own_joins if each.version == version), None)


def gateway_scope(name: str) -> str:
    return f"gateway {name}"


def gateway_router(name: str) -> str:
    return f"GR_{name}"


def join_port(name: str) -> str:
    """The gateway's port on the switch `join`."""
    return f"rtoj-{gateway_router(name)}"


def gateway_rows(gateway: LogicalGateway) -> tuple[DesiredRow, ...]:
    """What one gateway has."""
    asked, place = gateway.asked, gateway.place
    router, outside = RowKey(ROUTER, gateway.router), RowKey(SWITCH, f"ext_{asked.name}")
    joined, leading = RowKey(ROUTER_PORT, join_port(asked.name)), RowKey(ROUTER_PORT, f"rtoe-{gateway.router}")
    options = {
        "chassis": None if asked.distributed else asked.chassis[0],
        # so that what came from outside goes back by this router, whichever node the pod is on
        "lb_force_snat_ip": None if asked.distributed else "router_ip",
    }
    return (
        DesiredRow(
            router,
            {
                "options": options,
                "external_ids": write_notes(asked),
                **({"load_balancer_group": Members((GATEWAY_BALANCERS,))} if place.groups else {}),
            },
        ),
        DesiredRow(
            joined,
            {
                "mac": mac_of([each.ip for each in place.own_joins]),
                "networks": [str(each) for each in place.own_joins],
                "options": {"gateway_mtu": str(asked.mtu) if asked.mtu else None},
            },
            Within(router, "ports"),
        ),
        _to_router(f"jtor-{gateway.router}", joined, RowKey(SWITCH, JOIN_SWITCH), {}),
        DesiredRow(outside, {}),
        *_chassis(gateway),
        DesiredRow(leading, _outside_port(gateway), Within(router, "ports")),
        _to_router(f"etor-{gateway.router}", leading, outside, {} if asked.shared else _ANNOUNCED),
        DesiredRow(RowKey(SWITCH_PORT, outside_port(asked)), _link(asked), Within(outside, "ports")),
        *_translations(gateway, router),
        *_routes(gateway, router, leading),
        *_policies(gateway),
    )


def default_rows(router: str, chosen: Mapping[int, LogicalGateway]) -> tuple[DesiredRow, ...]:
    """The default routes of the cluster's router, for what no policy leads elsewhere. `chosen`: by version of IP."""
    return tuple(
        DesiredRow(
            RowKey(STATIC_ROUTE, f"{GATEWAYS_SCOPE} {EVERYTHING[version]}"),
            {"ip_prefix": EVERYTHING[version], "nexthop": str(gateway.own_join(version))},
            Within(RowKey(ROUTER, router), "static_routes"),
            GATEWAYS_SCOPE,
        )
        for version, gateway in sorted(chosen.items())
    )


def choose_defaults(gateways: Sequence[LogicalGateway], now: Mapping[int, str], wanted: str = "") -> dict[int, LogicalGateway]:
    """The default gateway of each version of IP: the one that is `wanted`, else that of `now`, else the first by its name.

    `now`: to which address on the switch `join` the default routes lead.
    """
    chosen = {}
    for version in EVERYTHING:
        able = {each.asked.name: each for each in gateways if each.own_join(version) is not None}
        led = (name for name, each in able.items() if str(each.own_join(version)) == now.get(version))
        name = wanted if wanted in able else next(led, min(able, default=""))
        if name:
            chosen[version] = able[name]
    return chosen


def outside_port(asked: AskedGateway) -> str:
    """The logical port of the network outside: the iface-id of the link to a shared bridge."""
    return f"{asked.bridge}_{asked.name}" if asked.shared else f"{asked.network}_{asked.name}"


def _outside_port(gateway: LogicalGateway) -> dict[str, object]:
    asked = gateway.asked
    columns: dict[str, object] = {
        "mac": asked.shared or mac_of([each.ip for each in asked.addresses]),
        "networks": [str(each) for each in asked.addresses],
    }
    return {**columns, "ha_chassis_group": Members((_group(gateway),))} if asked.distributed else columns


def _group(gateway: LogicalGateway) -> RowKey:
    return RowKey(HA_GROUP, gateway.router)


def _chassis(gateway: LogicalGateway) -> Iterator[DesiredRow]:
    if not gateway.asked.distributed:
        return
    yield DesiredRow(_group(gateway), {})
    for number, name in enumerate(gateway.asked.chassis):
        columns: dict[str, object] = {"chassis_name": name, "priority": _FIRST - number}
        yield DesiredRow(RowKey(HA_CHASSIS, f"{gateway.router} {name}"), columns, Within(_group(gateway), "ha_chassis"))


def _to_router(name: str, port: RowKey, switch: RowKey, options: Mapping[str, str]) -> DesiredRow:
    columns = {"type": "router", "addresses": ["router"], "options": {"router-port": port.name, **options}}
    return DesiredRow(RowKey(SWITCH_PORT, name), columns, Within(switch, "ports"))


def _link(asked: AskedGateway) -> dict[str, object]:
    """The port of the network outside: ovn-controller makes the link; to a shared bridge, who keeps that bridge's flows."""
    if asked.shared:
        return {"type": "", "addresses": ["unknown"], "options": {"requested-chassis": asked.chassis[0], "network_name": None}}
    tag = {"tag": [asked.vlan] if asked.vlan else []}
    options = {"network_name": asked.network, "requested-chassis": None}
    return {"type": "localnet", "addresses": ["unknown"], "options": options, **tag}


def _translations(gateway: LogicalGateway, router: RowKey) -> Iterator[DesiredRow]:
    if not gateway.asked.snat:
        return
    for outside in gateway.asked.addresses:
        for subnet in gateway.place.cluster_subnets:
            if subnet.version == outside.version:
                columns = {"type": "snat", "external_ip": str(outside.ip), "logical_ip": str(subnet)}
                yield DesiredRow(RowKey(NAT, f"{gateway.router} {subnet}"), columns, Within(router, "nat"))


def _routes(gateway: LogicalGateway, router: RowKey, leading: RowKey) -> Iterator[DesiredRow]:
    within = Within(router, "static_routes")
    inner = {each.version: router_address(each) for each in gateway.place.joins}
    for subnet in gateway.place.cluster_subnets:
        if gateway.own_join(subnet.version) is not None:
            columns: dict[str, object] = {"ip_prefix": str(subnet), "nexthop": str(inner[subnet.version])}
            yield DesiredRow(RowKey(STATIC_ROUTE, f"{gateway.router} {subnet}"), columns, within)
    for hop in gateway.asked.next_hops:
        every = EVERYTHING[hop.version]
        columns = {"ip_prefix": every, "nexthop": str(hop), "output_port": [leading.name]}
        yield DesiredRow(RowKey(STATIC_ROUTE, f"{gateway.router} {every}"), columns, within)


def _policies(gateway: LogicalGateway) -> Iterator[DesiredRow]:
    """How what pods send outside comes to this gateway."""
    place = gateway.place
    chosen = [(each, _OF_SOURCE + each.prefixlen) for each in gateway.asked.source_subnets]
    for subnet, priority in [*((each, _OF_NODE) for each in place.node_subnets), *chosen]:
        hop = gateway.own_join(subnet.version)
        if hop is None:
            continue
        ip = f"ip{subnet.version}"
        inner = [each for each in (*place.cluster_subnets, *place.joins) if each.version == subnet.version]
        match = " && ".join([f"{ip}.src == {subnet}", *(f"{ip}.dst != {each}" for each in inner)])
        columns: dict[str, object] = {"priority": priority, "match": match, "action": "reroute", "nexthops": [str(hop)]}
        yield _policy(gateway, subnet, columns)
    if gateway.asked.shared:  # the gateway takes what is for its address as its own, and pods could not reach their node
        for outside, subnet in product(gateway.asked.addresses, place.node_subnets):
            if outside.version == subnet.version:
                match, hop = f"ip{outside.version}.dst == {outside.ip}", management_address(subnet)
                columns = {"priority": _TO_NODE, "match": match, "action": "reroute", "nexthops": [str(hop)]}
                yield _policy(gateway, outside.ip, columns)


def _policy(gateway: LogicalGateway, about: Subnet | Address, columns: dict[str, object]) -> DesiredRow:
    key = RowKey(ROUTER_POLICY, f"{gateway.router} {columns['priority']} {about}")
    return DesiredRow(key, columns, Within(RowKey(ROUTER, gateway.place.router), "policies"))
