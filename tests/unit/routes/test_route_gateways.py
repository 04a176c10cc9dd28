"""No route by a gateway hides the gateway of another route, and none is refused without need."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.routes.building import KERNEL, STATIC, found, inside, lines, route
from userspace_cni.base.routing import Inside, PodRoute
from userspace_cni.routes.cluster_facts import NOTHING_KNOWN, ClusterFacts, RoutePod
from userspace_cni.routes.resolving import ResolvedRoutes, resolve
from userspace_cni.routes.route_gateways import Gateway, decide
from userspace_cni.routes.rules import Rulebook

SUBNET = "10.99.0.0/20 eth1"
DUAL = ("10.124.2.5/24", "fd00:2::5/64", "fe80::5/64")
SIX = inside(found("fd00:2::/64 eth1", KERNEL), eth1=DUAL)


def resolved(*entries: str, within: Inside | None = None, cluster: ClusterFacts = NOTHING_KNOWN) -> ResolvedRoutes:
    book = Rulebook([route("r", *entries)], (), cluster)
    return resolve(book.claims(RoutePod("shop", "web-7", "u1")), within or inside(), book.cluster)


def refused(outcome: ResolvedRoutes) -> list[str]:
    """The reasons why entries are refused, without their places."""
    return [each.text.partition(": ")[2] for each in outcome.refusals]


@pytest.mark.parametrize("needing", ["20.0.0.0/8", "20.0.0.1/32"])
@pytest.mark.parametrize("hiding", ["10.99.0.1/32", "10.99.0.0/24"])
def test_one_that_leads_to_the_gateway_of_another(needing: str, hiding: str) -> None:
    """A route that covers another's gateway is refused, whichever has the longer destination and is made first."""
    outcome = resolved(SUBNET, f"{needing} eth1 10.99.0.1", f"{hiding} eth1 10.124.2.1")
    assert lines(outcome) == ["10.99.0.0/20 dev eth1", f"{needing} via 10.99.0.1 dev eth1"]
    assert refused(outcome) == [f"{hiding}: it would hide 10.99.0.1, the gateway of other routes by eth1"]


def test_by_ipv6() -> None:
    """With IPv6, where the kernel would refuse the second of the two, the same route is refused."""
    outcome = resolved("fd00:2::1/128 eth1 fe80::9", "fd07::/16 eth1 fd00:2::1", within=SIX)
    assert lines(outcome) == ["fd07::/16 via fd00:2::1 dev eth1"]
    assert refused(outcome) == ["fd00:2::1/128: it would hide fd00:2::1, the gateway of other routes by eth1"]


def test_one_that_leads_to_its_own_gateway() -> None:
    """A route that covers its own gateway is always refused, so it hides no other gateway."""
    outcome = resolved(SUBNET, "10.99.0.0/24 eth1 10.99.0.1", "20.0.0.0/8 eth1 10.99.0.1")
    assert lines(outcome) == ["10.99.0.0/20 dev eth1", "20.0.0.0/8 via 10.99.0.1 dev eth1"]
    assert refused(outcome) == ["10.99.0.0/24: it would hide 10.99.0.1, its own gateway by eth1"]


def test_a_gateway_that_is_derived() -> None:
    """A derived gateway counts like a named one."""
    others = inside(found("10.124.0.0/16 eth1 10.124.2.1"))
    outcome = resolved("10.124.9.0/24 eth1 auto", "10.124.2.1/32 eth1 10.124.2.9", within=others)
    assert lines(outcome) == ["10.124.9.0/24 via 10.124.2.1 dev eth1"]
    assert "it would hide 10.124.2.1" in refused(outcome)[0]


def test_two_that_lead_to_each_others_gateway() -> None:
    """Of two routes that cover each other's gateway, the first stays."""
    outcome = resolved("10.124.2.1/32 eth1 10.124.2.9", "10.124.2.9/32 eth1 10.124.2.1")
    assert lines(outcome) == ["10.124.2.1/32 via 10.124.2.9 dev eth1"]
    assert refused(outcome) == ["10.124.2.9/32: it would hide 10.124.2.9, the gateway of other routes by eth1"]


