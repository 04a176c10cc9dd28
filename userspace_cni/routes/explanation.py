"""What becomes of a packet from a pod, in words: which Route, which gateway and why; and how a namespace differs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from userspace_cni.base.findings import Finding
from userspace_cni.base.routing import Address, DesiredRoute, Inside, Network, PodRoute, Rank
from userspace_cni.routes.prefixes import PrefixTable, alone, prefix
from userspace_cni.routes.resolving import PROTOCOL, ReasonedRoute, ResolvedRoutes, effective_metric
from userspace_cni.routes.route_values import is_link_local6
from userspace_cni.routes.rules import PodClaims

ROUTE_MISSING: Final = "route-missing"
ROUTE_TOO_MANY: Final = "route-too-many"
_PARTS_MAX: Final = 10


class PacketWay(NamedTuple):
    """How the kernel sends a packet. `is_ours`: by a route of ours. `dev`: as of PodRoute."""

    dst: Network
    dev: str
    via: Address | None
    is_ours: bool

    def __str__(self) -> str:
        return str(PodRoute(self.dst, self.via, self.dev, 0, 0))


Presence = Literal["there", "behind", "missing"]
"""there: the route is in force; behind: another program's comes before it; missing: the namespace does not have it."""


@dataclass(frozen=True)
class SeenRoute:
    """Whether a namespace has a route now. `instead`: another program's, of the same destination and metric, that is in force."""

    presence: Presence
    instead: PodRoute | None = None


@dataclass(frozen=True)
class Explanation:
    """Where packets to a destination go. `now`, `then`: None where no route leads there.

    `reasoned`: the route of ours that decides, None where none does; `then` is what holds when all is applied.
    """

    dst: Network
    reasoned: ReasonedRoute | None
    now: PacketWay | None
    then: PacketWay | None
    notes: tuple[str, ...] = ()

    def lines(self) -> Iterator[str]:
        """In words, a line each."""
        shown = self.dst.network_address if self.dst.prefixlen == self.dst.max_prefixlen else self.dst
        if self.reasoned:
            yield f"{shown}: Route '{self.reasoned.asked_by}' asks for {self.then}"
            yield f"  {self.reasoned.why}"
        else:
            yield f"{shown}: no Route decides"
        yield f"now: {_said(self.now)}"
        if self.now != self.then:
            yield f"when all is applied: {_said(self.then)}"
        yield from (f"note: {each}" for each in self.notes)


@dataclass(frozen=True)
class RouteDrift:
    """How a namespace differs from what it is to have. `missing`: what is not there, or behind another program's.
    `behind`: routes of others before which ours stand; that is no fault."""

    missing: tuple[DesiredRoute, ...]
    extra: tuple[PodRoute, ...]
    behind: tuple[PodRoute, ...]

    def findings(self, pod: str, resolved: ResolvedRoutes) -> Iterator[Finding]:
        """What has to be changed in the pod, which is to have what is `resolved`; at the Route that asks for it."""
        asked_by = {each.wanted: each.asked_by for each in resolved.wanted}
        for wanted in self.missing:
            yield Finding(ROUTE_MISSING, "error", pod, str(wanted), path=asked_by[wanted], expected=str(wanted))
        for route in self.extra:
            yield Finding(ROUTE_TOO_MANY, "warning", pod, f"{route}: no Route asks for it", found=str(route))


def explain(
    dst: Address | Network, asked: PodClaims, resolved: ResolvedRoutes, inside: Inside, protocol: int = PROTOCOL
) -> Explanation:
    """Where the pod's packets to `dst` go, now and when all is applied. `protocol`: as in `resolve`."""
    target = alone(dst) if isinstance(dst, Address) else dst
    if _is_own(target, inside):
        lo = PacketWay(target, "lo", None, is_ours=False)
        return Explanation(target, None, lo, lo, ("it is the pod's own address: no packet to it leaves the pod",))
    others = [(each, False) for each in inside.others(protocol)]
    now = _way(target, [(each, each.is_of((protocol,))) for each in inside.routes])
    ours = [(PodRoute(each.dst, each.via, each.dev, each.metric, protocol), True) for each in resolved.routes]
    then = _way(target, [*ours, *others])
    reasoned = next((each for each in resolved.wanted if then and then.is_ours and each.wanted.dst == then.dst), None)
    told = [*asked.told, *resolved.conflicts, *resolved.skipped, *resolved.refusals]
    known = [each for each in told if each.dst is not None and prefix(each.dst).covers(prefix(target))]
    notes = [f"Route '{each.route}': {each.text}" for each in known]
    if asked.skipped:
        notes.insert(0, f"no Route concerns this pod: {asked.skipped}")
    notes += _parts(target, resolved)
    if then is not None and then.is_ours:
        notes += _effects(target, then, _way(target, others), inside)
    return Explanation(target, reasoned, now, then, tuple(dict.fromkeys(notes)))


