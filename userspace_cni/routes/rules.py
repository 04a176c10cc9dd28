"""Which entries of which Routes ask for which destinations of a pod, and who wins where two ask for one. Pure.

Pods for which the same Routes ask share one answer: a node has a hundred pods and few kinds of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal, NamedTuple

from userspace_cni.base.routing import Address, Network
from userspace_cni.routes.cluster_facts import (
    NOTHING_KNOWN,
    ClusterFacts,
    ClusterService,
    RoutePod,
    add_service_addresses,
    why_left_alone,
    why_none,
)
from userspace_cni.routes.prefixes import Prefix, alone, host, prefix
from userspace_cni.routes.resource import FeatureGates, RouteObject
from userspace_cni.routes.route_values import ALL, AUTO, ServiceEntry, why_never
from userspace_cni.routes.selecting import specificity

ROUTES_MAX: Final = 1024
"""Routes of ours in a pod at most."""
Kind = Literal["conflict", "duplicate", "refused", "remark", "skipped", "service"]
"""Of what is told: another Route won; an earlier entry has it; never possible; possible, with more effect than expected; not in
this pod; no such Service or address."""


_TAKEN: Final = (
    "the networks of {} are not known, so that they follow this default route: name them in the setting route_cluster_ranges"
)
"""The remark on a default route."""


class RouteRemark(NamedTuple):
    """What is to be said of an entry of a Route. `dst`: None where it is of no single destination."""

    route: str
    kind: Kind
    dst: Network | None
    text: str


class DestinationClaim(NamedTuple):
    """An entry's spec for one destination. `via`: None without a gateway of its own; then `derive` says where to look for one.

    `prefix`: the destination once more, as it is looked up. `origin`: the entry, for messages.
    """

    prefix: Prefix
    dst: Network
    dev: str
    via: Address | None
    derive: bool
    route: str
    origin: str
    gates: FeatureGates

    @property
    def way(self) -> tuple[str, Address | None, bool]:
        """Where it leads: device, gateway, and whether that is derived."""
        return self.dev, self.via, self.derive


class Rank(NamedTuple):
    """By what a Route wins over another one: how specific its selector of the pod is; its priority; since when it is there."""

    specificity: int
    priority: int
    created: str


class Rival(NamedTuple):
    """One of several Routes' claims for one destination."""

    claim: DestinationClaim
    rank: Rank

    def describe_loss(self, winner: Rival) -> RouteRemark:
        """What is to be said of it where the other one is in force."""
        text = f"{self.claim.origin}: Route '{winner.claim.route}' has {self.claim.dst}: {_why_winning(winner.rank, self.rank)}"
        return RouteRemark(self.claim.route, "conflict", self.claim.dst, text)


@dataclass(frozen=True)
class PodClaims:
    """What all Routes together ask of a pod. `claims`: one per destination, the winning Route's, long prefixes first.

    `rivals`: of each destination for which several Routes ask, all claims, the winner first. `routes`: the names of those that
    select the pod. `left_out`: what exceeds ROUTES_MAX. `skipped`: why none may.
    """

    claims: tuple[DestinationClaim, ...] = ()
    rivals: Mapping[Prefix, tuple[Rival, ...]] = field(default_factory=dict)
    told: tuple[RouteRemark, ...] = ()
    routes: tuple[str, ...] = ()
    left_out: tuple[RouteRemark, ...] = ()
    skipped: str = ""

    @cached_property
    def lengths(self) -> Mapping[int, tuple[int, ...]]:
        """Which lengths of prefixes are asked for, by version."""
        return {
            version: tuple({each.prefix.length for each in self.claims if each.prefix.version == version}) for version in (4, 6)
        }


@dataclass(frozen=True)
class ExpandedRoute:
    """A Route with its Services as they are now: what it asks of each of its pods, and what is wrong whatever the pod."""

    route: RouteObject
    claims: tuple[DestinationClaim, ...]
    told: tuple[RouteRemark, ...]


