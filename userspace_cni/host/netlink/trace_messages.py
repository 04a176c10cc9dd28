"""Messages of nftables for a table that ends with the socket that has made it, and for what the kernel tells of traced packets.

The table accepts everything but packets to one address that would leave by another link than the one that is meant. What it
traces, it traces through all tables of the namespace, which it does not change.
Source: linux/netfilter/nf_tables.h, net/netfilter/nf_tables_trace.c.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from userspace_cni.host.netlink.nftables_messages import ACCEPT, DROP, HEADER, message
from userspace_cni.linux.netlink import (
    CREATE,
    DUMP,
    EXCL,
    Message,
    as_text,
    attribute,
    attributes,
    be32,
    each_attribute,
    nest,
    text,
)

TRACES: Final = 1 << 8
"""The group NFNLGRP_NFTRACE."""
FAMILIES: Final = {4: 2, 6: 10}
"""NFPROTO_IPV4 and NFPROTO_IPV6, by version of IP."""
FAMILY_NAMES: Final = {1: "inet", 2: "ip", 3: "arp", 5: "netdev", 7: "bridge", 10: "ip6"}
_NEW_TABLE, _DELETE_TABLE, _NEW_CHAIN, _NEW_RULE, _GET_RULE, _GET_ELEMENTS, _TRACE = 0, 2, 3, 6, 7, 13, 17
_OWNED = 2
_FIRST, _LAST = -(1 << 31), (1 << 31) - 2
"""Priorities: before all others, and after all but the confirmation of connections."""
THERE, BACK, FORWARD, FORWARDED, LEAVING = "there", "back", "forward", "forwarded", "leaving"
"""The chains of the table: at the beginning of prerouting, one for each direction; around forward; at the end of postrouting."""
_PREROUTING, _FORWARD, _POSTROUTING = 0, 2, 4
_SOURCE, _DESTINATION = {4: 12, 6: 8}, {4: 16, 6: 24}
"""Bytes into the header of IP."""
_META_OIF, _META_TRACE = 5, 12
_META_NAMES: Final = (4, 5, 6, 7)
"""NFT_META_IIF, _OIF, _IIFNAME and _OIFNAME."""
_NAMING: Final = tuple(be32(2, key) for key in _META_NAMES)
"""How the kernel writes that a rule loads one of these."""
_EQUAL, _UNEQUAL = 0, 1
_ENDS_INTERVAL = 1
"""NFT_SET_ELEM_INTERVAL_END."""
_REGISTER = 1
_NETWORK_HEADER = 1
POLICY, RETURN, RULE = 1, 2, 3
"""Why the kernel tells of a packet, NFT_TRACETYPE_*."""
_STOLEN, _QUEUE, _JUMP, _GOTO, _RETURN_VERDICT = 2, 3, -3, -4, -5
_ENDING: Final = (DROP, _STOLEN)
_DIVERTING: Final = (DROP, _QUEUE, _JUMP, _GOTO, _RETURN_VERDICT)
_KEEPING: Final = (
    "counter",
    "masq",
    "nat",
    "redir",
    "meta",
    "payload",
    "cmp",
    "ct",
    "log",
    "bitwise",
    "range",
    "limit",
    "notrack",
)
"""Expressions that neither end a packet nor lead it elsewhere."""


@dataclass(frozen=True)
class TraceNotice:
    """What the kernel tells of a packet at one point.

    `number` tells the packet from others. `rule`: the handle of the rule that tells, 0 for none. `ended`: the packet goes no
    further; `queued`: a program gets it, and may give it back. `leads_to`: the chain where it goes on. `link`: by which it would
    leave, 0 where that is not decided yet.
    """

    number: int
    family: int
    table: str
    chain: str
    kind: int
    rule: int
    ended: bool
    queued: bool
    leads_to: str
    link: int


def make(table: str, address: IPv4Address | IPv6Address, link: int) -> tuple[Message, ...]:
    """Make the table: what comes from or goes to `address` is traced, and what goes there leaves by that link alone."""
    family = FAMILIES[address.version]
    to, of = (_matched(address, offset[address.version]) for offset in (_DESTINATION, _SOURCE))
    trace = _expression("immediate", be32(1, _REGISTER), nest(2, attribute(1, b"\1")))
    trace += _expression("meta", be32(2, _META_TRACE), be32(3, _REGISTER))
    elsewhere = _expression("meta", be32(1, _REGISTER), be32(2, _META_OIF))
    elsewhere += _compared(struct.pack("=I", link), _UNEQUAL)
    drop = _expression("immediate", be32(1, 0), nest(2, nest(2, be32(1, DROP))))
    chains = [(THERE, _PREROUTING, _FIRST), (BACK, _PREROUTING, _FIRST), (FORWARD, _FORWARD, _FIRST)]
    chains += [(FORWARDED, _FORWARD, _LAST), (LEAVING, _POSTROUTING, _LAST)]
    return (
        message(_NEW_TABLE, CREATE | EXCL, text(1, table), be32(2, _OWNED), family=family),
        *(_chain(family, table, *each) for each in chains),
        _rule(family, table, THERE, to + trace),
        _rule(family, table, BACK, of + trace),
        _rule(family, table, LEAVING, to + elsewhere + drop),
    )


def delete(table: str, version: int) -> Message:
    """Delete the table, of that version of IP."""
    return message(_DELETE_TABLE, 0, text(1, table), family=FAMILIES[version])


def read_trace(kind: int, payload: bytes) -> TraceNotice | None:
    """What a notice tells of a packet; None for one that tells something else."""
    if kind & 0xFF != _TRACE:
        return None
    found = attributes(payload[HEADER.size :])
    verdict = attributes(found.get(5, b""))
    policy, why = _number(found.get(16)), _number(found.get(4))
    code = policy if why == POLICY else _number(verdict.get(1))
    return TraceNotice(
        number=_number(found.get(6)),
        family=payload[0],
        table=as_text(found.get(1)),
        chain=as_text(found.get(2)),
        kind=why,
        rule=int.from_bytes(found.get(3, b""), "big"),
        ended=code in _ENDING,
        queued=code & 0xFF == _QUEUE and code > 0,
        leads_to=as_text(verdict.get(2)),
        link=_number(found.get(12)),
    )


def get_rules(family: int, table: str, chain: str) -> Message:
    """List the rules of a chain; `diverts` judges each."""
    return message(_GET_RULE, DUMP, text(1, table), text(2, chain), family=family)


def get_elements(family: int, table: str, name: str) -> Message:
    """List the elements of a set or map; `names` judges each reply."""
    return message(_GET_ELEMENTS, DUMP, text(1, table), text(2, name), family=family)


@dataclass(frozen=True)
class NamingRule:
    """A rule that looks at the name or number of a packet's link. `values`: what it compares with; `sets` it looks into.

    `diverts`: it ends packets or leads them elsewhere.
    """

    values: Sequence[bytes]
    sets: Sequence[str]
    diverts: bool


def naming(payload: bytes) -> NamingRule | None:
    """The rule of a reply, None for one that asks for no link: so of nearly all, and then nothing of it is read."""
    if not any(key in payload for key in _NAMING):
        return None
    expressions = list(_expressions(attributes(payload[HEADER.size :]).get(4, b"")))
    if not any(name == "meta" and _number(data.get(2)) in _META_NAMES and 1 in data for name, data in expressions):
        return None
    return NamingRule(
        values=[attributes(data.get(3, b"")).get(1, b"") for name, data in expressions if name == "cmp"],
        sets=[as_text(data.get(1)) for name, data in expressions if name == "lookup"],
        diverts=any(map(_diverts, expressions)),
    )


def is_of(link: str, index: int, value: bytes) -> bool:
    """Whether this value, or beginning of one, is that of the link; or a part of it, where several things are looked up
    together: each part begins at a multiple of four bytes."""
    whole, number = link.encode().ljust(16, b"\0"), struct.pack("=I", index)
    if bool(value.rstrip(b"\0")) and whole.startswith(value):
        return True
    return any(value[at : at + 4] == number or value[at : at + 16] == whole for at in range(0, len(value), 4))


def is_between(link: str, keys: Collection[tuple[bytes, bool]]) -> bool:
    """Whether the name of the link is in one of the intervals of a set: its keys, each with whether an interval ends before it.

    So is a name with `*` written in a set.
    """
    whole = link.encode().ljust(16, b"\0")
    # of equal keys the one where an interval begins counts
    before = [(key, not ends) for key, ends in keys if len(key) == len(whole) and key <= whole]
    return any(ends for _, ends in keys) and bool(before) and max(before)[1]


def elements(payload: bytes) -> Iterator[tuple[bytes, bool]]:
    """The keys of the elements in a reply, each with whether an interval ends before it."""
    for _, each in each_attribute(attributes(payload[HEADER.size :]).get(3, b"")):
        found = attributes(each)
        yield attributes(found.get(1, b"")).get(1, b""), bool(_number(found.get(3)) & _ENDS_INTERVAL)


def _diverts(expression: tuple[str, dict[int, bytes]]) -> bool:
    name, data = expression
    if name == "immediate":
        verdict = attributes(attributes(data.get(2, b"")).get(2, b""))
        return bool(verdict) and _number(verdict.get(1)) in _DIVERTING
    if name == "lookup":
        return 3 in data and not _number(data[3])
    if name == "target":
        return as_text(data.get(1)) not in ("MASQUERADE", "SNAT", "LOG", "MARK", "CONNMARK", "TCPMSS")
    return name not in (*_KEEPING, "match")


def _expressions(data: bytes) -> Iterator[tuple[str, dict[int, bytes]]]:
    for _, each in each_attribute(data):
        found = attributes(each)
        yield as_text(found.get(1)), attributes(found.get(2, b""))


def _chain(family: int, table: str, name: str, hook: int, priority: int) -> Message:
    where = nest(4, be32(1, hook), be32(2, priority & 0xFFFF_FFFF))
    named = text(1, table) + text(3, name)
    return message(_NEW_CHAIN, CREATE, named, where, be32(5, ACCEPT), text(7, "filter"), family=family)


def _rule(family: int, table: str, chain: str, expressions: bytes) -> Message:
    return message(_NEW_RULE, CREATE, text(1, table), text(2, chain), nest(4, expressions), family=family)


def _matched(address: IPv4Address | IPv6Address, offset: int) -> bytes:
    load = (be32(1, _REGISTER), be32(2, _NETWORK_HEADER), be32(3, offset), be32(4, len(address.packed)))
    return _expression("payload", *load) + _compared(address.packed, _EQUAL)


def _compared(value: bytes, how: int) -> bytes:
    return _expression("cmp", be32(1, _REGISTER), be32(2, how), nest(3, attribute(1, value)))


def _expression(name: str, *data: bytes) -> bytes:
    return nest(1, text(1, name), nest(2, *data))


def _number(value: bytes | None) -> int:
    return int.from_bytes((value or b"")[:4], "big", signed=True)
