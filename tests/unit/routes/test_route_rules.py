"""Which Routes ask for which destinations of a pod: selection, exclusion, Services, and pods that are left alone."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address
from typing import Any

import pytest

from tests.unit.routes.building import route, service, thing
from userspace_cni.base.routing import Inside
from userspace_cni.routes.cluster_facts import ClusterFacts, RoutePod
from userspace_cni.routes.resolving import resolve
from userspace_cni.routes.resource import RouteObject, read_route
from userspace_cni.routes.rules import PodClaims, Rulebook

WEB = RoutePod("shop", "web-7", "u1", {"app": "web"}, (("ReplicaSet", "web-5d9"), ("Deployment", "web")), "Running")
NIGHTLY = RoutePod("shop", "nightly-1-x", "u2", {"app": "job"}, (("Job", "nightly-1"), ("CronJob", "nightly")), "Running")
PROXY = RoutePod("kube-system", "proxy-1", "u3", {"app": "proxy"}, (("DaemonSet", "proxy"),), "Running")
PODS = (WEB, NIGHTLY, PROXY)
LABELS = {"shop": {"tier": "gold"}, "kube-system": {}}
CLUSTER = ClusterFacts(
    apiservers=(ip_address("10.96.0.1"), ip_address("192.0.2.10")), dns=(ip_address("10.96.0.10"),), namespaces=LABELS
)
SERVICES = (
    service("default/kubernetes", "10.96.0.1"),
    service("kube-system/kube-dns", "10.96.0.10"),
    service("shop/cart", "10.96.1.1", "fd00:96::11"),
    service("shop/search", "10.96.1.2"),
    service("shop/db", headless=True),
    service("shop/mail", kind="ExternalName"),
    service("shop/new"),
)


def asked(pod: RoutePod, *routes: RouteObject, exclude: tuple[str, ...] = (), cluster: ClusterFacts = CLUSTER) -> PodClaims:
    return Rulebook(routes, SERVICES, cluster, exclude).claims(pod)


def specs(found: PodClaims) -> list[str]:
    return [f"{each.dst} {each.dev}" for each in found.claims]


@pytest.mark.parametrize(
    ("spec", "selected"),
    [
        ({}, "web nightly proxy"),
        ({"pods": [{"namespace": "shop", "name": "web-7"}]}, "web"),
        ({"pods": [{"name": "web-7"}]}, "web"),
        ({"pods": [{"namespace": "other", "name": "web-7"}]}, ""),
        ({"pods": [{"labels": {"app": "web"}}, {"labels": {"app": "proxy"}}]}, "web proxy"),
        ({"pods": [{"labels": {"app": "web", "x": "y"}}]}, ""),
        ({"pods": [{"namespace": "shop"}]}, "web nightly"),
        ({"namespaces": [{"name": "shop"}]}, "web nightly"),
        ({"namespaces": [{"labels": {"tier": "gold"}}]}, "web nightly"),
        ({"namespaces": [{"name": "kube-system", "labels": {"tier": "gold"}}]}, ""),
        ({"workloads": [{"kind": "Deployment", "namespace": "shop", "name": "web"}]}, "web"),
        ({"workloads": [{"kind": "Job", "namespace": "shop", "name": "nightly-1"}]}, "nightly"),
        ({"workloads": [{"kind": "CronJob", "namespace": "shop", "name": "nightly"}]}, "nightly"),
        ({"workloads": [{"kind": "DaemonSet", "namespace": "shop", "name": "proxy"}]}, ""),
        ({"workloads": [{"kind": "StatefulSet", "namespace": "shop", "name": "web"}]}, ""),
        ({"namespaces": [{"name": "kube-system"}], "pods": [{"labels": {"app": "web"}}]}, "web proxy"),
        ({"exclude": {"pods": [{"labels": {"app": "web"}}]}}, "nightly proxy"),
        ({"exclude": {"namespaces": [{"name": "shop"}]}}, "proxy"),
        ({"exclude": {"namespaces": [{"labels": {"tier": "gold"}}]}}, "proxy"),
        ({"exclude": {"workloads": [{"kind": "Deployment", "namespace": "shop", "name": "web"}]}}, "nightly proxy"),
        ({"pods": [{"name": "web-7"}], "exclude": {"namespaces": [{"name": "shop"}]}}, ""),
    ],
)
def test_selection(spec: dict[str, Any], selected: str) -> None:
    """Any matching selector selects, no selector means every pod, and exclusion takes precedence."""
    one = route("r", "20.0.0.0/8 eth1", **spec)
    assert " ".join(pod.name.partition("-")[0] for pod in PODS if asked(pod, one).claims) == selected


def test_what_is_not_known_never_counts_as_no() -> None:
    """While a pod's owners or its namespace's labels are unknown, it is excluded if they might match, and not included."""
    unknown = replace(WEB, owners=None)
    workload = {"workloads": [{"kind": "Deployment", "namespace": "shop", "name": "api"}]}
    elsewhere = {"workloads": [{"kind": "Deployment", "namespace": "other", "name": "api"}]}
    assert not asked(unknown, route("r", "20.0.0.0/8 eth1", exclude=workload)).claims
    assert asked(WEB, route("r", "20.0.0.0/8 eth1", exclude=workload)).claims
    assert asked(unknown, route("r", "20.0.0.0/8 eth1", exclude=elsewhere)).claims
    assert not asked(unknown, route("r", "20.0.0.0/8 eth1", **workload)).claims
    labels = {"namespaces": [{"labels": {"tier": "gold"}}]}
    assert not asked(WEB, route("r", "20.0.0.0/8 eth1", exclude=labels), cluster=ClusterFacts()).claims
    assert not asked(WEB, route("r", "20.0.0.0/8 eth1", **labels), cluster=ClusterFacts()).claims


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"host_network": True}, "node's own network"),
        ({"phase": "Succeeded"}, "Succeeded"),
        ({"phase": "Failed"}, "Failed"),
        ({"terminating": True}, "terminating"),
    ],
)
def test_pods_that_are_left_alone(change: dict[str, Any], why: str) -> None:
    """Pods of the node's network, ended and terminating pods are left alone, even if a Route names them."""
    pod = replace(WEB, **change)
    found = asked(pod, route("r", "20.0.0.0/8 eth1", pods=[{"namespace": "shop", "name": "web-7"}]))
    assert found.claims == ()
    assert why in found.skipped
    assert asked(replace(WEB, phase="Pending"), route("r", "20.0.0.0/8 eth1")).claims


