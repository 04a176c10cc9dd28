"""What a pod's network namespace has of links and routes, and the routes of ours that it is to have: data that the kernel's side
and the Route resource's side share. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
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
        """Everything except the owner."""
        return self.rank, self.dev, -1 if self.via is None else int(self.via)


def leading_to(dst: Network) -> str:
    """A destination as ip(8) shows it."""
    return str(dst) if dst.prefixlen else "default"


@dataclass(frozen=True)
class PodRoute(_Keyed):
    """A route of the main table, for packets of any source and TOS. `via` None: on the link. `metric`: 0 for IPv4 without one,
    1024 for such of IPv6.

    `protocol`: RTPROT_*, whose it is. `dev` "": it is not to one next hop of its own version of IP, as a blackhole or one over
    several links, or its link has gone. `scope`: RT_SCOPE_*. `onlink`: its next hop counts as one on the link. `is_void`: it
    leads nowhere. `by_object`: a nexthop object says where it leads. `hops`: of a route of IPv6 to several next hops, each with
    its device. They may be several programs': the kernel shows the first one's protocol alone.
    """

    dst: Network
    via: Address | None
    dev: str
    metric: int
    protocol: int
    scope: int = 0
    onlink: bool = False
    is_void: bool = False
    by_object: bool = False
    hops: tuple[tuple[str, Address], ...] = ()

    def is_of(self, protocols: Collection[int]) -> bool:
        """Whether it has one of these numbers of ours, and is one that we could have made, or has such a one in it."""
        return self.protocol in protocols and bool(self.dev or self.hops) and not self.by_object

    def __str__(self) -> str:
        """As ip(8) shows it, short."""
        return str(DesiredRoute(self.dst, self.dev, self.via)) if self.dev else f"{leading_to(self.dst)}, not to one next hop"


@dataclass(frozen=True)
class Inside:
    """A pod's namespace at one moment. `routes` in the kernel's order: of equal destination and metric the first is in force."""

    links: Mapping[str, PodLink] = field(default_factory=dict)
    routes: tuple[PodRoute, ...] = ()

    def ours(self, *protocols: int) -> tuple[PodRoute, ...]:
        """The routes of ours, which have one of these numbers."""
        return tuple(each for each in self.routes if each.is_of(protocols))

    def others(self, *protocols: int) -> tuple[PodRoute, ...]:
        """The routes of other programs."""
        return tuple(each for each in self.routes if not each.is_of(protocols))


@dataclass(frozen=True)
class DesiredRoute(_Keyed):
    """A route of ours that a pod is to have. `metric` 0 for IPv4: ours stands before another one, and wins.

    `onlink`: its next hop is on the link, whatever other routes say. `kept`: without it the default route must not come.
    """

    dst: Network
    dev: str
    via: Address | None = None
    metric: int = 0
    onlink: bool = False
    kept: bool = False

    @property
    def order(self) -> tuple[bool, bool, int, Rank]:
        """The order in which routes are made: those on the link first, for the next hops of others are reached by them, then
        those; of each long prefixes first; default routes last."""
        return not self.dst.prefixlen, self.via is not None, -self.dst.prefixlen, self.rank

    def __str__(self) -> str:
        via = f" via {self.via}" if self.via else ""
        return f"{leading_to(self.dst)}{via} dev {self.dev}{' onlink' if self.onlink else ''}"
