"""Derives the desired routes of a pod from the Routes' claims and from the state of its namespace.

Pure. Other programs' routes are never changed: a route of ours comes before theirs, or is not made. Routes that the kernel
would refuse, or accept and lead nowhere, are refused here by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from userspace_cni.base.routing import Address, DesiredRoute, Inside, Network, PodRoute
from userspace_cni.routes.cluster_facts import ClusterFacts
from userspace_cni.routes.prefixes import IPV4, IPV6, Prefix, PrefixTable, host, prefix
from userspace_cni.routes.route_gateways import Gateway, decide
from userspace_cni.routes.route_values import is_link_local6
from userspace_cni.routes.rules import DestinationClaim, PodClaims, RouteRemark

PROTOCOL: Final = 148
"""What the kernel has with each route of ours (rtm_protocol), unless the settings say another number."""
METRIC6: Final = 100
"""Metric of IPv6 routes of ours: lower than others have, for the kernel takes none beside one of the same."""
KERNEL: Final = 2
"""RTPROT_KERNEL: the subnets of a device's addresses."""
_METRIC6_UNSAID: Final = 1024
"""What the kernel makes of metric 0 for IPv6."""
_ON_LINK: Final = "on-link: no gateway is named"
_NAMED: Final = "by the gateway that is named"


class ReasonedRoute(NamedTuple):
    """A route that the pod is to have. `asked_by`: the Route; `why`: how its gateway was found, or for what it is needed."""

    wanted: DesiredRoute
    asked_by: str
    why: str


@dataclass(frozen=True)
class ResolvedRoutes:
    """The routes that a pod is to have, in the order in which they are made, and why others are not among them.

    `skipped`: what this pod lacks, or has of its own; `refusals`: what cannot be; `overridden`: destinations for which others
    have a route, before which ours stands; `conflicts`: which Routes' entries another Route keeps from effect.
    """

    wanted: tuple[ReasonedRoute, ...] = ()
    skipped: tuple[RouteRemark, ...] = ()
    refusals: tuple[RouteRemark, ...] = ()
    overridden: tuple[Network, ...] = ()
    conflicts: tuple[RouteRemark, ...] = ()

    @property
    def routes(self) -> tuple[DesiredRoute, ...]:
        return tuple(each.wanted for each in self.wanted)

    @cached_property
    def applied(self) -> Collection[str]:
        return {each.asked_by for each in self.wanted}

    @cached_property
    def lost(self) -> Counter[str]:
        """How many entries of each Route another one keeps from effect."""
        return Counter(each.route for each in self.conflicts)


def resolve(
    asked: PodClaims, inside: Inside, cluster: ClusterFacts, metric6: int = METRIC6, protocol: int = PROTOCOL
) -> ResolvedRoutes:
    """The routes of a pod of which this is asked.

    `cluster`: as the Rulebook has it, with the addresses of guarded Services. `protocol`: that of our routes, for all others of
    the namespace are not ours.
    """
    if not asked.claims:
        return ResolvedRoutes()
    return _Pass(asked, inside, metric6, protocol).resolve(cluster)


def effective_metric(route: PodRoute) -> int:
    """Its metric as the kernel compares it."""
    return route.metric or (_METRIC6_UNSAID if route.dst.version == IPV6 else 0)


