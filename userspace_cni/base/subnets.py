"""Subnets: addresses with what belongs to them, as objects of the API say it, and what a node may give out of them. Pure.

The field names are kubeovn.io's. Only what decides about an interface is read here. A value that cannot be meant refuses the
object by field, and never becomes another one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_interface, ip_network
from typing import Any, Final, Literal

from userspace_cni.base.addresses import why_no_machines, why_not_in_subnet
from userspace_cni.base.errors import InvalidConfig, Unavailable
from userspace_cni.base.object_fields import known_fields
from userspace_cni.base.provider_networks import NAME_MAX, usual_bridge
from userspace_cni.base.settings import MTU_MAX, MTU_MIN
from userspace_cni.base.vlans import BRIDGE_MAX, VLAN_MAX

Address = IPv4Address | IPv6Address
Cidr = IPv4Network | IPv6Network
Span = tuple[Address, Address]
"""The first and the last address of some that follow one another."""
GatewayType = Literal["", "distributed", "centralized"]

_BRIDGE: Final = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_.\-]{{0,{BRIDGE_MAX - 1}}}")
_FIELDS: Final = frozenset(
    {"cidrBlock", "gateway", "excludeIps", "protocol", "provider", "vlan", "bridge", "mtu", "natOutgoing", "gatewayType"}
    | {"gatewayNode", "externalEgressGateway", "policyRoutingPriority", "policyRoutingTableID", "disableGatewayCheck"}
    | {"namespaces", "perNodePrefix"}
)
_NOT_BUILT: Final[Mapping[str, tuple[Any, ...]]] = {
    "acls": (),
    "allowEWTraffic": (),
    "allowSubnets": (),
    "default": (),
    "dhcpV4Options": (),
    "dhcpV6Options": (),
    "disableInterConnection": (True,),
    "enableDHCP": (),
    "enableEcmp": (),
    "enableExternalLBAddress": (),
    "enableIPv6RA": (),
    "enableLb": (),
    "enableMulticastSnoop": (),
    "externalSubnets": (),
    "gatewayNodeSelectors": (),
    "htbqos": (),
    "ipv6RAConfigs": (),
    "logicalGateway": (),
    "namespaceSelectors": (),
    "natOutgoingPolicyRules": (),
    "nodeNetwork": (),
    "private": (),
    "routeTable": (),
    "u2oFeatures": ({"overlayOnlyRouting": False},),
    "u2oInterconnection": (),
    "u2oInterconnectionIP": (),
    "u2oInterconnectionMACAddress": (),
    "u2oRouting": (),
    "vips": (),
    "vpc": (),
}
"""Fields of kubeovn.io's Subnet, each with the values that say what is so anyway."""
_VLAN_NOT_BUILT: Final[Mapping[str, tuple[Any, ...]]] = {"vlanId": (), "providerInterfaceName": ()}
"""The same of its Vlan: they are out of use there."""
_IPV4: Final = 4
_LISTED_MAX: Final = 1000
_FAMILIES: Final = 2
_SPARE_BITS: Final = 2
"""Bits for hosts that a range needs at least: one address is the network's own, one the gateway's."""


@dataclass(frozen=True)
class Subnet:
    """A Subnet object, as far as it decides about interfaces.

    `cidrs`: one per family of addresses; `gateways`: at most one in each. `excluded` is never given out. `bridge` "" is that of
    the provider network of `vlan`, the name of a Vlan object, "" for none. `mtu`: 0 where it says none. `per_node_prefix`: the
    prefix length of each node's own range, 0 where all nodes share the addresses. `namespaces`: whose pods may use it, () for
    all.
    """

    name: str
    cidrs: tuple[Cidr, ...]
    gateways: tuple[Address, ...] = ()
    excluded: tuple[Span, ...] = ()
    bridge: str = ""
    vlan: str = ""
    mtu: int = 0
    per_node_prefix: int = 0
    gateway_type: GatewayType = ""
    namespaces: tuple[str, ...] = ()


@dataclass(frozen=True)
class AddressPool:
    """What an interface of a node may get of one family: an address of `spans`, with the prefix length of `network`.

    `gateway`: by which all other networks are reached, None where there is none.
    """

    network: Cidr
    spans: tuple[Span, ...]
    gateway: Address | None = None


@dataclass(frozen=True)
class Placement:
    """A Subnet on this node: bridge ("" where it says none), VLAN (None for untagged frames), MTU (0 for none said), pools."""

    subnet: str
    bridge: str
    vlan: int | None
    mtu: int
    pools: tuple[AddressPool, ...]


