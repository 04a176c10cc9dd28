"""Route objects as people write them: valid parts are used, invalid parts are reported, and nothing raises."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.routes.building import route, thing
from userspace_cni.routes.resource import (
    FeatureGates,
    NamespaceSelector,
    PodSelector,
    RouteObject,
    Selection,
    WorkloadSelector,
    read_route,
    without_services,
)

ENTRY = {"dst": "10.0.0.0/8", "dev": "eth1"}


def read(**spec: Any) -> RouteObject:
    """A Route with one good entry and these fields."""
    return read_route(thing(**{"route": [ENTRY], **spec}))


def test_an_object_of_the_original_schema() -> None:
    """Objects that the original accepts are accepted: with `via`, both lists, a feature gate, and any status."""
    said = thing(
        "low-latency",
        route=[{"dst": "10.124.0.0/16", "dev": "eth1", "via": "10.124.2.1"}],
        svc=[{"namespace": "default", "name": "nginx", "dev": "eth1", "via": "10.124.2.1"}],
        feature_gate={"something": "of theirs"},
    )
    found = read_route({**said, "status": {"status": "Applied"}})
    assert (found.problems, found.is_unusable) == ((), False)
    assert (found.name, found.uid, found.created, found.generation) == (
        "low-latency",
        "uid-low-latency",
        "2026-01-01T00:00:00Z",
        1,
    )
    assert [(str(each.dst), each.dev, str(each.via)) for each in found.networks] == [("10.124.0.0/16", "eth1", "10.124.2.1")]
    assert [(each.namespace, each.name, each.dev) for each in found.services] == [("default", "nginx", "eth1")]
    assert ["something" in each for each in found.remarks] == [True]


def test_all_that_is_optional() -> None:
    """Selectors, exclusions, priority, gates and the default of gateways are optional."""
    found = read(
        pods=[{"namespace": "default", "name": "web-0"}, {"labels": {"app": "web"}}],
        namespaces=[{"name": "fast"}, {"labels": {"tier": "gold"}}],
        workloads=[{"kind": "CronJob", "namespace": "default", "name": "nightly"}],
        exclude={"pods": [], "namespaces": [{"name": "kube-system"}], "workloads": None},
        priority=7,
        feature_gate={"override": "false", "allow-dns": "True"},
        defaults={"via": "derive"},
    )
    assert found.problems == ()
    assert found.selection == Selection(
        (PodSelector("default", "web-0"), PodSelector(labels={"app": "web"})),
        (NamespaceSelector("fast"), NamespaceSelector(labels={"tier": "gold"})),
        (WorkloadSelector("CronJob", "default", "nightly"),),
    )
    assert found.exclude == Selection(namespaces=(NamespaceSelector("kube-system"),))
    assert (found.priority, found.gates, found.derive) == (7, FeatureGates(override=False, allow_dns=True), True)


@pytest.mark.parametrize("spec", [None, {}, {"route": [], "svc": []}, {"route": None, "feature_gate": None, "pods": None}])
def test_an_empty_one(spec: Any) -> None:
    """Neither list is required, and null means the same as no list."""
    found = read_route({**thing(), "spec": spec})
    assert (found.problems, found.is_unusable, found.networks, found.gates) == ((), False, (), FeatureGates())


def test_a_bad_entry_is_left_out_alone() -> None:
    """The other entries are used. The problem has place, field, value and reason."""
    found = read_route(
        thing(
            route=[{"dst": "169.254.0.0/16", "dev": "eth1"}, ENTRY, {"dst": "10.0.0.0/8", "dev": "lo"}],
            svc=[{"namespace": "default", "dev": "eth1"}, {"namespace": "default", "name": "nginx", "dev": "eth1"}],
        )
    )
    assert [each.place for each in found.networks] == ["spec.route[1]"]
    assert [each.place for each in found.services] == ["spec.svc[1]"]
    assert not found.is_unusable
    first, second, third = found.problems
    assert "spec.route[0]: 'dst' is '169.254.0.0/16'" in first
    assert "spec.route[2]: 'dev' is 'lo'" in second
    assert "spec.svc[0]: 'name' is None" in third


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({"pods": [{}]}, "spec.pods"),
        ({"pods": [{"labels": {}}]}, "labels"),
        ({"pods": [{"name": None}]}, "spec.pods"),
        ({"pods": [{"labels": {"app": 1}}]}, "labels"),
        ({"pods": [{"matchLabels": {"app": "web"}}]}, "matchLabels"),
        ({"pods": {"name": "web-0"}}, "spec.pods"),
        ({"pods": "web-0"}, "spec.pods"),
        ({"pod": [{"name": "web-0"}]}, "'pod'"),
        ({"namespaces": [{"name": "Fast"}]}, "'Fast'"),
        ({"namespaces": ["fast"]}, "'fast'"),
        ({"workloads": [{"kind": "ReplicaSet", "namespace": "a", "name": "b"}]}, "ReplicaSet"),
        ({"workloads": [{"kind": "Job", "name": "b"}]}, "namespace"),
        ({"exclude": {"pods": [{}]}}, "spec.exclude.pods"),
        ({"exclude": {"pod": []}}, "'pod'"),
        ({"exclude": []}, "spec.exclude"),
        ({"priority": 1001}, "1001"),
        ({"priority": -1}, "priority"),
        ({"priority": True}, "priority"),
        ({"priority": "high"}, "'high'"),
        ({"defaults": {"via": "auto"}}, "'auto'"),
        ({"defaults": {"gateway": "x"}}, "gateway"),
        ({"feature_gate": ["override"]}, "feature_gate"),
    ],
)
def test_what_holds_for_all_entries_must_be_readable(spec: Any, named: str) -> None:
    """A part of a selector might select every pod: a Route with an unreadable one asks for nothing, and says why."""
    found = read(**spec)
    assert (found.is_unusable, found.networks, found.services) == (True, (), ())
    [problem] = found.problems
    assert named in problem


def test_a_gate_that_cannot_be_read_is_taken_with_caution() -> None:
    """The unreadable value is reported, and counts as the harmless one."""
    found = read(feature_gate={"override": "maybe", "allow-apiserver": "yes", "keep-cluster-routes": [], "allow-dns": True})
    assert found.gates == FeatureGates(allow_apiserver=False, allow_dns=True, override=False, keep_cluster_routes=True)
    assert len(found.problems) == 3
    assert (len(found.networks), found.is_unusable) == (1, False)


def test_there_is_a_most_of_entries() -> None:
    """A Route has at most 1024 entries of both kinds together; surplus ones are reported and left out."""
    many = [{"dst": f"10.{number >> 8}.{number & 255}.0/24", "dev": "eth1"} for number in range(1020)]
    services = [{"namespace": "default", "name": f"s{number}", "dev": "eth1"} for number in range(9)]
    found = read_route(thing(route=many, svc=services))
    assert (len(found.networks), len(found.services), len(found.problems)) == (1020, 4, 1)
    assert "'spec.svc' has 9 entries" in found.problems[0]
    found = read_route(thing(route=many * 2, svc=services))
    assert (len(found.networks), len(found.services), len(found.problems)) == (1024, 0, 2)


@pytest.mark.parametrize("name", [None, "", 7, "Upper", "a/b", "a" * 254, ["a"]])
def test_a_name_that_none_has(name: Any) -> None:
    """A Route with an impossible name asks for nothing: its routes could not be told from another Route's."""
    found = read_route({"metadata": {"name": name}, "spec": {"route": [ENTRY]}})
    assert (found.is_unusable, len(found.problems), found.networks) == (True, 1, ())


