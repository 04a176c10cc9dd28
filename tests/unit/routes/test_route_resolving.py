"""From the entries for a pod to routes in its namespace: gateways, families, others' routes, and the default route."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest

from tests.unit.routes.building import KERNEL, OURS, STATIC, found, inside, lines, link, route, service
from userspace_cni.base.routing import Inside, PodRoute
from userspace_cni.routes.cluster_facts import ClusterFacts, RoutePod
from userspace_cni.routes.resolving import ResolvedRoutes, resolve
from userspace_cni.routes.resource import RouteObject
from userspace_cni.routes.rules import Rulebook

POD = RoutePod("shop", "web-7", "u1")
CLUSTER = ClusterFacts(
    service_ranges=(ip_network("10.96.0.0/12"), ip_network("fd00:96::/108")),
    pod_ranges=(ip_network("10.244.0.0/16"),),
    nodes=(ip_address("192.0.2.11"), ip_address("2001:db8::11")),
    apiservers=(ip_address("10.96.0.1"), ip_address("192.0.2.10")),
    dns=(ip_address("10.96.0.10"),),
)
KEPT = [
    "192.0.2.10/32 via 169.254.1.1 dev eth0",
    "192.0.2.11/32 via 169.254.1.1 dev eth0",
    "10.244.0.0/16 via 169.254.1.1 dev eth0",
    "10.96.0.0/12 via 169.254.1.1 dev eth0",
]
"""What stays with Calico's default route; API server's ClusterIP and DNS are in the range of Services."""
DUAL = ("10.124.2.5/24", "fd00:2::5/64", "fe80::5/64")


def resolved(*routes: RouteObject, within: Inside | None = None, cluster: ClusterFacts = CLUSTER) -> ResolvedRoutes:
    book = Rulebook(routes, (service("shop/cart", "10.96.1.1", "fd00:96::11"),), cluster)
    return resolve(book.claims(POD), within or inside(), book.cluster)


def refusal(*routes: RouteObject, within: Inside | None = None, cluster: ClusterFacts = CLUSTER) -> str:
    """The reason of the only refused entry."""
    [told] = resolved(*routes, within=within, cluster=cluster).refusals
    assert told.kind == "refused"
    return told.text


def skipped(*routes: RouteObject, within: Inside | None = None) -> str:
    """The reason why the one entry is skipped in this pod."""
    outcome = resolved(*routes, within=within)
    assert outcome.refusals == ()
    [told] = outcome.skipped
    assert told.kind == "skipped"
    return told.text


# -- devices and families -----------------------------------------------------------------------------------------------------


def test_a_pod_without_the_device() -> None:
    """An entry is skipped without its device, and if that is down: the kernel would refuse the route."""
    assert "no device net7" in skipped(route("r", "20.0.0.0/8 net7"))
    assert "eth1 is down" in skipped(route("r", "20.0.0.0/8 eth1"), within=inside(up=False))


@pytest.mark.parametrize("addresses", [(), ("fe80::5/64",), ("10.124.2.5/24",), ("10.124.2.5/24", "fe80::5/64")])
def test_a_family_that_the_device_lacks(addresses: tuple[str, ...]) -> None:
    """An entry of a family of which the device has no address is skipped. A link-local IPv6 address does not count."""
    assert "eth1 has no IPv6 address" in skipped(route("r", "fd00:9::/64 eth1"), within=inside(eth1=addresses))


def test_a_service_of_two_families() -> None:
    """A device of one family gets the route of that family, a device of both gets two. IPv6 has a metric of its own."""
    one = route("r", "shop/cart eth1")
    assert lines(resolved(one)) == ["10.96.1.1/32 dev eth1"]
    both = resolved(one, within=inside(eth1=DUAL)).routes
    assert [(str(each.dst), each.metric) for each in both] == [("fd00:96::11/128", 100), ("10.96.1.1/32", 0)]


def test_a_gateway_that_is_named_stands_for_its_family() -> None:
    """By a link-local gateway an IPv6 route needs no address but the link-local one."""
    one = route("r", "fd00:9::/64 eth1 fe80::1")
    assert lines(resolved(one, within=inside(eth1=("fe80::5/64",)))) == ["fd00:9::/64 via fe80::1 dev eth1"]
    assert "no IPv6 address, by which" in refusal(one, within=inside())


# -- gateways -----------------------------------------------------------------------------------------------------------------

OTHERS = (found("10.124.0.0/16 eth1 10.124.2.1"), found("10.200.0.0/16 eth1 10.124.2.9"), found("10.200.7.0/24 eth1"))


@pytest.mark.parametrize(
    ("entry", "others", "via"),
    [
        ("10.124.7.0/24 eth1 auto", OTHERS, "10.124.2.1"),
        ("10.200.9.0/24 eth1 auto", OTHERS, "10.124.2.9"),
        ("10.200.7.9/32 eth1 auto", OTHERS, None),
        ("172.16.0.0/16 eth1 auto", OTHERS[:1], "10.124.2.1"),
        ("172.16.0.0/16 eth1 auto", OTHERS, None),
        ("172.16.0.0/16 eth1 auto", (*OTHERS, found("0.0.0.0/0 eth1 10.124.2.254", metric=50)), "10.124.2.254"),
        ("172.16.0.0/16 eth1 auto", (), None),
        ("default eth1 auto", OTHERS[:1], "10.124.2.1"),
        ("172.16.0.0/16 eth0 auto", OTHERS, "169.254.1.1"),
        ("10.124.7.0/24 eth1", OTHERS, None),
        ("10.124.7.0/24 eth1 10.124.2.7", OTHERS, "10.124.2.7"),
    ],
)
def test_gateways(entry: str, others: tuple[PodRoute, ...], via: str | None) -> None:
    """`auto` is the gateway of the longest fitting route of the pod, else the one of all, else the default's, else none."""
    [reasoned] = resolved(route("r", entry), within=inside(*others), cluster=ClusterFacts()).wanted
    assert reasoned.wanted.via == (ip_address(via) if via else None)
    assert reasoned.asked_by == "r"
    assert ("derived" in reasoned.why) == (("auto" in entry and via is not None) or "10.200.7.9" in entry)


