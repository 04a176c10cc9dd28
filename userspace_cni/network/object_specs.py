"""Specs of this node from objects of the API: ProviderNetworks, Vlans and Subnets become bridges with uplinks, and gateways.
Pure.

Cluster administrators write these objects, and root serves them: each value is checked by what checks the settings. An invalid
object is refused alone, by name, and the node keeps what it has of it. Until two complete lists have come, nothing counts as
gone.

A refused Subnet is reported under its gateway, and a refused Vlan also under its provider network, which then stays as it is: a
trunk that loses a VLAN, or without Vlans carries all, would be worse. For the same reason a provider network says whether all
Vlans are known: their absence never makes an uplink carry more (`network.provider_specs`).
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Any, Final, get_args

from userspace_cni.base import gateways
from userspace_cni.base.errors import InvalidConfig, UserspaceError
from userspace_cni.base.gateways import EgressGateway, Gateway, StaticRoute, gateway_port
from userspace_cni.base.object_fields import known_fields
from userspace_cni.base.provider_networks import (
    Bond,
    NicPort,
    ProviderNetwork,
    read_move_addresses,
    require_possible,
    usual_bridge,
)
from userspace_cni.base.subnets import Address, Subnet, first_address, node_ranges, read_subnet, read_vlan
from userspace_cni.kube.resources import VLANS
from userspace_cni.network.spec_list import GATEWAY, OBJECTS, PROVIDER_NETWORK, VLAN, Desired
from userspace_cni.node.objects import KeptObject, KnownObjects

Refused = dict[tuple[str, str], str]
Network = IPv4Network | IPv6Network
_Wire = tuple[int | None, str]
"""Tag (None for untagged frames) and provider network of a Vlan."""

_NETWORK_FIELDS: Final = frozenset(
    {"defaultInterface", "customInterfaces", "bond", "excludeNodes", "nodeSelector", "moveAddresses", "giveBackAfterSeconds"}
    | {"port", "mtu", "rxQueues", "vlanInterfaces"}
)
_NOT_BUILT: Final[Mapping[str, Sequence[Any]]] = {
    "exchangeLinkName": (),
    "preserveVlanInterfaces": (),
    "autoCreateVlanSubinterfaces": (),
}
_PLAIN: Final[Mapping[str, tuple[str, type | tuple[type, ...]]]] = {
    "port": ("port", str),
    "mtu": ("mtu", int),
    "rxQueues": ("rx_queues", int),
    "giveBackAfterSeconds": ("give_back_after_s", (int, float)),
}
"""Fields that are taken over as they are, each with its name here and its type."""
_RIVALS_SHOWN: Final = 5
_OPERATORS: Final[Mapping[str, Callable[[str | None, Sequence[str]], bool]]] = {
    "In": lambda value, values: value in values,
    "NotIn": lambda value, values: value not in values,
    "Exists": lambda value, _: value is not None,
    "DoesNotExist": lambda value, _: value is None,
}
"""Of a label selector: whether a label's value, None without the label, meets a condition."""


@dataclass(frozen=True)
class _KnownSubnet:
    """A Subnet that was read, with what it says of gateways."""

    subnet: Subnet
    created: str
    spec: Mapping[str, Any]
    ranges: Any


def read_desired(seen: KnownObjects) -> Desired:
    """What the objects spec of this node. It is complete when two lists have told them all, and its own Node is known."""
    if seen.own is None or seen.provider_networks is None or seen.vlans is None:
        return Desired(OBJECTS, complete=False)
    refused: Refused = {}
    wires = _wires(seen.vlans, refused)
    networks = tuple(_networks(seen, wires, refused))
    made = () if seen.subnets is None else tuple(_gateways(seen, wires, refused))
    return Desired(OBJECTS, seen.subnets is not None and not seen.unconfirmed, networks, made, refused)


# -- Vlans --------------------------------------------------------------------------------------------------------------------


