"""Statuses of ProviderNetworks, Vlans and Subnets follow from what nodes report, and are the same for the same reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.lab.kube.cluster_objects import ip, node, ours, spec, state
from userspace_cni.controller import cluster as known
from userspace_cni.controller.absence import Absence
from userspace_cni.controller.cluster import ClusterState
from userspace_cni.controller.statuses import COUNT_MAX, MESSAGE_MAX, StatusSums
from userspace_cni.controller.writes import garbage, list_nodes, summaries

NOW = "2026-11-23T05:00:00Z"
LATER = "2026-11-23T06:00:00Z"
KINDS = {
    "ProviderNetwork": ("provider_networks", known.read_object),
    "Vlan": ("vlans", known.read_object),
    "Subnet": ("subnets", known.read_object),
    "NodeState": ("states", known.read_node_state),
    "Node": ("nodes", known.node),
    "IP": ("addresses", known.address),
}


def cluster(*things: Mapping[str, Any]) -> ClusterState:
    """The cluster with these objects, the first the oldest."""
    found: dict[str, Any] = {field: {} for field, _ in KINDS.values()}
    for number, thing in enumerate(things):
        field, keep = KINDS[thing["kind"]]
        name = thing["metadata"]["name"]
        own = {
            "name": name,
            "uid": f"uid-{name}",
            "resourceVersion": str(number),
            "creationTimestamp": f"2026-01-01T00:00:{number:02}Z",
        }
        found[field][name] = keep({**thing, "metadata": own})
    return ClusterState(**found)


def sums(of: ClusterState, now: str = NOW) -> StatusSums:
    """The sums while no node is away."""
    return StatusSums(of, set(of.nodes), now)


def test_a_provider_network_is_ready_when_every_node_that_is_to_have_it_has_it() -> None:
    """readyNodes and notReadyNodes are the nodes that report it; nodes without it and nodes that are gone are not."""
    specs = {"a": spec(), "b": spec(ready=False, message="no such NIC"), "gone": spec()}
    states = [state(name, [each, spec("other")]) for name, each in specs.items()]
    of = cluster(ours("ProviderNetwork", "net1", defaultInterface="eth1"), *states, node("a"), node("b"), node("c"), state("c"))
    status = sums(of).provider_network("net1")
    assert (status["ready"], status["readyNodes"], status["notReadyNodes"]) == (False, ["a"], ["b"])
    assert status["conditions"] == [
        {"node": "a", "type": "Ready", "status": "True", "reason": "Ready", "lastTransitionTime": NOW},
        {
            "node": "b",
            "type": "Ready",
            "status": "False",
            "reason": "CannotBeMet",
            "message": "no such NIC",
            "lastTransitionTime": NOW,
        },
    ]


def test_a_provider_network_that_no_node_has_is_not_ready() -> None:
    """Without a node that reports it there is nothing that works."""
    assert sums(cluster(ours("ProviderNetwork", "net1"), node("a"))).provider_network("net1")["ready"] is False


def test_the_objects_spec_counts_before_one_of_the_settings_with_its_name() -> None:
    """A node whose settings also have the name reports both; the object's condition is about the object."""
    both = [spec(ready=False, message="the settings have it"), spec(source="settings")]
    of = cluster(ours("ProviderNetwork", "net1"), state("a", both), node("a"))
    assert sums(of).provider_network("net1")["notReadyNodes"] == ["a"]


def test_a_transition_keeps_its_time_until_the_status_changes() -> None:
    """Another message is no transition; another status is."""
    of = cluster(ours("ProviderNetwork", "net1"), state("a", [spec(ready=False, message="one")]), node("a"))
    before = sums(of).provider_network("net1")
    kept = replace(of.provider_networks["net1"], status=before)
    again = replace(of, provider_networks={"net1": kept}, states=cluster(state("a", [spec(ready=False, message="two")])).states)
    [condition] = sums(again, LATER).provider_network("net1")["conditions"]
    assert (condition["message"], condition["lastTransitionTime"]) == ("two", NOW)
    well = replace(again, states=cluster(state("a", [spec()])).states)
    [condition] = sums(well, LATER).provider_network("net1")["conditions"]
    assert (condition["status"], condition["lastTransitionTime"]) == ("True", LATER)


