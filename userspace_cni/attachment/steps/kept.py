"""Addresses and routes of a link, in the form that records keep and from which they are made again, on it or on another link.

What changes by itself (states, counters, ages) is left out, so that equal ones mean the same. Numbers are those of rtnetlink(7).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Final, TypeVar

MAIN: Final = 254
"""The main routing table."""


@dataclass(frozen=True)
class KeptAddress:
    """An address without an end. `label`: what follows the link's name in it; `preferred_s`: None for ever."""

    address: str
    length: int
    scope: int = 0
    flags: int = 0
    peer: str = ""
    broadcast: str = ""
    label: str = ""
    priority: int = 0
    protocol: int = 0
    preferred_s: int | None = None

    @property
    def version(self) -> int:
        """Of IP."""
        return ip_address(self.address).version

    @property
    def shown(self) -> str:
        """As ip-address(8) takes it."""
        return f"{self.address}/{self.length}"

    @property
    def key(self) -> tuple[object, ...]:
        """By which an address is the same one."""
        return self.version, self.address, self.length

    @property
    def network(self) -> IPv4Network | IPv6Network:
        """The network in which a later address of IPv4 is secondary."""
        return ip_network(f"{self.peer or self.address}/{self.length}", strict=False)


@dataclass(frozen=True)
class KeptHop:
    """One of several next hops. `gateway` "" for none; `index` 0 for the link that the route is kept of."""

    gateway: str = ""
    index: int = 0
    weight: int = 0
    flags: int = 0
    realm: int = 0


@dataclass(frozen=True)
class KeptRoute:
    """A route. `source` "" for any; `gateway` "" for none, or with several `hops`; `metrics`: RTA_METRICS in hexadecimal."""

    dst: str
    source: str = ""
    tos: int = 0
    table: int = MAIN
    protocol: int = 0
    scope: int = 0
    type: int = 1
    flags: int = 0
    priority: int = 0
    gateway: str = ""
    sends_from: str = ""
    metrics: str = ""
    realm: int = 0
    preference: int = 0
    hops: tuple[KeptHop, ...] = ()

    @property
    def version(self) -> int:
        """Of IP."""
        return 6 if ":" in self.dst else 4

    @property
    def is_default(self) -> bool:
        """Whether it leads everywhere."""
        return self.dst.endswith("/0")

    @property
    def key(self) -> tuple[object, ...]:
        """By which a route replaces another one."""
        return self.dst, self.source, self.tos, self.table, self.priority

    @property
    def gateways(self) -> tuple[str, ...]:
        return tuple(each for each in (self.gateway, *(hop.gateway for hop in self.hops)) if each)

    @property
    def shown(self) -> str:
        """As ip-route(8) takes it, without its link."""
        words = ["default" if self.is_default else self.dst, *(f"via {each}" for each in self.gateways)]
        words += [f"{word} {value}" for word, value in (("metric", self.priority), ("src", self.sends_from)) if value]
        return " ".join(words if self.table == MAIN else [*words, f"table {self.table}"])


Kept = TypeVar("Kept", bound=KeptAddress | KeptRoute)


def next_hops(routes: Iterable[KeptRoute]) -> tuple[str, ...]:
    """The next hops of the routes, those of default routes first."""
    ordered = sorted(routes, key=lambda each: not each.is_default)
    return tuple(dict.fromkeys(gateway for route in ordered for gateway in route.gateways))