def read_subnet(name: str, spec: Mapping[str, Any]) -> Subnet:
    """Read the `spec` of the Subnet object. Raises InvalidConfig naming object, field, value and what would be right."""
    where = f"Subnet '{name}'"
    known_fields(spec, _FIELDS, _NOT_BUILT, f"{where}: 'spec'")
    cidrs = tuple(_cidr(each, f"{where}: 'cidrBlock'") for each in _listed(spec, "cidrBlock", where))
    if not cidrs or len({each.version for each in cidrs}) < len(cidrs):
        raise InvalidConfig(
            f"{where}: 'cidrBlock' is {spec.get('cidrBlock')!r}", "it must be a network as 10.56.0.0/16, or one of each family"
        )
    gateways = tuple(_address(each, f"{where}: 'gateway'") for each in _listed(spec, "gateway", where))
    for gateway in gateways:
        within = next((cidr for cidr in cidrs if gateway in cidr), None)
        if within is None:
            raise InvalidConfig(f"{where}: 'gateway' is {gateway}", f"it must be in {', '.join(map(str, cidrs))}")
        if why := why_not_in_subnet(ip_interface((gateway, within.prefixlen))):
            raise InvalidConfig(f"{where}: 'gateway' is {gateway}: {why}", f"it must be the address of one machine in {within}")
    gateway_type = _text(spec, "gatewayType", where)
    if gateway_type not in ("", "distributed", "centralized"):
        raise InvalidConfig(f"{where}: 'gatewayType' is {gateway_type!r}", "it can be 'distributed' or 'centralized'")
    bridge = _text(spec, "bridge", where)
    if bridge and not _BRIDGE.fullmatch(bridge):
        raise InvalidConfig(f"{where}: 'bridge' is {bridge!r}", f"it must match {_BRIDGE.pattern}")
    mtu = _number(spec, "mtu", where)
    if mtu and not MTU_MIN <= mtu <= MTU_MAX:
        raise InvalidConfig(f"{where}: 'mtu' is {mtu}", f"it must be from {MTU_MIN} to {MTU_MAX}")
    return Subnet(
        name,
        cidrs,
        gateways,
        excluded=tuple(_span(each, f"{where}: 'excludeIps'") for each in _texts(spec, "excludeIps", where)),
        bridge=bridge,
        vlan=_text(spec, "vlan", where),
        mtu=mtu,
        per_node_prefix=_prefix(_number(spec, "perNodePrefix", where), cidrs, where),
        gateway_type=gateway_type,  # type: ignore[arg-type] # one of these two, as of above
        namespaces=_texts(spec, "namespaces", where),
    )


def read_vlan(name: str, spec: Mapping[str, Any]) -> tuple[int | None, str]:
    """The tag (None for untagged frames) and the provider network's name of a Vlan object. Raises InvalidConfig."""
    where = f"Vlan '{name}'"
    known_fields(spec, ("id", "provider"), _VLAN_NOT_BUILT, f"{where}: 'spec'")
    tag, provider = _number(spec, "id", where), _text(spec, "provider", where)
    if not 0 <= tag <= VLAN_MAX:
        raise InvalidConfig(f"{where}: 'id' is {tag}", f"it must be from 0 to {VLAN_MAX}; 0 is no VLAN")
    if provider and not _BRIDGE.fullmatch(usual_bridge(provider)):
        raise InvalidConfig(
            f"{where}: 'provider' is {provider!r}, and no ProviderNetwork can be called so",
            f"{usual_bridge(provider)} is a link: it is of a-z, 0-9 and -, with {NAME_MAX} characters at most",
        )
    return tag or None, provider


def node_ranges(subnet: Subnet, status: Mapping[str, Any], node: str) -> tuple[Cidr, ...]:
    """The node's own ranges, as the leader wrote them into the Subnet's status; () while there are none.

    Raises InvalidConfig for a range that is none of the Subnet's.
    """
    entries = status.get("nodeRanges")
    found = []
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and entry.get("node") == node:
            for text in str(entry.get("range", "")).split(","):
                cidr = _cidr(text.strip(), f"Subnet '{subnet.name}': 'status.nodeRanges' of node {node}")
                if not any(_is_within(cidr, whole) for whole in subnet.cidrs):
                    raise InvalidConfig(
                        f"Subnet '{subnet.name}': the range {cidr} of node {node} is not in its 'cidrBlock'",
                        f"'cidrBlock' is {', '.join(map(str, subnet.cidrs))}; does the controller run that writes the ranges?",
                    )
                found.append(cidr)
    return tuple(found)


def place(subnet: Subnet, vlan: tuple[int | None, str], ranges: Sequence[Cidr]) -> Placement:
    """The Subnet on a node with these ranges of its own. `vlan`: what `read_vlan` says of its Vlan, (None, "") without one.

    Raises Unavailable while the node has no range of a Subnet with `perNodePrefix`, InvalidConfig when nothing is left to give.
    """
    tag, provider = vlan
    if subnet.per_node_prefix and not ranges:
        raise Unavailable(
            f"Subnet '{subnet.name}' has no range for this node yet",
            "a controller writes it into 'status.nodeRanges': does userspace-cni controller run, and is a range left?",
        )
    given = ranges if subnet.per_node_prefix else subnet.cidrs
    pools = tuple(_pool(subnet, cidr, each) for cidr in subnet.cidrs for each in given if _is_within(each, cidr))
    bridge = subnet.bridge or (usual_bridge(provider) if provider else "")
    return Placement(subnet.name, bridge, tag, subnet.mtu, pools)


