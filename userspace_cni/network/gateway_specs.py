"""Plans of the node's gateways, and reasons against them.

A gateway is a port of the node on a bridge, with addresses, routes and perhaps policy rules: one node attachment. Address
translation of all gateways is another one, because its rules are one table. The plan refuses a gateway that conflicts with the
node, before any effect; another program's link, routing table or subnet is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from time import sleep
from typing import TYPE_CHECKING, Any, Final

from userspace_cni.attachment.records import Record, node_container
from userspace_cni.attachment.specs import Plan, Spec
from userspace_cni.attachment.steps import (
    Internal,
    LogicalPort,
    NodeLink,
    NodeRoute,
    OvsPort,
    PolicyRoute,
    Step,
    Steps,
    Translation,
    node_marks,
)
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import NameTaken, StepFailed, Unavailable, UnsupportedField
from userspace_cni.base.port_kinds import Datapath
from userspace_cni.base.vlans import Vlan
from userspace_cni.host.netlink.link_messages import FoundLink
from userspace_cni.host.netlink.node_kernel import NODE_PROTOCOL, Kernel, at_node
from userspace_cni.host.netlink.route_messages import FoundRoute
from userspace_cni.host.node_net.mtu import USUAL, node_mtu
from userspace_cni.network.spec_list import GATEWAY, SETTINGS, TRANSLATION
from userspace_cni.pod.mac import derive_mac

if TYPE_CHECKING:
    from userspace_cni.base.gateways import EgressGateway, Gateway, StaticRoute
    from userspace_cni.node.local_node import LocalNode
    from userspace_cni.switch.ovsdb.switch_reads import BridgeLook

ALL: Final = "all"
"""Name of the one spec of its kind: address translation is of all gateways."""
_LOOK_S: Final = 5.0
_REMOVAL_S: Final = 1.0
"""How long ovs-vswitchd may take to remove the link of a port that is gone."""
_AGAIN_S: Final = 0.02


def specs(gateways: Sequence[tuple[str, Gateway]], complete: Collection[str], node: LocalNode) -> tuple[Spec, ...]:
    """The specs of these gateways, each with its source, in the order in which they are to be met. Raises RecordRefused.

    `complete`: the sources of which all gateways are among these. Those that another source asked for stay, and are translated.
    """
    found = [Spec(GATEWAY, each.port, source, each.said_by, partial(_plan, each, node)) for source, each in gateways]
    wanted = [each for _, each in gateways]
    if any(each.masquerade or each.clamp_mss for each in wanted) or _Translated.of(wanted, node).stays(complete):
        found.append(Spec(TRANSLATION, ALL, SETTINGS, "", _translation(wanted, node)))
    return tuple(found)


def steps_of(gateway: Gateway, store: str, switch_netns: str, bridge: GatewayBridge) -> tuple[Step, ...]:
    """What the gateway is made of, in order. Pure."""
    port = OvsPort(
        bridge=gateway.bridge,
        name=gateway.port,
        interface=Internal(gateway.mac or derive_mac(store, gateway.port), gateway.mtu or bridge.mtu),
        vlan=Vlan(gateway.vlan),
        marks=node_marks(GATEWAY, gateway.port, store),
        foreign_bridge=bridge.is_foreign,
        datapath=bridge.datapath,
        limits=gateway.limits,
        logical=LogicalPort(gateway.logical_port, ids={"ip": _bare(gateway.addresses)}, waits=False)
        if gateway.logical_port
        else None,
    )
    steps: list[Step] = [port, NodeLink(gateway.port, gateway.addresses, switch_netns)]
    steps += [NodeRoute(each.dst, each.gw, switch_netns) for each in gateway.routes]
    egress = gateway.egress_gateway
    if egress:
        steps.append(
            PolicyRoute(
                sources=tuple(str(each) for each in gateway.subnets if each.version == ip_address(egress.via).version),
                via=egress.via,
                table=egress.table,
                priority=egress.priority,
                link=gateway.port if _is_near(egress.via, gateway) else "",
                switch_netns=switch_netns,
            )
        )
    return tuple(steps)


def _bare(addresses: Iterable[str]) -> str:
    """The addresses without prefix lengths, as OVN's control planes look for them."""
    return ",".join(each.partition("/")[0] for each in addresses)


@dataclass(frozen=True)
class GatewayBridge:
    """What matters of a gateway's bridge. `is_foreign`: attachments of pods neither made it nor may make it again.

    `mtu`: of a gateway that says none. It has to ask for one: else OVS gives its link the smallest of the bridge's other ports.
    """

    is_foreign: bool = False
    datapath: Datapath = "netdev"
    mtu: int = USUAL


