"""From what is asked of a pod, and what its namespace has, to the routes that it is to have. Pure.

Nothing of others is ever changed: a route of ours stands before theirs, or there is none of ours. What the kernel would refuse,
or take and send nowhere, is found here, by name, before it is asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from userspace_cni.base.routing import Address, Inside, Network, PodRoute, Wanted
from userspace_cni.routes.facts import Cluster
from userspace_cni.routes.prefixes import IPV4, IPV6, Prefix, Table, host, prefix
from userspace_cni.routes.rules import Asked, Claim, Told
from userspace_cni.routes.values import is_link_local6

PROTOCOL: Final = 148
"""What the kernel has with each route of ours (rtm_protocol), unless the settings say another number."""
METRIC6: Final = 100
"""Metric of IPv6 routes of ours: lower than others have, for the kernel takes none beside one of the same."""
KERNEL: Final = 2
"""RTPROT_KERNEL: the subnets of a device's addresses."""
_METRIC6_UNSAID: Final = 1024
"""What the kernel makes of metric 0 for IPv6."""
_GATEWAYS_KEPT: Final = 16
"""Gateways of a device whose answers are kept: each route that comes is compared with them, and most pods have one or two."""
_ON_LINK: Final = "on-link: no gateway is named"
_NAMED: Final = "by the gateway that is named"


class Reasoned(NamedTuple):
    """A route that the pod is to have. `asked_by`: the Route; `why`: how its gateway was found, or for what it is needed."""

    wanted: Wanted
    asked_by: str
    why: str


@dataclass(frozen=True)
class Resolved:
    """The routes that a pod is to have, in the order in which they are made, and why others are not among them.

    `skipped`: what this pod lacks, or has of its own; `refusals`: what cannot be; `overridden`: destinations for which others
    have a route, before which ours stands; `conflicts`: which Routes' entries another Route keeps from effect.
    """

    wanted: tuple[Reasoned, ...] = ()
    skipped: tuple[Told, ...] = ()
    refusals: tuple[Told, ...] = ()
    overridden: tuple[Network, ...] = ()
    conflicts: tuple[Told, ...] = ()

    @property
    def routes(self) -> tuple[Wanted, ...]:
        """The routes alone."""
        return tuple(each.wanted for each in self.wanted)

    @cached_property
    def applied(self) -> Collection[str]:
        """The Routes of which it has one."""
        return {each.asked_by for each in self.wanted}

    @cached_property
    def lost(self) -> Counter[str]:
        """How many entries of each Route another one keeps from effect."""
        return Counter(each.route for each in self.conflicts)


def resolve(asked: Asked, inside: Inside, cluster: Cluster, metric6: int = METRIC6, protocol: int = PROTOCOL) -> Resolved:
    """The routes of a pod of which this is asked.

    `cluster`: as the Rulebook has it, with the addresses of guarded Services. `protocol`: that of our routes, for all others of
    the namespace are not ours.
    """
    if not asked.claims:
        return Resolved()
    return _Pass(asked, inside, metric6, protocol).resolved(cluster)


def effective_metric(route: PodRoute) -> int:
    """Its metric as the kernel compares it."""
    return route.metric or (_METRIC6_UNSAID if route.dst.version == IPV6 else 0)