@pytest.mark.parametrize(
    ("spec", "is_for_it"),
    [
        ({}, False),
        ({"pods": [{"labels": {"app": "proxy"}}]}, False),
        ({"pods": [{"name": "proxy-1"}]}, False),
        ({"pods": [{"namespace": "kube-system", "labels": {"app": "proxy"}}]}, True),
        ({"namespaces": [{"name": "kube-system"}]}, True),
        ({"workloads": [{"kind": "DaemonSet", "namespace": "kube-system", "name": "proxy"}]}, True),
    ],
)
def test_excluded_namespaces(spec: dict[str, Any], is_for_it: bool) -> None:
    """Pods of the settings' excluded namespaces are selected only if a selector names their namespace."""
    found = asked(PROXY, route("r", "20.0.0.0/8 eth1", **spec), exclude=("kube-system",))
    assert bool(found.claims) == is_for_it


def test_pods_of_a_stateful_set() -> None:
    """A StatefulSet owns its pods directly. Those of another namespace, or of another kind of that name, are not its own."""
    one = route("r", "20.0.0.0/8 eth1", workloads=[{"kind": "StatefulSet", "namespace": "shop", "name": "db"}])
    pods = [RoutePod("shop", f"db-{number}", f"u{number}", {}, (("StatefulSet", "db"),)) for number in range(3)]
    others = [replace(pods[0], namespace="other"), replace(pods[0], owners=(("DaemonSet", "db"),)), replace(pods[0], owners=None)]
    assert [bool(asked(pod, one).claims) for pod in (*pods, *others)] == [True, True, True, False, False, False]
    excluding = route("r", "20.0.0.0/8 eth1", exclude={"workloads": [{"kind": "StatefulSet", "namespace": "shop", "name": "db"}]})
    assert [bool(asked(pod, excluding).claims) for pod in (*pods, *others)] == [False, False, False, True, True, False]


def test_services() -> None:
    """A Service is a route to each of its addresses. One without addresses is reported, and asks for nothing."""
    entries = ("shop/cart eth1", "shop/db eth1", "shop/mail eth1", "shop/new eth1", "shop/gone eth1")
    found = asked(WEB, route("r", *entries))
    assert specs(found) == ["fd00:96::11/128 eth1", "10.96.1.1/32 eth1"]
    assert [(each.kind, each.dst) for each in found.told] == [("service", None)] * 4
    for each, words in zip(found.told, ("headless", "ExternalName", "no ClusterIP yet", "no such Service"), strict=True):
        assert words in each.text
        assert each.text.startswith("spec.svc[")


