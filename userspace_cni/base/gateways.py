"""Gateways: a port of the node itself on a bridge, with addresses, routes and address translation. Pure.

What is wrong in the settings is refused here by file, table, key and value; what only a look at the node shows, by the plan.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network, ip_address, ip_interface
from ipaddress import ip_network as parsed_network
from itertools import combinations
from typing import Any, Final

from userspace_cni.base.addresses import why_no_machines, why_not_in_subnet
from userspace_cni.base.errors import InvalidConfig, quote, shorten
from userspace_cni.base.limits import UNLIMITED, Limits, read_rates
from userspace_cni.base.misspelt import meant_or_known
from userspace_cni.base.vlans import VLAN_MAX
from userspace_cni.pod.mac import is_unicast, six_octets
from userspace_cni.pod.quantity import amount

Address = IPv4Address | IPv6Address
Interface = IPv4Interface | IPv6Interface
Network = IPv4Network | IPv6Network

LINK_MAX: Final = 15
"""Bytes of a link's name (IFNAMSIZ of linux/if.h, without the last)."""
PORT_SUFFIX: Final = "-gw"
"""What the port's name is by default: this behind the bridge's."""
MTU_MAX: Final = 65535
MTU_MIN: Final[Mapping[int, int]] = {4: 68, 6: 1280}
"""By version of IP (RFC 791, RFC 8200)."""
KERNEL_TABLES: Final = (0, 253, 254, 255)
"""unspec, default, main and local of ip-route(8)."""
KERNEL_PRIORITIES: Final = (0, 32766, 32767)
"""Of the policy rules that every namespace begins with (ip-rule(8))."""
LINK_NAME: Final = rf"[A-Za-z0-9_][A-Za-z0-9_.\-]{{0,{LINK_MAX - 1}}}"
"""What a bridge or a port can be called that is a link, too."""
LOGICAL_PORT: Final = r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,254}"
"""What a logical port of the node itself can be called."""
_RATES: Final = ("ingressRate", "ingressBurst", "egressRate", "egressBurst")


@dataclass(frozen=True)
class StaticRoute:
    """A route of the node to `dst` by `gw`: the pods of another node, say."""

    dst: str
    gw: str


@dataclass(frozen=True)
class EgressGateway:
    """Where frames from the gateway's subnets leave the node: by `via`, in the routing table `table`, for which a policy rule of
    that `priority` stands."""

    via: str
    table: int
    priority: int


@dataclass(frozen=True)
class Gateway:
    """What this node is to have: the internal port `port` of `bridge`.

    `addresses` are with prefix length; their networks are the gateway's subnets. `mac` "" is OVS's own choice, `mtu` 0 the
    bridge's, `vlan` None for untagged frames. `masquerade`: what leaves these subnets for elsewhere gets the node's address;
    `not_masqueraded` are destinations that keep the pod's. `sole`: only this node has the gateway, so that the bridge may have
    an uplink. `next_hops`: the routers that must answer for the gateway to work, () for the node's own. `limits`: "to the pod"
    is from the node to the bridge. `logical_port`: the name that OVN knows it by, "" on another bridge than OVN's. `said_by`:
    where the spec stands, for messages.
    """

    port: str
    bridge: str
    addresses: tuple[str, ...]
    mac: str = ""
    mtu: int = 0
    vlan: int | None = None
    masquerade: bool = False
    not_masqueraded: tuple[str, ...] = ()
    clamp_mss: bool = False
    routes: tuple[StaticRoute, ...] = ()
    sole: bool = False
    egress_gateway: EgressGateway | None = None
    next_hops: tuple[str, ...] = ()
    limits: Limits = UNLIMITED
    logical_port: str = ""
    said_by: str = field(default="", compare=False)

    @cached_property
    def subnets(self) -> tuple[Network, ...]:
        return tuple(dict.fromkeys(ip_interface(each).network for each in self.addresses))

    @property
    def forwards(self) -> bool:
        """Whether others send by it. A node's own logical port of OVN is for the node alone: there OVN's routers forward."""
        return not self.logical_port or bool(self.masquerade or self.clamp_mss or self.egress_gateway or self.next_hops)

    @cached_property
    def destinations(self) -> Mapping[Network, str]:
        """Where its routes lead to, each as it is written: one to each other node, where each node has a range."""
        return {parsed_network(each.dst): each.dst for each in self.routes}