def test_without_a_cluster() -> None:
    """On a host without a cluster, entries with Services are reported, and the others are used."""
    found = without_services(route("r", "10.0.0.0/8 eth1", "default/nginx eth1"))
    assert (len(found.networks), found.services, len(found.problems)) == (1, (), 1)
    alone = route("r", "10.0.0.0/8 eth1")
    assert without_services(alone) is alone


def odd(rng: random.Random, depth: int = 0) -> Any:
    """Any JSON value, with the words of a Route and others."""
    words = ("route", "svc", "dst", "dev", "via", "pods", "name", "namespace", "labels", "kind", "exclude", "spec", "metadata")
    more = (
        "workloads",
        "namespaces",
        "priority",
        "feature_gate",
        "override",
        "defaults",
        "",
        "auto",
        "default",
        "eth1",
        "\ud800",
    )
    texts = (*words, *more, "10.0.0.0/8", "::/0", "fe80::1", "\x00", "*", "a" * 5000, "Deployment", "derive", "٣/8", "1/1")
    scalars = (None, True, False, 0, -1, 10**300, 1.5, float("nan"))
    if depth > 4 or rng.random() < 0.3:
        return rng.choice([rng.choice(texts), rng.choice(texts), rng.choice(scalars)])
    if rng.random() < 0.4:
        return [odd(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice(texts): odd(rng, depth + 1) for _ in range(rng.randrange(6))}


@settings(max_examples=20)
@given(st.integers(0, 2**32))
def test_no_object_raises(seed: int) -> None:
    """Any JSON gives a Route: a valid one, or one that says what is wrong. Every problem is a text."""
    rng = random.Random(seed)
    for _ in range(200):
        said = odd(rng)
        if rng.random() < 0.8:
            spec = {rng.choice(["route", "svc", "pods", "exclude", "feature_gate", "priority"]): odd(rng) for _ in range(3)}
            said = {"metadata": {"name": "r"}, "spec": spec if rng.random() < 0.9 else odd(rng)}
        found = read_route(said)
        assert isinstance(found, RouteObject)
        assert not (found.is_unusable and (found.networks or found.services))
        assert all(isinstance(each, str) and len(each) < 5000 for each in (*found.problems, *found.remarks))


@pytest.mark.parametrize("said", [None, [], "r", 7, {"metadata": []}, {"metadata": {"name": "r"}, "spec": "x"}])
def test_what_is_no_object_at_all(said: Any) -> None:
    """What is no object is reported like any other problem."""
    found = read_route(said)
    assert (found.is_unusable, len(found.problems)) == (True, 1)


def test_values_that_cannot_be_shown() -> None:
    """A value that is too deep, or has too many digits, for Python to write it raises nothing."""
    deep = json.loads("[" * 900 + "]" * 900)
    for _ in range(10):
        deep = [[[[[[[[[[deep]]]]]]]]]]
    for value in (deep, 1 << 20_000):
        for spec in ({"route": [{"dst": value, "dev": "eth1"}]}, {"pods": value}, {"priority": value}):
            assert read_route(thing(**spec)).problems