def test_the_default_of_gateways() -> None:
    """With `derive` an entry without a gateway gets a derived one. Without it the entry is on-link, as in the original."""
    for said, via in (({"via": "derive"}, "10.124.2.1"), ({"via": "on-link"}, None), ({}, None)):
        one = route("r", "172.16.10.0/24 eth1", "shop/cart eth1", defaults=said)
        assert {each.via and str(each.via) for each in resolved(one, within=inside(OTHERS[0])).routes} == {via}


def test_routes_of_ours_are_no_source_of_gateways() -> None:
    """No gateway is derived from our own routes: else the outcome would depend on what was applied last."""
    ours = found("10.124.0.0/16 eth1 10.124.2.1", OURS)
    assert lines(resolved(route("r", "172.16.0.0/16 eth1 auto"), within=inside(ours))) == ["172.16.0.0/16 dev eth1"]


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("20.0.0.0/8 eth1 10.99.0.1", "not reached by eth1"),
        ("20.0.0.0/8 eth1 169.254.1.1", "not reached by eth1"),
        ("20.0.0.0/8 eth1 10.124.9.1", "not on-link at eth1: it is reached by 10.124.2.1"),
        ("20.0.0.0/8 eth0 192.0.2.1", "not on-link at eth0: it is reached by 169.254.1.1"),
        ("20.0.0.0/8 eth1 10.124.2.5", "an address of the pod itself"),
    ],
)
def test_gateways_that_the_kernel_would_not_take(entry: str, why: str) -> None:
    """A gateway must be on-link at its device, and not the pod."""
    assert why in refusal(route("r", entry), within=inside(OTHERS[0]))


def test_a_route_of_ours_reaches_a_gateway() -> None:
    """An on-link route of ours, which a longer entry makes first, may lead to a gateway."""
    one = route("r", "20.0.0.0/8 eth1 10.99.0.1", "10.99.0.1/32 eth1")
    assert lines(resolved(one)) == ["10.99.0.1/32 dev eth1", "20.0.0.0/8 via 10.99.0.1 dev eth1"]
    both = route("r", "20.1.0.0/16 eth1 10.124.2.1", "20.0.0.0/8 eth1 10.99.0.1", "10.99.0.1/32 eth1")
    assert len(resolved(both).routes) == 3


