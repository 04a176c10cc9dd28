"""Addresses and routes of a link, as the kernel shows them, in a form that records keep and from which they are made again.

pyroute2 reads and writes the messages; our own connection carries them, because it sends many in one system call, and tells what
came of each. An entry has no index of its link: the same entry is made on another link. What changes by itself (states, counters,
ages) is left out, so that equal entries mean the same. Nothing here decides what is to be moved.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Any, Final

from userspace_cni.host.netlink.codec import CREATE, DUMP, REPLACE, Connection, Message, as_u32, attributes, u32
from userspace_cni.host.netlink.route_messages import MAIN

Entry = Mapping[str, Any]
"""An address: `family`, `address`, `prefixlen`, `scope`, `attrs`; or a route: the fields of struct rtmsg, and `attrs`. Values are
those of JSON."""

IPV4: Final = 2
IPV6: Final = 10
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
_LOCAL = 255
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
_ROUTE: Final = struct.Struct("=BBBBBBBBI")
_NEXTHOP: Final = struct.Struct("=HBBI")
_TABLE, _DST, _OIF, _GATEWAY, _PRIORITY, _MULTIPATH = 15, 1, 4, 5, 6, 9
_ROUTE_FIELDS: Final = ("family", "dst_len", "src_len", "tos", "proto", "scope", "type")


@dataclass(frozen=True)
class Held:
    """What a link has. `passing`: addresses with an end, which a program on the node or a router renews; `learned`: routes of
    routers. `stuck`: routes that cannot be made again on another link, each with the reason."""

    addresses: tuple[Entry, ...]
    routes: tuple[Entry, ...]
    passing: tuple[str, ...]
    learned: tuple[str, ...]
    stuck: tuple[str, ...]


def held(kernel: Connection, index: int, beside: frozenset[int]) -> Held:
    """The addresses and routes of the link, without those that the kernel makes and removes by itself. Raises OSError.

    `beside`: the links that may have the same ones at a time.
    """
    found = [each for each in _addresses(kernel, index) if not (each["family"] == IPV6 and each["scope"] == _LINK_SCOPE)]
    lasting = tuple(_address(each) for each in found if _valid_s(each) == FOREVER)
    passing = tuple(f"{_local(each)}/{each['prefixlen']}" for each in found if _valid_s(each) != FOREVER)
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
            route, is_exact, expires = _route(payload, index)
        except _unreadable() as error:
            stuck.append(f"{_target(payload)}: it cannot be read here ({error!r})")
            continue
        if route["proto"] == _BY_ROUTER or expires:
            learned.append(shown(route))
        elif not is_exact:
            stuck.append(f"{shown(route)}: it has attributes that are not understood here (a nexthop object, or encapsulation)")
        elif _key(payload) in others or keys[_key(payload)] > 1:
            stuck.append(f"{shown(route)}: there is another route to the same destination with the same metric")
        else:
            routes.append(route)
    return Held(lasting, tuple(_ordered(routes)), passing, tuple(learned), tuple(stuck))


def default_routes(kernel: Connection) -> Iterator[tuple[str, int]]:
    """Next hop and index of the link of each default route of the main table, in the kernel's order. Raises OSError.

    No other route is decoded: a router has a million of them.
    """
    for family in (IPV4, IPV6):
        asking = _ROUTE.pack(family, *(0,) * 8) + u32(_TABLE, MAIN)
        for _, payload in kernel.ask(Message(_GET_ROUTE, DUMP, asking)):
            if payload[:2] == bytes((family, 0)):
                found = attributes(payload[_ROUTE.size :])
                if as_u32(found.get(_TABLE)) == MAIN and _GATEWAY in found and _OIF in found:
                    yield str(ip_address(found[_GATEWAY])), as_u32(found[_OIF])


def new_address(entry: Entry, index: int, name: str, *, flags: int = 0) -> Message:
    """Give the link the address, with more flags; one that it has already gets the same flags.

    `name`: the link's, with which a label begins.
    """
    attrs = {**dict(entry["attrs"]), "IFA_FLAGS": dict(entry["attrs"]).get("IFA_FLAGS", 0) | flags}
    if "IFA_LABEL" in attrs:
        attrs["IFA_LABEL"] = f"{name}:{attrs['IFA_LABEL']}"[:15]
    return _address_message(_NEW_ADDRESS, CREATE | REPLACE, entry, index, attrs)


def delete_address(entry: Entry, index: int) -> Message:
    """Take the address off the link; EADDRNOTAVAIL when it has none such."""
    attrs = {key: value for key, value in entry["attrs"] if key in ("IFA_LOCAL", "IFA_ADDRESS")}
    return _address_message(DELETE_ADDRESS, 0, entry, index, attrs)


def replace_route(entry: Entry, index: int) -> Message:
    """Lead the route over the link, in the place of one with the same destination, service and metric; it is never absent.

    EEXIST of IPv4: a later one of the same is there already.
    """
    return _route_message(_NEW_ROUTE, CREATE | REPLACE, entry, index)


def delete_route(entry: Entry, index: int) -> Message:
    """Delete the route over the link; ESRCH when there is none such."""
    return _route_message(_DELETE_ROUTE, 0, entry, index)


def noticed_index(payload: bytes) -> int:
    """The link of a notice about a link or an address: struct ifinfomsg and ifaddrmsg have its index in one place."""
    index: int = struct.unpack_from("=4xI", payload)[0]
    return index


def address_key(entry: Entry) -> tuple[int, str, int]:
    """By which an address is the same one: family, address, prefix length."""
    return entry["family"], entry["address"], entry["prefixlen"]


def network_of(entry: Entry) -> tuple[object, ...]:
    """The network of an address, in which a later one of IPv4 is secondary."""
    far = dict(entry["attrs"]).get("IFA_ADDRESS", entry["address"])
    return entry["family"], ip_network(f"{far}/{entry['prefixlen']}", strict=False)


def route_key(route: Entry) -> tuple[object, ...]:
    """By which a route replaces another one: family, destination, service, table, metric."""
    attrs = dict(route["attrs"])
    whence = attrs.get("RTA_SRC"), route["src_len"]
    return (
        route["family"],
        attrs.get("RTA_DST"),
        route["dst_len"],
        whence,
        route["tos"],
        table_of(route),
        attrs.get("RTA_PRIORITY", 0),
    )


def gateways(routes: Iterable[Entry]) -> tuple[str, ...]:
    """The next hops of the routes, those of default routes first."""
    found = {
        gateway: None
        for route in sorted(routes, key=lambda each: each["dst_len"] != 0)
        for part in (route, *dict(route["attrs"]).get("RTA_MULTIPATH", ()))
        for gateway in (dict(part["attrs"]).get("RTA_GATEWAY"), dict(part["attrs"]).get("RTA_VIA", {}).get("addr"))
        if gateway
    }
    return tuple(found)


def table_of(route: Entry) -> int:
    """The routing table of a route."""
    table: int = dict(route["attrs"]).get("RTA_TABLE", MAIN)
    return table


def shown(route: Entry) -> str:
    """The route for people, as ip-route(8) takes it, without its link."""
    attrs = dict(route["attrs"])
    target = f"{attrs['RTA_DST']}/{route['dst_len']}" if "RTA_DST" in attrs else "default"
    words = [target, *(f"via {each}" for each in gateways([route]))]
    words += [f"{word} {attrs[key]}" for word, key in (("metric", "RTA_PRIORITY"), ("src", "RTA_PREFSRC")) if attrs.get(key)]
    words += [f"table {attrs['RTA_TABLE']}"] if attrs.get("RTA_TABLE", MAIN) != MAIN else []
    return " ".join(words)


def _addresses(kernel: Connection, index: int) -> Iterator[dict[str, Any]]:
    from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg

    asking = ifaddrmsg()
    asking["index"] = index
    for _, payload in kernel.ask(Message(_GET_ADDRESS, DUMP, _encoded(asking))):
        found = _decoded(ifaddrmsg, payload)
        if found["index"] == index:
            yield found


def _address(found: Mapping[str, Any]) -> Entry:
    """The entry of an address that the kernel shows."""
    attrs = {key: value for key, value in found["attrs"] if key != "IFA_CACHEINFO"}
    attrs["IFA_FLAGS"] = attrs.get("IFA_FLAGS", found["flags"]) & _DESIRED_FLAGS
    label = attrs.pop("IFA_LABEL", "").partition(":")[2]
    if label:
        attrs["IFA_LABEL"] = label
    lifetimes = dict(found["attrs"]).get("IFA_CACHEINFO", {})
    if lifetimes.get("ifa_preferred", FOREVER) != FOREVER:
        attrs["IFA_CACHEINFO"] = {"ifa_preferred": lifetimes["ifa_preferred"], "ifa_valid": FOREVER, "cstamp": 0, "tstamp": 0}
    return {
        "family": found["family"],
        "address": _local(found),
        "prefixlen": found["prefixlen"],
        "scope": found["scope"],
        "attrs": [[key, attrs[key]] for key in sorted(attrs)],
    }


def _address_message(kind: int, flags: int, entry: Entry, index: int, attrs: Mapping[str, Any]) -> Message:
    from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg

    message = ifaddrmsg()
    for name in ("family", "prefixlen", "scope"):
        message[name] = entry[name]
    message["index"] = index
    message["flags"] = attrs.get("IFA_FLAGS", 0) & 0xFF
    message["attrs"] = _copied(list(attrs.items()))
    return Message(kind, flags, _encoded(message))


def _local(found: Mapping[str, Any]) -> str:
    attrs = dict(found["attrs"])
    return str(attrs.get("IFA_LOCAL") or attrs.get("IFA_ADDRESS"))


def _valid_s(found: Mapping[str, Any]) -> int:
    valid: int = dict(found["attrs"]).get("IFA_CACHEINFO", {}).get("ifa_valid", FOREVER)
    return valid


def _routes(kernel: Connection, index: int, beside: frozenset[int]) -> tuple[list[bytes], set[tuple[object, ...]]]:
    """The routes over the link, as the kernel shows them, and the keys of those over other links; without the kernel's table.

    The others are listed only if there is a route that may be in their way: a router has a million of them.
    """
    mine: list[bytes] = []
    others: set[tuple[object, ...]] = set()
    for family in (IPV4, IPV6):
        asking = _ROUTE.pack(family, *(0,) * 8)
        listed = _listed(kernel, asking + u32(_OIF, index))
        over = [each for each in listed if index in _links_of(each) and not _stays(each)]
        mine += over
        if over:
            all_ = _listed(kernel, asking)
            others |= {_key(each) for each in all_ if _links_of(each).isdisjoint(beside | {index})}
    return mine, others


def _listed(kernel: Connection, asking: bytes) -> Iterator[bytes]:
    for _, payload in kernel.ask(Message(_GET_ROUTE, DUMP, asking)):
        # where IPv6 is off, the kernel answers a question about it with the routes of all other families
        if payload[0] == asking[0] and as_u32(attributes(payload[_ROUTE.size :]).get(_TABLE)) != _LOCAL:
            yield payload


def _stays(payload: bytes) -> bool:
    """Whether the route is one to the link-local addresses of IPv6, or to its groups, which every link has."""
    family, dst_len = payload[0], payload[1]
    return family == IPV6 and dst_len >= 8 and attributes(payload[_ROUTE.size :]).get(_DST, b"")[:1] in (b"\xff", b"\xfe")


def _links_of(payload: bytes) -> set[int]:
    """The links of a route, or of its next hops: struct rtnexthop, each followed by its attributes."""
    found = attributes(payload[_ROUTE.size :])
    over = {as_u32(found[_OIF])} if _OIF in found else set()
    hops, at = found.get(_MULTIPATH, b""), 0
    while at + _NEXTHOP.size <= len(hops):
        length, _, _, index = _NEXTHOP.unpack_from(hops, at)
        over.add(index)
        at += max((length + 3) & ~3, _NEXTHOP.size)
    return over


def _key(payload: bytes) -> tuple[object, ...]:
    """By which a route replaces another one."""
    family, dst_len, src_len, tos, *_ = _ROUTE.unpack_from(payload)
    found = attributes(payload[_ROUTE.size :])
    return family, dst_len, src_len, tos, found.get(_DST), as_u32(found.get(_TABLE)), as_u32(found.get(_PRIORITY))


def _is_by_hand(payload: bytes) -> bool:
    """Whether a user has made the route, or it is a default route."""
    _, dst_len, _, _, _, protocol, *_ = _ROUTE.unpack_from(payload)
    return dst_len == 0 or protocol in _BY_HAND


def _target(payload: bytes) -> str:
    """Where the route leads, for people, read without pyroute2."""
    target = attributes(payload[_ROUTE.size :]).get(_DST)
    return f"{ip_address(target)}/{payload[1]}" if target else "default"


def _unreadable() -> tuple[type[Exception], ...]:
    """What pyroute2 raises for a message that it does not understand."""
    from pyroute2.netlink.exceptions import NetlinkDecodeError

    return NetlinkDecodeError, struct.error, LookupError, ValueError, TypeError, AttributeError


def _route(payload: bytes, index: int) -> tuple[dict[str, Any], bool, bool]:
    """The entry of a route, whether all of it is understood, and whether it passes by itself."""
    from pyroute2.netlink.rtnl.rtmsg import rtmsg

    found = _decoded(rtmsg, payload)
    again = rtmsg()
    for key, value in _copied(found).items():
        again[key] = value
    is_exact = _encoded(again) == payload and not {"RTA_ENCAP", "RTA_NH_ID"} & {key for key, _ in found["attrs"]}
    attrs = {key: value for key, value in found["attrs"] if key not in ("RTA_OIF", "RTA_CACHEINFO")}
    for hop in attrs.get("RTA_MULTIPATH", ()):
        hop["flags"] &= _ONLINK
        hop["oif"] = 0 if hop["oif"] == index else hop["oif"]
    expires = dict(found["attrs"]).get("RTA_CACHEINFO", {}).get("rta_expires", 0)
    entry = {name: found[name] for name in _ROUTE_FIELDS} | {"flags": found["flags"] & _ONLINK}
    return entry | {"attrs": [[key, attrs[key]] for key in sorted(attrs)]}, is_exact, bool(expires)


def _route_message(kind: int, flags: int, entry: Entry, index: int) -> Message:
    from pyroute2.netlink.rtnl.rtmsg import rtmsg

    message = rtmsg()
    for name in (*_ROUTE_FIELDS, "flags"):
        message[name] = entry[name]
    attrs = _copied(list(entry["attrs"]))
    hops = dict(attrs).get("RTA_MULTIPATH")
    for hop in hops or ():
        hop["oif"] = hop["oif"] or index
    message["attrs"] = attrs if hops else [*attrs, ["RTA_OIF", index]]
    return Message(kind, flags, _encoded(message))


def _ordered(routes: Sequence[Entry]) -> list[Entry]:
    """So that each comes after those by which its next hop is reached: nearer scopes and routes without next hop first."""
    return sorted(routes, key=lambda each: (-each["scope"], bool(gateways([each]))))


def _encoded(message: Any) -> bytes:
    """A message of pyroute2 without the header of netlink."""
    message.encode()
    return bytes(message.data)[16:]


def _decoded(kind: Any, payload: bytes) -> dict[str, Any]:
    message = kind(struct.pack("=IHHII", len(payload) + 16, 0, 0, 0, 0) + payload)
    message.decode()
    found: dict[str, Any] = _copied({key: value for key, value in message.items() if key not in ("header", "event")})
    return found


def _copied(value: Any) -> Any:
    """The value in the forms that JSON has; pyroute2 changes what it encodes."""
    if isinstance(value, Mapping):
        return {key: _copied(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_copied(each) for each in value]
    if type(value).__name__ == "nla_slot":
        return [value[0], _copied(value[1])]
    return value