Read = Callable[[Any, str], Any]
"""Makes a field's value of what stands in a table; the text says where, for errors. Raises InvalidConfig."""


def read_gateways(raw: object, where: str) -> tuple[Gateway, ...]:
    """Read the tables `[[gateway]]` of the file `where`. Raises InvalidConfig naming file, the table's number, key and value."""
    if not isinstance(raw, list) or not all(isinstance(table, dict) for table in raw):
        raise InvalidConfig(f"{where}: 'gateway' is {quote(raw)}", "write them as tables, each below a line [[gateway]]")
    found = [_read_one(table, f"{where}, [[gateway]] number {number}") for number, table in enumerate(raw, 1)]
    for one, other in combinations(found, 2):
        if why := clash(one, other):
            raise InvalidConfig(f"{other.said_by}: {why}")
    return tuple(found)


def clash(one: Gateway, other: Gateway) -> str:
    """Why the node cannot have both gateways; "" if it can. The words are about `other`, and name `one`."""
    if one.port == other.port:
        return f"'port' is {other.port!r}, which is that of the gateway on bridge {one.bridge}, too"
    for mine in other.subnets:
        for theirs in one.subnets:
            if mine.overlaps(theirs):
                return f"its subnet {mine} overlaps {theirs} of gateway {one.port}"
    if same := next((said for dst, said in other.destinations.items() if dst in one.destinations), ""):
        return f"gateway {one.port} has a route to {same}, too"
    way, taken = other.egress_gateway, one.egress_gateway
    if way and taken and way.table == taken.table:
        return f"'egress_gateway.table' is {way.table}, which is that of gateway {one.port}, too"
    if way and taken and abs(way.priority - taken.priority) < 2:
        return (
            f"'egress_gateway.priority' is {way.priority}, and that of gateway {one.port} {taken.priority}: "
            "each uses the priority before it, too"
        )
    return ""


def require_valid(gateway: Gateway) -> Gateway:
    """The gateway, if its values go together. Raises InvalidConfig with its `said_by` and the key."""
    where, subnets = gateway.said_by, gateway.subnets
    versions = {each.version for each in subnets}
    if not gateway.addresses:
        raise InvalidConfig(f"{where}: 'addresses' is missing or empty", 'a gateway needs one or more, as ["10.56.217.1/24"]')
    for one, other in combinations([ip_interface(each).network for each in gateway.addresses], 2):
        if one.overlaps(other):
            raise InvalidConfig(f"{where}: 'addresses' are in {one} and {other}, which overlap")
    low = max(MTU_MIN[each] for each in versions)
    if gateway.mtu and not low <= gateway.mtu <= MTU_MAX:
        raise InvalidConfig(f"{where}: 'mtu' is {gateway.mtu}", f"it must be 0 or from {low} to {MTU_MAX}")
    for route in gateway.routes:
        dst = parsed_network(route.dst)
        if any(dst.overlaps(each) and (dst == each or not each.subnet_of(dst)) for each in subnets):  # type: ignore[arg-type]
            raise InvalidConfig(f"{where}: 'routes' has dst {route.dst}, which overlaps the gateway's own subnet")
        if ip_address(route.gw) in dst and not any(ip_address(route.gw) in each for each in subnets):
            raise InvalidConfig(
                f"{where}: 'routes': 'gw' is {route.gw}, which lies in {route.dst} itself",
                "it must be reached without that route",
            )
    if len({each.dst for each in gateway.routes}) < len(gateway.routes):
        raise InvalidConfig(f"{where}: 'routes' has a dst twice")
    egress = gateway.egress_gateway
    if egress and ip_address(egress.via).version not in versions:
        raise InvalidConfig(f"{where}: 'egress_gateway.via' is {egress.via}, and the gateway has no address of its family")
    own = {ip_interface(each).ip for each in gateway.addresses}
    hops = [("routes", each.gw) for each in gateway.routes] + [("next_hop", each) for each in gateway.next_hops]
    for key, value in (*hops, ("egress_gateway.via", egress.via if egress else "")):
        if value and ip_address(value) in own:
            raise InvalidConfig(f"{where}: '{key}' is {value}, an address of the gateway itself")
    return gateway


