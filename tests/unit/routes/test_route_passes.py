"""Which pods are looked at when: changed and due ones, and no others. And what is known after a restart."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from ipaddress import ip_address, ip_interface, ip_network
from typing import Any

import pytest

from userspace_cni.base.errors import ContainerGone, HostNamespace
from userspace_cni.base.routing import DesiredRoute, Inside, PodLink
from userspace_cni.host.pod_net.pod_routes import PodNamespace, RoutePass
from userspace_cni.routes.cluster_facts import ClusterFacts, ClusterService, RoutePod
from userspace_cni.routes.known import (
    RANGES_MAX,
    KnownCluster,
    add_owners,
    as_json,
    by_uid,
    from_json,
    merge_networks,
    read_pod,
    read_service,
)
from userspace_cni.routes.passes import HIDDEN, LATER_S, RESYNC_S, Passes, Rules
from userspace_cni.routes.places import LocatedSandbox
from userspace_cni.routes.reports import describe, uses
from userspace_cni.routes.rules import PodClaims, Rulebook

ETH1 = PodLink("eth1", 3, up=True, addresses=(ip_interface("10.2.0.2/16"),))


class Namespaces:
    """The namespaces of pods in the kernel: `inside` has them by path, `looks` the paths that were looked at."""

    protocol = 148

    def __init__(self) -> None:
        self.inside: dict[str, Inside | Exception] = {}
        self.made: dict[str, list[str]] = {}
        self.looks: list[str] = []

    def converge(self, place: PodNamespace, decide: Callable[[Inside], Iterable[DesiredRoute]]) -> RoutePass:
        self.looks.append(place.path)
        found = self.inside.get(place.path, Inside({"eth1": ETH1}))
        if isinstance(found, Exception):
            raise found
        self.made[place.path] = [str(each) for each in decide(found)]
        return RoutePass(found)

    def keep(self, sandboxes: Collection[str]) -> None: ...


class Node:
    """A node whose pods are looked at in passes, with a clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.kernel = Namespaces()
        self.passes = Passes(self.kernel, Rules(exclude=("kube-system",)), lambda: self.now)
        self.located = [located("a"), located("b")]

    def visit(self, known: KnownCluster) -> list[str]:
        self.passes.learn(known)
        del self.kernel.looks[:]
        self.passes.visit(self.located, everything=self.passes.overdue)
        return sorted(self.kernel.looks)


def located(name: str, uid: str = "") -> LocatedSandbox:
    return LocatedSandbox(PodNamespace(f"box-{name}", f"/ns/{name}"), "default", name, uid or f"u-{name}", "cache")


def route(name: str, *dsts: str, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "uid": f"u-{name}", "generation": 1},
        "spec": {"route": [{"dst": each, "dev": "eth1"} for each in dsts], **spec},
    }


def known(
    *objects: dict[str, Any], pods: Iterable[RoutePod] = (RoutePod("default", "a", "u-a"), RoutePod("default", "b", "u-b"))
) -> KnownCluster:
    return KnownCluster(objects, pods={each.uid: each for each in pods}, has_api=True)


def test_only_what_changed_is_looked_at() -> None:
    """The first pass looks at every pod, later ones at pods for which other routes are desired, and after ten minutes at all."""
    node, one = Node(), route("one", "172.16.0.0/16", pods=[{"name": "a"}])
    assert node.visit(known(one)) == ["/ns/a", "/ns/b"]
    assert node.visit(known(one)) == []
    assert node.visit(known(one, route("two", "172.17.0.0/16", pods=[{"name": "b"}]))) == ["/ns/b"]
    node.located.append(located("c"))
    pods = [RoutePod("default", each, f"u-{each}") for each in "abc"]
    assert node.visit(known(one, pods=pods)) == ["/ns/b", "/ns/c"]
    assert (node.kernel.made["/ns/a"], node.kernel.made["/ns/b"]) == (["172.16.0.0/16 dev eth1"], [])
    node.now += RESYNC_S
    assert node.visit(known(one, pods=pods)) == ["/ns/a", "/ns/b", "/ns/c"]


