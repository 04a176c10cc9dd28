"""Where a pod's annotations put one of its interfaces: addresses, MAC, VLAN, and which kind of link their author meant. Pure.

A controller, or a user by hand, has written them: kube-ovn's form (`ip_address`, `cidr`, `gateway`, `mac_address`, `routes`,
`vlan_id`), or that of OVN's tools and of the controller of logical ports: `ovn`, of several networks `k8s.ovn.org/pod-networks`.
Both families may be in one annotation, separated by commas; in OVN's also in a list.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv4Network, IPv6Interface, IPv6Network, ip_address, ip_interface, ip_network
from typing import Any, Final

from userspace_cni.base.addresses import why_not_in_subnet
from userspace_cni.base.errors import DelegateBroken, InvalidConfig
from userspace_cni.base.vlans import VLAN_MAX, Vlan
from userspace_cni.cni.annotations import PodInterface, refusal
from userspace_cni.cni.json_values import unicast
from userspace_cni.cni.result import EMPTY, LATEST, LINK_SCOPE, ROUTE_KEYS, ResultAddresses, read_addresses

_DEFAULT: Final = {4: "0.0.0.0/0", 6: "::/0"}
_ADDRESSES_MAX: Final = 8
_ADDRESS_KEYS: Final = ("ip_address", "ip_addresses")
_GATEWAY_KEYS: Final = ("gateway_ip", "gateway_ips")
_ROUTES_MAX: Final = 64
_NIC_TYPES: Final = ("veth-pair", "internal-port", "offload-port", "dpdk-port")
"""The kinds of `pod_nic_type` that kube-ovn has or had; for any other text it makes a veth."""


@dataclass(frozen=True)
class NotedAddresses:
    """What a pod's annotations say of an interface; empty where they say nothing.

    `nic_type`: the kind of interface that kube-ovn would make, one of its words.
    """

    mac: str = ""
    vlan: int | None = None
    nic_type: str = ""


@dataclass(frozen=True)
class _WrittenAddress:
    """An address as it is written: with a prefix length of its own, or one of a single address."""

    address: IPv4Interface | IPv6Interface
    has_length: bool


def missing(annotations: Mapping[str, str], interface: PodInterface) -> str:
    """The annotations that the interface needs to have an address, as far as they are missing; "" when there is all.

    Raises InvalidConfig for what is there and cannot be meant, whatever else comes.
    """
    tools = interface.ovn_annotation
    if _text_of(interface.ovn(annotations), _ADDRESS_KEYS, tools):
        return ""
    lacking = f"{tools} with 'ip_address'" + (f" of network {interface.network}" if interface.logical == "further" else "")
    if not interface.kubeovn_read:
        return lacking
    name, text = interface.kubeovn(annotations, "ip_address")
    cidr_name, cidr = interface.kubeovn(annotations, "cidr")
    networks = _networks(cidr, f"annotation '{cidr_name}'")
    if not text:
        return f"{name} (with {name.removesuffix('ip_address')}cidr){f', or {lacking}' if tools else ''}"
    addresses = _split(text, f"annotation '{name}'")
    return "" if networks or all(address.has_length for address in addresses) else f"{name.removesuffix('ip_address')}cidr"


def read_addresses_noted(annotations: Mapping[str, str], interface: PodInterface) -> ResultAddresses:
    """The addresses and routes that the annotations give to the interface, in the form of a lease's; EMPTY for none.

    For networks whose addresses come from there; in all others these annotations say nothing. Raises InvalidConfig naming
    annotation, value and what would be right.
    """
    return _ovn(annotations, interface) or _kubeovn(annotations, interface)


def read_noted(annotations: Mapping[str, str], interface: PodInterface) -> NotedAddresses:
    """What the annotations say of the interface beside addresses. Raises InvalidConfig as `read_addresses_noted`."""
    vlan_name, vlan = interface.kubeovn(annotations, "vlan_id")
    if vlan and not (vlan.isascii() and vlan.isdecimal() and len(vlan) < 5 and int(vlan) <= VLAN_MAX):
        raise refusal(f"annotation '{vlan_name}' is {vlan!r}", f"it must be from 0 to {VLAN_MAX}; 0 is no VLAN")
    mac_name, mac = interface.kubeovn(annotations, "mac_address")
    if ovns := _text_of(interface.ovn(annotations), ("mac_address",), interface.ovn_annotation):
        mac_name, mac = f"{interface.ovn_annotation}': 'mac_address", ovns
    _, kind = interface.kubeovn(annotations, "pod_nic_type")
    nic_type = kind if kind in _NIC_TYPES else ""
    return NotedAddresses(unicast(mac, f"annotation '{mac_name}'") if mac else "", int(vlan or 0) or None, nic_type)


def choose_vlan(network: Vlan, noted: NotedAddresses) -> Vlan:
    """The port's VLAN: what the pod chose within what its network allows. Raises InvalidConfig for another."""
    if noted.vlan in (None, network.tag):
        return network
    open_ = network.tag is None and network.mode in ("", "trunk")
    if not open_ or (network.trunks and noted.vlan not in network.trunks):
        allowed = f"'vlanId' {network.tag}" if network.tag else f"'trunks' {list(network.trunks)}"
        raise InvalidConfig(
            f"the pod's annotations choose VLAN {noted.vlan}, which its network does not allow",
            f"the network says {allowed}: choose within that, or remove the annotation",
        )
    return Vlan(noted.vlan)