def _wires(vlans: Mapping[str, KeptObject], refused: Refused) -> Mapping[str, _Wire]:
    found: dict[str, _Wire] = {}
    names: dict[_Wire, list[str]] = defaultdict(list)
    for name, kept in sorted(vlans.items()):
        try:
            wire = read_vlan(name, kept.spec)
        except UserspaceError as error:
            refused[VLAN, name] = str(error)
            provider = kept.spec.get("provider") if isinstance(kept.spec, dict) else None
            if isinstance(provider, str):
                refused.setdefault((PROVIDER_NETWORK, provider), str(error))
            continue
        found[name] = wire
        names[wire].append(name)
    for (tag, provider), rivals in names.items():
        for name in rivals if len(rivals) > 1 else ():
            others = ", ".join(f"'{each}'" for each in rivals[:_RIVALS_SHOWN] if each != name)
            refused[VLAN, name] = f"Vlan '{name}': {tag or 0} in provider network {provider!r} is that of Vlan {others}, too"
    return found


# -- ProviderNetworks ---------------------------------------------------------------------------------------------------------


def _networks(seen: KnownObjects, wires: Mapping[str, _Wire], refused: Refused) -> Iterable[ProviderNetwork]:
    vlans: dict[str, set[int]] = defaultdict(set)
    for tag, provider in wires.values():
        vlans[provider].add(tag or 0)
    for name, kept in sorted((seen.provider_networks or {}).items()):
        try:
            network = _network(name, kept, seen, tuple(sorted(vlans[name])))
        except UserspaceError as error:
            refused[PROVIDER_NETWORK, name] = str(error)
            continue
        if network is None:
            refused.pop((PROVIDER_NETWORK, name), None)  # its Vlan is refused, but it is not for this node
        elif (PROVIDER_NETWORK, name) not in refused:
            yield network
    for key in [key for key in refused if key[0] == PROVIDER_NETWORK and key[1] not in (seen.provider_networks or {})]:
        del refused[key]  # its Vlan is told; another source may spec for a network of that name


def _network(name: str, kept: KeptObject, seen: KnownObjects, vlans: tuple[int, ...]) -> ProviderNetwork | None:
    """What the object specs of this node, None for nothing. Raises InvalidConfig."""
    where = f"ProviderNetwork '{name}'"
    spec = known_fields(kept.spec, _NETWORK_FIELDS, _NOT_BUILT, f"{where}: 'spec'")
    if not _selects(spec, seen, where):
        return None
    values: dict[str, Any] = {}
    for key, (mine, kind) in _PLAIN.items():
        value = spec.get(key)
        if value is None:
            continue
        if not isinstance(value, kind) or isinstance(value, bool) or (key == "port" and value not in get_args(NicPort)):
            raise InvalidConfig(f"{where}: '{key}' is {value!r}", "docs/node-network.md has the fields")
        values[mine] = value
    if spec.get("moveAddresses") is not None:
        values["move_addresses"] = read_move_addresses(spec["moveAddresses"], f"{where}: 'moveAddresses'")
    network = ProviderNetwork(
        name,
        **_uplink(spec, seen.node, where),
        **values,
        vlans=vlans,
        vlans_by="some objects" if VLANS in seen.unconfirmed else "objects",
        vlan_interfaces=_texts(spec.get("vlanInterfaces"), f"{where}: 'vlanInterfaces'"),
        said_by=where,
    )
    return require_possible(network)


def _selects(spec: Mapping[str, Any], seen: KnownObjects, where: str) -> bool:
    """Whether the object is for this node: its selector alone decides, if it has one. Raises InvalidConfig."""
    selector = spec.get("nodeSelector")
    if selector is None:
        return seen.node not in _texts(spec.get("excludeNodes"), f"{where}: 'excludeNodes'")
    where = f"{where}: 'nodeSelector'"
    known_fields(selector, ("matchLabels", "matchExpressions"), {}, where)
    labels = seen.own.labels if seen.own else {}
    wanted = selector.get("matchLabels") or {}
    if not isinstance(wanted, dict):
        raise InvalidConfig(f"{where} has matchLabels {wanted!r}", "it must be an object of texts")
    met = [labels.get(name) == value for name, value in wanted.items()]
    for number, each in enumerate(_items(selector.get("matchExpressions"), where), 1):
        known_fields(each, ("key", "operator", "values"), {}, f"{where}: matchExpressions number {number}")
        operator = _OPERATORS.get(str(each.get("operator")))
        if not operator or not isinstance(each.get("key"), str):
            raise InvalidConfig(f"{where} has {each!r}", f"'operator' can be {', '.join(_OPERATORS)}, and 'key' is a label")
        met.append(operator(labels.get(each["key"]), _texts(each.get("values"), f"{where}: 'values'")))
    return all(met)


