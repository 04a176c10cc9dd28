"""Messages about routes. Source: rtnetlink(7), linux/rtnetlink.h."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final

from userspace_cni.host.netlink.address_messages import FAMILIES
from userspace_cni.linux import netlink as codec
from userspace_cni.linux.netlink import Message, as_u32, attribute, attributes, nest, u32

STATIC: Final = 4
"""RTPROT_STATIC: routes that an ADD makes."""
MAIN: Final = 254
"""The main routing table."""

_NEWROUTE: Final = 24
_DELROUTE: Final = 25
_GETROUTE: Final = 26
_HEADER: Final = struct.Struct("=BBBBBBBBI")
"""struct rtmsg: family, lengths of destination and source, tos, table, protocol, scope, type, flags."""
_DST: Final = 1
_OIF: Final = 4
_GATEWAY: Final = 5
_PRIORITY: Final = 6
_PREFSRC: Final = 7
_METRICS: Final = 8
_MULTIPATH: Final = 9
_TABLE: Final = 15
_OTHER_VIA: Final = 18
"""RTA_VIA: a next hop of another version of IP."""
_OBJECT: Final = 30
"""RTA_NH_ID: the number of a nexthop object."""
_MTU: Final = 2
_ADVMSS: Final = 8
_NEXT_HOP: Final = struct.Struct("=HBBi")
"""struct rtnexthop: length with its attributes, flags, weight, index of the link."""
_ONLINK: Final = 4
_FIB_MATCH: Final = 0x2000
_UNICAST: Final = 1
_OF_ADDRESSES: Final = (2, 3, 4, 5)
"""Types of routes: local, broadcast, anycast, multicast."""
_SCOPE_LINK: Final = 253
_TABLE_MAX: Final = 255
_LIMITS: Final = {"scope": 0xFF, **dict.fromkeys(("mtu", "advmss", "priority", "table"), 0xFFFFFFFF)}
_ANY: Final = {2: "0.0.0.0/0", 10: "::/0"}
IPV6_PRIORITY: Final = 1024
"""What the kernel takes for an IPv6 route without one."""


@dataclass(frozen=True)
class Route:
    """A route. `gw` None: on the link. `mtu` and `advmss` 0, `scope` and `priority` None: the kernel's own.

    `onlink`: `gw` counts as one on the link, whatever other routes say.
    """

    dst: IPv4Network | IPv6Network
    gw: IPv4Address | IPv6Address | None = None
    mtu: int = 0
    advmss: int = 0
    priority: int | None = None
    table: int = MAIN
    scope: int | None = None
    onlink: bool = False

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Route:
        """The route in CNI's words. Raises ValueError for numbers that no route has, and a gateway of the other version of IP."""
        for key, limit in _LIMITS.items():
            if not 0 <= (given.get(key) or 0) <= limit:
                raise ValueError(f"{key} {given[key]} is not between 0 and {limit}")
        dst, gw = ip_network(given["dst"], strict=False), ip_address(given["gw"]) if given.get("gw") else None
        if gw and gw.version != dst.version:
            raise ValueError(f"{dst} and its gateway {gw} are not of one version of IP")
        return cls(
            dst=dst,
            gw=gw,
            mtu=given.get("mtu") or 0,
            advmss=given.get("advmss") or 0,
            priority=given.get("priority"),
            table=given.get("table") or MAIN,
            scope=given.get("scope"),
        )

    def __str__(self) -> str:
        said = [str(self.dst), *([f"via {self.gw}"] if self.gw else [])]
        said += [f"{name} {value}" for name in ("mtu", "advmss", "priority", "scope") if (value := getattr(self, name))]
        return " ".join(said if self.table == MAIN else [*said, f"table {self.table}"])

    @property
    def key(self) -> tuple[object, ...]:
        """What a route of the kernel's must have in common with this one to be it, but for the scope."""
        dst = self.dst.version, int(self.dst.network_address), self.dst.prefixlen
        return dst, int(self.gw) if self.gw else -1, self.table, self.mtu, self.advmss, self._priority

    @property
    def _priority(self) -> int:
        return self.priority or (IPV6_PRIORITY if self.dst.version == 6 else 0)