def _ovn(annotations: Mapping[str, str], interface: PodInterface) -> ResultAddresses | None:
    """What OVN's own tools say; None for nothing."""
    said, name = interface.ovn(annotations), interface.ovn_annotation
    addresses, gateways = (_text_of(said, keys, name) for keys in (_ADDRESS_KEYS, _GATEWAY_KEYS))
    if not addresses:
        return None
    where = {key: f"annotation '{name}': '{key}'" for key in ("ip_address", "gateway_ip")}
    ips = _with_gateways(_interfaces(addresses, where["ip_address"], [], ""), gateways, where["gateway_ip"])
    return ResultAddresses(ips, _default_routes(ips) if interface.is_default else ())


def _text_of(said: Mapping[str, object], keys: tuple[str, ...], name: str) -> str:
    """The value of the first of the keys that has one, of a list its items with commas between; "" for none."""
    for key in keys:
        value = said.get(key)
        items = value if isinstance(value, list) else [value]
        if value and (len(items) > _ADDRESSES_MAX or not all(isinstance(item, str) for item in items)):
            raise refusal(
                f"annotation '{name}': '{key}' is {value!r}", f"it must be a text, or a list of {_ADDRESSES_MAX} at most"
            )
        if value:
            return ",".join(map(str, items))
    return ""


def _kubeovn(annotations: Mapping[str, str], interface: PodInterface) -> ResultAddresses:
    (name, text), (cidr_name, cidr), (gateway_name, gateway) = (
        interface.kubeovn(annotations, key) for key in ("ip_address", "cidr", "gateway")
    )
    if not text:
        return EMPTY
    networks_at = f"annotation '{cidr_name}'"
    found = _interfaces(text, f"annotation '{name}'", _networks(cidr, networks_at), networks_at)
    ips = _with_gateways(found, gateway, f"annotation '{gateway_name}'")
    routes = _default_routes(ips) if _has_default_route(annotations, interface) else ()
    return ResultAddresses(ips, (*routes, *_read_routes(*interface.kubeovn(annotations, "routes"))))


def _has_default_route(annotations: Mapping[str, str], interface: PodInterface) -> bool:
    """Whether the interface's gateways are the pod's: as the annotation says, else those of the default interface."""
    name, said = interface.kubeovn(annotations, "default_route")
    if said not in ("", "true", "false"):
        raise refusal(f"annotation '{name}' is {said!r}", "it can be 'true' or 'false'")
    return said == "true" if said else interface.is_default


def _networks(text: str, where: str) -> list[IPv4Network | IPv6Network]:
    try:
        return [ip_network(each.strip(), strict=False) for each in text.split(",", _ADDRESSES_MAX)] if text else []
    except ValueError:
        raise refusal(f"{where} is {text!r}", "it must be networks as 192.0.2.0/24") from None


def _split(text: str, where: str) -> list[_WrittenAddress]:
    """The addresses, as far as each can be judged alone."""
    found = []
    for each in map(str.strip, text.split(",", _ADDRESSES_MAX - 1)):
        try:
            if "%" in each:
                raise ValueError
            written = _WrittenAddress(ip_interface(each), has_length="/" in each)
        except ValueError:
            raise refusal(f"{where} is {text!r}", f"it must be addresses as 192.0.2.7, {_ADDRESSES_MAX} at most") from None
        _require_machines(written.address, f"{where} is {text!r}")
        found.append(written)
    return found