def _uplink(spec: Mapping[str, Any], node: str, where: str) -> dict[str, Any]:
    """Interface or bond of this node: the first custom one that names it, else that of all. Raises InvalidConfig."""
    customs = _items(spec.get("customInterfaces"), f"{where}: 'customInterfaces'")
    for number, each in enumerate(customs, 1):
        here = f"{where}: customInterfaces number {number}"
        known_fields(each, ("interface", "nodes"), {}, here)
        if node in _texts(each.get("nodes"), f"{here}: 'nodes'"):
            return {"interface": _text(each, "interface", here)}
    default, bond = _text(spec, "defaultInterface", where), spec.get("bond")
    if not bond:
        if not default:
            raise InvalidConfig(f"{where} has no interface for this node", "see its defaultInterface, customInterfaces and bond")
        return {"interface": default}
    if default:
        raise InvalidConfig(f"{where} has both 'defaultInterface' and 'bond'", "the bond is in the place of the interface")
    here = f"{where}: 'bond'"
    known_fields(bond, ("members", "mode", "lacp", "updelayMs"), {}, here)
    updelay = bond.get("updelayMs", 0)
    if not isinstance(updelay, int) or isinstance(updelay, bool):
        raise InvalidConfig(f"{here}: 'updelayMs' is {updelay!r}", "it must be a whole number")
    said = {key: _text(bond, key, here) for key in ("mode", "lacp") if bond.get(key)}
    members = _texts(bond.get("members"), f"{here}: 'members'")
    return {"bond": Bond(members, **said, updelay_ms=updelay)}  # type: ignore[arg-type] # require_possible checks the values


# -- Subnets ------------------------------------------------------------------------------------------------------------------


def _gateways(seen: KnownObjects, wires: Mapping[str, _Wire], refused: Refused) -> Iterable[Gateway]:
    known: list[_KnownSubnet] = []
    for name, kept in (seen.subnets or {}).items():
        try:
            known.append(_KnownSubnet(read_subnet(name, kept.spec), kept.created, kept.spec, kept.ranges))
        except UserspaceError as error:
            refused[GATEWAY, gateway_port(name)] = str(error)
    known.sort(key=lambda each: (each.created, each.subnet.name))
    usable = _apart(known, _addresses(seen, known), refused)
    blocks = tuple(sorted({str(cidr) for each in usable for cidr in each.subnet.cidrs}))
    for each in usable:
        try:
            gateway = _gateway(each, seen.node, wires, blocks)
        except UserspaceError as error:
            refused[GATEWAY, gateway_port(each.subnet.name)] = str(error)
            continue
        if gateway:
            yield gateway


def _addresses(seen: KnownObjects, known: Iterable[_KnownSubnet]) -> frozenset[str]:
    """Addresses of nodes: this one's, and those by which others reach their ranges."""
    entries = (entry for each in known if isinstance(each.ranges, list) for entry in each.ranges)
    others = {str(entry.get("address") or "") for entry in entries if isinstance(entry, dict)}
    return frozenset({*(seen.own.addresses if seen.own else ()), *others} - {""})