def drift(resolved: ResolvedRoutes, inside: Inside, protocol: int = PROTOCOL) -> RouteDrift:
    """What the namespace lacks, has too much of ours, and has of others behind ours."""
    wanted = {each.key: each for each in resolved.routes}
    first: dict[Rank, PodRoute] = {}
    for each in inside.routes:
        first.setdefault(each.rank, each)
    ours, others = inside.ours(protocol), inside.others(protocol)
    in_force = {each.key for each in ours if first[each.rank] is each}
    in_front = {first[each.rank] for each in ours}
    destinations = {each.rank[:3] for each in wanted.values()}
    return RouteDrift(
        tuple(each for key, each in wanted.items() if key not in in_force),
        tuple(each for each in ours if each.key not in wanted),
        tuple(each for each in others if each.rank[:3] in destinations and each not in in_front),
    )


def find_route(wanted: DesiredRoute, inside: Inside, protocol: int = PROTOCOL) -> SeenRoute:
    """Whether the namespace has the route, as `drift` judges it."""
    same = [each for each in inside.routes if each.rank == wanted.rank]
    has_it = [each.is_of((protocol,)) and each.key == wanted.key for each in same]
    if any(has_it[:1]):
        return SeenRoute("there")
    return SeenRoute("behind" if any(has_it) else "missing", same[0] if same else None)


def _way(target: Network, routes: Sequence[tuple[PodRoute, bool]]) -> PacketWay | None:
    """What the kernel takes: the longest prefix, of these the lowest metric, of these the first."""
    by_metric = sorted(routes, key=lambda each: effective_metric(each[0]))
    best = PrefixTable((prefix(each[0].dst), each) for each in by_metric).best(prefix(target))
    if best is None:
        return None
    found, is_ours = best[1]
    return PacketWay(found.dst, found.dev, found.via, is_ours)


def _parts(target: Network, resolved: ResolvedRoutes) -> Iterator[str]:
    """The routes of ours that take a part of a network elsewhere."""
    whole = prefix(target)
    parts = [each for each in resolved.wanted if whole.covers(prefix(each.wanted.dst)) and each.wanted.dst != target]
    yield from (f"of it, Route '{each.asked_by}' has {each.wanted}" for each in parts[:_PARTS_MAX])
    if len(parts) > _PARTS_MAX:
        yield f"and {len(parts) - _PARTS_MAX} more parts"


def _is_own(target: Network, inside: Inside) -> bool:
    """Whether the kernel's local table decides about it, before any route of ours or of others."""
    addresses = (each.ip for link in inside.links.values() for each in link.addresses)
    return target.is_loopback or any(alone(each) == target for each in addresses)


def _effects(target: Network, then: PacketWay, former: PacketWay | None, inside: Inside) -> Iterator[str]:
    """What a route of ours does not see to where it takes packets to another device than the routes of others would."""
    if former is None or former.dev == then.dev:
        return
    yield f"answers must come in by {then.dev}: where rp_filter is 1, those that come in by {former.dev} are dropped"
    source, other = _source(inside, then.dev, target.version), _source(inside, former.dev, target.version)
    if source is not None and source != other:
        instead = "" if other is None else f", not with {other}"
        yield f"packets leave with {source}, an address of {then.dev}{instead}: the network there must know the way back to it"


def _source(inside: Inside, dev: str, version: int) -> Address | None:
    """The address that the kernel gives to packets by a device: its first one."""
    link = inside.links.get(dev)
    found = (each.ip for each in (link.addresses if link else ()) if each.version == version and not is_link_local6(each.ip))
    return next(found, None)


def _said(way: PacketWay | None) -> str:
    if way is None:
        return "no route leads there"
    return f"{way}, {'ours' if way.is_ours else 'of others'}"