def gateway_port(subnet: str) -> str:
    """The link by which a node is the gateway of the Subnet of that name."""
    name = f"{subnet}{PORT_SUFFIX}"
    if len(name) <= LINK_MAX and re.fullmatch(LINK_NAME, name):
        return name
    return f"gw-{hashlib.sha256(subnet.encode()).hexdigest()[: LINK_MAX - 3]}"


def address(value: object, where: str) -> str:
    """An address of one machine, without prefix length. Raises InvalidConfig."""
    try:
        if not isinstance(value, str) or "%" in value:
            raise ValueError
        found = ip_address(value)
    except ValueError:
        raise InvalidConfig(f"{where} is {quote(value)}", "it must be an IP address, such as 192.0.2.1") from None
    if why := _unusable(found):
        raise InvalidConfig(f"{where} is {quote(value)}: {why}", "it must be the address of one machine")
    return str(found)


def interface(value: object, where: str) -> str:
    """An address of one machine with the prefix length of its subnet. Raises InvalidConfig."""
    try:
        if not isinstance(value, str) or "/" not in value or "%" in value:
            raise ValueError
        found = ip_interface(value)
    except ValueError:
        raise InvalidConfig(
            f"{where} is {quote(value)}", "it must be an address with prefix length, such as 10.0.0.1/24"
        ) from None
    why = _unusable(found.ip) or why_not_in_subnet(found)
    if why:
        raise InvalidConfig(f"{where} is {quote(value)}: {why}", "it must be the address of one machine of the subnet")
    return str(found)


def network(value: object, where: str) -> str:
    """A network that routes can lead to. Raises InvalidConfig."""
    try:
        if not isinstance(value, str) or "/" not in value or "%" in value:
            raise ValueError
        found = parsed_network(value)
    except ValueError:
        raise InvalidConfig(
            f"{where} is {quote(value)}", "it must be a network without host bits, such as 10.56.218.0/24"
        ) from None
    if not found.prefixlen:
        raise InvalidConfig(f"{where} is {quote(value)}", "the default route is the node's own; use egress_gateway")
    if why := _unusable(found.network_address, of_network=True):
        raise InvalidConfig(f"{where} is {quote(value)}: {why}", "it must be a network of machines")
    return str(found)


def _unusable(found: Address, *, of_network: bool = False) -> str:
    """Why it is no address of a machine that others reach; "" if it is."""
    if why := "" if of_network and found.is_unspecified else why_no_machines(found):
        return why
    if found.is_link_local:
        return "it is a link-local address"
    is_reserved = isinstance(found, IPv4Address) and (found in IPv4Network("240.0.0.0/4") or found in IPv4Network("0.0.0.0/8"))
    return "it is reserved" if is_reserved else ""


def _read_one(table: Mapping[str, Any], where: str) -> Gateway:
    _require_known(table, READERS, where)
    read = {key: READERS[key](value, f"{where}: '{key}'") for key, value in table.items()}
    if "bridge" not in read:
        raise InvalidConfig(f"{where}: 'bridge' is missing", "it is the bridge on which the node gets a port")
    if "port" not in read:
        name = f"{read['bridge']}{PORT_SUFFIX}"
        if len(name) > LINK_MAX:
            raise InvalidConfig(f"{where}: 'port' is missing, and {name!r} is not a name of a link", f"at most {LINK_MAX} bytes")
        read["port"] = name
    if read["port"] == read["bridge"]:
        raise InvalidConfig(f"{where}: 'port' is {read['port']!r}, the bridge's own name", "it has a port of that name already")
    read["limits"] = read.pop("bandwidth", UNLIMITED)
    read["next_hops"] = tuple(filter(None, [read.pop("next_hop", "")]))
    return require_valid(Gateway(**read, said_by=where))


def _link(value: object, where: str) -> str:
    if not isinstance(value, str) or not re.fullmatch(LINK_NAME, value):
        raise InvalidConfig(f"{where} is {quote(value)}", f"it must match {LINK_NAME}")
    return value