class _Pass:
    """One pod's claims, in order; what has been decided of the earlier ones decides about the later ones."""

    def __init__(self, asked: Asked, inside: Inside, metric6: int, protocol: int) -> None:
        self._asked = asked
        self._links = inside.links
        self._metrics = {IPV4: 0, IPV6: metric6}
        self._others = tuple((prefix(each.dst), each) for each in inside.others(protocol))
        self._same: dict[Prefix, list[PodRoute]] = {}
        for dst, each in self._others:
            self._same.setdefault(dst, []).append(each)
        self._lacks: dict[tuple[str, int], str] = {}
        self._tables: dict[str, Table[Address | None]] = {}
        self._unreached: dict[str, dict[Address, str]] = {}
        self._sources: dict[tuple[str, int], _Source] = {}
        self._wanted: list[tuple[Prefix, Reasoned]] = []
        self._ours: dict[str, list[tuple[Prefix, Address | None]]] = {}
        """Destinations and gateways of these, by device."""
        self._skipped: list[Told] = []
        self._refusals: list[Told] = list(asked.left_out)
        self._overridden: list[Network] = []
        self._conflicts: list[Told] = []

    def resolved(self, cluster: Cluster) -> Resolved:
        """All of it."""
        hiding = self._hiding()
        possible = [(claim, *self._gateway(claim)) for first in self._asked.claims if (claim := self._possible(first))]
        possible.sort(key=lambda each: (each[0].prefix.is_default, each[1] is not None))  # as of `Wanted.order`
        for claim, via, how in possible:
            if via is not None and (why := self._unreachable(claim.dev, via)):
                self._refuse(claim, why)
                continue
            same = self._same.get(claim.prefix)
            if same is not None and not self._may_stand_before(claim, via, same):
                continue
            hidden = hiding.get(claim.prefix)
            if hidden is not None and (via is not None or claim.dev != hidden[1]):
                self._refuse(claim, f"it would hide {hidden[0]}, the gateway of other routes by {hidden[1]}")
                continue
            wanted = Wanted(claim.dst, claim.dev, via, self._metrics[claim.prefix.version])
            if claim.prefix.is_default and not self._keep(claim, wanted, cluster):
                continue
            if same is not None:
                self._overridden.append(claim.dst)
            self._want(claim.prefix, Reasoned(wanted, claim.route, how))
            if claim.dev in self._tables:
                self._leads(claim.dev, claim.prefix, via)
        made = tuple(sorted((each for _, each in self._wanted), key=lambda each: each.wanted.order))
        told = tuple(self._skipped), tuple(self._refusals), tuple(self._overridden), tuple(self._conflicts)
        return Resolved(made, *told)

    def _possible(self, first: Claim) -> Claim | None:
        """The claim for which the pod has what is needed: the first one, or else that of the next best Route; None for none."""
        rivals = self._asked.rivals.get(first.prefix)
        if rivals is None:
            return None if self._is_lacking(first) else first
        able = [each for each in rivals if not self._is_lacking(each.claim)]
        self._conflicts += [each.lost_to(able[0]) for each in able[1:]]
        return able[0].claim if able else None

    def _is_lacking(self, claim: Claim) -> bool:
        """Whether the pod lacks something for the claim, which is told then."""
        if why := self._lacking(claim):
            self._skip(claim, why)
        return bool(why)

    def _skip(self, claim: Claim, why: str) -> None:
        self._skipped.append(Told(claim.route, "skipped", claim.dst, f"{claim.origin}: {claim.dst}: {why}"))

    def _refuse(self, claim: Claim, why: str) -> None:
        self._refusals.append(Told(claim.route, "refused", claim.dst, f"{claim.origin}: {claim.dst}: {why}"))

    def _lacking(self, claim: Claim) -> str:
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

    def _gateway(self, claim: Claim) -> tuple[Address | None, str]:
        """Its gateway, None for on-link, and how it was found."""
        if claim.via is not None:
            return claim.via, _NAMED
        return self._derived(claim) if claim.derive else (None, _ON_LINK)

    def _derived(self, claim: Claim) -> tuple[Address | None, str]:
        """The gateway that the pod's own routes by the device say, None for on-link; and which of them said it."""
        key = claim.dev, claim.prefix.version
        source = self._sources.get(key)
        if source is None:
            source = self._sources[key] = _Source(claim.dev, self._by_device.get(key, ()))
        return source.gateway(claim.prefix)

    def _unreachable(self, dev: str, via: Address) -> str:
        """Why the kernel would take no route by this gateway; "" where it takes one."""
        known = self._unreached.setdefault(dev, {})
        why = known.get(via)
        if why is None:
            if len(known) >= _GATEWAYS_KEPT:
                known.clear()
            why = known[via] = self._why_unreachable(dev, via)
        return why

    def _why_unreachable(self, dev: str, via: Address) -> str:
        if via in self._addresses:
            return f"its gateway {via} is an address of the pod itself"
        if is_link_local6(via):
            return "" if dev in self._with_ipv6 else f"{dev} has no IPv6 address, by which {via} would be reached"
        best = self._table(dev).best(host(via))
        if best is None:
            return f"its gateway {via} is not reached by {dev}: no route there leads to it"
        return "" if best[1] is None else f"its gateway {via} is not on-link at {dev}: it is reached by {best[1]}"

    def _table(self, dev: str) -> Table[Address | None]:
        """The gateways of the routes by the device, ours first; ours that come later are put into it."""
        if dev not in self._tables:
            others = (each for version in (IPV4, IPV6) for each in self._by_device.get((dev, version), ()))
            self._tables[dev] = Table([*self._ours.get(dev, ()), *((dst, each.via) for dst, each in others)])
        return self._tables[dev]

    def _leads(self, dev: str, dst: Prefix, via: Address | None) -> None:
        """Take a route of ours into account for the gateways that are looked up after it."""
        self._tables[dev].put(dst, via)
        known = self._unreached[dev]
        for each in [each for each in known if dst.covers(host(each))]:
            del known[each]

    def _want(self, dst: Prefix, reasoned: Reasoned) -> None:
        """Have the pod get the route."""
        self._wanted.append((dst, reasoned))
        self._ours.setdefault(reasoned.wanted.dev, []).append((dst, reasoned.wanted.via))

    @cached_property
    def _addresses(self) -> Collection[Address]:
        """All addresses of the pod."""
        return {each.ip for link in self._links.values() for each in link.addresses}

    @cached_property
    def _with_ipv6(self) -> Collection[str]:
        """The devices with an IPv6 address."""
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
    def _all(self) -> Table[PodRoute]:
        return Table(self._by_metric)

    def _may_stand_before(self, claim: Claim, via: Address | None, same: Sequence[PodRoute]) -> bool:
        """Whether a route of ours may stand before these of the same destination; if not, it is told."""
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

    def _hiding(self) -> Mapping[Prefix, tuple[Address, str]]:
        """The destinations, of lengths that are asked for, that would take a known gateway from its device; and that gateway."""
        gateways = dict.fromkeys((each.via, each.dev) for _, each in self._others if each.via is not None)
        gateways |= self._asked.gateways
        found: dict[Prefix, tuple[Address, str]] = {}
        for via, dev in gateways:
            target = host(via)
            best = self._all.best(target)
            if best is None or best[1].dev != dev or best[1].via is not None:
                continue
            for length in self._asked.lengths[via.version]:
                if length and length >= best[0].length:
                    found.setdefault(target.shortened(length), (via, dev))
        return found

    # -- what the cluster needs

    def _keep(self, claim: Claim, default: Wanted, cluster: Cluster) -> bool:
        """Keep with the former default route what the cluster needs of it, before ours takes it; False, told, where it cannot."""
        former = next((each for dst, each in self._by_metric if dst == claim.prefix), None)
        if former is None or former.is_void or (former.dev, former.via) == (default.dev, default.via):
            return True
        kept = self._kept(claim, former, cluster)
        if not kept:
            return True
        if not former.dev:
            self._refuse(claim, f"{kept[0][0]} cannot stay with the former default route, which is not to one next hop")
            return False
        link = self._links.get(former.dev)
        if link is None or not link.up:
            return True
        if former.via is not None and not former.onlink and (why := self._unreachable(former.dev, former.via)):
            self._refuse(claim, f"{kept[0][0]} cannot stay with the former default route: {why}")
            return False
        for dst, each in kept:
            self._want(dst, each)
        return True

    def _kept(self, claim: Claim, former: PodRoute, cluster: Cluster) -> list[tuple[Prefix, Reasoned]]:
        """Routes by the former default route to what it alone leads to and the cluster needs."""
        version = claim.prefix.version
        taken: Table[None] = Table((dst, None) for dst, _ in self._wanted if not dst.is_default)
        kept = []
        for need in cluster.needs:
            if need.prefix.version != version or not need.stays(claim.gates) or taken.best(need.prefix) is not None:
                continue
            best = self._all.best(need.prefix)
            if best is None or best[0].is_default:
                taken.add(need.prefix, None)
                wanted = Wanted(need.dst, former.dev, former.via, self._metrics[version], former.onlink, kept=True)
                kept.append((need.prefix, Reasoned(wanted, claim.route, f"kept with the former default route: {need.what}")))
        return kept


class _Source:
    """The pod's own routes by one device, of one family, as a source of gateways. `routes`: those of a lower metric first."""

    def __init__(self, dev: str, routes: Sequence[tuple[Prefix, PodRoute]]) -> None:
        self._dev = dev
        self._narrow = Table((dst, each) for dst, each in routes if not dst.is_default)
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
