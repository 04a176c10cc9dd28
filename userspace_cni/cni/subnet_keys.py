"""A network that names a Subnet: what the Subnet says is put into its configuration, which then says all itself. Pure.

So one that names a Subnet is an ordinary network from there on, for rules, plan and IPAM plugin alike; key `subnet` stays in it
and tells where the rest is from. What the network says itself and the Subnet says otherwise is refused by name, for its author
expects another port than would be made. The IPAM plugin is host-local: other plugins have other words for ranges.

Networks of several names may name one Subnet, and host-local keeps its leases by the name of the network that it is given. So it
is given the Subnet's name, and a directory that no network chooses: else two networks would give out one address.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from userspace_cni.base.errors import InvalidConfig, UnsupportedField
from userspace_cni.cni import keys
from userspace_cni.cni.json_values import read_typed
from userspace_cni.cni.request import SUBNET_IPAM, Network, Request

if TYPE_CHECKING:
    from userspace_cni.base.subnets import AddressPool, Placement

_OF_THE_SUBNET: Final = ("subnet", "ranges", "rangeStart", "rangeEnd", "gateway", "dataDir")
"""Keys of host-local that come with a Subnet."""
_ONE_VLAN: Final = ("trunks", "vlanMode")
_DEFAULT: Final = {4: "0.0.0.0/0", 6: "::/0"}
_ANY: Final = [[{"subnet": "192.0.2.0/24"}]]
"""A range in the place of those that are not known: host-local releases by container and interface, but wants one."""


def require_possible(network: Network) -> None:
    """Raise InvalidConfig or UnsupportedField for what a network that names a Subnet cannot say, whatever the Subnet says."""
    if not network.subnet:
        return
    named = f"beside 'subnet' {network.subnet!r}"
    top = keys.normalize_keys(network.raw, keys.TOP, "")
    for key in ("addresses", "mirrorOutput"):
        if top.get(key):
            raise InvalidConfig(f"key '{key}' is {top[key]!r} {named}: the Subnet gives the addresses", "remove one of the two")
    if network.ipam != SUBNET_IPAM:
        raise UnsupportedField(
            f"key 'ipam.type' is {network.ipam!r} {named}: it has other keys for ranges",
            f"use {SUBNET_IPAM!r}, or name the ranges in 'ipam' and remove 'subnet'",
        )
    ipam = read_typed(network.raw, "ipam", dict, {})
    said = [key for key in _OF_THE_SUBNET if ipam.get(key) is not None]
    if said:
        raise InvalidConfig(f"key 'ipam.{said[0]}' is {ipam[said[0]]!r} {named}: the Subnet gives it", "remove one of the two")
    bridge = _bridge(network.raw)
    for key in _ONE_VLAN:
        if bridge.get(key) not in (None, "", [], "access"):
            raise InvalidConfig(
                f"key 'host.bridge.{key}' is {bridge[key]!r} {named}: a Subnet is in one VLAN", "remove one of the two"
            )


def complete_request(request: Request, placement: Placement, leases: str, *, shared: bool) -> Request:
    """The request with everything in its network that the Subnet gives on this node; `leases`: the directory for host-local.

    `shared`: all nodes give out the same addresses. Raises InvalidConfig for what the network says otherwise, and for a Subnet
    without ranges of the nodes in a network that does not say that host-local's own store is enough.
    """
    network = request.network
    raw = {key: value for key, value in json.loads(json.dumps(network.raw)).items() if keys.fold_case(key) != "subnet"}
    said = f"Subnet '{placement.subnet}'"
    ipam = read_typed(raw, "ipam", dict, {})
    if shared and not ipam.get("type"):
        raise InvalidConfig(
            f"key 'subnet' is {placement.subnet!r}, whose nodes have no ranges of their own: two would give out one address",
            "give the Subnet 'perNodePrefix'; or, where only one node has pods in it, say 'ipam': {'type': 'host-local'}",
        )
    host = _held(raw, "host", "")
    bridge = _held(host, "bridge", "host")
    if placement.bridge:
        _put(bridge, "bridgeName", placement.bridge, ("host.bridge", said))
        _put(bridge, "vlanId", placement.vlan or 0, ("host.bridge", said))
        _put(bridge, "vlanMode", "access", ("host.bridge", said))  # else a port without a tag would carry all VLANs
    if placement.mtu:
        _put(host, "mtu", placement.mtu, ("host", said))
    routes = [{"dst": _DEFAULT[pool.network.version], "gw": str(pool.gateway)} for pool in placement.pools if pool.gateway]
    raw["subnet"] = placement.subnet
    ranges = [_ranges(pool) for pool in placement.pools]
    raw["ipam"] = {"routes": routes, **ipam, "type": SUBNET_IPAM, "dataDir": leases, "ranges": ranges}
    return _with(request, raw, placement.subnet)


def as_leased(request: Request, leases: str, leased: Mapping[str, Any] | None) -> Request:
    """The request as host-local is to have it when no address is leased: the Subnet may have changed, or not be known.

    `leased`: the configuration with which it leased, None where that is not known.
    """
    network = request.network
    ipam = (leased or {}).get("ipam") or {
        **read_typed(network.raw, "ipam", dict, {}),
        "type": SUBNET_IPAM,
        "dataDir": leases,
        "ranges": _ANY,
    }
    return _with(request, {**network.raw, "ipam": ipam}, (leased or {}).get("name") or network.subnet)


def _with(request: Request, raw: dict[str, Any], name: str) -> Request:
    """The request with this configuration, which the IPAM plugin is given as that of network `name`."""
    return replace(request, network=replace(request.network, raw=raw), stdin=json.dumps({**raw, "name": name}).encode())


def _ranges(pool: AddressPool) -> list[dict[str, str]]:
    gateway = {"gateway": str(pool.gateway)} if pool.gateway else {}
    subnet = str(pool.network)
    return [{"subnet": subnet, "rangeStart": str(low), "rangeEnd": str(high), **gateway} for low, high in pool.spans]


def _bridge(raw: Mapping[str, Any]) -> dict[str, Any]:
    host = keys.normalize_keys(read_typed(keys.normalize_keys(raw, keys.TOP, ""), "host", dict, {}), keys.PLACES["host"], "host")
    return keys.normalize_keys(read_typed(host, "bridge", dict, {}, path="host."), keys.PLACES["host.bridge"], "host.bridge")


def _held(holder: dict[str, Any], name: str, place: str) -> dict[str, Any]:
    """The object of that name, made where there is none."""
    key = _spelling(holder, name)
    held: dict[str, Any] = read_typed(holder, key, dict, {}, path=f"{place}." if place else "")
    holder[key] = held
    return held


def _put(holder: dict[str, Any], name: str, value: object, where: tuple[str, str]) -> None:
    """Give the key the Subnet's value. Raises InvalidConfig where it has another one."""
    place, said_by = where
    key = _spelling(holder, name)
    own = holder.get(key)
    if own not in (None, "", 0, value):
        raise InvalidConfig(f"key '{place}.{name}' is {own!r}, and {said_by} says {value!r}", "remove one of the two")
    holder[key] = value


def _spelling(holder: Mapping[str, Any], name: str) -> str:
    """How the key is written there: in any case."""
    return next((key for key in holder if keys.fold_case(key) == name.lower()), name)