def find_missing(wanted: Sequence[Route], found: Iterable[Route]) -> list[Route]:
    """Those of the routes that are not among the kernel's. What a route leaves to the kernel is not compared.

    The kernel's may be many more, and are not kept: a pod can have made them.
    """
    scopes: dict[tuple[object, ...], set[int | None]] = {each.key: set() for each in wanted}
    for each in found:
        if (key := each.key) in scopes:
            scopes[key].add(each.scope)

    def is_met(route: Route) -> bool:
        there, scope = scopes[route.key], None if route.dst.version == 6 else route.scope  # the kernel keeps none for IPv6
        return bool(there) and (scope is None or scope in there)

    return [each for each in wanted if not is_met(each)]


@dataclass(frozen=True)
class FoundRoute:
    """A route as the kernel has it, with the index of its link and its protocol (RTPROT_*).

    `is_plain`: it is to one next hop of its own version of IP, and `route` and `index` say all of where it leads.
    `is_void`: it leads nowhere, as a blackhole. `is_for_some`: only packets of some source or TOS take it. `by_object`: a
    nexthop object says where it leads. `hops`: index and gateway of each next hop of one that is to several.
    """

    route: Route
    index: int
    protocol: int
    is_plain: bool = True
    is_void: bool = False
    is_for_some: bool = False
    by_object: bool = False
    hops: tuple[tuple[int, IPv4Address | IPv6Address], ...] = ()


def put(index: int, route: Route, protocol: int = STATIC) -> Message:
    """Make a route over a link; 0: over the one where its gateway is.

    It is refused with EEXIST while there is one to that destination of that priority and table.
    """
    return _message(_NEWROUTE, codec.CREATE | codec.EXCL, index, route, protocol)


def put_first(index: int, route: Route, protocol: int) -> Message:
    """Make an IPv4 route over a link that stands before all others to that destination of that priority and table, and wins.

    EEXIST: that very route is there. IPv6 has no such order: there `put` with a lower number for its priority.
    """
    return _message(_NEWROUTE, codec.CREATE, index, route, protocol)


def put_or_replace(index: int, route: Route, protocol: int) -> Message:
    """Make it, or put it in the place of the one to that destination of that priority and table, whosever that is."""
    return _message(_NEWROUTE, codec.CREATE | codec.REPLACE, index, route, protocol)


def replace_first(index: int, route: Route, protocol: int) -> Message:
    """Make it in the place of the first route to that destination of that priority and table, whosever that is: look before."""
    return _message(_NEWROUTE, codec.REPLACE, index, route, protocol)


def remove(index: int, route: Route, protocol: int) -> Message:
    """Remove that very route of that protocol. ESRCH: there is none.

    Of IPv4, one on the link is told from one by a next hop by its scope alone.
    """
    return _message(_DELROUTE, 0, index, route, protocol)


def dump(version: int, index: int) -> Message:
    """Ask for every route of that version of IP over a link, of all tables."""
    return Message(_GETROUTE, codec.DUMP, _HEADER.pack(FAMILIES[version], 0, 0, 0, 0, 0, 0, 0, 0) + u32(_OIF, index))


def dump_main() -> Message:
    """Ask for the routes in the main table: those of IPv4, those of IPv6, and of whatever else the kernel routes."""
    return Message(_GETROUTE, codec.DUMP, _HEADER.pack(0, 0, 0, 0, MAIN, 0, 0, 0, 0))


def dump_table(version: int, table: int, protocol: int = 0) -> Message:
    """Ask for the routes in a table, of that protocol alone if one is given; ENOENT where there is no such table.

    Kernels before 4.20 answer with all; one without that version of IP, with those of all others.
    """
    header = _HEADER.pack(FAMILIES[version], 0, 0, 0, table if table <= _TABLE_MAX else 0, protocol, 0, 0, 0)
    return Message(_GETROUTE, codec.DUMP, header + u32(_TABLE, table))


