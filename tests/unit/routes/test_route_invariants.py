"""Invariants for any Routes in any namespace: one route per destination,
reachable gateways, and everything the pod needs stays.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.routes.building import KERNEL, OURS, found, inside, link, thing
from userspace_cni.base.routing import DesiredRoute, Inside, PodRoute
from userspace_cni.routes.cluster_facts import ClusterFacts, RoutePod
from userspace_cni.routes.explanation import PacketWay, drift, explain
from userspace_cni.routes.resolving import ReasonedRoute, ResolvedRoutes, resolve
from userspace_cni.routes.resource import RouteObject, read_route
from userspace_cni.routes.rules import PodClaims, Rulebook

POD = RoutePod("shop", "web-7", "u1")
CLUSTER = ClusterFacts(
    service_ranges=(ip_network("10.96.0.0/12"),),
    nodes=(ip_address("192.0.2.11"),),
    apiservers=(ip_address("10.96.0.1"), ip_address("192.0.2.10"), ip_address("fd00:96::1")),
    dns=(ip_address("10.96.0.10"), ip_address("fd00:96::a")),
)
GUARDED = (*CLUSTER.apiservers, *CLUSTER.dns)
DESTINATIONS = (
    *(
        "default",
        "0.0.0.0/0",
        "::/0",
        "10.0.0.0/8",
        "10.96.0.0/12",
        "10.96.0.0/24",
        "10.96.0.1/32",
        "10.97.0.0/16",
        "192.0.2.0/24",
    ),
    *(
        "10.124.0.0/16",
        "10.124.2.0/24",
        "10.124.2.0/28",
        "10.124.2.1/32",
        "10.124.2.9/32",
        "20.0.0.0/8",
        "20.1.0.0/16",
        "10.99.0.0/20",
        "10.99.0.0/24",
        "10.99.0.1/32",
    ),
    *("fd00::/8", "fd00:96::/64", "fd00:2::/64", "fd00:2::/80", "fd00:2::1/128", "fd00:2::9/128", "fd00:96::1/128", "2000::/3"),
)
GATEWAYS = (
    "",
    "",
    "auto",
    "10.124.2.1",
    "10.124.2.9",
    "169.254.1.1",
    "10.99.0.1",
    "10.124.2.5",
    "fd00:2::1",
    "fd00:2::9",
    "fe80::1",
)
OTHERS = (
    *(
        "10.124.0.0/16 eth1 10.124.2.1",
        "20.0.0.0/8 eth0 169.254.1.1",
        "20.1.0.0/16 eth1 10.124.2.9",
        "10.96.0.0/12 eth0 169.254.1.1",
    ),
    *(
        "::/0 eth0 fe80::9",
        "::/0 eth1 fe80::1",
        "fd00:2:7::/64 eth1 fd00:2::1",
        "192.0.2.0/24 eth1 10.124.2.1",
        "fd00:96::/64 eth0 fe80::9",
    ),
)
any_seed = given(st.integers())
"""Twenty of them in each run, forty cases each."""


def any_routes(rng: random.Random, **spec: Any) -> list[RouteObject]:
    """A few Routes, some entries of which are impossible."""
    routes = []
    for number in range(rng.randrange(1, 4)):
        entries = [
            {"dst": rng.choice(DESTINATIONS), "dev": rng.choice(["eth0", "eth1", "eth1", "net7"]), "via": rng.choice(GATEWAYS)}
            for _ in range(rng.randrange(1, 9))
        ]
        routes.append(read_route(thing(f"r{number}", route=entries, **spec)))
    return routes


def any_inside(rng: random.Random) -> Inside:
    """The namespace of a pod of two networks, with some more routes."""
    eth1 = rng.choice([("10.124.2.5/24",), ("10.124.2.5/24", "fd00:2::5/64", "fe80::5/64")])
    more = [found(each, metric=rng.choice([None, None, 50])) for each in rng.sample(OTHERS, rng.randrange(5))]
    there = inside(*more, *([found("fd00:2::/64 eth1", KERNEL)] if len(eth1) > 1 else []), eth1=eth1)
    eth0 = link("eth0", 3, "192.168.9.7/32", "fd00:1::7/128", "fe80::7/64")
    return replace(there, links={**there.links, "eth0": eth0})


def applied(there: Inside, outcome: ResolvedRoutes) -> Inside:
    made = tuple(PodRoute(each.dst, each.via, each.dev, each.metric, OURS) for each in outcome.routes)
    return replace(there, routes=(*made, *(each for each in there.routes if each.protocol != OURS)))


def way(there: Inside, address: IPv4Address | IPv6Address) -> PacketWay | None:
    """The device and gateway by which the kernel sends packets to an address."""
    return explain(address, PodClaims(), ResolvedRoutes(), there).now


def each_case(check: Callable[[Inside, Inside, ResolvedRoutes], None], seed: int, **spec: Any) -> None:
    """Call it with many namespaces, before and after, and with what was resolved."""
    rng = random.Random(seed)
    for _ in range(40):
        there = any_inside(rng)
        book = Rulebook(any_routes(rng, **spec), (), CLUSTER)
        outcome = resolve(book.claims(POD), there, book.cluster)
        check(there, applied(there, outcome), outcome)
        again = applied(there, outcome)
        assert resolve(book.claims(POD), again, book.cluster) == outcome
        assert not [*drift(outcome, again).findings("pod", outcome)]


def assert_reachable(before: Inside, after: Inside, ours: Iterable[DesiredRoute]) -> None:
    """On-link gateways of the earlier routes are reached as before. Gateways of ours are on-link at their device."""
    for each in before.routes:
        former = way(before, each.via) if each.via and not each.via.is_link_local else None
        if former and former.via is None and former.dev == each.dev:
            assert each.via is not None
            now = way(after, each.via)
            assert now is not None
            assert (now.dev, now.via) == (former.dev, None)
    for wanted in ours:
        if wanted.via is not None and not wanted.via.is_link_local:
            assert wanted.via.version == wanted.dst.version
            at_device = replace(after, routes=tuple(each for each in after.routes if each.dev == wanted.dev))
            reached = way(at_device, wanted.via)
            assert reached is not None
            assert reached.via is None


@settings(max_examples=20)
@any_seed
def test_one_route_per_destination_in_order(seed: int) -> None:
    """No two routes of ours have one destination, and all use devices of the pod. On-link routes come first, default routes
    last; within both groups long prefixes come first."""

    def check(before: Inside, after: Inside, outcome: ResolvedRoutes) -> None:
        destinations = [each.dst for each in outcome.routes]
        assert len(set(destinations)) == len(destinations)
        made = [(not each.dst.prefixlen, each.via is not None, -each.dst.prefixlen) for each in outcome.routes]
        assert made == sorted(made)
        assert {each.dev for each in outcome.routes} <= set(before.links)
        kernels = {each.dst for each in before.routes if each.protocol == 2}
        assert not kernels & set(destinations)

    each_case(check, seed)


@settings(max_examples=20)
@any_seed
def test_gateways_stay_reachable(seed: int) -> None:
    """The way to others' gateways stays as it was. A gateway of ours is on-link at its device, and of its route's family."""

    def check(before: Inside, after: Inside, outcome: ResolvedRoutes) -> None:
        assert_reachable(before, after, outcome.routes)

    each_case(check, seed)


@settings(max_examples=20)
@any_seed
def test_nothing_is_refused_for_nothing(seed: int) -> None:
    """A route that is refused because of gateways would hide one if it were made together with the others."""
    rng = random.Random(seed)
    for _ in range(40):
        before, routes = any_inside(rng), any_routes(rng)
        book = Rulebook(routes, (), CLUSTER)
        asked = book.claims(POD)
        outcome = resolve(asked, before, book.cluster)
        claims = {(each.route, each.dst): each for each in asked.claims}
        for told in outcome.refusals:
            claim = claims.get((told.route, told.dst)) if told.dst else None
            if claim is None or claim.via is None or not re.search("would hide|would not be on-link", told.text):
                continue
            one = DesiredRoute(claim.dst, claim.dev, claim.via, 100 if claim.dst.version == 6 else 0)
            more = replace(outcome, wanted=(*outcome.wanted, ReasonedRoute(one, claim.route, "")))
            named = [PodRoute(each.dst, each.via, each.dev, 0, OURS) for each in outcome.routes]
            with pytest.raises(AssertionError):
                assert_reachable(replace(before, routes=(*before.routes, *named)), applied(before, more), more.routes)


@settings(max_examples=20)
@any_seed
def test_api_server_and_dns_stay_where_they_are(seed: int) -> None:
    """Whatever is asked for, also a default route: without their gates, packets to API server and DNS go as before."""

    def check(before: Inside, after: Inside, outcome: ResolvedRoutes) -> None:
        for address in GUARDED:
            former, now = way(before, address), way(after, address)
            assert (former and (former.dev, former.via)) == (now and (now.dev, now.via)) or former is None

    each_case(check, seed)
    each_case(check, seed, feature_gate={"keep-cluster-routes": "false"})