def _plan(gateway: Gateway, node: LocalNode, record: Record | None) -> tuple[Step, ...]:
    """The steps, after a look at switch and kernel. Raises UserspaceError for what stands against the gateway."""
    from userspace_cni.switch.ovsdb.rows.bridge_row import missing_bridge_of_ovn
    from userspace_cni.switch.ovsdb.switch_reads import look_at_bridge

    deadline = Deadline.after(_LOOK_S)
    look: Callable[[Any], BridgeLook] = partial(look_at_bridge, name=gateway.bridge)

    def known(found: BridgeLook) -> bool:
        """Whether the replica is enough: a new gateway must not miss a bridge, or a NIC of it, that has just been added."""
        return record is not None or bool(found.outward)

    found = node.switch.ports.look(look, {}, f"bridge {gateway.bridge}: looking at it", deadline, enough=known)
    is_of_ovn = gateway.bridge == node.installation.settings.ovn_bridge
    is_sole = gateway.sole or (
        is_of_ovn and gateway.logical_port
    )  # a logical port is on one chassis alone; tunnels lead to others
    if found.outward and not is_sole:
        raise UnsupportedField(
            f"bridge {gateway.bridge} leads to other machines by {', '.join(found.outward)}, and other nodes would have the "
            f"address of gateway {gateway.port}, too",
            "'sole = true' says that only this node has it; where a router of the network serves the pods, no gateway is needed",
        )
    if not found.maker and gateway.bridge in node.switch.provider_bridges.named:
        raise Unavailable(
            f"gateway {gateway.port}: bridge {gateway.bridge} of a provider network is not there yet",
            "made for the gateway it would be in the way of the uplink; 'userspace-cni network' says what that lacks",
        )
    if is_of_ovn and not found.maker:
        message, details = missing_bridge_of_ovn(gateway.bridge)
        raise Unavailable(f"gateway {gateway.port}: {message}", details)
    former = record.port if record else None
    again = former is not None and former.bridge == gateway.bridge and former.foreign_bridge
    is_foreign = found.maker in ("node", "another") or is_of_ovn
    mtu = gateway.mtu or (found.mtu if is_foreign else 0) or node_mtu(node.installation.settings, node.installation.root).link
    bridge = GatewayBridge(is_foreign or (found.maker == "" and again), found.datapath, mtu)
    steps = steps_of(gateway, node.store.journal.identity(), node.installation.settings.switch_netns, bridge)
    if record and record.state == "ready" and record.boot_id == node.store.boot_id() and record.steps == steps:
        return steps  # what others take from it by now is no reason against what is there
    mine = former is not None and former.name == gateway.port
    marks = node.switch.of_node(deadline).get(gateway.port, {})
    marked = marks.get("spec") == node_marks(GATEWAY, gateway.port, "")["spec"]
    here = (
        node.installation.settings.switch_netns,
        node.installation.root,
        f"gateway {gateway.port}: looking at the node's network",
    )
    at_node(*here, partial(_require_free, gateway, record, is_mine=mine or marked))
    return steps


def _require_free(gateway: Gateway, record: Record | None, kernel: Kernel, *, is_mine: bool) -> None:
    """Raise UserspaceError unless the node's own network has room for the gateway. `is_mine`: its link, if there is one."""
    links = kernel.links()
    if not is_mine and gateway.port in links:
        links = _without(gateway.port, kernel)
    link = links.get(gateway.port)
    if link and not is_mine:
        raise NameTaken(
            f"gateway {gateway.port}: a link of that name exists, and is not ours",
            f"ip link show {gateway.port}; 'port' names it",
        )
    names = {each.index: name for name, each in links.items()}
    for found in kernel.addresses():
        if link is None or found.index != link.index:
            _require_apart(gateway, found.interface.network, f"{found.interface} of link {names.get(found.index)}")
    former = Steps(record.steps if record else ())
    own_routes = {each.dst for each in former.node_routes}
    routes = kernel.routes()
    for route in routes:
        is_ours = (link and route.index == link.index) or (route.protocol == NODE_PROTOCOL and str(route.route.dst) in own_routes)
        inside = any(_is_inside(route.route.dst, subnet) for subnet in gateway.subnets)
        if inside and not is_ours:
            raise StepFailed(
                f"gateway {gateway.port}: the node has a route to {route.route.dst}, which is in its subnet",
                f"ip route show {route.route.dst}",
            )
    # a route that is just as ours would be has lost its record
    own_routes |= {each.dst for each in gateway.routes if _has_ours(routes, each)}
    taken = {dst for each in routes if (dst := str(each.route.dst)) not in own_routes or each.protocol != NODE_PROTOCOL}
    for wanted in gateway.routes:
        if wanted.dst in taken:
            raise StepFailed(f"gateway {gateway.port}: the node has another route to {wanted.dst}", f"ip route show {wanted.dst}")
        _require_neighbour(f"gateway {gateway.port}: the gw {wanted.gw} of its route", wanted.gw, gateway, kernel)
    if gateway.egress_gateway:
        _require_way(gateway, gateway.egress_gateway, former, kernel)