def way_to(address: IPv4Address | IPv6Address, *, entry: bool = False) -> Message:
    """Ask for the route by which the namespace reaches the address now. ENETUNREACH: it has none.

    `entry`: for the entry of the table that leads there, with its destination, instead of the address's own way.
    """
    length = address.max_prefixlen
    header = _HEADER.pack(FAMILIES[address.version], length, 0, 0, 0, 0, 0, 0, _FIB_MATCH if entry else 0)
    return Message(_GETROUTE, 0, header + attribute(_DST, address.packed))


def is_of_address(payload: bytes) -> bool:
    """Whether the route in a reply came with an address: to that one itself, or to a group."""
    return _HEADER.unpack_from(payload)[7] in _OF_ADDRESSES


def source(payload: bytes) -> IPv4Address | IPv6Address | None:
    """The address from which is sent, in a reply to `way_to`."""
    found = attributes(payload[_HEADER.size :]).get(_PREFSRC)
    return ip_address(found) if found else None


def read(payload: bytes) -> FoundRoute:
    family, length, source_length, tos, table, protocol, scope, kind, flags = _HEADER.unpack_from(payload)
    found = attributes(payload[_HEADER.size :])
    metrics = attributes(found.get(_METRICS, b""))
    dst = ip_network((found[_DST], length)) if _DST in found else ip_network(_ANY[family])
    route = Route(
        dst=dst,
        gw=ip_address(found[_GATEWAY]) if _GATEWAY in found else None,
        mtu=as_u32(metrics.get(_MTU)),
        advmss=as_u32(metrics.get(_ADVMSS)),
        priority=as_u32(found.get(_PRIORITY)),
        table=as_u32(found.get(_TABLE)) or table,
        scope=scope,
        onlink=bool(flags & _ONLINK),
    )
    several = found.get(_MULTIPATH)
    return FoundRoute(
        route,
        as_u32(found.get(_OIF)),
        protocol,
        is_plain=kind == _UNICAST and several is None and _OTHER_VIA not in found,
        is_void=kind != _UNICAST,
        is_for_some=bool(source_length or tos),
        by_object=_OBJECT in found,
        hops=tuple(_hops(several or b"")),
    )


def _hops(data: bytes) -> Iterator[tuple[int, IPv4Address | IPv6Address]]:
    """Link and gateway of each next hop; one without a gateway of this version of IP is left out."""
    at = 0
    while at + _NEXT_HOP.size <= len(data):
        length, _, _, index = _NEXT_HOP.unpack_from(data, at)
        if length < _NEXT_HOP.size:
            return
        gateway = attributes(data[at + _NEXT_HOP.size : at + length]).get(_GATEWAY)
        if gateway:
            yield index, ip_address(gateway)
        at += (length + 3) & ~3


def _message(kind: int, flags: int, index: int, route: Route, protocol: int) -> Message:
    scope = route.scope if route.scope is not None else 0 if route.gw else _SCOPE_LINK
    table = route.table if route.table <= _TABLE_MAX else 0
    hop = _ONLINK if route.onlink else 0
    header = _HEADER.pack(FAMILIES[route.dst.version], route.dst.prefixlen, 0, 0, table, protocol, scope, _UNICAST, hop)
    given = [*([u32(_OIF, index)] if index else []), u32(_TABLE, route.table)]
    if route.dst.prefixlen:
        given.append(attribute(_DST, route.dst.network_address.packed))
    if route.gw:
        given.append(attribute(_GATEWAY, route.gw.packed))
    if route.priority:
        given.append(u32(_PRIORITY, route.priority))
    if metrics := [u32(metric, value) for metric, value in ((_MTU, route.mtu), (_ADVMSS, route.advmss)) if value]:
        given.append(nest(_METRICS, *metrics))
    return Message(kind, flags, header + b"".join(given))