def test_a_services_address_changes() -> None:
    """After a change the rules ask for the Service's new address, and for none when the Service is gone."""
    one = route("r", "shop/search eth1")
    for addresses in (["10.96.1.2"], ["10.96.7.7"], []):
        book = Rulebook([one], [service("shop/search", *addresses)])
        assert specs(book.claims(WEB)) == [f"{each}/32 eth1" for each in addresses]


def test_a_gateway_of_one_family() -> None:
    """A Service of two families by a gateway of one gets one route. The other family is reported, unless it has an entry of its
    own. A Service of only the other family is refused."""
    found = asked(WEB, route("r", "shop/cart eth1 10.124.2.1"))
    assert specs(found) == ["10.96.1.1/32 eth1"]
    assert [(each.kind, str(each.dst)) for each in found.told] == [("remark", "fd00:96::11/128")]
    both = asked(WEB, route("r", "shop/cart eth1 10.124.2.1", "shop/cart eth1 fd00::1"))
    assert [str(each.via) for each in both.claims] == ["fd00::1", "10.124.2.1"]
    assert both.told == ()
    twice = asked(WEB, route("r", "shop/cart eth1", "shop/* eth1", "10.96.1.1/32 eth0"))
    assert [each.kind for each in twice.told] == ["duplicate", "duplicate", "remark"]
    alone = asked(WEB, route("r", "shop/search eth1 fd00::1"))
    assert [(each.kind, str(each.dst)) for each in alone.told] == [("refused", "10.96.1.2/32")]


def test_all_services_of_a_namespace() -> None:
    """`*` means each Service with an address. API server and DNS are left out unless a gate allows them."""
    assert specs(asked(WEB, route("r", "shop/* eth1"))) == ["fd00:96::11/128 eth1", "10.96.1.1/32 eth1", "10.96.1.2/32 eth1"]
    for entry in ("default/* eth1", "kube-system/* eth1", "empty/* eth1"):
        found = asked(WEB, route("r", entry))
        assert found.claims == ()
        assert [each.kind for each in found.told] == ["service"]
    allowed = asked(WEB, route("r", "default/* eth1", feature_gate={"allow-apiserver": "true"}))
    assert specs(allowed) == ["10.96.0.1/32 eth1"]


def test_all_services() -> None:
    """`*/*` means each Service with an address, in any namespace. An earlier entry keeps its Service, and gates hold."""
    all_of_shop = ["fd00:96::11/128 eth1", "10.96.1.1/32 eth1", "10.96.1.2/32 eth1"]
    found = asked(WEB, route("r", "*/* eth1"))
    assert (specs(found), found.told) == (all_of_shop, ())
    gates = {"allow-apiserver": "true", "allow-dns": "true"}
    allowed = asked(WEB, route("r", "*/* eth1", feature_gate=gates))
    assert specs(allowed) == [all_of_shop[0], "10.96.0.1/32 eth1", "10.96.0.10/32 eth1", *all_of_shop[1:]]
    first = asked(WEB, route("r", "shop/search eth0", "*/* eth1"))
    assert specs(first) == [*all_of_shop[:2], "10.96.1.2/32 eth0"]
    [none] = Rulebook([route("r", "*/* eth1")], []).claims(WEB).told
    assert (none.kind, "no Service of any namespace" in none.text) == ("service", True)


@pytest.mark.parametrize(
    ("entry", "gate"),
    [
        ("10.96.0.1/32 eth1", "allow-apiserver"),
        ("10.96.0.0/29 eth1", "allow-apiserver"),
        ("192.0.2.0/24 eth1", "allow-apiserver"),
        ("default/kubernetes eth1", "allow-apiserver"),
        ("10.96.0.8/29 eth1", "allow-dns"),
        ("kube-system/kube-dns eth1", "allow-dns"),
    ],
)
def test_api_server_and_dns(entry: str, gate: str) -> None:
    """No route contains their addresses unless their own gate allows it. The other gate does not."""
    other = {"allow-apiserver": "allow-dns", "allow-dns": "allow-apiserver"}[gate]
    for gates in ({}, {other: "true"}):
        found = asked(WEB, route("r", entry, "10.0.0.0/16 eth1", feature_gate=gates))
        assert specs(found) == ["10.0.0.0/16 eth1"]
        [told] = found.told
        assert (told.kind, gate in told.text) == ("refused", True)
    assert len(asked(WEB, route("r", entry, feature_gate={gate: "true"})).claims) == 1


