"""What a pod's network namespace has of links and routes, and the routes of ours that it is to have: data that the kernel's side
and the Route resource's side share. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Interface = IPv4Interface | IPv6Interface
Rank = tuple[int, int, int, int]
"""Version of IP, first address, length of the prefix, metric."""
RouteKey = tuple[Rank, str, int]
"""Rank, device, gateway or -1."""


@dataclass(frozen=True)
class PodLink:
    """A link of a pod: its index, whether it is up, its addresses with prefix length."""

    name: str
    index: int
    up: bool
    addresses: tuple[Interface, ...] = ()

    def has(self, version: int) -> bool:
        """Whether it has an address of this version of IP; an IPv6 link-local one alone does not count."""
        return any(each.version == version and not each.ip.is_link_local for each in self.addresses)


class _Keyed:
    """A route by its key, as numbers: `ipaddress` hashes in microseconds, and a pass looks each route up several times."""

    dst: Network
    dev: str
    via: Address | None
    metric: int

    @cached_property
    def rank(self) -> Rank:
        """Its destination and metric: of several routes with one rank the first is in force."""
        return self.dst.version, int(self.dst.network_address), self.dst.prefixlen, self.metric

    @cached_property
    def key(self) -> RouteKey:
        """All of it but whose it is."""
        return self.rank, self.dev, -1 if self.via is None else int(self.via)


@dataclass(frozen=True)
class PodRoute(_Keyed):
    """A unicast route of the main table. `via` None: on the link. `metric`: 0 for IPv4 without one, 1024 for such of IPv6.

    `protocol`: RTPROT_*, whose it is. `dev` "": over several links, or one that has gone.
    """

    dst: Network
    via: Address | None
    dev: str
    metric: int
    protocol: int


@dataclass(frozen=True)
class Inside:
    """A pod's namespace at one moment. `routes` in the kernel's order: of equal destination and metric the first is in force."""

    links: Mapping[str, PodLink] = field(default_factory=dict)
    routes: tuple[PodRoute, ...] = ()

    def others(self, protocol: int) -> tuple[PodRoute, ...]:
        """The routes of other programs."""
        return tuple(each for each in self.routes if each.protocol != protocol)


@dataclass(frozen=True)
class Wanted(_Keyed):
    """A route of ours that a pod is to have. `metric` 0 for IPv4: ours stands before another one, and wins."""

    dst: Network
    dev: str
    via: Address | None = None
    metric: int = 0

    def __str__(self) -> str:
        to = "default" if not self.dst.prefixlen else str(self.dst)
        return f"{to}{f' via {self.via}' if self.via else ''} dev {self.dev}"
