"""Messages of nftables for tables and base chains of family netdev, whose hooks see what arrives at one link.

Changes travel in a batch, which the kernel makes wholly or not at all; those of several processes it makes one after the other.
Source: linux/netfilter/nf_tables.h, nfnetlink.h.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from userspace_cni.linux.netlink import CREATE, DUMP, Message, as_text, attributes, be32, each_attribute, nest, text

_NFTABLES: Final = 10
_BATCH_BEGIN, _BATCH_END, _BATCH_GENERATION = 0x10, 0x11, 1
INET: Final = 1
NETDEV: Final = 5
"""Families of tables, NFPROTO_*."""
HEADER: Final = struct.Struct("!BBH")
"""struct nfgenmsg: family, version, resource."""

_NEW_TABLE, _GET_TABLE, _DELETE_TABLE = 0, 1, 2
_NEW_CHAIN, _GET_CHAIN, _DELETE_CHAIN = 3, 4, 5
_DELETE_RULE, _GET_GENERATION = 8, 16
NEW_GENERATION: Final = _NFTABLES << 8 | 15
"""Type of the notice that ends those of each transaction."""

_TABLE_NAME, _TABLE_FLAGS, _TABLE_USE = 1, 2, 3
_DORMANT = 1
_CHAIN_TABLE, _CHAIN_NAME, _CHAIN_HOOK, _CHAIN_POLICY, _CHAIN_USE, _CHAIN_TYPE = 1, 3, 4, 5, 6, 7
_HOOK_NUMBER, _HOOK_PRIORITY, _HOOK_DEVICE, _HOOK_DEVICES = 1, 2, 3, 4
_DEVICE_NAME = 1
_RULE_TABLE, _RULE_CHAIN = 1, 2
_GENERATION = 1
_INGRESS = 0

DROP: Final = 0
ACCEPT: Final = 1
"""Policies of a chain."""


@dataclass(frozen=True)
class Table:
    """A table. `dormant`: none of its hooks is called. `things` counts its chains, sets and objects."""

    dormant: bool
    things: int


@dataclass(frozen=True)
class Chain:
    """A chain. `hook` is "ingress", "" for none and for another; `devices` are the links at which it is called."""

    table: str
    name: str
    hook: str
    devices: tuple[str, ...]
    policy: int
    rules: int


def batch(*changes: Message, generation: int | None = None) -> tuple[Message, ...]:
    """The changes as one transaction; with `generation`, ERESTART when the rules were changed since then."""
    seen = b"" if generation is None else be32(_BATCH_GENERATION, generation)
    around = HEADER.pack(0, 0, _NFTABLES)
    return (Message(_BATCH_BEGIN, 0, around + seen, silent=True), *changes, Message(_BATCH_END, 0, around, silent=True))


def new_table(table: str) -> Message:
    """Make the table if there is none, and wake it if it is dormant."""
    return message(_NEW_TABLE, CREATE, text(_TABLE_NAME, table), be32(_TABLE_FLAGS, 0))


def delete_table(table: str) -> Message:
    return message(_DELETE_TABLE, 0, text(_TABLE_NAME, table))


def new_chain(table: str, chain: str, device: str, policy: int) -> Message:
    """Make a base chain at the ingress hook of a link, of priority 0; one that is there gets the link and the policy.

    Before Linux 6.16 ENOENT while there is no such link.
    """
    hook = nest(_CHAIN_HOOK, be32(_HOOK_NUMBER, _INGRESS), be32(_HOOK_PRIORITY, 0), text(_HOOK_DEVICE, device))
    name = text(_CHAIN_TABLE, table) + text(_CHAIN_NAME, chain)
    return message(_NEW_CHAIN, CREATE, name, hook, be32(_CHAIN_POLICY, policy), text(_CHAIN_TYPE, "filter"))


def flush_chain(table: str, chain: str) -> Message:
    return message(_DELETE_RULE, 0, text(_RULE_TABLE, table), text(_RULE_CHAIN, chain))


def delete_chain(table: str, chain: str) -> Message:
    return message(_DELETE_CHAIN, 0, text(_CHAIN_TABLE, table), text(_CHAIN_NAME, chain))


def get_generation() -> Message:
    """Ask for the generation of all rules, which each transaction raises; `generation` reads the reply."""
    return message(_GET_GENERATION, 0)


def generation(payload: bytes) -> int:
    return _be32(attributes(payload[HEADER.size :]).get(_GENERATION))


def get_table(table: str, family: int = NETDEV) -> Message:
    """Ask for one table, ENOENT when there is none; `table` reads the reply."""
    return message(_GET_TABLE, 0, text(_TABLE_NAME, table), family=family)


def table(payload: bytes) -> Table:
    found = attributes(payload[HEADER.size :])
    return Table(bool(_be32(found.get(_TABLE_FLAGS)) & _DORMANT), _be32(found.get(_TABLE_USE)))


def get_chains(family: int = NETDEV) -> Message:
    """List the chains of all tables of the family; `chain` reads each reply."""
    return message(_GET_CHAIN, DUMP, family=family)


def chain(payload: bytes) -> Chain:
    found = attributes(payload[HEADER.size :])
    hook = attributes(found.get(_CHAIN_HOOK, b""))
    return Chain(
        table=as_text(found.get(_CHAIN_TABLE)),
        name=as_text(found.get(_CHAIN_NAME)),
        hook="ingress" if _HOOK_NUMBER in hook and _be32(hook[_HOOK_NUMBER]) == _INGRESS else "",
        devices=tuple(_devices(hook)),
        policy=_be32(found.get(_CHAIN_POLICY)),
        rules=_be32(found.get(_CHAIN_USE)),
    )


def _devices(hook: dict[int, bytes]) -> Iterator[str]:
    """A kernel that takes several names says them all, and a single one in the old way, too."""
    if _HOOK_DEVICES in hook:
        yield from (as_text(value) for kind, value in each_attribute(hook[_HOOK_DEVICES]) if kind == _DEVICE_NAME)
    elif _HOOK_DEVICE in hook:
        yield as_text(hook[_HOOK_DEVICE])


def message(kind: int, flags: int, *body: bytes, family: int = NETDEV) -> Message:
    """A message of nftables, whose type is one of NFT_MSG_*."""
    return Message(_NFTABLES << 8 | kind, flags, HEADER.pack(family, 0, 0) + b"".join(body))


def _be32(value: bytes | None) -> int:
    return int.from_bytes((value or b"")[:4], "big")