def _apart(known: Sequence[_KnownSubnet], nodes: Iterable[str], refused: Refused) -> list[_KnownSubnet]:
    """The Subnets that overlap neither an earlier one nor a node's address; the others are refused."""
    hosts = sorted((each.version, int(each), each) for each in map(ip_address, filter(_is_address, nodes)))
    taken: dict[int, list[tuple[int, int, str]]] = {4: [], 6: []}
    usable = []
    for each in known:
        name, cidrs = each.subnet.name, each.subnet.cidrs
        host = next((host for cidr in cidrs for host in _within(cidr, hosts) if not _is_spared(host, each.subnet)), None)
        rival = next((rival for cidr in cidrs if (rival := _rival(cidr, taken[cidr.version]))), None)
        if host or rival:
            what = f"overlaps that of Subnet '{rival}'" if rival else f"holds {host}, the address of a node"
            refused[GATEWAY, gateway_port(name)] = f"Subnet '{name}': 'cidrBlock' {what}"
            continue
        for cidr in cidrs:
            insort(taken[cidr.version], (int(cidr.network_address), int(cidr.broadcast_address), name))
        usable.append(each)
    return usable


def _within(cidr: Network, hosts: Sequence[tuple[int, int, Address]]) -> Iterator[Address]:
    """The addresses that are in the network, of some that are sorted."""
    version, first, last = int(cidr.version), int(cidr.network_address), int(cidr.broadcast_address)
    at = bisect_left(hosts, (version, first, cidr.network_address))
    while at < len(hosts) and hosts[at][0] == version and hosts[at][1] <= last:
        yield hosts[at][2]
        at += 1


def _is_spared(host: Any, subnet: Subnet) -> bool:
    """Whether a node's address may be in the Subnet: nodes and pods on one wire, and no pod gets it."""
    spans = (span for span in subnet.excluded if span[0].version == host.version)
    return not subnet.gateway_type and any(int(first) <= int(host) <= int(last) for first, last in spans)


def _rival(cidr: Network, taken: Sequence[tuple[int, int, str]]) -> str:
    """Which of the spans, which are apart and sorted, has an address of the network; "" for none."""
    first, last = int(cidr.network_address), int(cidr.broadcast_address)
    before = bisect_right(taken, last, key=lambda span: span[0])
    return taken[before - 1][2] if before and taken[before - 1][1] >= first else ""


def _gateway(known: _KnownSubnet, node: str, wires: Mapping[str, _Wire], blocks: tuple[str, ...]) -> Gateway | None:
    """The gateway that this node is to be for the Subnet, None for none. Raises UserspaceError."""
    subnet, where = known.subnet, f"Subnet '{known.subnet.name}'"
    bridge, tag = _place(subnet, wires, where)
    if not subnet.gateway_type:
        return None
    if not bridge:
        raise InvalidConfig(f"{where}: 'gatewayType' needs a 'bridge' or a 'vlan'", "it is where the gateway's port is made")
    masquerade = known.spec.get("natOutgoing") or False
    if not isinstance(masquerade, bool):
        raise InvalidConfig(f"{where}: 'natOutgoing' is {masquerade!r}", "it must be true or false")
    distributed = subnet.gateway_type == "distributed"
    if not distributed and _text(known.spec, "gatewayNode", where) != node:
        _require_one_node(known.spec, where)
        return None
    gateway = Gateway(
        port=gateway_port(subnet.name),
        bridge=bridge,
        addresses=_of_range(known, node, where) if distributed else _of_all(subnet, where),
        vlan=tag,
        mtu=subnet.mtu,
        masquerade=masquerade,
        not_masqueraded=blocks if masquerade else (),
        routes=_routes(known, node, where) if distributed else (),
        sole=not distributed,
        egress_gateway=_egress(known.spec, masquerade, where),
        said_by=where,
    )
    return gateways.require_valid(gateway)


def _place(subnet: Subnet, wires: Mapping[str, _Wire], where: str) -> tuple[str, int | None]:
    """Bridge ("" where the Subnet names none) and VLAN. Raises InvalidConfig."""
    if not subnet.vlan:
        return subnet.bridge, None
    if subnet.bridge:
        raise InvalidConfig(f"{where} has both 'bridge' and 'vlan'", "a Vlan is on the bridge of its provider network")
    if subnet.vlan not in wires:
        raise InvalidConfig(
            f"{where}: 'vlan' is {subnet.vlan!r}, and there is no such Vlan that can be used", "kubectl get uvlan"
        )
    tag, provider = wires[subnet.vlan]
    return usual_bridge(provider), tag