def test_a_long_message_is_cut() -> None:
    """A thousand nodes' messages have to fit one object."""
    of = cluster(ours("ProviderNetwork", "net1"), state("a", [spec(ready=False, message="x" * 4000)]), node("a"))
    assert len(sums(of).provider_network("net1")["conditions"][0]["message"]) == MESSAGE_MAX


def test_vlans_know_their_subnets_and_their_doubles() -> None:
    """Of two Vlans of one provider network with the same id the later one is in conflict; another network's is not."""
    of = cluster(
        ours("Vlan", "v100", id=100, provider="net1"),
        ours("Vlan", "again", id=100, provider="net1"),
        ours("Vlan", "elsewhere", id=100, provider="net2"),
        ours("Subnet", "pods", vlan="v100", cidrBlock="10.0.0.0/24"),
        ours("ProviderNetwork", "net1"),
    )
    well = {"type": "Ready", "status": "True", "reason": "Ready", "lastTransitionTime": NOW}
    statuses = {name: sums(of).vlan(name) for name in of.vlans}
    assert statuses == {
        "v100": {"subnets": ["pods"], "conflict": False, "conditions": [well]},
        "again": {"subnets": [], "conflict": True, "conditions": [well]},
        "elsewhere": {"subnets": [], "conflict": False, "conditions": [well]},
    }
    assert sums(of).provider_network("net1")["vlans"] == ["again", "v100"]


def test_a_vlan_that_nodes_refuse() -> None:
    """Its condition has their number, and what the first of them says."""
    refused = {**spec("v100", ready=False, message="Vlan 'v100': 'id' is 5000"), "kind": "vlan"}
    of = cluster(
        ours("Vlan", "v100", id=5000, provider="net1"),
        *(state(name, [refused]) for name in "ab"),
        *(node(name) for name in "abc"),
        state("c"),
    )
    [condition] = sums(of).vlan("v100")["conditions"]
    assert (condition["status"], condition["reason"]) == ("False", "NotOnNodes")
    assert condition["message"] == "not on 2 nodes, as on a: Vlan 'v100': 'id' is 5000"


@pytest.mark.parametrize(
    ("spec", "free"),
    [
        ({"cidrBlock": "10.0.0.0/24"}, (254, 0)),
        ({"cidrBlock": "10.0.0.0/24", "gateway": "10.0.0.1", "excludeIps": ["10.0.0.1", "10.0.0.10..10.0.0.19"]}, (243, 0)),
        ({"cidrBlock": "10.0.0.0/30,fd00::/120", "gateway": "10.0.0.1,fd00::1"}, (1, 254)),
        ({"cidrBlock": "fd00::/64"}, (0, COUNT_MAX)),
    ],
    ids=["plain", "excluded", "both-versions", "more-than-json-can-say"],
)
def test_free_addresses_are_those_that_pods_may_have(spec: Mapping[str, Any], free: tuple[int, int]) -> None:
    """Network, broadcast, gateway and excluded addresses do not count as addresses of pods."""
    status = sums(cluster(ours("Subnet", "pods", **spec))).subnet("pods")
    assert (status["v4availableIPs"], status["v6availableIPs"]) == free
    assert status["conditions"][0]["status"] == "True"