def test_a_gateway_that_an_entry_reaches() -> None:
    """On-link entries are made first, so their gateways serve entries of any length. An entry behind a gateway reaches none."""
    outcome = resolved(route("r", "30.0.0.0/24 eth1 10.99.0.1", "10.99.0.0/20 eth1", "20.0.0.0/8 eth1 10.99.0.1"))
    assert lines(outcome) == ["10.99.0.0/20 dev eth1", "30.0.0.0/24 via 10.99.0.1 dev eth1", "20.0.0.0/8 via 10.99.0.1 dev eth1"]
    derived = resolved(route("r", "10.5.0.0/16 eth1 auto", "10.9.0.0/24 eth1 10.5.0.1"), within=replace(inside(), routes=()))
    assert lines(derived) == ["10.5.0.0/16 dev eth1", "10.9.0.0/24 via 10.5.0.1 dev eth1"]
    assert "30.0.0.1 is not on-link at eth1" in refusal(route("r", "30.0.0.0/24 eth1 10.124.2.1", "20.0.0.0/8 eth1 30.0.0.1"))


# -- what others have ---------------------------------------------------------------------------------------------------------


def test_before_a_route_of_others() -> None:
    """Our route comes before another program's, which is counted. With the gate false it is refused, and the other is named."""
    others = inside(found("20.0.0.0/8 eth0 169.254.1.1"))
    outcome = resolved(route("r", "20.0.0.0/8 eth1"), within=others)
    assert (lines(outcome), outcome.overridden) == (["20.0.0.0/8 dev eth1"], (ip_network("20.0.0.0/8"),))
    closed = route("r", "20.0.0.0/8 eth1", feature_gate={"override": "false"})
    assert "20.0.0.0/8 via 169.254.1.1 dev eth0" in refusal(closed, within=others)
    assert lines(resolved(closed)) == ["20.0.0.0/8 dev eth1"]


def test_a_subnet_of_a_device_is_the_kernels() -> None:
    """The route to a device's subnet is never overridden. A narrower part of the subnet may go elsewhere."""
    assert "subnet of eth1" in refusal(route("r", "10.124.2.0/24 eth0"))
    assert "subnet of eth1" in refusal(route("r", "10.124.2.0/24 eth1 10.124.2.1"))
    assert "the kernel has it already" in skipped(route("r", "10.124.2.0/24 eth1"))
    assert lines(resolved(route("r", "10.124.2.128/25 eth0"))) == ["10.124.2.128/25 dev eth0"]


@pytest.mark.parametrize(("metric", "is_taken"), [(1024, True), (0, True), (256, True), (101, True), (100, False), (50, False)])
def test_metrics_of_ipv6(metric: int, is_taken: bool) -> None:
    """Ours has metric 100: it cannot precede a route with a lower or equal metric, and that is reported. 0 means 1024."""
    others = inside(found("fd00:9::/64 eth1 fe80::1", metric=metric), eth1=DUAL)
    outcome = resolved(route("r", "fd00:9::/64 eth1"), within=others)
    assert bool(outcome.wanted) == is_taken
    assert [f"metric {metric}, and ours would have 100" in each.text for each in outcome.refusals] == [True] * (not is_taken)


def test_another_metric_of_ipv6() -> None:
    """The settings can name another metric."""
    book = Rulebook([route("r", "fd00:9::/64 eth1")], ())
    assert [each.metric for each in resolve(book.claims(POD), inside(eth1=DUAL), book.cluster, metric6=7).routes] == [7]


@pytest.mark.parametrize(
    "entry", ["10.124.2.1/32 eth0", "10.124.2.0/31 eth0", "10.124.2.0/25 eth0", "10.124.2.1/32 eth1 10.124.2.9"]
)
def test_a_gateway_is_never_hidden(entry: str) -> None:
    """A route that leads another route's gateway away from its device is refused by name, also if both are ours."""
    assert "it would hide 10.124.2.1" in refusal(route("r", entry), within=inside(OTHERS[0]))
    outcome = resolved(route("r", entry, "20.0.0.0/8 eth1 10.124.2.1"))
    assert lines(outcome) == ["20.0.0.0/8 via 10.124.2.1 dev eth1"]
    assert "it would hide 10.124.2.1" in outcome.refusals[0].text


def test_what_does_not_hide_a_gateway() -> None:
    """A wider prefix, or an on-link route at the same device, leaves the way to the gateway as it is."""
    one = route("r", "10.124.2.1/32 eth1", "10.124.0.0/20 eth0")
    assert lines(resolved(one, within=inside(OTHERS[0]))) == ["10.124.2.1/32 dev eth1", "10.124.0.0/20 dev eth0"]


