"""The explanation of a packet's way, and the differences between a namespace and its desired routes."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest

from tests.unit.routes.building import OURS, STATIC, found, inside, route
from userspace_cni.base.routing import Inside, PodRoute
from userspace_cni.routes.cluster_facts import ClusterFacts, RoutePod
from userspace_cni.routes.explanation import Explanation, RouteDrift, drift, explain
from userspace_cni.routes.resolving import ResolvedRoutes, resolve
from userspace_cni.routes.resource import RouteObject
from userspace_cni.routes.rules import Rulebook

POD = RoutePod("shop", "web-7", "u1")
BACK = "the network there must know the way back to it"


def explained(dst: str, *routes: RouteObject, within: Inside | None = None, pod: RoutePod = POD) -> Explanation:
    """The explanation for packets to an address or a network."""
    asked = Rulebook(routes, ()).claims(pod)
    there = within or inside()
    return explain(ip_network(dst) if "/" in dst else ip_address(dst), asked, resolve(asked, there, ClusterFacts()), there)


def applied(within: Inside, outcome: ResolvedRoutes) -> Inside:
    made = tuple(PodRoute(each.dst, each.via, each.dev, each.metric, OURS) for each in outcome.routes)
    return replace(within, routes=(*made, *within.routes))


def test_a_route_that_is_not_applied_yet() -> None:
    """The explanation has Route, gateway and reason, what the kernel does now and will do, and what a route does not set up."""
    one = route("low-latency", "20.0.0.0/8 eth1 10.124.2.1")
    assert list(explained("20.1.2.3", one).lines()) == [
        "20.1.2.3: Route 'low-latency' asks for 20.0.0.0/8 via 10.124.2.1 dev eth1",
        "  by the gateway that is named",
        "now: default via 169.254.1.1 dev eth0, of others",
        "when all is applied: 20.0.0.0/8 via 10.124.2.1 dev eth1, ours",
        "note: answers must come in by eth1: where rp_filter is 1, those that come in by eth0 are dropped",
        f"note: packets leave with 10.124.2.5, an address of eth1, not with 192.168.9.7: {BACK}",
    ]


def test_a_route_that_is_applied() -> None:
    """For an applied route no future way is shown. The notes stay."""
    one = route("r", "20.0.0.0/8 eth1")
    book = Rulebook([one], ())
    asked = book.claims(POD)
    outcome = resolve(asked, inside(), book.cluster)
    there = applied(inside(), outcome)
    found_out = explain(ip_address("20.1.2.3"), asked, resolve(asked, there, book.cluster), there)
    assert found_out.now == found_out.then
    assert found_out.now is not None
    assert found_out.now.is_ours
    assert len(found_out.notes) == 2


def test_an_address_that_no_route_decides() -> None:
    """The kernel's own way is shown, without notes about devices that do not change."""
    assert list(explained("30.0.0.1", route("r", "20.0.0.0/8 eth1")).lines()) == [
        "30.0.0.1: no Route decides",
        "now: default via 169.254.1.1 dev eth0, of others",
    ]
    nowhere = replace(inside(), routes=())
    assert list(explained("30.0.0.1", within=nowhere).lines())[-1] == "now: no route leads there"


@pytest.mark.parametrize("dst", ["127.0.0.1", "192.168.9.7", "10.124.2.5", "::1", "127.8.0.0/16"])
def test_an_address_of_the_pod_itself(dst: str) -> None:
    """The kernel's local table comes before every route, so no Route affects the pod's own address."""
    found_out = explained(dst, route("r", "default eth1 10.124.2.1", "192.168.0.0/16 eth1"))
    assert list(found_out.lines()) == [
        f"{dst}: no Route decides",
        f"now: {ip_network(dst)} dev lo, of others",
        "note: it is the pod's own address: no packet to it leaves the pod",
    ]


def test_the_kernels_choice() -> None:
    """The longest prefix counts, of equal ones the lower metric, of equal metrics the first."""
    routes = (found("20.0.0.0/8 eth0", metric=5), found("20.0.0.0/8 eth1"), found("20.0.0.0/8 eth0"), found("20.1.0.0/16 eth0"))
    ways = [explained(dst, within=inside(*routes)).now for dst in ("20.1.0.1", "20.2.0.1", "20.0.0.0/8", "20.0.0.0/7")]
    assert [str(each) for each in ways] == [
        "20.1.0.0/16 dev eth0",
        "20.0.0.0/8 dev eth1",
        "20.0.0.0/8 dev eth1",
        "default via 169.254.1.1 dev eth0",
    ]