def test_addresses_of_a_service_that_no_route_may_have() -> None:
    """A Service's author cannot choose an address for which a Route's author could not ask."""
    odd = service("shop/odd", "169.254.169.254", "127.0.0.1", "224.0.0.1", "fe80::5", "10.96.1.9")
    book = Rulebook([route("r", "shop/odd eth1")], (odd,), CLUSTER)
    found = book.claims(WEB)
    assert specs(found) == ["10.96.1.9/32 eth1"]
    assert [each.kind for each in found.told] == ["refused"] * 4


def test_the_services_themselves_say_where_the_api_server_is() -> None:
    """If nothing else is known of the cluster, the addresses of these Services are guarded all the same."""
    book = Rulebook([route("r", "10.96.0.0/28 eth1")], SERVICES)
    assert book.claims(WEB).claims == ()
    assert book.cluster.apiservers == (ip_address("10.96.0.1"),)
    assert book.cluster.dns == (ip_address("10.96.0.10"),)


def test_the_default_route_is_no_wide_prefix() -> None:
    """A default route contains every address, and is accepted: resolving it keeps the routes that must stay."""
    assert specs(asked(WEB, route("r", "default eth1", "::/0 eth1"))) == ["0.0.0.0/0 eth1", "::/0 eth1"]


def test_a_destination_twice_in_one_route() -> None:
    """The first entry counts. The other is reported with the place of the first. Entries of Services come after networks."""
    found = asked(WEB, route("r", "20.0.0.0/8 eth1", "20.0.0.0/8 eth0", "10.96.1.2/32 eth1", "shop/search eth0"))
    assert specs(found) == ["10.96.1.2/32 eth1", "20.0.0.0/8 eth1"]
    first, second = found.told
    assert (first.kind, str(first.dst)) == ("duplicate", "20.0.0.0/8")
    assert "spec.route[1]: spec.route[0] has" in first.text
    assert "Service shop/search: spec.route[2] has" in second.text


def test_order_of_claims() -> None:
    """Claims with long prefixes come first, the default route last."""
    found = asked(WEB, route("r", "default eth1", "20.0.0.0/8 eth1", "20.1.0.0/16 eth1", "fd00::/64 eth1", "20.1.2.3/32 eth1"))
    assert [each.prefix.length for each in found.claims] == [64, 32, 16, 8, 0]
    assert found.routes == ("r",)


def test_an_unusable_route_concerns_no_pod() -> None:
    """A Route with an unreadable selector selects no pod, and is reported only on itself."""
    bad = read_route(thing(route=[{"dst": "20.0.0.0/8", "dev": "eth1"}], pods=[{}]))
    found = asked(WEB, bad)
    assert (found.claims, found.told, found.routes) == ((), (), ())


def test_pods_of_one_kind_share_an_answer() -> None:
    """The claims are computed once for all pods that the same Routes select."""
    book = Rulebook([route("a", "20.0.0.0/8 eth1"), route("b", "11.0.0.0/8 eth1", namespaces=[{"name": "shop"}])], (), CLUSTER)
    assert book.claims(WEB) is book.claims(NIGHTLY)
    assert book.claims(WEB) is not book.claims(PROXY)
    assert [each.route.name for each in book.expanded] == ["a", "b"]


def test_there_is_a_most_of_routes_in_a_pod() -> None:
    """A pod has at most 1024 routes. Surplus ones, of the Route that loses, are left out and reported."""
    many = [f"10.{number >> 8}.{number & 255}.0/24 eth1" for number in range(1024)]
    found = asked(WEB, route("a", *many), route("b", "11.0.0.0/8 eth1", "10.0.0.0/24 eth0"))
    assert len(found.claims) == 1024
    [[winner, loser]] = found.rivals.values()
    assert (winner.claim.route, loser.claim.route) == ("a", "b")
    [told] = found.left_out
    assert (told.route, told.kind) == ("b", "refused")
    assert "1 of its routes are left out" in told.text
    assert resolve(found, Inside(), ClusterFacts()).refusals == (told,)