def test_used_addresses_are_those_of_ip_objects() -> None:
    """Each IP object counts for its Subnet and its versions, and what is used is not free; more than there are leaves none."""
    addresses = [
        ip("one", "pods", "a", "10.0.0.1", "fd00::1"),
        ip("two", "pods", "a", "10.0.0.2"),
        ip("three", "others", "a", "10.1.0.2"),
    ]
    of = cluster(
        ours("Subnet", "pods", cidrBlock="10.0.0.0/30,fd00::/120"), ours("Subnet", "others", cidrBlock="10.1.0.0/30"), *addresses
    )
    status = sums(of).subnet("pods")
    counted = {key: value for key, value in status.items() if key.endswith("IPs")}
    assert counted == {"v4usingIPs": 2, "v4availableIPs": 0, "v6usingIPs": 1, "v6availableIPs": 254}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"cidrBlock": "10.0.0.0/33"}, "it must be a network"),
        ({"cidrBlock": "10.0.0.0/24,10.1.0.0/24"}, "one of each family"),
        ({"cidrBlock": "10.0.0.0/24,fd00::/64", "perNodePrefix": 26}, "'perNodePrefix' is 26"),
        ({"cidrBlock": "10.0.0.0/24", "perNodePrefix": 20}, "'perNodePrefix' is 20"),
        ({"cidrBlock": "10.0.0.0/25", "perNodePrefix": 25}, "no range is left for nodes b"),
        ({"cidrBlock": "10.0.0.0/25", "vpc": "ovn-cluster"}, "vpc"),
    ],
    ids=["no-network", "twice", "both-versions", "prefix", "full", "not-built"],
)
def test_what_is_wrong_with_a_subnet_stands_in_its_condition(spec: Mapping[str, Any], words: str) -> None:
    """The condition of a Subnet that cannot be used or divided says why, and others are not affected."""
    of = cluster(ours("Subnet", "pods", **spec), node("a"), node("b"), state("a"), state("b"))
    [condition] = sums(of).subnet("pods")["conditions"]
    assert (condition["type"], condition["status"]) == ("Ready", "False")
    assert words in condition["message"]


def test_ranges_stay_while_the_subnet_cannot_be_divided() -> None:
    """A mistake in the spec must not take away what nodes have."""
    nodes = (node("a", "192.0.2.1"), state("a"))
    before = sums(cluster(ours("Subnet", "pods", cidrBlock="10.0.0.0/16", perNodePrefix=24), *nodes)).subnet("pods")
    assert before["nodeRanges"] == [{"node": "a", "range": "10.0.0.0/24", "address": "192.0.2.1"}]
    for wrong in ({"cidrBlock": "10.0.0.0/x"}, {"perNodePrefix": 8}):
        spec = {"cidrBlock": "10.0.0.0/16", "perNodePrefix": 24, **wrong}
        of = cluster({**ours("Subnet", "pods", **spec), "status": before}, *nodes)
        assert sums(of).subnet("pods")["nodeRanges"] == before["nodeRanges"]


def test_ranges_stay_when_the_subnet_is_divided_no_longer() -> None:
    """A perNodePrefix that was removed takes nothing from nodes that are there if it lies in the Subnet, and gives nothing."""
    given = [{"node": name, "range": f"10.0.{number}.0/24"} for number, name in enumerate(("a", "gone"))]
    nodes = (node("a"), state("a"), node("b"), state("b"))
    for cidr, left in (("10.0.0.0/16", given[:1]), ("10.1.0.0/16", [])):
        of = cluster({**ours("Subnet", "pods", cidrBlock=cidr), "status": {"nodeRanges": given}}, *nodes)
        assert sums(of).subnet("pods")["nodeRanges"] == left


def test_a_subnet_that_nodes_refuse_is_not_ready() -> None:
    """Its condition has what nodes say of the gateway that it makes; one of the settings with that name does not count."""
    refused = spec("pods-gw", ready=False, message="'cidrBlock' holds 10.0.0.7") | {"kind": "gateway"}
    another = spec("others-gw", ready=False, source="settings") | {"kind": "gateway"}
    subnets = [ours("Subnet", name, cidrBlock=f"10.{number}.0.0/16") for number, name in enumerate(("pods", "others"))]
    of = cluster(*subnets, node("a"), state("a", [refused, another]), node("b"), state("b", [refused | {"ready": True}]))
    [condition] = sums(of).subnet("pods")["conditions"]
    assert (condition["status"], condition["reason"]) == ("False", "NotOnNodes")
    assert condition["message"] == "not on 1 nodes, as on a: 'cidrBlock' holds 10.0.0.7"
    assert sums(of).subnet("others")["conditions"][0]["status"] == "True"