def mac_address(value: object, where: str) -> str:
    """A MAC address of one machine. Raises InvalidConfig."""
    mac = six_octets(value) if isinstance(value, str) else ""
    if not is_unicast(mac):
        raise InvalidConfig(f"{where} is {quote(value)}", "it must be the MAC address of one machine, such as 02:00:00:00:00:01")
    return mac


def _number(low: int, high: int, *never: int) -> Read:
    def read(value: object, where: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high or value in never:
            taken = f", but not {', '.join(map(str, never))}, which the kernel uses" if never else ""
            raise InvalidConfig(f"{where} is {quote(value)}", f"it must be a whole number from {low} to {high}{taken}")
        return value

    return read


def _boolean(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidConfig(f"{where} is {quote(value)}", "it must be true or false")
    return value


def _each(read: Read) -> Read:
    def each(value: object, where: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise InvalidConfig(f"{where} is {quote(value)}", "it must be a list")
        found = tuple(read(item, f"{where}: number {number}") for number, item in enumerate(value, 1))
        if len(set(found)) < len(found):
            raise InvalidConfig(f"{where} is {quote(value)}", "the same value is there twice")
        return found

    return each


def _table(value: object, known: Iterable[str], where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InvalidConfig(f"{where} is {quote(value)}", f"it must be a table with {', '.join(known)}")
    _require_known(value, known, where)
    return value


def _require_known(table: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    for key, value in table.items():
        if key not in known:
            raise InvalidConfig(f"{where}: unknown key '{shorten(key)}' = {quote(value)}", meant_or_known(key, known))


def _whole(value: object, readers: Mapping[str, Read], where: str) -> dict[str, Any]:
    table = _table(value, readers, where)
    for key in readers:
        if key not in table:
            raise InvalidConfig(f"{where} is {quote(value)}: '{key}' is missing", f"it has the keys {', '.join(readers)}")
    return {key: read(table[key], f"{where}: '{key}'") for key, read in readers.items()}


def _route(value: object, where: str) -> StaticRoute:
    found = StaticRoute(**_whole(value, {"dst": network, "gw": address}, where))
    if parsed_network(found.dst).version != ip_address(found.gw).version:
        raise InvalidConfig(f"{where}: 'gw' is {found.gw} for {found.dst}", "both must be of one family")
    return found


def egress_gateway(value: object, where: str) -> EgressGateway:
    """A way out of the node, with the keys via, table and priority. Raises InvalidConfig."""
    table, priority = _number(1, 2**32 - 1, *KERNEL_TABLES[1:]), _number(2, 2**32 - 1, *KERNEL_PRIORITIES[1:])
    found = EgressGateway(**_whole(value, {"via": address, "table": table, "priority": priority}, where))
    if found.priority - 1 in KERNEL_PRIORITIES:
        raise InvalidConfig(
            f"{where}: 'priority' is {found.priority}", "the priority before it is used, too, and that is the kernel's"
        )
    return found


def _logical_port(value: object, where: str) -> str:
    if not isinstance(value, str) or not re.fullmatch(LOGICAL_PORT, value):
        raise InvalidConfig(f"{where} is {quote(value)}", "it must be the name of a logical port of OVN, such as k8s-node1")
    return value


def _bandwidth(value: object, where: str) -> Limits:
    said = _table(value, _RATES, where)

    def quantity(key: str, raw: object) -> int:
        found = amount(raw)
        if found is None:
            raise InvalidConfig(f"{where}: '{key}' is {quote(raw)}", 'it must be a number of bits, or a quantity as "100M"')
        return found

    return read_rates({key: quantity(key, raw) for key, raw in said.items()}, lambda key: f"{where}: '{key}'")


READERS: Final[Mapping[str, Read]] = {
    "bridge": _link,
    "addresses": _each(interface),
    "port": _link,
    "mac": mac_address,
    "mtu": _number(0, MTU_MAX),
    "vlan": _number(1, VLAN_MAX),
    "masquerade": _boolean,
    "not_masqueraded": _each(network),
    "clamp_mss": _boolean,
    "routes": _each(_route),
    "sole": _boolean,
    "egress_gateway": egress_gateway,
    "next_hop": address,
    "logical_port": _logical_port,
    "bandwidth": _bandwidth,
}
"""The keys of a table [[gateway]], each with what reads its value."""
