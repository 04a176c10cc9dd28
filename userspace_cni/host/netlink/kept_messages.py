"""Messages that copy the addresses and routes of a link to another one, and that read those of a link.

A route or address that a `KeptRoute` or `KeptAddress` cannot hold completely is reported as one that stays. Nothing here
decides what is to be moved. Source: rtnetlink(7), linux/if_addr.h, linux/rtnetlink.h.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Final

from userspace_cni.attachment.steps import KeptAddress, KeptHop, KeptRoute
from userspace_cni.host.netlink.address_messages import FAMILIES
from userspace_cni.host.netlink.route_messages import MAIN
from userspace_cni.linux.netlink import (
    CREATE,
    DUMP,
    REPLACE,
    Message,
    NetlinkConnection,
    as_text,
    as_u32,
    attribute,
    attributes,
    nest,
    text,
    u8,
    u32,
)

FOREVER: Final = 0xFFFFFFFF
NODAD: Final = 0x02
NOPREFIXROUTE: Final = 0x200

ROUTES_MAX: Final = 1000
"""Routes over a link that are read and moved. Of more, which a routing daemon makes, those by hand and default ones are read."""

NEW_LINK: Final = 16
DELETED_LINK: Final = 17
"""Types of notices; the others of a link are about its addresses."""
DELETE_ADDRESS: Final = 21
_NEW_ADDRESS, _GET_ADDRESS = 20, 22
_NEW_ROUTE, _DELETE_ROUTE, _GET_ROUTE = 24, 25, 26
_LOCAL_TABLE = 255
"""The kernel's own table of the node's addresses."""
BY_KERNEL: Final = 2
"""The protocol of the routes that the kernel makes with addresses (linux/rtnetlink.h, RTPROT_KERNEL)."""
_BY_HAND: Final = (BY_KERNEL, 3, 4)
"""RTPROT_KERNEL, RTPROT_BOOT, RTPROT_STATIC."""
_BY_ROUTER = 9
_LINK_SCOPE = 253
_DESIRED_FLAGS: Final = NODAD | 0x10 | 0x100 | NOPREFIXROUTE | 0x400
"""Of ifa_flags those that a user sets (linux/if_addr.h); the others say what has become of the address."""
_ONLINK = 4
"""Of rtm_flags and rtnh_flags the one that a user sets."""
_TABLE_MAX = 255
_IPV6: Final = FAMILIES[6]
_VERSIONS: Final = {family: version for version, family in FAMILIES.items()}
_ADDRESS: Final = struct.Struct("=BBBBI")
"""struct ifaddrmsg: family, length of the prefix, flags, scope, index."""
_PEER, _OWN, _LABEL, _BROADCAST, _LIFETIMES, _FLAGS, _ADDRESS_PRIORITY, _PROTOCOL = 1, 2, 3, 4, 6, 8, 9, 11
_ROUTE: Final = struct.Struct("=BBBBBBBBI")
"""struct rtmsg: family, lengths of destination and source, tos, table, protocol, scope, type, flags."""
_NEXTHOP: Final = struct.Struct("=HBBI")
"""struct rtnexthop: length with its attributes, flags, weight, index of the link."""
_DST, _SRC, _OIF, _GATEWAY, _PRIORITY, _PREFSRC, _METRICS, _MULTIPATH = 1, 2, 4, 5, 6, 7, 8, 9
_FLOW, _CACHEINFO, _TABLE, _VIA, _PREF = 11, 12, 15, 18, 20
_KNOWN: Final = {_DST, _SRC, _OIF, _GATEWAY, _PRIORITY, _PREFSRC, _METRICS, _MULTIPATH, _FLOW, _CACHEINFO, _TABLE, _VIA, _PREF}
_KNOWN_OF_HOP: Final = {_GATEWAY, _VIA, _FLOW}
_EXPIRES_AT: Final = 8
"""Of struct rta_cacheinfo."""
_UNREADABLE: Final = (struct.error, LookupError, ValueError)


@dataclass(frozen=True)
class LinkConfiguration:
    """What a link has. `passing`: addresses with an end, which a program on the node or a router renews; `learned`: routes of
    routers. `stuck`: routes that cannot be made again on another link, each with the reason."""

    addresses: tuple[KeptAddress, ...]
    routes: tuple[KeptRoute, ...]
    passing: tuple[str, ...]
    learned: tuple[str, ...]
    stuck: tuple[str, ...]


def read_configuration(kernel: NetlinkConnection, index: int, beside: frozenset[int]) -> LinkConfiguration:
    """The addresses and routes of the link, without those that the kernel makes and removes by itself. Raises OSError.

    `beside`: the links that may have the same ones at a time.
    """
    found = list(_addresses(kernel, index))
    mine, others = _routes(kernel, index, beside)
    routes, learned, stuck = [], [], []
    keys = Counter(map(_key, mine))
    if len(mine) > ROUTES_MAX:
        stuck.append(
            f"{len(mine)} routes: more than {ROUTES_MAX} are not moved; the routing daemon has to lead them over the bridge"
        )
        mine = [each for each in mine if _is_by_hand(each)]
    for payload in mine:
        try:
            route = _route(payload, index)
        except _UNREADABLE as error:
            stuck.append(f"{_target(payload)}: it cannot be read here ({error!r})")
            continue
        if route.protocol == _BY_ROUTER or _expires(payload):
            learned.append(route.shown)
        elif not _is_known(payload):
            stuck.append(f"{route.shown}: it has attributes that are not understood here (a nexthop object, or encapsulation)")
        elif _key(payload) in others or keys[_key(payload)] > 1:
            stuck.append(f"{route.shown}: there is another route to the same destination with the same metric")
        else:
            routes.append(route)
    # each after those by which its next hop is reached: nearer scopes and routes without next hop first
    routes.sort(key=lambda each: (-each.scope, bool(each.gateways)))
    return LinkConfiguration(
        tuple(each for each, lasts in found if lasts),
        tuple(routes),
        tuple(each.shown for each, lasts in found if not lasts),
        tuple(learned),
        tuple(stuck),
    )


def default_routes(kernel: NetlinkConnection) -> Iterator[tuple[str, int]]:
    """Next hop and index of the link of each default route of the main table, in the kernel's order. Raises OSError.

    No other route is decoded: a router has a million of them.
    """
    for family in _VERSIONS:
        asking = _ROUTE.pack(family, *(0,) * 8) + u32(_TABLE, MAIN)
        for _, payload in kernel.ask(Message(_GET_ROUTE, DUMP, asking)):
            if payload[:2] == bytes((family, 0)):
                found = attributes(payload[_ROUTE.size :])
                if as_u32(found.get(_TABLE)) == MAIN and _GATEWAY in found and _OIF in found:
                    yield str(ip_address(found[_GATEWAY])), as_u32(found[_OIF])


def new_address(kept: KeptAddress, index: int, name: str, *, flags: int = 0) -> Message:
    """Give the link the address, with more flags; one that it has already gets the same flags.

    `name`: the link's, with which a label begins.
    """
    given = [_ip(_OWN, kept.address), _ip(_PEER, kept.peer or kept.address), u32(_FLAGS, kept.flags | flags)]
    if kept.broadcast:
        given.append(_ip(_BROADCAST, kept.broadcast))
    if kept.label:
        given.append(text(_LABEL, f"{name}:{kept.label}"[:15]))
    if kept.preferred_s is not None:
        given.append(attribute(_LIFETIMES, struct.pack("=IIII", kept.preferred_s, FOREVER, 0, 0)))
    given += [u32(_ADDRESS_PRIORITY, kept.priority)] if kept.priority else []
    given += [u8(_PROTOCOL, kept.protocol)] if kept.protocol else []
    header = _ADDRESS.pack(FAMILIES[kept.version], kept.length, (kept.flags | flags) & 0xFF, kept.scope, index)
    return Message(_NEW_ADDRESS, CREATE | REPLACE, header + b"".join(given))


def delete_address(kept: KeptAddress, index: int) -> Message:
    """Take the address off the link; EADDRNOTAVAIL when it has none such."""
    header = _ADDRESS.pack(FAMILIES[kept.version], kept.length, 0, kept.scope, index)
    return Message(DELETE_ADDRESS, 0, header + _ip(_OWN, kept.address) + _ip(_PEER, kept.peer or kept.address))


def replace_route(kept: KeptRoute, index: int) -> Message:
    """Lead the route over the link, in the place of one with the same destination, service and metric; it is never absent.

    EEXIST of IPv4: a later one of the same is there already.
    """
    return Message(_NEW_ROUTE, CREATE | REPLACE, _packed(kept, index))


def delete_route(kept: KeptRoute, index: int) -> Message:
    """Delete the route over the link; ESRCH when there is none such."""
    return Message(_DELETE_ROUTE, 0, _packed(kept, index))


def read_index(payload: bytes) -> int:
    """The link of a notice about a link or an address: struct ifinfomsg and ifaddrmsg have its index in one place."""
    index: int = struct.unpack_from("=4xI", payload)[0]
    return index


def _addresses(kernel: NetlinkConnection, index: int) -> Iterator[tuple[KeptAddress, bool]]:
    """The link's addresses, and whether each has no end; without those of IPv6 that every link has."""
    for _, payload in kernel.ask(Message(_GET_ADDRESS, DUMP, _ADDRESS.pack(0, 0, 0, 0, index))):
        family, length, flags, scope, of = _ADDRESS.unpack_from(payload)
        if of != index or family not in _VERSIONS or (family == _IPV6 and scope == _LINK_SCOPE):
            continue
        found = attributes(payload[_ADDRESS.size :])
        own = found.get(_OWN) or found[_PEER]
        preferred, valid = struct.unpack_from("=II", found.get(_LIFETIMES, b"\xff" * 8))
        kept = KeptAddress(
            str(ip_address(own)),
            length,
            scope,
            (as_u32(found[_FLAGS]) if _FLAGS in found else flags) & _DESIRED_FLAGS,
            str(ip_address(found[_PEER])) if found.get(_PEER, own) != own else "",
            str(ip_address(found[_BROADCAST])) if _BROADCAST in found else "",
            as_text(found.get(_LABEL)).partition(":")[2],
            as_u32(found.get(_ADDRESS_PRIORITY)),
            found.get(_PROTOCOL, b"\0")[0],
            None if preferred == FOREVER else preferred,
        )
        yield kept, valid == FOREVER