def test_a_node_without_an_agent_gets_no_range() -> None:
    """Ranges are for nodes that report; the others have no pods of ours."""
    of = cluster(ours("Subnet", "pods", cidrBlock="10.0.0.0/16", perNodePrefix=24), node("a"), node("b"), state("b"))
    assert [each["node"] for each in sums(of).subnet("pods")["nodeRanges"]] == ["b"]


def test_nothing_is_written_where_nothing_differs() -> None:
    """What a round has written gives no write in the next one, whatever the time is."""
    things = [
        ours("ProviderNetwork", "net1"),
        ours("Vlan", "v100", id=100, provider="net1"),
        ours("Subnet", "pods", cidrBlock="10.0.0.0/16", perNodePrefix=24, vlan="v100"),
        *(state(name, [spec()]) for name in "abc"),
        *(node(name) for name in "abc"),
    ]
    of = cluster(*things)
    writes = {write.name: write.status for write in summaries(of, set(of.nodes), NOW)}
    assert list(writes) == ["pods", "net1", "v100"]
    settled = cluster(*({**thing, "status": writes.get(thing["metadata"]["name"], thing.get("status"))} for thing in things))
    assert not list(summaries(settled, set(of.nodes), LATER))


@pytest.mark.parametrize("wrong", [None, [], "text", {"specs": 7}, {"specs": [7, {"kind": 5}]}, {"conditions": "x"}])
def test_objects_of_a_wrong_form_do_no_harm(wrong: object) -> None:
    """A field of another type counts as absent."""
    broken = {**ours("NodeState", "a"), "status": wrong}
    of = cluster(
        {**ours("ProviderNetwork", "net1"), "spec": wrong, "status": wrong},
        {**ours("Subnet", "pods"), "spec": wrong, "status": wrong},
        {**ours("Vlan", "v"), "spec": wrong},
        {**ours("IP", "i"), "spec": wrong},
        broken,
        {**node("a"), "status": wrong},
        node("b"),
        state("b", [spec()]),
    )
    writes = {write.name: write.status for write in summaries(of, {"a", "b"}, NOW)}
    assert writes["net1"]["readyNodes"] == ["b"]
    assert writes["pods"]["conditions"][0]["status"] == "False"


def test_what_is_left_of_a_node_is_garbage_once_it_has_been_gone_for_long() -> None:
    """A node that is away for a moment keeps its objects and its range; the time counts from when it is first missed."""
    of = cluster(
        node("here"), state("here"), state("away"), ip("one", "pods", "away", "10.0.1.2"), ip("two", "pods", "here", "10.0.0.2"),
        ours("Subnet", "pods", cidrBlock="10.0.0.0/16", perNodePrefix=24)
        | {"status": {"nodeRanges": [{"node": "ranged", "range": "10.0.9.0/24", "address": ""}]}},
    )  # fmt: skip
    absence = Absence(gone_s=300)
    assert absence.list_retained(of.nodes, list_nodes(of), 1000) == {"here", "away", "ranged"}
    assert absence.next_due == 1300
    held = absence.list_retained(of.nodes, list_nodes(of), 1300)
    assert held == {"here"}
    assert absence.next_due == float("inf")
    assert [(write.resource.kind, write.name, write.uid) for write in garbage(of, held)] == [
        ("NodeState", "away", "uid-away"),
        ("IP", "one", "uid-one"),
    ]
    assert [each["node"] for each in StatusSums(of, held, NOW).subnet("pods")["nodeRanges"]] == ["here"]


def test_a_node_that_came_back_is_missed_anew() -> None:
    """Two short absences do not add up to a long one."""
    absence = Absence(gone_s=300)
    absence.list_retained((), ["a"], 0)
    absence.list_retained(["a"], ["a"], 200)
    assert "a" in absence.list_retained((), ["a"], 400)
    assert "a" not in absence.list_retained((), ["a"], 700)