# -- the default route --------------------------------------------------------------------------------------------------------


def test_the_default_route_keeps_what_the_cluster_needs() -> None:
    """Services, pods, node, API server and DNS keep the former default route. The new default route is made last."""
    outcome = resolved(route("r", "default eth1 10.124.2.1", "20.0.0.0/8 eth1"))
    assert sorted(lines(outcome)) == sorted([*KEPT, "20.0.0.0/8 dev eth1", "default via 10.124.2.1 dev eth1"])
    assert lines(outcome)[-1] == "default via 10.124.2.1 dev eth1"
    assert [each.kept for each in outcome.routes] == [False, *(True for _ in KEPT), False]
    assert outcome.overridden == (ip_network("0.0.0.0/0"),)
    assert {each.asked_by for each in outcome.wanted} == {"r"}
    assert {each.why for each in outcome.wanted if str(each.wanted) in KEPT} == {
        f"kept with the former default route: {what}" for what in ("Services", "pods", "this node", "the API server")
    }


def test_what_gates_do_not_keep() -> None:
    """Without keep-cluster-routes only API server and DNS keep their routes. Only their own gates give these up."""
    default = "default eth1 10.124.2.1"
    outcome = resolved(route("r", default, feature_gate={"keep-cluster-routes": "false"}))
    assert [str(each.dst) for each in outcome.routes] == ["10.96.0.1/32", "10.96.0.10/32", "192.0.2.10/32", "0.0.0.0/0"]
    gates = {"keep-cluster-routes": "false", "allow-apiserver": "true", "allow-dns": "true"}
    assert [str(each.dst) for each in resolved(route("r", default, feature_gate=gates)).routes] == ["0.0.0.0/0"]


def test_what_stays_by_itself_is_not_kept() -> None:
    """No additional route is made for destinations of other routes than the default, or of a Route's entry."""
    others = inside(found("10.96.0.0/11 eth0 169.254.1.1"), found("192.0.2.0/24 eth0 169.254.1.1"))
    assert [str(each.dst) for each in resolved(route("r", "default eth1 10.124.2.1"), within=others).routes] == [
        "10.244.0.0/16",
        "0.0.0.0/0",
    ]
    asked = resolved(route("r", "default eth1 10.124.2.1", "10.244.0.0/16 eth1"))
    assert [each.dev for each in asked.routes if str(each.dst) == "10.244.0.0/16"] == ["eth1"]


def test_a_default_route_where_there_was_none() -> None:
    """Without a former default route nothing is kept. With the same default route again nothing is kept either."""
    bare = replace(inside(), routes=(found("10.124.2.0/24 eth1", KERNEL),))
    assert lines(resolved(route("r", "default eth1 10.124.2.1"), within=bare)) == ["default via 10.124.2.1 dev eth1"]
    assert lines(resolved(route("r", "default eth0 169.254.1.1"))) == ["default via 169.254.1.1 dev eth0"]


def test_a_default_route_of_each_family() -> None:
    """Each family keeps its own destinations with its own former default route."""
    within = inside(found("::/0 eth0 fe80::9"), eth1=DUAL)
    within = replace(within, links={**within.links, "eth0": link("eth0", 3, "192.168.9.7/32", "fe80::7/64")})
    six = route("r", "::/0 eth1 fe80::1")
    assert lines(resolved(six, within=within)) == [
        "2001:db8::11/128 via fe80::9 dev eth0",
        "fd00:96::/108 via fe80::9 dev eth0",
        "default via fe80::1 dev eth1",
    ]
    assert {each.metric for each in resolved(six, within=within).routes} == {100}
    both = resolved(route("r", "::/0 eth1 fe80::1", "default eth1 10.124.2.1"), within=within)
    assert len(both.routes) == 3 + len(KEPT) + 1
    assert {str(each.dst) for each in both.routes[-2:]} == {"0.0.0.0/0", "::/0"}