def _routes(kernel: NetlinkConnection, index: int, beside: frozenset[int]) -> tuple[list[bytes], set[tuple[object, ...]]]:
    """The routes over the link, as the kernel shows them, and the keys of those over other links; without the kernel's table.

    The others are listed only if there is a route that may be in their way: a router has a million of them.
    """
    mine: list[bytes] = []
    others: set[tuple[object, ...]] = set()
    for family in _VERSIONS:
        asking = _ROUTE.pack(family, *(0,) * 8)
        listed = _listed(kernel, asking + u32(_OIF, index))
        over = [each for each in listed if index in _links_of(each) and not _stays(each)]
        mine += over
        if over:
            all_ = _listed(kernel, asking)
            others |= {_key(each) for each in all_ if _links_of(each).isdisjoint(beside | {index})}
    return mine, others


def _listed(kernel: NetlinkConnection, asking: bytes) -> Iterator[bytes]:
    for _, payload in kernel.ask(Message(_GET_ROUTE, DUMP, asking)):
        # where IPv6 is off, the kernel answers a question about it with the routes of all other families
        if payload[0] == asking[0] and as_u32(attributes(payload[_ROUTE.size :]).get(_TABLE)) != _LOCAL_TABLE:
            yield payload


def _stays(payload: bytes) -> bool:
    """Whether the route is one to the link-local addresses of IPv6, or to its groups, which every link has."""
    family, dst_len = payload[0], payload[1]
    return family == _IPV6 and dst_len >= 8 and attributes(payload[_ROUTE.size :]).get(_DST, b"")[:1] in (b"\xff", b"\xfe")