def test_a_new_interface() -> None:
    """A sandbox with a new interface, from any source, or with a named one, is looked at, and again if a device may come."""
    node, one = Node(), known(route("one", "172.16.0.0/16"))
    assert node.visit(one) == ["/ns/a", "/ns/b"]
    node.now += RESYNC_S / 2
    node.kernel.inside["/ns/b"] = Inside({})
    node.located[1] = replace(node.located[1], interfaces=("eth1",))
    assert node.visit(one) == ["/ns/b"]
    node.now += LATER_S[0]
    assert node.visit(one) == ["/ns/b"]
    assert node.visit(one) == []
    node.passes.visit(node.located, {node.located[0].place.sandbox})
    assert node.kernel.looks == ["/ns/a"]


def test_what_is_asked_of_a_pod_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is desired in a pod is computed once until something known changes. Nothing is kept of pods that are gone."""
    node, asked = Node(), list[str]()
    claims = Rulebook.claims

    def noted(book: Rulebook, pod: RoutePod) -> PodClaims:
        asked.append(pod.name)
        return claims(book, pod)

    monkeypatch.setattr(Rulebook, "claims", noted)
    labelled = route("one", "172.16.0.0/16", pods=[{"labels": {"app": "web"}}])
    one = known(labelled)
    for _ in range(3):
        node.visit(one)
        assert node.passes.list_wanted() == set()
    assert asked == ["a", "b"]
    web = RoutePod("default", "a", "u-a", {"app": "web"})
    assert node.visit(known(labelled, pods=(web,))) == ["/ns/a"]
    assert node.passes.list_wanted() == {"u-a"}
    assert asked == ["a", "b", "a"]
    node.visit(known(route("two", "172.16.0.0/16"), pods=(web,)))
    assert asked[3:] == ["a"]


def test_what_is_not_proven_is_left_alone() -> None:
    """A sandbox is left alone if its UID is not that of the API's pod, or if the API has no such pod."""
    node = Node()
    node.located = [located("a", "u-former"), located("stranger")]
    assert node.visit(known(route("one", "172.16.0.0/16"))) == []
    assert node.passes.visited == {}


def test_a_device_that_may_still_come() -> None:
    """A new pod that lacks the device is looked at again after a moment, a few times, and then together with all others."""
    node = Node()
    node.located = [located("a")]
    node.kernel.inside["/ns/a"] = Inside({})
    one = known(route("one", "172.16.0.0/16"))
    assert node.visit(one) == ["/ns/a"]
    for each in LATER_S:
        assert node.visit(one) == []
        node.now = 1000.0 + each
        assert node.visit(one) == ["/ns/a"]
    node.now += RESYNC_S / 2
    assert node.visit(one) == []
    assert [each.state for each in node.passes.visited.values()] == ["skipped"]


def test_a_failure_is_tried_again_with_growing_pauses() -> None:
    """After a failure in one pod the other pods do not wait."""
    node = Node()
    node.kernel.inside["/ns/a"] = ContainerGone("it is another namespace by now")
    one = known(route("one", "172.16.0.0/16"))
    node.visit(one)
    tried = []
    for second in range(1, 40):
        node.now = 1000.0 + second
        tried += [second] * (node.visit(one) == ["/ns/a"])
    assert tried == [1, 3, 7, 15, 31]
    [use] = uses(node.passes)
    assert (use.matched, use.applied, use.failed) == (2, 1, 1)
    assert use.failures == (("default/a", "it is another namespace by now"),)


def test_a_pod_in_the_nodes_network() -> None:
    """A pod counts as in the node's network by its namespace, whatever its spec says. That is no failure."""
    node = Node()
    node.kernel.inside["/ns/a"] = HostNamespace("it is the node's own")
    node.visit(known(route("one", "172.16.0.0/16")))
    assert [(each.host, each.state) for each in node.passes.visited.values()] == [(True, "none"), (False, "applied")]
    assert uses(node.passes)[0].matched == 1


def test_without_a_cluster_each_sandbox_is_a_pod() -> None:
    """Without a cluster the file's routes are for each sandbox. Entries with Services do not count."""
    node = Node()
    thing = route("file", "172.16.0.0/16", svc=[{"namespace": "a", "name": "b", "dev": "eth1"}])
    assert node.visit(KnownCluster(from_file=(thing,))) == ["/ns/a", "/ns/b"]
    assert node.kernel.made["/ns/b"] == ["172.16.0.0/16 dev eth1"]
    assert "there is no cluster" in node.passes.routes[0].problems[0]