def _interfaces(
    text: str, where: str, cidrs: list[IPv4Network | IPv6Network], cidrs_at: str
) -> list[IPv4Interface | IPv6Interface]:
    """The addresses with their prefix lengths: their own, or those of the networks in which they must lie."""
    found: list[IPv4Interface | IPv6Interface] = []
    for written in _split(text, where):
        address = written.address
        if cidrs:
            within = next((cidr for cidr in cidrs if address.ip in cidr), None)
            if within is None:
                raise refusal(f"{where} is {text!r}: {address.ip} is not in {', '.join(map(str, cidrs))}", f"see {cidrs_at}")
            address = address if written.has_length else ip_interface(f"{address.ip}/{within.prefixlen}")
            _require_machines(address, f"{where} is {text!r}")
        elif not written.has_length:
            raise refusal(f"{where} is {text!r}: {address.ip} has no prefix length", "write it as 192.0.2.7/24, or give the cidr")
        found.append(address)
    return found


def _require_machines(address: IPv4Interface | IPv6Interface, what: str) -> None:
    """Raise for an address that no machine can have; one without a prefix length is judged as the whole of its subnet."""
    if why := why_not_in_subnet(address):
        raise refusal(f"{what}: {address}: {why}", "it must be the address of one machine of its subnet")


def _with_gateways(addresses: list[IPv4Interface | IPv6Interface], text: str, where: str) -> tuple[Mapping[str, Any], ...]:
    """The addresses in a result's form, each with the gateway of its family."""
    gateways = {}
    for each in filter(None, map(str.strip, text.split(",", _ADDRESSES_MAX))):
        try:
            gateway = ip_address(each)
        except ValueError:
            raise refusal(f"{where} is {text!r}", "it must be an address as 192.0.2.1, one of each family") from None
        within = next((address.network for address in addresses if gateway in address.network), None)
        if within is None:
            networks = ", ".join(str(address.network) for address in addresses)
            raise refusal(f"{where} is {text!r}: {gateway} is not in {networks}", "a gateway is in the network of an address")
        _require_machines(ip_interface(f"{gateway}/{within.prefixlen}"), f"{where} is {text!r}")
        gateways[gateway.version] = str(gateway)
    return tuple(
        {"address": str(each), **({"gateway": gateways[each.version]} if each.version in gateways else {})} for each in addresses
    )


def _default_routes(ips: tuple[Mapping[str, Any], ...]) -> tuple[Mapping[str, Any], ...]:
    ways = {ip_interface(ip["address"]).version: ip["gateway"] for ip in ips if "gateway" in ip}
    return tuple({"dst": _DEFAULT[version], "gw": gateway} for version, gateway in ways.items())


def _read_routes(name: str, text: str) -> tuple[Mapping[str, Any], ...]:
    """kube-ovn's routes: `[{"dst": "198.51.100.0/24", "gw": "192.0.2.1"}]`, in the form of CNI's.

    Without a gateway such a route is on the link; one of CNI would go over the address's gateway.
    """
    if not text:
        return ()
    example = 'it must look like [{"dst": "198.51.100.0/24", "gw": "192.0.2.1"}]'
    try:
        routes = json.loads(text)
        if not isinstance(routes, list) or len(routes) > _ROUTES_MAX:
            raise ValueError
        given = {key for route in routes if isinstance(route, dict) for key in route}
        unknown = sorted(key for key in given if key.lower() not in ROUTE_KEYS)
        if unknown:
            raise refusal(f"annotation '{name}' is {text!r}: {unknown[0]!r} is unknown", f"keys are {', '.join(ROUTE_KEYS)}")
        answer = {"ips": [{"address": "192.0.2.1/32"}], "routes": routes}
        read = read_addresses(answer, LATEST).routes
        return tuple(route if "gw" in route else {**route, "scope": LINK_SCOPE} for route in read)
    except (ValueError, RecursionError, DelegateBroken):
        raise refusal(f"annotation '{name}' is {text!r}", f"{example}, {_ROUTES_MAX} at most") from None
