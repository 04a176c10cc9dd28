"""What an ACL's match says of a packet: as much of OVN's expressions as policies are written in, and nothing else.

What it cannot read raises, so that a match of another form is seen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network

_TOKEN = re.compile(r"\s*(&&|\|\||==|<=|[(){},]|[@$]?[A-Za-z0-9_.:/]+)")
_TRANSPORTS = ("tcp", "udp", "sctp")


@dataclass(frozen=True)
class MatchedPacket:
    """The first packet of a connection. `protocol`: in small letters; `port`: the one that it is to."""

    source: str
    target: str
    protocol: str
    port: int
    inport: str = ""
    outport: str = ""
    source_port: int = 40000


@dataclass(frozen=True)
class NamedMembers:
    """The members of port groups and address sets, by name."""

    groups: Mapping[str, AbstractSet[str]] = field(default_factory=dict)
    sets: Mapping[str, AbstractSet[str]] = field(default_factory=dict)


class MatchReader:
    """Reads one match, for one packet."""

    def __init__(self, match: str, packet: MatchedPacket, members: NamedMembers) -> None:
        self._tokens = _split(match)
        self._packet = packet
        self._members = members

    def holds(self) -> bool:
        """Whether the packet matches. Raises ValueError for what it cannot read."""
        found = self._any()
        if self._tokens:
            raise ValueError(f"what is left: {self._tokens}")
        return found

    def _any(self) -> bool:
        """Terms between which is one operator: OVN refuses others without parentheses."""
        found = [self._one()]
        operator = next((each for each in ("&&", "||") if self._tokens[:1] == [each]), "")
        while operator and self._next(operator):
            found.append(self._one())
        return all(found) if operator == "&&" else any(found)

    def _one(self) -> bool:
        if self._next("("):
            found = self._any()
            self._take(")")
            return found
        word = self._tokens.pop(0)
        if word.isdigit():  # 1 <= tcp.dst <= 2
            self._take("<=")
            value = self._field(self._tokens.pop(0))
            self._take("<=")
            last = int(self._tokens.pop(0))
            return value is not None and int(word) <= int(value) <= last
        if self._next("=="):
            return self._equals(word)
        return self._is(word)

    def _is(self, word: str) -> bool:
        version = ip_address(self._packet.source).version
        if word in ("nd", "nd_rs", "nd_ra", "mldv1", "mldv2"):
            return self._packet.protocol == word
        if word not in ("ip", "ip4", "ip6", *_TRANSPORTS):
            raise ValueError(f"{word} is not known")
        return word in ("ip", f"ip{version}", self._packet.protocol)

    def _equals(self, word: str) -> bool:
        values = [self._tokens.pop(0)]
        if values == ["{"]:
            values = [self._tokens.pop(0)]
            while self._next(","):
                values.append(self._tokens.pop(0))
            self._take("}")
        if word in ("inport", "outport"):
            return any(getattr(self._packet, word) in self._members.groups[each.removeprefix("@")] for each in values)
        value = self._field(word)
        same: Callable[[str], bool] = (
            (lambda each: _is_in(value, each)) if word.startswith("ip") else (lambda each: each == value)
        )
        parts = [part for each in values for part in (self._members.sets[each[1:]] if each.startswith("$") else [each])]
        return any(map(same, parts)) if value is not None else False

    def _field(self, word: str) -> str | None:
        """The value of a field; None for a packet without it."""
        packet, (what, _, side) = self._packet, word.partition(".")
        if what in _TRANSPORTS:
            port = packet.port if side == "dst" else packet.source_port
            return str(port) if packet.protocol == what else None
        if what in ("ip4", "ip6"):
            address = packet.target if side == "dst" else packet.source
            return address if ip_address(address).version == int(what[-1]) else None
        raise ValueError(f"{word} is not known")

    def _next(self, token: str) -> bool:
        if self._tokens[:1] == [token]:
            self._tokens.pop(0)
            return True
        return False

    def _take(self, token: str) -> None:
        if not self._next(token):
            raise ValueError(f"{token} is missing before {self._tokens}")


def _split(match: str) -> list[str]:
    found, end = [], 0
    while end < len(match.rstrip()):
        token = _TOKEN.match(match, end)
        if token is None:
            raise ValueError(f"{match[end:]!r} is not known")
        found.append(token[1])
        end = token.end()
    return found


def _is_in(value: str | None, block: str) -> bool:
    network = ip_network(block)
    return value is not None and ip_address(value).version == network.version and ip_address(value) in network