def test_a_file_wins_over_an_object_of_its_name() -> None:
    """A Route of the file replaces an object of its name, because two of one name would own the same route."""
    node = Node()
    both = KnownCluster((route("one", "172.16.0.0/16"),), (route("one", "172.17.0.0/16"),), pods=known().pods, has_api=True)
    node.visit(both)
    assert node.kernel.made["/ns/a"] == ["172.17.0.0/16 dev eth1"]


def test_what_is_known_through_a_restart() -> None:
    """A file keeps everything that is known. Another file raises an error of values."""
    pods = (
        RoutePod("default", "a", "u-a", {"app": "web"}, (("ReplicaSet", "web-1"), ("Deployment", "web"))),
        RoutePod("x", "y", "z", {}, None),
    )
    cluster = ClusterFacts(
        (ip_network("10.96.0.0/12"),),
        (ip_network("10.244.0.0/22"),),
        (ip_network("10.244.1.0/24"), ip_network("fd00::/64")),
        (ip_network("10.0.0.0/8"),),
        (ip_address("192.0.2.1"),),
        (ip_address("10.96.0.1"),),
        (),
        {"default": {"tier": "gold"}},
    )
    services = (ClusterService("default", "web", (ip_address("10.96.0.7"),)), ClusterService("default", "db", (), headless=True))
    whole = KnownCluster(
        (route("one", "172.16.0.0/16"),), (route("two"),), services, {each.uid: each for each in pods}, cluster, has_api=True
    )
    assert from_json(as_json(whole)) == whole
    for text in ("", "[]", "{}", '{"schema": 2}', as_json(whole).replace('"10.96.0.7"', '"x"'), "[" * 100_000):
        with pytest.raises(ValueError, match=r"it is not|schema|Expecting|does not appear|recursion"):
            from_json(text)


def test_owners() -> None:
    """Owners of a pod's ReplicaSet or Job count as the pod's once they are known. Until then the owner is unknown."""
    reference = {"kind": "ReplicaSet", "name": "web-1", "controller": True}
    pod = read_pod({"metadata": {"namespace": "default", "name": "a", "uid": "u", "ownerReferences": [reference]}})
    assert add_owners(pod, {"ReplicaSet": None}).owners is None
    assert add_owners(pod, {"ReplicaSet": {}}).owners is None
    assert add_owners(pod, {"ReplicaSet": {"default/web-1": ("", "")}}).owners == (("ReplicaSet", "web-1"),)
    before = {"u": RoutePod("default", "a", "u", {}, (("ReplicaSet", "web-1"), ("Deployment", "web")))}
    assert by_uid([pod], {"ReplicaSet": None}, before)["u"].owners == before["u"].owners
    parents = {"ReplicaSet": {"default/web-1": ("Deployment", "web")}}
    assert add_owners(pod, parents).owners == (("ReplicaSet", "web-1"), ("Deployment", "web"))
    alone = read_pod({"metadata": {"namespace": "default", "name": "a", "uid": "u"}})
    assert add_owners(alone, {}).owners == ()


def test_services() -> None:
    """A Service has addresses of both families. A headless one, an external name, and one without an address yet have none."""
    metadata = {"namespace": "default", "name": "web"}

    def of(**spec: Any) -> ClusterService:
        return read_service({"metadata": metadata, "spec": spec})

    assert [str(each) for each in of(clusterIP="10.96.0.7", clusterIPs=["10.96.0.7", "fd96::7"]).addresses] == [
        "10.96.0.7",
        "fd96::7",
    ]
    dns = {"metadata": {"namespace": "kube-system", "name": "rke2-coredns", "labels": {"k8s-app": "kube-dns"}}}
    assert (of().is_dns, read_service(dns).is_dns) == (False, True)
    assert (of(clusterIP="None", clusterIPs=["None"]).headless, of(type="ExternalName").addresses, of().addresses) == (
        True,
        (),
        (),
    )


def test_for_which_pods_the_runtime_is_asked() -> None:
    """The runtime is asked for pods with desired routes and for pods that still have some; without a cluster for all."""
    node = Node()
    assert node.passes.list_wanted() is None
    node.visit(known(route("one", "172.16.0.0/16", pods=[{"name": "a"}])))
    assert set(node.passes.list_wanted() or ()) == {"u-a"}
    node.passes.learn(known(route("two", "172.16.0.0/16", pods=[{"name": "b"}])))
    assert set(node.passes.list_wanted() or ()) == {"u-a", "u-b"}
    assert node.visit(known()) == ["/ns/a"]
    assert set(node.passes.list_wanted() or ()) == set()
    node.passes.learn(KnownCluster())
    assert node.passes.list_wanted() is None