def first_address(cidr: Cidr) -> Address:
    """The first address of a range that a host can have: that of the node's own gateway where each node has one."""
    return cidr.network_address + 1


def without(cidr: Cidr, excluded: Sequence[Span]) -> Iterator[Span]:
    """The addresses of a network that are in none of the spans, in order."""
    make = type(cidr.network_address)
    first, last = int(cidr.network_address), int(cidr.broadcast_address)
    for low, high in sorted((int(low), int(high)) for low, high in excluded if low.version == cidr.version):
        if first > last:
            return
        if low > first:
            yield make(first), make(min(low - 1, last))
        first = max(first, high + 1)
    if first <= last:
        yield make(first), make(last)


def _pool(subnet: Subnet, cidr: Cidr, given: Cidr) -> AddressPool:
    """The addresses of `given` that may be leased; `given` is the Subnet's whole network `cidr` or this node's part of it.

    With a gateway on each node its range is a network of its own, which the nodes route; else all share one network.
    """
    network, gateway = cidr, next((each for each in subnet.gateways if each in cidr), None)
    if subnet.gateway_type == "distributed" and subnet.per_node_prefix:
        network, gateway = given, first_address(given)
    taken = [*subnet.excluded, (network.network_address, network.network_address)]
    if gateway:
        taken.append((gateway, gateway))
    if network.version == _IPV4:
        taken.append((network.broadcast_address, network.broadcast_address))
    spans = tuple(without(given, taken))
    if not spans:
        raise InvalidConfig(f"Subnet '{subnet.name}': no address of {given} is left to be given", "see its 'excludeIps'")
    return AddressPool(network, spans, gateway)


def _is_within(inner: Cidr, outer: Cidr) -> bool:
    return inner.version == outer.version and inner.network_address in outer and inner.prefixlen >= outer.prefixlen


def _prefix(length: int, cidrs: Sequence[Cidr], where: str) -> int:
    [cidr, *others] = cidrs
    if length and (others or not cidr.prefixlen <= length <= cidr.max_prefixlen - _SPARE_BITS):
        raise InvalidConfig(
            f"{where}: 'perNodePrefix' is {length}",
            "it must not be shorter than the prefix of 'cidrBlock', which is then one network, and leave addresses for pods",
        )
    return length


def _span(text: str, where: str) -> Span:
    """One address, or the first and the last of some as `10.56.0.2..10.56.0.9`."""
    low, dots, high = text.partition("..")
    first, last = _address(low, where), _address(high if dots else low, where)
    if first.version != last.version or int(first) > int(last):
        raise InvalidConfig(f"{where} holds {text!r}", "it must be an address, or two as 10.56.0.2..10.56.0.9")
    return first, last


def _address(text: str, where: str) -> Address:
    try:
        if "%" in text:
            raise ValueError
        return ip_address(text)
    except ValueError:
        raise InvalidConfig(f"{where} holds {text!r}", "it must be an address as 10.56.0.1") from None


def _cidr(text: str, where: str) -> Cidr:
    try:
        if "/" not in text or "%" in text:
            raise ValueError
        cidr = ip_network(text)
    except ValueError:
        raise InvalidConfig(f"{where} holds {text!r}", "it must be a network as 10.56.0.0/16, without bits of a host") from None
    if cidr.max_prefixlen - cidr.prefixlen < _SPARE_BITS:
        raise InvalidConfig(f"{where} holds {text!r}", "it has no addresses for interfaces")
    if why := why_no_machines(cidr.network_address):
        raise InvalidConfig(f"{where} holds {text!r}: {cidr.network_address}: {why}", "it must be a network of machines")
    return cidr


def _listed(spec: Mapping[str, Any], key: str, where: str) -> list[str]:
    """The parts of a text that has one for each family, separated by a comma, as kubeovn.io writes it."""
    parts = [part.strip() for part in _text(spec, key, where).split(",") if part.strip()]
    if len(parts) > _FAMILIES:
        raise InvalidConfig(f"{where}: '{key}' is {spec[key]!r}", "it can hold one of each family of addresses")
    return parts


def _texts(spec: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    value = spec.get(key) or []
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value) or len(value) > _LISTED_MAX:
        raise InvalidConfig(f"{where}: '{key}' is {value!r}", f"it must be a list of strings, {_LISTED_MAX} at most")
    return tuple(value)


def _text(spec: Mapping[str, Any], key: str, where: str) -> str:
    value = spec.get(key) or ""
    if not isinstance(value, str):
        raise InvalidConfig(f"{where}: '{key}' is {value!r}", "it must be a string")
    return value


def _number(spec: Mapping[str, Any], key: str, where: str) -> int:
    value = spec.get(key) or 0
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidConfig(f"{where}: '{key}' is {value!r}", "it must be a whole number")
    return value