def test_a_default_route_with_which_nothing_can_stay() -> None:
    """Ours is refused if the former one has several next hops, or one that nothing reaches, unless it says that this is on the
    link. With gates that keep nothing, ours is accepted."""
    unreached = replace(inside(), routes=(found("0.0.0.0/0 eth0 169.254.1.1"), found("10.124.2.0/24 eth1", KERNEL)))
    assert "169.254.1.1 is not on-link at eth0" in refusal(route("r", "default eth1 10.124.2.1"), within=unreached)
    onlink = replace(unreached, routes=(replace(unreached.routes[0], onlink=True), *unreached.routes[1:]))
    made = lines(resolved(route("r", "default eth1 10.124.2.1"), within=onlink))
    assert made == [*(f"{each} onlink" for each in KEPT), "default via 10.124.2.1 dev eth1"]
    void = replace(inside(), routes=(PodRoute(ip_network("0.0.0.0/0"), None, "", 0, STATIC, is_void=True), *inside().routes[2:]))
    assert lines(resolved(route("r", "default eth1 10.124.2.1"), within=void)) == ["default via 10.124.2.1 dev eth1"]
    several = PodRoute(ip_network("0.0.0.0/0"), None, "", 0, STATIC)
    within = replace(inside(), routes=(several, found("10.124.2.0/24 eth1", KERNEL)))
    assert "not to one next hop" in refusal(route("r", "default eth1 10.124.2.1"), within=within)
    gates = {"keep-cluster-routes": "false", "allow-apiserver": "true", "allow-dns": "true"}
    assert lines(resolved(route("r", "default eth1 10.124.2.1", feature_gate=gates), within=within)) == [
        "default via 10.124.2.1 dev eth1"
    ]


def test_a_default_route_without_override() -> None:
    """With the gate false a default route is refused if there is one, and nothing is kept."""
    one = route("r", "default eth1 10.124.2.1", feature_gate={"override": "false"})
    assert "gate override is false" in refusal(one)
    assert resolved(one).wanted == ()


# -- the whole ----------------------------------------------------------------------------------------------------------------


def test_what_is_applied_changes_nothing_of_the_outcome() -> None:
    """When our routes are made already, the same ones are desired: a pass is idempotent."""
    one = route(
        "r", "default eth1 auto", "20.0.0.0/8 eth1 10.124.2.1", "shop/cart eth1", "fd00:9::/64 eth1", "10.124.2.128/25 eth0"
    )
    before = inside(OTHERS[0], eth1=DUAL)
    first = resolved(one, within=before)
    made = tuple(PodRoute(each.dst, each.via, each.dev, each.metric, OURS) for each in first.routes)
    assert len(made) > 5
    assert resolved(one, within=replace(before, routes=(*made, *before.routes))) == first


def test_nothing_asked() -> None:
    """Without claims no route is desired, whatever the namespace has."""
    assert resolved() == ResolvedRoutes()


def test_another_protocol_of_ours() -> None:
    """The settings can name another protocol number. Routes with 148 are then other programs'."""
    book = Rulebook([route("r", "172.16.0.0/16 eth1 auto")], ())
    within = Inside(
        {"eth1": link("eth1", 5, "10.124.2.5/24")},
        (found("10.124.2.0/24 eth1", KERNEL), found("10.124.0.0/16 eth1 10.124.2.1", OURS)),
    )
    assert lines(resolve(book.claims(POD), within, book.cluster, protocol=149)) == ["172.16.0.0/16 via 10.124.2.1 dev eth1"]


def test_networks_that_are_not_known_are_told_by_version() -> None:
    """Networks that the settings name for one version of IP say nothing about the other version."""
    known = ClusterFacts(nodes=(ip_address("192.0.2.11"), ip_address("2001:db8::11")), named_ranges=(ip_network("10.0.0.0/8"),))
    assert (known.why_unknown(4), known.why_unknown(6)) == ("", "Services and other nodes' pods")
    found = replace(known, named_ranges=(), pod_ranges=(ip_network("10.244.0.0/16"),), service_ranges=(ip_network("fd96::/108"),))
    assert (found.why_unknown(4), found.why_unknown(6)) == ("Services", "other nodes' pods")


@pytest.mark.parametrize("odd", ["0.0.0.0/0", "::/0", "127.0.0.0/8", "169.254.0.0/17", "128.0.0.0/1", "ff00::/12"])
def test_a_range_that_no_pod_can_have(odd: str) -> None:
    """A range that one Node reports must not become a default route of all pods, nor a route that no Route could ask for."""
    everything = ClusterFacts(pod_ranges=(ip_network(odd), ip_network("10.244.0.0/16")))
    assert [str(each.dst) for each in everything.needs] == ["10.244.0.0/16"]