def test_pods_that_pretend_to_be_static() -> None:
    """Only an object of the node itself may stand for another pod here, and never for a real pod."""
    mirror = {"kubernetes.io/config.mirror": "victim"}

    def of(name: str, uid: str, kind: str = "") -> Any:
        owner = [{"kind": kind, "name": "n1", "controller": True}] if kind else []
        metadata = {"namespace": "default", "name": name, "uid": uid, "annotations": mirror, "ownerReferences": owner}
        return read_pod({"metadata": metadata})

    assert of("static", "api", "Node").node_uid == "victim"
    assert of("attacker", "u").node_uid == "u"
    real = read_pod({"metadata": {"namespace": "default", "name": "real", "uid": "victim"}})
    assert by_uid([real, of("static", "api", "Node")], {}, {})["victim"].name == "real"


def test_an_address_that_is_none() -> None:
    """Servers accept 10.096.0.50 as a ClusterIP. That address is left out, and the rest of the Service is used."""
    thing = {"metadata": {"namespace": "a", "name": "b"}, "spec": {"clusterIPs": ["10.096.0.50", "fd96::7"]}}
    assert [str(each) for each in read_service(thing).addresses] == ["fd96::7"]


def test_a_pod_that_ends_keeps_its_routes() -> None:
    """A pod is terminating for as long as it needs its connections."""
    node, one = Node(), route("one", "172.16.0.0/16")
    node.visit(known(one))
    ending = [RoutePod("default", "a", "u-a", terminating=True), RoutePod("default", "b", "u-b")]
    node.now += RESYNC_S
    assert node.visit(known(one, pods=ending)) == ["/ns/b"]
    assert len(node.passes.visited) == 2
    assert node.passes.next_due > node.now


def test_a_file_of_routes_with_a_name_of_the_api() -> None:
    """The file's Route is applied on this node. The API's Route of this name reports that, and nothing about the file's."""
    node = Node()
    both = [route("one", "172.16.0.0/16"), route("two", "172.17.0.0/16")]
    node.visit(replace(known(*both), from_file=(route("one", "172.18.0.0/16"),)))
    assert node.kernel.made["/ns/a"] == ["172.17.0.0/16 dev eth1", "172.18.0.0/16 dev eth1"]
    hidden, used = uses(node.passes)
    assert (hidden.name, hidden.generation, hidden.matched, hidden.message) == ("one", 1, 0, HIDDEN)
    assert (used.name, used.applied) == ("two", 2)
    assert [(each["usable"], each["pods"]["applied"]) for each in describe(node.passes)["routes"]] == [
        (True, 2),
        (False, 0),
        (True, 2),
    ]


def test_a_pod_whose_namespace_is_odd() -> None:
    """A failure in one namespace is reported for its pod. The others are looked at, however often it has failed."""
    node = Node()
    node.kernel.inside["/ns/a"] = KeyError("an answer that cannot be read")
    one = known(route("one", "172.16.0.0/16"))
    assert node.visit(one) == ["/ns/a", "/ns/b"]
    for _ in range(1100):
        node.now += RESYNC_S
        assert node.visit(one) == ["/ns/a", "/ns/b"]
    assert [each.state for each in node.passes.visited.values()] == ["failed", "applied"]


def test_networks_of_neighbours_are_one() -> None:
    """An invalid network does not hide the others. Too many count as unknown, because each is a route in each pod."""
    nodes = [ip_network(f"10.244.{number}.0/24") for number in range(200)]
    assert [str(each) for each in merge_networks([ip_network("0.0.0.0/0"), *nodes, ip_network("fd00::/64")])] == [
        "10.244.0.0/17",
        "10.244.128.0/18",
        "10.244.192.0/21",
        "fd00::/64",
    ]
    apart = [ip_network(f"10.{number}.0.0/24") for number in range(RANGES_MAX)]
    assert len(merge_networks(apart)) == RANGES_MAX
    assert merge_networks([*apart, ip_network("192.168.0.0/24")]) == ()