class _Pass:
    """One pod's claims: first those on the link are decided, then those by gateways, which they reach, and default routes."""

    def __init__(self, asked: PodClaims, inside: Inside, metric6: int, protocol: int) -> None:
        self._asked = asked
        self._links = inside.links
        self._metrics = {IPV4: 0, IPV6: metric6}
        self._others = tuple((prefix(each.dst), each) for each in inside.others(protocol))
        self._same: dict[Prefix, list[PodRoute]] = {}
        for dst, each in self._others:
            self._same.setdefault(dst, []).append(each)
        self._lacks: dict[tuple[str, int], str] = {}
        self._sources: dict[tuple[str, int], _GatewaySource] = {}
        self._skipped: list[RouteRemark] = []
        self._refusals: list[RouteRemark] = list(asked.left_out)
        self._conflicts: list[RouteRemark] = []

    def resolve(self, cluster: ClusterFacts) -> ResolvedRoutes:
        ways = [_Way(claim, *self._gateway(claim)) for first in self._asked.claims if (claim := self._possible(first))]
        ways = [each for each in ways if self._may_stand_before(each.claim, each.via)]
        on_link = self._on_link(ways)
        reached = _Reached(self._by_device, on_link)
        held, kept = self._together(on_link, self._reachable(self._not_hiding(ways, reached), reached), reached, cluster)
        wanted = [*(each.reasoned(self._metrics[each.claim.prefix.version]) for each in held), *kept]
        wanted.sort(key=lambda each: each.wanted.order)
        overridden = tuple(each.claim.dst for each in held if each.claim.prefix in self._same)
        return ResolvedRoutes(tuple(wanted), tuple(self._skipped), tuple(self._refusals), overridden, tuple(self._conflicts))

    def _together(
        self, on_link: Sequence[_Way], by_gateway: Sequence[_Way], reached: _Reached, cluster: ClusterFacts
    ) -> tuple[Sequence[_Way], Sequence[ReasonedRoute]]:
        """The ways that can be in the pod together, and the routes that stay with its former default routes; the others are
        told."""
        while True:
            lost = self._lost(by_gateway, reached)
            held = [*on_link, *(each for number, each in enumerate(by_gateway) if number not in lost)]
            kept: list[ReasonedRoute] = []
            impossible = set()
            for each in held:
                if each.claim.prefix.is_default:
                    found, why = self._keep(each, held, cluster)
                    kept += found
                    if why:
                        self._refuse(each.claim, why)
                        impossible.add(each.claim.prefix)
            if not impossible:
                for number, why in lost.items():
                    self._refuse(by_gateway[number].claim, why)
                return held, kept
            # Without that default route, what would have hidden its gateway can be.
            on_link = [each for each in on_link if each.claim.prefix not in impossible]
            by_gateway = [each for each in by_gateway if each.claim.prefix not in impossible]

    def _possible(self, first: DestinationClaim) -> DestinationClaim | None:
        """The claim for which the pod has what is needed: the first one, or else that of the next best Route; None for none."""
        rivals = self._asked.rivals.get(first.prefix)
        if rivals is None:
            return None if self._is_lacking(first) else first
        able = [each for each in rivals if not self._is_lacking(each.claim)]
        self._conflicts += [each.describe_loss(able[0]) for each in able[1:]]
        return able[0].claim if able else None

    def _is_lacking(self, claim: DestinationClaim) -> bool:
        """Whether the pod lacks something for the claim; reports it then."""
        if why := self._lacking(claim):
            self._skip(claim, why)
        return bool(why)

    def _skip(self, claim: DestinationClaim, why: str) -> None:
        self._skipped.append(RouteRemark(claim.route, "skipped", claim.dst, f"{claim.origin}: {claim.dst}: {why}"))

    def _refuse(self, claim: DestinationClaim, why: str) -> None:
        self._refusals.append(RouteRemark(claim.route, "refused", claim.dst, f"{claim.origin}: {claim.dst}: {why}"))

    def _lacking(self, claim: DestinationClaim) -> str:
        """What the pod lacks for the claim; "" for nothing. A gateway that is named needs no address of its family."""
        version = 0 if claim.via is not None else claim.prefix.version
        key = claim.dev, version
        why = self._lacks.get(key)
        if why is None:
            link = self._links.get(claim.dev)
            if link is None:
                why = f"the pod has no device {claim.dev}"
            elif not link.up:
                why = f"{claim.dev} is down"
            else:
                why = f"{claim.dev} has no IPv{version} address" if version and not link.has(version) else ""
            self._lacks[key] = why
        return why

    # -- gateways

    def _gateway(self, claim: DestinationClaim) -> tuple[Address | None, str]:
        """Its gateway, None for on-link, and how it was found."""
        if claim.via is not None:
            return claim.via, _NAMED
        return self._derived(claim) if claim.derive else (None, _ON_LINK)

    def _derived(self, claim: DestinationClaim) -> tuple[Address | None, str]:
        """The gateway that the pod's own routes by the device say, None for on-link; and which of them said it."""
        key = claim.dev, claim.prefix.version
        source = self._sources.get(key)
        if source is None:
            source = self._sources[key] = _GatewaySource(claim.dev, self._by_device.get(key, ()))
        return source.gateway(claim.prefix)

    def _reachable(self, by_gateway: Sequence[_Way], reached: _Reached) -> Sequence[_Way]:
        """Those by gateways by which the kernel takes routes; the others are told."""
        beyond = _Reached({}, by_gateway)
        answers: dict[Gateway, str] = {}
        found = []
        for each in by_gateway:
            if each.gateway is None:
                continue
            why = answers.get(each.gateway)
            if why is None:
                why = answers[each.gateway] = self._unreachable(each.gateway, reached, beyond)
            if why:
                self._refuse(each.claim, why)
            else:
                found.append(each)
        return found

    def _unreachable(self, gateway: Gateway, *reached: _Reached) -> str:
        """Why the kernel would take no route by this gateway; "" where it takes one. The first of `reached` decides."""
        via, dev = gateway
        if via in self._addresses:
            return f"its gateway {via} is an address of the pod itself"
        if is_link_local6(via):
            return "" if dev in self._with_ipv6 else f"{dev} has no IPv6 address, by which {via} would be reached"
        best = next((found for each in reached if (found := each.best(gateway))), None)
        if best is None:
            return f"its gateway {via} is not reached by {dev}: no route there leads to it"
        return "" if best[1] is None else f"its gateway {via} is not on-link at {dev}: it is reached by {best[1]}"

    def _lost(self, by_gateway: Sequence[_Way], reached: _Reached) -> Mapping[int, str]:
        """Which of these routes cannot be beside others of them, and why. All their gateways are on-link by `reached`."""
        lost = decide([each.needed for each in by_gateway], self._hiders(by_gateway, reached))
        return {number: lost[number].why(by_gateway[lost[number].other].claim.dst) for number in sorted(lost)}

    def _hiders(self, by_gateway: Sequence[_Way], reached: _Reached) -> Mapping[Gateway, Sequence[int]]:
        """Of each gateway of these routes those of them that would take it off its link, by their numbers."""
        numbers = {each.claim.prefix: number for number, each in enumerate(by_gateway)}
        found: dict[Gateway, list[int]] = {}
        for gateway in dict.fromkeys(each.needed for each in by_gateway):
            near = reached.best(gateway) if gateway else None
            if gateway is None or near is None:
                continue
            is_anywhere = self._all_on_link(gateway) is not None
            for dst in self._covering(gateway, near[0].length):
                number = numbers.get(dst)
                if number is not None and (is_anywhere or by_gateway[number].claim.dev == gateway[1]):
                    found.setdefault(gateway, []).append(number)
        return found

    @cached_property
    def _addresses(self) -> Collection[Address]:
        return {each.ip for link in self._links.values() for each in link.addresses}

    @cached_property
    def _with_ipv6(self) -> Collection[str]:
        return {name for name, link in self._links.items() if any(each.version == IPV6 for each in link.addresses)}

    # -- what others have

    @cached_property
    def _by_metric(self) -> Sequence[tuple[Prefix, PodRoute]]:
        return sorted(self._others, key=lambda each: effective_metric(each[1]))

    @cached_property
    def _by_device(self) -> Mapping[tuple[str, int], Sequence[tuple[Prefix, PodRoute]]]:
        """The same by device and version: a pod may have as many devices as it likes."""
        found: dict[tuple[str, int], list[tuple[Prefix, PodRoute]]] = {}
        for dst, each in self._by_metric:
            found.setdefault((each.dev, dst.version), []).append((dst, each))
        return found

    @cached_property
    def _all(self) -> PrefixTable[PodRoute]:
        return PrefixTable(self._by_metric)

    @cached_property
    def _gateways_of_others(self) -> Mapping[Gateway, Prefix]:
        """The gateways of others' routes that others' routes reach without another one, and by which destination."""
        gateways = dict.fromkeys((each.via, each.dev) for _, each in self._others if each.via is not None)
        return {each: best for each in gateways if (best := self._all_on_link(each))}

    def _may_stand_before(self, claim: DestinationClaim, via: Address | None) -> bool:
        """Whether a route of ours may stand before those of the same destination; if not, it is told."""
        same = self._same.get(claim.prefix)
        if same is None:
            return True
        kernels = [each for each in same if each.protocol == KERNEL and each.dst.prefixlen]
        if kernels:
            if via is None and any(each.dev == claim.dev for each in kernels):
                self._skip(claim, f"it is a subnet of {claim.dev}: the kernel has it already")
            else:
                self._refuse(claim, f"it is a subnet of {kernels[0].dev}, whose route is the kernel's own")
            return False
        if not claim.gates.override:
            self._refuse(claim, f"another route to it is there, {same[0]}, and the gate override is false")
            return False
        first, ours = min(map(effective_metric, same)), self._metrics[claim.prefix.version]
        if claim.prefix.version == IPV6 and first <= ours:
            self._refuse(
                claim, f"another route to it has metric {first}, and ours would have {ours}: it would not stand before it"
            )
            return False
        return True

    def _on_link(self, ways: Sequence[_Way]) -> Sequence[_Way]:
        """Those without a gateway that take no gateway of others, or of ours, to another device; the others are told.

        `ways`: long prefixes first. A longer one at a gateway's own device keeps the gateway there.
        """
        ours = [each.gateway for each in ways if each.gateway is not None and each.via not in self._addresses]
        hiding: dict[Prefix, list[Gateway]] = {}
        known = {each: best for each in dict.fromkeys(ours) if (best := self._all_on_link(each))}
        for gateway, best in {**self._gateways_of_others, **known}.items():
            for dst in self._covering(gateway, best.length):
                hiding.setdefault(dst, []).append(gateway)
        staying: set[Gateway] = set()
        found = []
        for each in ways:
            if each.gateway is not None:
                continue
            gateways = hiding.get(each.claim.prefix, ())
            hidden = next((one for one in gateways if one[1] != each.claim.dev and one not in staying), None)
            if hidden is not None:
                self._refuse_hiding(each.claim, hidden)
                continue
            found.append(each)
            staying.update(one for one in gateways if one[1] == each.claim.dev)
        return found

    def _not_hiding(self, ways: Sequence[_Way], reached: _Reached) -> Sequence[_Way]:
        """Those by gateways that take no gateway of others, as `reached`, off its link; the others are told."""
        hiding: dict[Prefix, Gateway] = {}
        for gateway in self._gateways_of_others:
            near = reached.best(gateway)
            if near is not None:
                for dst in self._covering(gateway, near[0].length):
                    hiding.setdefault(dst, gateway)
        found = []
        for each in ways:
            hidden = hiding.get(each.claim.prefix)
            if each.gateway is not None and hidden is not None:
                self._refuse_hiding(each.claim, hidden)
            elif each.gateway is not None:
                found.append(each)
        return found

    def _refuse_hiding(self, claim: DestinationClaim, gateway: Gateway) -> None:
        self._refuse(claim, f"it would hide {gateway[0]}, the gateway of other routes by {gateway[1]}")

    def _covering(self, gateway: Gateway, length: int) -> Iterable[Prefix]:
        """The destinations with the gateway in them, as long as this or longer, of lengths that are asked for; no default."""
        target = host(gateway[0])
        return (target.shorten(each) for each in self._asked.lengths[target.version] if each >= max(length, 1))

    def _all_on_link(self, gateway: Gateway) -> Prefix | None:
        """The destination of others' routes that leads to a gateway by its device without another one; None where none does."""
        best = self._all.best(host(gateway[0]))
        return best[0] if best is not None and best[1].dev == gateway[1] and best[1].via is None else None

    # -- what the cluster needs

    def _keep(self, way: _Way, held: Sequence[_Way], cluster: ClusterFacts) -> tuple[Sequence[ReasonedRoute], str]:
        """The routes that the cluster needs and that stay with the former default route; or why it cannot be."""
        claim = way.claim
        former = next((each for dst, each in self._by_metric if dst == claim.prefix), None)
        if former is None or former.is_void or (former.dev, former.via) == (claim.dev, way.via):
            return (), ""
        kept = self._kept(claim, former, held, cluster)
        if not kept:
            return (), ""
        if not former.dev:
            return (), f"{kept[0].wanted.dst} cannot stay with the former default route, which is not to one next hop"
        link = self._links.get(former.dev)
        if link is None or not link.up:
            return (), ""
        if former.via is None or former.onlink:
            return kept, ""
        why = self._unreachable((former.via, former.dev), _Reached(self._by_device, held))
        return ((), f"{kept[0].wanted.dst} cannot stay with the former default route: {why}") if why else (kept, "")

    def _kept(
        self, claim: DestinationClaim, former: PodRoute, held: Sequence[_Way], cluster: ClusterFacts
    ) -> list[ReasonedRoute]:
        """Routes by the former default route to what it alone leads to and the cluster needs."""
        version = claim.prefix.version
        taken: PrefixTable[None] = PrefixTable((each.claim.prefix, None) for each in held if not each.claim.prefix.is_default)
        kept = []
        for need in cluster.needs:
            if need.prefix.version != version or not need.stays(claim.gates) or taken.best(need.prefix) is not None:
                continue
            best = self._all.best(need.prefix)
            if best is None or best[0].is_default:
                taken.add(need.prefix, None)
                wanted = DesiredRoute(need.dst, former.dev, former.via, self._metrics[version], former.onlink, kept=True)
                kept.append(ReasonedRoute(wanted, claim.route, f"kept with the former default route: {need.what}"))
        return kept