def _links_of(payload: bytes) -> set[int]:
    found = attributes(payload[_ROUTE.size :])
    over = {as_u32(found[_OIF])} if _OIF in found else set()
    return over | {index for _, _, index, _ in _hops(found)}


def _hops(found: Mapping[int, bytes]) -> Iterator[tuple[int, int, int, Mapping[int, bytes]]]:
    """Flags, weight, link and attributes of each of several next hops."""
    hops, at = found.get(_MULTIPATH, b""), 0
    while at + _NEXTHOP.size <= len(hops):
        length, flags, weight, index = _NEXTHOP.unpack_from(hops, at)
        yield flags, weight, index, attributes(hops[at + _NEXTHOP.size : at + length])
        at += max((length + 3) & ~3, _NEXTHOP.size)


def _key(payload: bytes) -> tuple[object, ...]:
    """By which a route replaces another one."""
    family, dst_len, src_len, tos, *_ = _ROUTE.unpack_from(payload)
    found = attributes(payload[_ROUTE.size :])
    return family, dst_len, src_len, tos, found.get(_DST), as_u32(found.get(_TABLE)), as_u32(found.get(_PRIORITY))


def _is_by_hand(payload: bytes) -> bool:
    """Whether a user has made the route, or it is a default route."""
    _, dst_len, _, _, _, protocol, *_ = _ROUTE.unpack_from(payload)
    return dst_len == 0 or protocol in _BY_HAND