def test_parts_of_a_network() -> None:
    """Parts of the network that routes of ours lead elsewhere are noted, ten at most."""
    one = route("a", "20.1.0.0/16 eth1", *(f"30.{number}.0.0/16 eth1" for number in range(12)))
    found_out = explained("20.0.0.0/8", one)
    assert (found_out.reasoned, found_out.notes) == (None, ("of it, Route 'a' has 20.1.0.0/16 dev eth1",))
    assert explained("30.0.0.0/8", one).notes[-1] == "and 2 more parts"
    assert len(explained("30.0.0.0/8", one).notes) == 11
    assert explained("20.1.0.0/16", one).notes[0].startswith("answers must come in by eth1")


def test_a_route_of_others_that_leads_to_no_one() -> None:
    """Another program's route that drops packets is in force, and is shown as what it is."""
    nothing = PodRoute(ip_network("20.0.0.0/8"), None, "", 0, STATIC)
    assert list(explained("20.0.0.1", within=inside(nothing)).lines())[-1] == "now: 20.0.0.0/8, not to one next hop, of others"


def test_why_there_is_no_route() -> None:
    """Refused, skipped and lost entries for this destination are noted with their Route, and no other entries."""
    one = route("a", "20.0.0.0/8 eth7", "30.0.0.0/8 eth1 10.99.0.1", "40.0.0.0/8 eth1", "40.0.0.0/8 eth0")
    assert "Route 'a'" in explained("20.0.0.1", one).notes[0]
    assert "no device eth7" in explained("20.0.0.1", one).notes[0]
    assert "not reached by eth1" in explained("30.0.0.1", one).notes[0]
    assert "spec.route[3]: spec.route[2] has 40.0.0.0/8 already" in explained("40.0.0.1", one).notes[0]
    assert "Route 'a' has 40.0.0.0/8: its name comes first" in explained("40.0.0.1", one, route("b", "40.0.0.0/8 eth0")).notes[1]
    assert explained("50.0.0.1", one).notes == ()
    ended = explained("20.0.0.1", one, pod=replace(POD, phase="Failed"))
    assert ended.notes == ("no Route concerns this pod: it has ended (Failed)",)


def test_drift() -> None:
    """The drift lists missing routes, surplus ones of ours, and others' behind ours. A route by another gateway is in two
    lists."""
    one = route("r", "20.0.0.0/8 eth1", "30.0.0.0/8 eth1 10.124.2.1", "40.0.0.0/8 eth1")
    book = Rulebook([one], ())
    before = inside(
        found("20.0.0.0/8 eth0"), found("40.0.0.0/8 eth1", OURS), found("30.0.0.0/8 eth1", OURS), found("50.0.0.0/8 eth1", OURS)
    )
    outcome = resolve(book.claims(POD), before, book.cluster)
    differs = drift(outcome, before)
    assert [str(each) for each in differs.missing] == ["20.0.0.0/8 dev eth1", "30.0.0.0/8 via 10.124.2.1 dev eth1"]
    assert [str(each.dst) for each in differs.extra] == ["30.0.0.0/8", "50.0.0.0/8"]
    assert [(str(each.dst), each.dev) for each in differs.behind] == [("20.0.0.0/8", "eth0")]
    assert [(each.name, each.path, each.message) for each in differs.findings("shop/web-7", outcome)] == [
        ("route-missing", "r", "20.0.0.0/8 dev eth1"),
        ("route-missing", "r", "30.0.0.0/8 via 10.124.2.1 dev eth1"),
        *(("route-too-many", "", f"{each}: no Route asks for it") for each in differs.extra),
    ]
    in_front = inside(found("40.0.0.0/8 eth0"), *(found(each, OURS) for each in ("20.0.0.0/8 eth1", "40.0.0.0/8 eth1")))
    behind = drift(outcome, in_front)
    assert [str(each.dst) for each in behind.missing] == ["40.0.0.0/8", "30.0.0.0/8"]
    assert (behind.extra, behind.behind) == ((), ())
    there = applied(inside(), outcome)
    assert drift(outcome, there) == RouteDrift((), (), ())
    assert len(drift(outcome, there, protocol=7).missing) == 3
