"""Messages about policy rules. Source: rtnetlink(7), linux/fib_rules.h."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Final

from userspace_cni.host.netlink.address_messages import FAMILIES
from userspace_cni.linux import netlink as codec
from userspace_cni.linux.netlink import Message, as_text, as_u32, attribute, attributes, u8, u32

_NEWRULE: Final = 32
_DELRULE: Final = 33
_GETRULE: Final = 34
_HEADER: Final = struct.Struct("=BBBBBxxBI")
"""struct fib_rule_hdr: family, lengths of destination and source, tos, table, action, flags."""
_TO_TABLE: Final = 1
"""FR_ACT_TO_TBL."""
_SOURCE: Final = 2
_INCOMING: Final = 3
_PRIORITY: Final = 6
_SUPPRESSED: Final = 14
_TABLE: Final = 15
_PROTOCOL: Final = 21
_NOTHING: Final = 0xFFFFFFFF
"""FRA_SUPPRESS_PREFIXLEN of a rule that suppresses nothing."""


@dataclass(frozen=True)
class FoundRule:
    """A policy rule. `source` "" for any; `suppresses`: FRA_SUPPRESS_PREFIXLEN, None for none; `link`: of what comes in there
    alone."""

    source: str
    table: int
    priority: int
    protocol: int
    suppresses: int | None
    link: str = ""


def add(rule: FoundRule) -> Message:
    """Add the rule. EEXIST: that very rule is there."""
    return _message(_NEWRULE, codec.CREATE | codec.EXCL, rule)


def remove(rule: FoundRule) -> Message:
    """Remove that very rule. ENOENT: there is none."""
    return _message(_DELRULE, 0, rule)


def dump(version: int) -> Message:
    """Ask for every rule of that version of IP. Where the kernel has none of it, it answers with all others."""
    return Message(_GETRULE, codec.DUMP, _HEADER.pack(FAMILIES[version], 0, 0, 0, 0, 0, 0))


def read(payload: bytes) -> FoundRule:
    _, _, length, _, table, _, _ = _HEADER.unpack_from(payload)
    found = attributes(payload[_HEADER.size :])
    suppresses = as_u32(found.get(_SUPPRESSED, b"\xff\xff\xff\xff"))
    return FoundRule(
        source=str(ip_network((found[_SOURCE], length))) if _SOURCE in found else "",
        table=as_u32(found.get(_TABLE)) or table,
        priority=as_u32(found.get(_PRIORITY)),
        protocol=found.get(_PROTOCOL, b"\0")[0],
        suppresses=None if suppresses == _NOTHING else suppresses,
        link=as_text(found.get(_INCOMING)),
    )


def _message(kind: int, flags: int, rule: FoundRule) -> Message:
    source = ip_network(rule.source)
    given = [attribute(_SOURCE, source.network_address.packed), u32(_PRIORITY, rule.priority), u32(_TABLE, rule.table)]
    given += [u8(_PROTOCOL, rule.protocol), *([] if rule.suppresses is None else [u32(_SUPPRESSED, rule.suppresses)])]
    header = _HEADER.pack(FAMILIES[source.version], 0, source.prefixlen, 0, 0, _TO_TABLE, 0)
    return Message(kind, flags, header + b"".join(given))