def _has_ours(routes: Sequence[FoundRoute], wanted: StaticRoute) -> bool:
    way = NODE_PROTOCOL, wanted.dst, wanted.gw
    return any((each.protocol, str(each.route.dst), str(each.route.gw or "")) == way for each in routes)


def _without(port: str, kernel: Kernel) -> dict[str, FoundLink]:
    """The links, once ovs-vswitchd has removed the one of a port that was just deleted; with it if it stays."""
    end = Deadline.after(_REMOVAL_S)
    while port in (links := kernel.links()) and end.remaining():
        sleep(min(_AGAIN_S, end.remaining()))
    return links


def _require_apart(gateway: Gateway, network: Any, whose: str) -> None:
    for subnet in gateway.subnets:
        if subnet.overlaps(network):
            raise StepFailed(
                f"gateway {gateway.port}: its subnet {subnet} overlaps {whose}", "ip address; give it another subnet"
            )


def _require_way(gateway: Gateway, egress: EgressGateway, former: Steps, kernel: Kernel) -> None:
    """Raise StepFailed unless the egress gateway is a neighbour, and its routing table free."""
    if all(each.table != egress.table for each in former.policy_routes):
        routes, rules = kernel.routes(table=egress.table), kernel.rules()
        if routes or any(each.table == egress.table for each in rules):
            raise StepFailed(
                f"gateway {gateway.port}: routing table {egress.table} is in use",
                f"ip route show table {egress.table}; ip rule; 'egress_gateway.table' has to be one that is free",
            )
    _require_neighbour(f"gateway {gateway.port}: its egress gateway {egress.via}", egress.via, gateway, kernel)


def _require_neighbour(what: str, address: str, gateway: Gateway, kernel: Kernel) -> None:
    """Raise StepFailed unless the address is of one of the gateway's subnets, or of a network that the node is in."""
    if _is_near(address, gateway):
        return
    way = kernel.way_to(address)
    if way is None or way.route.gw:
        why = f"the way there leads over {way.route.gw}" if way else "the node has no route there, or it is its own address"
        raise StepFailed(f"{what} is not a neighbour: {why}", f"ip route get {address}")


def _is_near(address: str, gateway: Gateway) -> bool:
    return any(ip_address(address) in each for each in gateway.subnets)


def _is_inside(network: Any, subnet: Any) -> bool:
    return bool(network.version == subnet.version and network.subnet_of(subnet))


@dataclass(frozen=True)
class _Translated:
    """What address translation is to be of: by port, its part in the table.

    `left`: the source of each gateway that has a part and of which only the record tells.
    """

    parts: Mapping[str, Mapping[str, Any]]
    left: frozenset[str]

    def stays(self, complete: Collection[str]) -> bool:
        """Whether a gateway has a part that no complete list lacks."""
        return not self.left <= frozenset(complete)

    @classmethod
    def of(cls, gateways: Sequence[Gateway], node: LocalNode) -> _Translated:
        """The gateways that the node has now; of one that differs from its spec, or has none, what was recorded of it."""
        records = node.store.journal.node_records()
        container = node_container(GATEWAY)
        there = {each.ifname: each for each in records if each.container_id == container and each.state != "deleting"}
        table = next((each for each in records if each.container_id == node_container(TRANSLATION)), None)
        step = table.translation if table else None
        former = {each["port"]: each for each in step.gateways} if step else {}
        wanted = {each.port: each for each in gateways}
        parts: dict[str, Mapping[str, Any]] = {}
        left = set()
        for port, record in there.items():
            gateway = wanted.get(port)
            if gateway and _is_as_desired(record, gateway):
                parts[port] = part_of(gateway)
            elif port in former:
                parts[port] = former[port]
                left |= set() if gateway else {record.network}
        return cls({port: parts[port] for port in sorted(parts)}, frozenset(left))


def part_of(gateway: Gateway) -> Mapping[str, Any]:
    """A gateway's part in Translation.gateways. Pure."""
    return {
        "port": gateway.port,
        "subnets": [str(each) for each in gateway.subnets],
        "masquerade": gateway.masquerade,
        "kept": list(gateway.not_masqueraded),
        "clamp_mss": gateway.clamp_mss,
    }


def _translation(gateways: Sequence[Gateway], node: LocalNode) -> Plan:
    def plan(_: Record | None) -> tuple[Step, ...]:
        parts = tuple(_Translated.of(gateways, node).parts.values())
        return (Translation(node.store.journal.identity(), parts, node.installation.settings.switch_netns),)

    return plan


def _is_as_desired(record: Record, gateway: Gateway) -> bool:
    link = record.node_link
    return record.state == "ready" and link is not None and link.addresses == gateway.addresses