def test_three_that_lead_in_a_ring() -> None:
    """When each of three routes covers another's gateway, the first stays. One's gateway is hidden, the other hides the
    first's."""
    ring = ["10.124.2.1/32 eth1 10.124.2.3", "10.124.2.2/32 eth1 10.124.2.1", "10.124.2.3/32 eth1 10.124.2.2"]
    outcome = resolved(*ring)
    assert lines(outcome) == ["10.124.2.1/32 via 10.124.2.3 dev eth1"]
    assert refused(outcome) == [
        "10.124.2.2/32: its gateway 10.124.2.1 would not be on-link at eth1: the route to 10.124.2.1/32 would lead to it",
        "10.124.2.3/32: it would hide 10.124.2.3, the gateway of other routes by eth1",
    ]


def test_what_is_refused_itself_refuses_nothing() -> None:
    """A route that covers only the gateway of a refused route is accepted, whatever the other one's reason is."""
    chain = resolved("10.124.2.3/32 eth1 10.124.2.4", "10.124.2.2/32 eth1 10.124.2.3", "20.0.0.0/8 eth1 10.124.2.2")
    assert lines(chain) == ["10.124.2.3/32 via 10.124.2.4 dev eth1", "20.0.0.0/8 via 10.124.2.2 dev eth1"]
    kernels = resolved("10.124.2.1/32 eth1 10.124.2.9", "10.124.2.0/24 eth1 10.124.2.1")
    assert lines(kernels) == ["10.124.2.1/32 via 10.124.2.9 dev eth1"]
    several = PodRoute(ip_network("0.0.0.0/0"), None, "", 0, STATIC)
    within = replace(inside(), routes=(several, found("10.124.2.0/24 eth1", KERNEL)))
    default = ["10.124.2.1/32 eth1 10.124.2.9", "default eth1 10.124.2.1"]
    outcome = resolved(*default, within=within, cluster=ClusterFacts(nodes=(ip_address("192.0.2.11"),)))
    assert lines(outcome) == ["10.124.2.1/32 via 10.124.2.9 dev eth1"]
    assert "not to one next hop" in refused(outcome)[0]


def test_one_by_another_device() -> None:
    """A gateway is reached by its own device. Routes by gateways at other devices do not hide it, where only routes of ours
    reach it."""
    outcome = resolved(SUBNET, "20.0.0.0/8 eth1 10.99.0.1", "10.99.0.1/32 eth0 169.254.1.1")
    assert len(lines(outcome)) == 3


# -- the choice ---------------------------------------------------------------------------------------------------------------

GATEWAYS: tuple[Gateway, ...] = tuple((ip_address(f"10.0.0.{number}"), "eth1") for number in range(4))


@given(
    st.lists(st.sampled_from((None, *GATEWAYS)), max_size=8),
    st.dictionaries(st.sampled_from(GATEWAYS), st.sets(st.integers(0, 7))),
)
def test_as_many_as_can_be(needs: list[Gateway | None], said: Mapping[Gateway, Collection[int]]) -> None:
    """No route that stays hides the gateway of another that stays.

    Each refused route would do that, or covers its own gateway, or its gateway is hidden.
    """
    hiders = {gateway: [each for each in numbers if each < len(needs)] for gateway, numbers in said.items()}
    lost = decide(needs, hiders)

    def is_hiding(one: int, other: int) -> bool:
        gateway = needs[other]
        return gateway is not None and one in hiders.get(gateway, ())

    held = [each for each in range(len(needs)) if each not in lost]
    assert not [(one, other) for one in held for other in held if is_hiding(one, other)]
    for number, why in lost.items():
        if why.kind == "itself":
            assert is_hiding(number, number)
        else:
            assert why.other in held
            assert is_hiding(number, why.other) if why.kind == "hides" else is_hiding(why.other, number)
        assert why.gateway == needs[number if why.kind == "hidden" else why.other]


@given(
    st.lists(st.sampled_from((None, *GATEWAYS)), max_size=8),
    st.dictionaries(st.sampled_from(GATEWAYS), st.sets(st.integers(0, 7))),
)
def test_where_there_is_no_ring(needs: list[Gateway | None], said: Mapping[Gateway, Collection[int]]) -> None:
    """The same routes stay in any order. A route that needs a gateway never gives way to the one that hides it."""
    rank: dict[Gateway | None, int] = {gateway: number for number, gateway in enumerate((None, *GATEWAYS))}
    hiders = {
        gateway: [each for each in numbers if each < len(needs) and rank[gateway] > rank[needs[each]]]
        for gateway, numbers in said.items()
    }
    lost = decide(needs, hiders)
    assert {each.kind for each in lost.values()} <= {"hides"}
    last = len(needs) - 1
    other = decide(needs[::-1], {gateway: [last - each for each in numbers] for gateway, numbers in hiders.items()})
    assert {last - each for each in other} == set(lost)