class Rulebook:
    """All Routes and Services of one moment. `exclude`: namespaces that a Route concerns only if it names them."""

    def __init__(
        self,
        routes: Iterable[RouteObject],
        services: Iterable[ClusterService],
        cluster: ClusterFacts = NOTHING_KNOWN,
        exclude: Collection[str] = (),
    ) -> None:
        self._services = {(each.namespace, each.name): each for each in services}
        self.cluster = add_service_addresses(cluster, self._services.values())
        self._exclude = frozenset(exclude)
        usable = [each for each in routes if not each.is_unusable]
        usable.sort(key=lambda each: (-each.priority, each.created, each.name))
        self._expanded = tuple(self._expand(each) for each in usable)
        self._asked: dict[tuple[tuple[int, int], ...], PodClaims] = {}

    @property
    def expanded(self) -> tuple[ExpandedRoute, ...]:
        """Each Route that can be used, the one that wins among equally specific ones first."""
        return self._expanded

    def claims(self, pod: RoutePod) -> PodClaims:
        if why := why_left_alone(pod):
            return PodClaims(skipped=why)
        matches = []
        for number, each in enumerate(self._expanded):
            how = self._specificity(each.route, pod)
            if how is not None:
                matches.append((-how, number))
        key = tuple(sorted(matches))
        found = self._asked.get(key)
        if found is None:
            found = self._asked[key] = self._merged(key)
        return found

    def _specificity(self, route: RouteObject, pod: RoutePod) -> int | None:
        """How specific the selector is by which the Route has the pod; None where it has not."""
        return specificity(route, pod, self.cluster.namespaces.get(pod.namespace), pod.namespace in self._exclude)

    # -- from entries to claims

    def _expand(self, route: RouteObject) -> ExpandedRoute:
        told: list[RouteRemark] = []
        others: list[RouteRemark] = []
        found: dict[Prefix, DestinationClaim] = {}
        for claim in (*self._of_networks(route), *self._of_services(route, told, others)):
            first = found.get(claim.prefix)
            if first:
                kind: Kind = "remark" if claim.way == first.way else "duplicate"
                told.append(RouteRemark(route.name, kind, claim.dst, f"{claim.origin}: {first.origin} has {claim.dst} already"))
            elif why := self._closed(claim):
                told.append(RouteRemark(route.name, "refused", claim.dst, f"{claim.origin}: {why}"))
            else:
                found[claim.prefix] = claim
        had = {each.dst for each in found.values()}
        told += [each for each in others if each.dst not in had]
        told += [each for claim in found.values() if claim.prefix.is_default for each in self._taken(claim)]
        return ExpandedRoute(route, tuple(found.values()), tuple(told))

    def _taken(self, claim: DestinationClaim) -> Iterator[RouteRemark]:
        """The report about a default route that takes networks of the cluster, because they are not known."""
        unknown = self.cluster.why_unknown(claim.prefix.version)
        if unknown and claim.gates.keep_cluster_routes:
            yield RouteRemark(claim.route, "remark", claim.dst, f"{claim.origin}: {_TAKEN.format(unknown)}")

    def _of_networks(self, route: RouteObject) -> Iterator[DestinationClaim]:
        for each in route.networks:
            via = None if isinstance(each.via, str) else each.via
            derive = each.via == AUTO or (each.via == "" and route.derive)
            yield DestinationClaim(prefix(each.dst), each.dst, each.dev, via, derive, route.name, each.place, route.gates)

    def _of_services(self, route: RouteObject, told: list[RouteRemark], others: list[RouteRemark]) -> Iterator[DestinationClaim]:
        """The claims; `others` gets what is to be said of addresses unless another entry has them."""
        for entry in route.services:
            via = None if isinstance(entry.via, str) else entry.via
            derive = entry.via == AUTO or (entry.via == "" and route.derive)
            addresses = 0
            for service in self._named(entry, route, told):
                origin = f"{entry.place}: Service {service.namespace}/{service.name}"
                of_family = [each for each in service.addresses if via is None or each.version == via.version]
                for address in service.addresses:
                    addresses += 1
                    if address not in of_family:
                        why = f"{origin}: {address} is not of the family of its gateway {via}: an entry of its own may have it"
                        others.append(RouteRemark(route.name, "remark" if of_family else "refused", alone(address), why))
                        continue
                    if why := why_never(host(address)):
                        told.append(RouteRemark(route.name, "refused", alone(address), f"{origin}: {address}: {why}"))
                        continue
                    yield DestinationClaim(host(address), alone(address), entry.dev, via, derive, route.name, origin, route.gates)
            if entry.name == ALL and not addresses:
                of = "any namespace" if entry.namespace == ALL else f"namespace {entry.namespace}"
                why = f"{entry.place}: no Service of {of} has an address of its own that it may have"
                told.append(RouteRemark(route.name, "service", None, why))

    def _named(self, entry: ServiceEntry, route: RouteObject, told: list[RouteRemark]) -> Iterator[ClusterService]:
        """The Services of an entry that have addresses; of all of a namespace, or of all, those which the Route may have."""
        if entry.name == ALL:
            for service in self._in_namespace.get(entry.namespace, ()) if entry.namespace != ALL else self._in_order:
                if not why_none(service) and not any(self._closed_to(each, route.gates) for each in service.addresses):
                    yield service
            return
        found = self._services.get((entry.namespace, entry.name))
        why = why_none(found) if found else "there is no such Service"
        if why:
            told.append(RouteRemark(route.name, "service", None, f"{entry.place}: Service {entry.namespace}/{entry.name}: {why}"))
        elif found:
            yield found

    @cached_property
    def _in_namespace(self) -> Mapping[str, list[ClusterService]]:
        found: dict[str, list[ClusterService]] = {}
        for service in self._in_order:
            found.setdefault(service.namespace, []).append(service)
        return found

    @cached_property
    def _in_order(self) -> Sequence[ClusterService]:
        return [service for _, service in sorted(self._services.items())]

    # -- API server and DNS

    def _closed(self, claim: DestinationClaim) -> str:
        """Why the Route's gates do not allow the destination; "" where they do. The default route keeps what it must itself."""
        if claim.prefix.is_default:
            return ""
        for closed, gate, what in self._guarded:
            if not getattr(claim.gates, gate) and any(claim.prefix.covers(each) for each in closed):
                return f"{claim.dst} has an address of {what}; the gate {gate.replace('_', '-')} allows it"
        return ""

    def _closed_to(self, address: Address, gates: FeatureGates) -> bool:
        return any(not getattr(gates, gate) and host(address) in closed for closed, gate, _ in self._guarded)

    @cached_property
    def _guarded(self) -> tuple[tuple[frozenset[Prefix], str, str], ...]:
        """Addresses, the gate that allows routes to them, and what they are of."""
        return (
            (frozenset(map(host, self.cluster.apiservers)), "allow_apiserver", "the API server"),
            (frozenset(map(host, self.cluster.dns)), "allow_dns", "the cluster's DNS"),
        )

    # -- conflicts

    def _merged(self, matches: tuple[tuple[int, int], ...]) -> PodClaims:
        """The claims of these Routes, the winning Route first."""
        taken: dict[Prefix, list[Rival]] = {}
        told: list[RouteRemark] = []
        left_out: list[RouteRemark] = []
        for negative, number in matches:
            expanded = self._expanded[number]
            route = expanded.route
            rank = Rank(-negative, route.priority, route.created)
            told += expanded.told
            too_many = 0
            for claim in expanded.claims:
                if claim.prefix in taken:
                    taken[claim.prefix].append(Rival(claim, rank))
                elif len(taken) >= ROUTES_MAX:
                    too_many += 1
                else:
                    taken[claim.prefix] = [Rival(claim, rank)]
            if too_many:
                why = f"{too_many} of its routes are left out: a pod has {ROUTES_MAX} at most"
                left_out.append(RouteRemark(route.name, "refused", None, why))
        claims = sorted((rivals[0].claim for rivals in taken.values()), key=lambda claim: order(claim.prefix))
        several = {dst: tuple(rivals) for dst, rivals in taken.items() if len(rivals) > 1}
        names = tuple(self._expanded[number].route.name for _, number in matches)
        return PodClaims(tuple(claims), several, tuple(told), names, tuple(left_out))


def order(dst: Prefix) -> tuple[int, int, int]:
    """The order in which claims are told of and decided: long prefixes first, default routes last."""
    return -dst.length, dst.version, dst.network


def _why_winning(winner: Rank, loser: Rank) -> str:
    """By what the first Route wins over the other."""
    if winner.specificity != loser.specificity:
        return "its selector is more specific"
    if winner.priority != loser.priority:
        return f"its priority is {winner.priority}, not {loser.priority}"
    return "it is older" if winner.created != loser.created else "its name comes first"