class _Way(NamedTuple):
    """A claim with its gateway, None for on-link, and how that was found."""

    claim: DestinationClaim
    via: Address | None
    how: str

    @property
    def gateway(self) -> Gateway | None:
        return None if self.via is None else (self.via, self.claim.dev)

    @property
    def needed(self) -> Gateway | None:
        """The same, where routes lead to it: to a link-local one of IPv6 none does."""
        return None if self.via is None or is_link_local6(self.via) else (self.via, self.claim.dev)

    def reasoned(self, metric: int) -> ReasonedRoute:
        return ReasonedRoute(DesiredRoute(self.claim.dst, self.claim.dev, self.via, metric), self.claim.route, self.how)


class _Reached:
    """Where the routes by each device lead: those of others, and these ways of ours, which stand before them."""

    def __init__(self, others: Mapping[tuple[str, int], Sequence[tuple[Prefix, PodRoute]]], ours: Iterable[_Way]) -> None:
        self._others = others
        self._ours: dict[str, list[tuple[Prefix, Address | None]]] = {}
        for each in ours:
            if not each.claim.prefix.is_default:  # those are made last
                self._ours.setdefault(each.claim.dev, []).append((each.claim.prefix, each.via))
        self._tables: dict[tuple[str, int], PrefixTable[Address | None]] = {}

    def best(self, gateway: Gateway) -> tuple[Prefix, Address | None] | None:
        """The longest destination that has the gateway in it, and by which gateway that is reached; None where there is none."""
        via, dev = gateway
        key = dev, via.version
        table = self._tables.get(key)
        if table is None:
            others = ((dst, each.via) for dst, each in self._others.get(key, ()))
            table = self._tables[key] = PrefixTable([*self._ours.get(dev, ()), *others])
        return table.best(host(via))


class _GatewaySource:
    """The pod's own routes by one device, of one family, as a source of gateways. `routes`: those of a lower metric first."""

    def __init__(self, dev: str, routes: Sequence[tuple[Prefix, PodRoute]]) -> None:
        self._dev = dev
        self._narrow = PrefixTable((dst, each) for dst, each in routes if not dst.is_default)
        self._else: tuple[Address | None, str] = None, f"on-link: the pod's other routes by {dev} have no gateway to derive"
        gateways = {each.via for dst, each in routes if not dst.is_default and each.via is not None}
        default = next((each for dst, each in routes if dst.is_default and each.via is not None), None)
        if len(gateways) == 1:
            [via] = gateways
            self._else = via, f"derived: {via} is the one gateway of the pod's other routes by {dev}"
        elif default is not None:
            self._else = default.via, f"derived: {default.via} is the gateway of the pod's default route by {dev}"

    def gateway(self, dst: Prefix) -> tuple[Address | None, str]:
        """The gateway for a destination, None for on-link, and how it was found."""
        best = self._narrow.best(dst)
        if best is None:
            return self._else
        found = best[1]
        by = "on-link" if found.via is None else f"by {found.via}"
        return found.via, f"derived: the pod's route to {found.dst} by {self._dev} is {by}"
