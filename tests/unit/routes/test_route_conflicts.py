"""Two Routes for one destination of a pod: the winner does not depend on their order, and the loser's report names it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.unit.routes.building import link, thing
from userspace_cni.base.routing import Inside
from userspace_cni.routes.cluster_facts import ClusterFacts, RoutePod
from userspace_cni.routes.resolving import ResolvedRoutes, resolve
from userspace_cni.routes.resource import RouteObject, read_route
from userspace_cni.routes.rules import PodClaims, Rulebook

POD = RoutePod("shop", "web-7", "u1", {"app": "web"}, (("ReplicaSet", "web-5d9"), ("Deployment", "web")))
SELECTORS: tuple[dict[str, Any], ...] = (
    {},
    {"namespaces": [{"name": "shop"}]},
    {"workloads": [{"kind": "Deployment", "namespace": "shop", "name": "web"}]},
    {"pods": [{"labels": {"app": "web"}}]},
)
"""Selectors from all pods to one, each more specific than the one before."""
ALSO: dict[str, Any] = {"namespaces": [{"name": "shop"}], "pods": [{"name": "web-7"}]}


def rival(name: str, specificity: int = 0, priority: int = 0, created: str = "2026-01-01T00:00:00Z") -> RouteObject:
    spec = {"route": [{"dst": "10.0.0.0/8", "dev": "eth1"}], "priority": priority, **SELECTORS[specificity]}
    return read_route(thing(name, created, **spec))


def everywhere(asked: PodClaims, *lacks: str) -> ResolvedRoutes:
    """What is resolved in a pod that has all devices but these."""
    names = [f"eth{number}" for number in range(10)]
    links = {name: link(name, index, "192.0.2.1/24") for index, name in enumerate(names, 2) if name not in lacks}
    return resolve(asked, Inside(links), ClusterFacts())


@pytest.mark.parametrize(
    ("winner", "loser", "why"),
    [
        (rival("b", specificity=1), rival("a", specificity=0, priority=9), "more specific"),
        (rival("b", specificity=2), rival("a", specificity=1, priority=9), "more specific"),
        (rival("b", specificity=3), rival("a", specificity=2, priority=9), "more specific"),
        (rival("b", priority=2), rival("a", priority=1), "its priority is 2, not 1"),
        (rival("b", created="2026-01-01T00:00:00Z"), rival("a", created="2026-01-01T00:00:01Z"), "it is older"),
        (rival("a"), rival("b"), "its name comes first"),
    ],
)
def test_who_wins(winner: RouteObject, loser: RouteObject, why: str) -> None:
    """The more specific selector wins, then priority, then age, then the name. The loser's text has the reason."""
    for routes in ((winner, loser), (loser, winner)):
        found = Rulebook(routes, ()).claims(POD)
        assert [each.route for each in found.claims] == [winner.name]
        [told] = everywhere(found).conflicts
        assert (told.route, told.kind, str(told.dst)) == (loser.name, "conflict", "10.0.0.0/8")
        assert f"Route '{winner.name}' has 10.0.0.0/8" in told.text
        assert why in told.text


def test_the_most_specific_selector_counts() -> None:
    """Of several ways in which a Route selects a pod, the most specific counts."""
    both = read_route(thing("z", route=[{"dst": "10.0.0.0/8", "dev": "eth1"}], **ALSO))
    assert [each.route for each in Rulebook([rival("a", specificity=2), both], ()).claims(POD).claims] == ["z"]


def test_a_loser_keeps_its_other_destinations() -> None:
    """A Route loses only the destination in conflict."""
    entries = [{"dst": "10.0.0.0/8", "dev": "eth0"}, {"dst": "11.0.0.0/8", "dev": "eth0"}]
    found = Rulebook([read_route(thing("b", route=entries)), rival("a")], ()).claims(POD)
    assert [(each.route, str(each.dst), each.dev) for each in found.claims] == [
        ("a", "10.0.0.0/8", "eth1"),
        ("b", "11.0.0.0/8", "eth0"),
    ]


def test_the_next_best_takes_the_place_of_one_whose_device_is_not_there() -> None:
    """A Route has no effect in a pod without its device, so another Route's entry for the destination is used there."""
    entries = ("eth3", 9), ("eth2", 5), ("eth1", 0)
    routes = [read_route(thing(dev, route=[{"dst": "10.0.0.0/8", "dev": dev}], priority=high)) for dev, high in entries]
    asked = Rulebook(routes, ()).claims(POD)
    for lacks, winner, losers in (
        ((), "eth3", ["eth2", "eth1"]),
        (("eth3",), "eth2", ["eth1"]),
        (("eth2",), "eth3", ["eth1"]),
        (("eth3", "eth2"), "eth1", []),
        (("eth3", "eth2", "eth1"), None, []),
    ):
        found = everywhere(asked, *lacks)
        assert [each.wanted.dev for each in found.wanted] == ([winner] if winner else [])
        assert [each.route for each in found.conflicts] == losers
        assert all(f"Route '{winner}' has 10.0.0.0/8: its priority is" in each.text for each in found.conflicts)
        assert {each.route for each in found.skipped} == set(lacks)


@pytest.mark.parametrize("seed", range(40))
def test_one_winner_per_destination_whatever_the_order(seed: int) -> None:
    """Any Routes in any order give the same single claim per destination. Each lost entry names a better Route once."""
    rng = random.Random(seed)
    destinations = [f"10.{number}.0.0/16" for number in range(6)]
    routes, ranks = [], {}
    for number in range(rng.randrange(2, 9)):
        how, priority, second = rng.randrange(4), rng.choice([0, 0, 5]), rng.randrange(2)
        name, created = f"r{rng.randrange(100)}-{number}", f"2026-01-01T00:00:0{second}Z"
        entries = [{"dst": dst, "dev": f"eth{number}"} for dst in rng.sample(destinations, rng.randrange(1, 7))]
        routes.append(read_route(thing(name, created, route=entries, priority=priority, **SELECTORS[how])))
        ranks[name] = (-how, -priority, created, name)
    found = Rulebook(routes, (), ClusterFacts()).claims(POD)
    wanted = {str(entry.dst) for each in routes for entry in each.networks}
    winners = {str(each.dst): each.route for each in found.claims}
    assert len(winners) == len(found.claims)
    assert set(winners) == wanted
    conflicts = everywhere(found).conflicts
    lost = {(each.route, str(each.dst)) for each in conflicts}
    assert len(lost) == len(conflicts)
    for each in routes:
        for entry in each.networks:
            winner = winners[str(entry.dst)]
            assert (winner == each.name) != ((each.name, str(entry.dst)) in lost)
            assert ranks[winner] <= ranks[each.name]
    for told in conflicts:
        assert f"'{winners[str(told.dst)]}'" in told.text
    rng.shuffle(routes)
    again = Rulebook(routes, (), ClusterFacts()).claims(POD)
    assert again == found