def _is_known(payload: bytes) -> bool:
    """Whether a `KeptRoute` can say all of the route."""
    found = attributes(payload[_ROUTE.size :])
    return found.keys() <= _KNOWN and all(each.keys() <= _KNOWN_OF_HOP for *_, each in _hops(found))


def _expires(payload: bytes) -> bool:
    """Whether the route passes by itself."""
    return bool(as_u32(attributes(payload[_ROUTE.size :]).get(_CACHEINFO, b"")[_EXPIRES_AT:]))


def _target(payload: bytes) -> str:
    """Where the route leads, for people."""
    target = attributes(payload[_ROUTE.size :]).get(_DST)
    return f"{ip_address(target)}/{payload[1]}" if target else "default"


def _route(payload: bytes, index: int) -> KeptRoute:
    family, dst_len, src_len, tos, table, protocol, scope, kind, flags = _ROUTE.unpack_from(payload)
    found = attributes(payload[_ROUTE.size :])
    return KeptRoute(
        dst=str(ip_network((found.get(_DST, bytes(16 if family == _IPV6 else 4)), dst_len))),
        source=str(ip_network((found[_SRC], src_len))) if _SRC in found else "",
        tos=tos,
        table=as_u32(found.get(_TABLE)) or table,
        protocol=protocol,
        scope=scope,
        type=kind,
        flags=flags & _ONLINK,
        priority=as_u32(found.get(_PRIORITY)),
        gateway=_gateway(found),
        sends_from=str(ip_address(found[_PREFSRC])) if _PREFSRC in found else "",
        metrics=found.get(_METRICS, b"").hex(),
        realm=as_u32(found.get(_FLOW)),
        preference=found.get(_PREF, b"\0")[0],
        hops=tuple(
            KeptHop(_gateway(each), 0 if link == index else link, weight, flags & _ONLINK, as_u32(each.get(_FLOW)))
            for flags, weight, link, each in _hops(found)
        ),
    )


def _gateway(found: Mapping[int, bytes]) -> str:
    """The next hop, which may be of the other version of IP (struct rtvia: family and address)."""
    packed = found.get(_GATEWAY) or found.get(_VIA, b"")[2:]
    return str(ip_address(packed)) if packed else ""


def _packed(kept: KeptRoute, index: int) -> bytes:
    dst, source = ip_network(kept.dst), ip_network(kept.source) if kept.source else None
    table, length = kept.table if kept.table <= _TABLE_MAX else 0, source.prefixlen if source else 0
    given = [u32(_TABLE, kept.table), *([_ip(_DST, str(dst.network_address))] if dst.prefixlen else [])]
    if source:
        given.append(_ip(_SRC, str(source.network_address)))
    if kept.sends_from:
        given.append(_ip(_PREFSRC, kept.sends_from))
    if kept.metrics:
        given.append(nest(_METRICS, bytes.fromhex(kept.metrics)))
    given += [u32(kind, value) for kind, value in ((_PRIORITY, kept.priority), (_FLOW, kept.realm)) if value]
    given += [u8(_PREF, kept.preference)] if kept.preference else []
    given.append(_leading(kept.gateway, kept.version))
    hops = b"".join(_packed_hop(each, index, kept.version) for each in kept.hops)
    given.append(attribute(_MULTIPATH, hops) if hops else u32(_OIF, index))
    head = FAMILIES[kept.version], dst.prefixlen, length, kept.tos, table, kept.protocol, kept.scope, kept.type, kept.flags
    return _ROUTE.pack(*head) + b"".join(given)


def _packed_hop(hop: KeptHop, index: int, version: int) -> bytes:
    given = _leading(hop.gateway, version) + (u32(_FLOW, hop.realm) if hop.realm else b"")
    return _NEXTHOP.pack(_NEXTHOP.size + len(given), hop.flags, hop.weight, hop.index or index) + given


def _leading(gateway: str, version: int) -> bytes:
    """The attribute of a next hop, nothing for none."""
    if not gateway:
        return b""
    via = ip_address(gateway)
    of_other = attribute(_VIA, struct.pack("=H", FAMILIES[via.version]) + via.packed)
    return attribute(_GATEWAY, via.packed) if via.version == version else of_other


def _ip(kind: int, address: str) -> bytes:
    return attribute(kind, ip_address(address).packed)