def _require_one_node(spec: Mapping[str, Any], where: str) -> None:
    said = _text(spec, "gatewayNode", where)
    if not said or re.search(r"[,:\s]", said):
        what = f"'gatewayNode' is {said!r}" if said else "'gatewayType' centralized has no 'gatewayNode'"
        raise InvalidConfig(f"{where}: {what}", "it must be the name of one node; several are not built")


def _of_range(known: _KnownSubnet, node: str, where: str) -> tuple[str, ...]:
    """The first address of each range of the node. Raises InvalidConfig, also while it has none."""
    if not known.subnet.per_node_prefix:
        raise InvalidConfig(
            f"{where}: 'gatewayType' distributed needs 'perNodePrefix'", "each node is the gateway of its own range"
        )
    ranges = node_ranges(known.subnet, {"nodeRanges": known.ranges}, node)
    if not ranges:
        raise InvalidConfig(
            f"{where} has no range for this node yet", "the controller gives it one: does userspace-cni controller run?"
        )
    return tuple(gateways.interface(f"{first_address(each)}/{each.prefixlen}", f"{where}: range") for each in ranges)


def _of_all(subnet: Subnet, where: str) -> tuple[str, ...]:
    """The Subnet's gateways, each with the prefix length of its network. Raises InvalidConfig."""
    if not subnet.gateways:
        raise InvalidConfig(f"{where}: 'gatewayType' centralized needs 'gateway'", "it is the address that the node gets")
    pairs = [(each, cidr) for each in subnet.gateways for cidr in subnet.cidrs if each in cidr]
    return tuple(gateways.interface(f"{each}/{cidr.prefixlen}", f"{where}: 'gateway'") for each, cidr in pairs)


def _routes(known: _KnownSubnet, node: str, where: str) -> tuple[StaticRoute, ...]:
    """Routes to the other nodes' ranges, by the nodes' addresses. Raises InvalidConfig."""
    found: list[StaticRoute] = []
    for entry in _items(known.ranges, f"{where}: 'status.nodeRanges'"):
        other = entry.get("node")
        if other == node or not isinstance(other, str) or not entry.get("address"):
            continue
        by = gateways.address(entry["address"], f"{where}: the address of node {other}")
        cidrs = node_ranges(known.subnet, {"nodeRanges": [entry]}, other)
        found += [StaticRoute(str(cidr), by) for cidr in cidrs if cidr.version == ip_address(by).version]
    return tuple(sorted(found, key=lambda route: route.dst))


def _egress(spec: Mapping[str, Any], masquerade: bool, where: str) -> EgressGateway | None:
    said = _text(spec, "externalEgressGateway", where)
    if not said:
        return None
    if masquerade:
        raise InvalidConfig(f"{where} has both 'natOutgoing' and 'externalEgressGateway'", "what leaves goes one way")
    way = {"via": said, "table": spec.get("policyRoutingTableID"), "priority": spec.get("policyRoutingPriority")}
    return gateways.egress_gateway(way, f"{where}: 'externalEgressGateway' with policyRoutingTableID and policyRoutingPriority")


# -- values -------------------------------------------------------------------------------------------------------------------


def _items(value: object, where: str) -> Sequence[Mapping[str, Any]]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise InvalidConfig(f"{where} is {value!r}", "it must be a list of objects")
    return value


def _texts(value: object, where: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise InvalidConfig(f"{where} is {value!r}", "it must be a list of texts")
    return tuple(value)


def _text(of: Mapping[str, Any], key: str, where: str) -> str:
    value = of.get(key)
    if value is not None and not isinstance(value, str):
        raise InvalidConfig(f"{where}: '{key}' is {value!r}", "it must be a text")
    return value or ""


def _is_address(said: str) -> bool:
    try:
        ip_address(said)
    except ValueError:
        return False
    return True
