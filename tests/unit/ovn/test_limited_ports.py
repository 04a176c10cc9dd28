"""Limits of logical ports as rows of QoS: what pods, networks and rows say, and what follows from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.ovn.test_logical_ports_of_pods import RULES, World, a_pod, written
from userspace_cni.base.limits import Rate
from userspace_cni.cni.ovn_keys import OvnLimits
from userspace_cni.ovn.cluster_pods import LogicalNetwork, keep_network
from userspace_cni.ovn.limit_rows import DesiredLimit, FoundLimit, FoundLimits, LimitChange, find_limit_changes, limit_id
from userspace_cni.ovn.limited_ports import LimitedPorts
from userspace_cni.ovn.meter_shapes import MeterShape
from userspace_cni.ovn.pod_ports import LogicalFacts, Settled
from userspace_cni.ovn.port_rules import PortRules
from userspace_cni.ovn.port_view import PortView

NETWORKS = "k8s.v1.cni.cncf.io/networks"
EGRESS = "kubernetes.io/egress-bandwidth"
INGRESS = "kubernetes.io/ingress-bandwidth"
BY_OVN = replace(RULES, default=LogicalNetwork("net", limits=OvnLimits()))


class LimitedWorld(World):
    """With the rows of limits, too."""

    def __init__(self, rules: PortRules = BY_OVN, facts: LogicalFacts | None = None) -> None:
        self.view = PortView()
        super().__init__(rules, facts)

    def restart(self) -> None:
        super().restart()
        self.limited = LimitedPorts(kubeovn_read=self.rules.kubeovn_read)
        self.certain = True

    def do(self, names: set[str]) -> Settled:
        """Do what is to be done, as a controller does: limits and ports follow from the rows as they were."""
        settled = self.ports.settle(names, self.rows, self.now)
        self.view.ports = dict(self.rows)
        names = names | self.view.limits.keys() | {*self.limited.names}
        self.last = self.limited.settle(names, self.ports, settled, self.view, certain=self.certain)
        for change in settled.changes:
            if change.kind == "delete":
                del self.rows[change.name]
            else:
                self.rows[change.name] = written(self.rows.get(change.name), change.name, change.columns)
        for note in settled.notes:
            self.raw[f"{note.namespace}/{note.name}"]["metadata"]["annotations"] |= note.annotations
        for each in self.last:
            self._write(each)
        return settled

    def _write(self, change: LimitChange) -> None:
        has: dict[Any, FoundLimit] = dict(self.view.limits.get(change.name, {}))
        if change.kind == "delete":
            assert has[change.direction].switch == change.switch
            del has[change.direction]
        else:
            former = has[change.direction].columns if change.kind == "update" else {}
            has[change.direction] = FoundLimit(change.switch, {**former, **change.columns})
        self.view.limits[change.name] = has
        if not has:
            del self.view.limits[change.name]

    def limits(self, name: str = "default_app") -> dict[str, tuple[int, int]]:
        """Rate and burst in kbit/s and kbit, by direction."""
        found: FoundLimits = self.view.limits.get(name, {})
        return {key: (has.columns["bandwidth"]["rate"], has.columns["bandwidth"]["burst"]) for key, has in found.items()}

    def annotate(self, said: Mapping[str, str | None]) -> None:
        notes = self.raw["default/app"]["metadata"]["annotations"]
        for key, value in said.items():
            notes.pop(key) if value is None else notes.update({key: value})


def limited_pod(name: str = "app", **said: str) -> dict[str, Any]:
    pod = a_pod(name)
    pod["metadata"]["annotations"] |= said
    return pod


def definition(**keys: Any) -> Mapping[str, Any]:
    """A network whose limits are OVN's."""
    config = {"cniVersion": "1.0.0", "name": "red", "type": "userspace", "ovn": {"limits": "ovn"}, **keys}
    return {"metadata": {"name": "red", "namespace": "default"}, "spec": {"config": json.dumps(config)}}


def world_of(**keys: Any) -> LimitedWorld:
    """A cluster whose pods select that network."""
    facts = LogicalFacts(World().facts.nodes, {"default/red": keep_network(definition(**keys))}, World().facts.switches)
    return LimitedWorld(replace(RULES, default=None), facts)


def test_a_row_for_each_direction() -> None:
    """In kbit/s and kbit, with a match on the port alone, our marks and a UUID that follows from the port's name."""
    world = LimitedWorld()
    world.add(limited_pod(**{INGRESS: "20M", EGRESS: "3M"}))
    world.settled()
    assert world.limits() == {"to-lport": (20_000, 2000), "from-lport": (3000, 524)}
    inward, outward = (world.view.limits["default_app"][each].columns for each in ("to-lport", "from-lport"))
    assert (inward["match"], outward["match"]) == ('outport == "default_app"', 'inport == "default_app"')
    ids = {"owner": "userspace-cni", "scope": "pods", "port": "default_app", "switch": "n1", "asked": "20000000/2000000"}
    assert inward["external_ids"] == ids
    assert limit_id("default_app", "to-lport") != limit_id("default_app", "from-lport")
    assert world.last == []


def test_a_port_that_the_node_limits() -> None:
    """It has no row, whatever its pod says: the node's switch has the limit."""
    world = LimitedWorld(RULES)
    world.add(limited_pod(**{EGRESS: "3M"}))
    world.settled()
    assert world.limits() == {}


def test_a_changed_annotation() -> None:
    """It changes the row of the living port, one that has gone removes it, and the pod's end removes all."""
    world = LimitedWorld()
    world.add(limited_pod(**{INGRESS: "20M", EGRESS: "3M"}))
    world.settled()
    world.annotate({INGRESS: "5M", EGRESS: None})
    world.settled()
    assert world.limits() == {"to-lport": (5000, 524)}
    world.raw.clear()
    world.settle()
    assert world.limits() == {}


def test_rows_stay_while_it_is_not_known_who_is_there() -> None:
    """As those of ports: a list that lacks a pod may be a short one."""
    world = LimitedWorld()
    world.add(limited_pod(**{EGRESS: "3M"}))
    world.settled()
    world.raw.clear()
    world.certain = False
    world.settle()
    assert world.limits() == {"from-lport": (3000, 524)}


def test_nothing_is_kept_of_ports_that_are_gone() -> None:
    """Though it was not known at first that they are, and though a pod's last word was refused."""
    world = LimitedWorld()
    world.add(limited_pod(**{EGRESS: "3M"}), limited_pod("other", **{INGRESS: "3M"}))
    world.settled()
    world.annotate({EGRESS: "3 M"})
    world.settled()
    world.raw.clear()
    world.certain = False
    world.settle()
    world.view.limits.clear()  # by other means than ours
    world.settle()
    assert {*world.limited.names} == {"default_app", "default_other"}
    world.certain = True
    world.settle()
    assert ({*world.limited.names}, world.limited.refused, world.view.limits) == (set(), {}, {})


def test_what_is_refused_leaves_the_limit() -> None:
    """A word that cannot be meant lifts no limit; of a new port the network's holds. Both are told by name."""
    world = world_of(bandwidth={"egressRate": 7_000_000})
    world.add(limited_pod(**{NETWORKS: "red", "userspace/bandwidth": '{"net1": {"egressRate": "3M"}}'}))
    world.settled()
    world.annotate({"userspace/bandwidth": '{"net1": {"egressRate": "much"}}'})
    world.add(limited_pod("other", **{NETWORKS: "red", "userspace/bandwidth": "{"}))
    world.settled()
    assert world.limits() == {"from-lport": (3000, 524)}
    assert world.limits("default_other") == {"from-lport": (7000, 700)}
    assert set(world.limited.refused) == {"default_app", "default_other"}
    assert "'userspace/bandwidth'" in world.limited.refused["default_app"]


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ({}, (7000, 700)),
        ({"userspace/bandwidth": '{"net1": {"egressRate": "3M"}}'}, (3000, 524)),
        ({NETWORKS: '[{"name": "red", "bandwidth": {"egressRate": 2000000, "egressBurst": 400000}}]'}, (2000, 400)),
        ({"red.default.ovn.kubernetes.io/egress_rate": "4"}, (4000, 524)),
        ({EGRESS: "9M"}, (7000, 700)),
    ],
)
def test_who_is_heard_first(said: dict[str, str], found: tuple[int, int]) -> None:
    """What the pod selects the network with, then its annotations, then the network; Kubernetes' own are of `eth0` alone."""
    world = world_of(bandwidth={"egressRate": 7_000_000}, capabilities={"bandwidth": True})
    world.rules = replace(world.rules, kubeovn_read=True)
    world.restart()
    world.add(limited_pod(**{NETWORKS: "red", **said}))
    world.settled()
    assert world.limits() == {"from-lport": found}


def test_a_selection_without_the_capability() -> None:
    """Multus passes limits to networks with the capability alone."""
    world = world_of()
    world.add(limited_pod(**{NETWORKS: '[{"name": "red", "bandwidth": {"egressRate": 2000000}}]'}))
    world.settled()
    assert world.limits() == {}


@pytest.mark.parametrize("keys", [{"netem": {"latency_ms": 5}}, {"bandwidth": {"egressRate": 10**6, "egressBurst": 9000}}])
def test_a_network_that_asks_for_what_cannot_be(keys: dict[str, Any]) -> None:
    """It has no logical ports: ADD is refused, too."""
    assert keep_network(definition(**keys)) is None


def test_no_two_limits_of_a_node_are_alike() -> None:
    """ovn-controller would have them share one meter. They stay as they are when another comes, goes, or the controller restarts;
    a small burst has few forms, and then the rate is a little more."""
    world = LimitedWorld()
    world.add(limited_pod("a", **{INGRESS: "20M", EGRESS: "20M"}), limited_pod("b", **{EGRESS: "20M"}))
    world.settled()
    assert world.limits("default_a") == {"to-lport": (20_000, 2000), "from-lport": (20_000, 2001)}
    assert world.limits("default_b") == {"from-lport": (20_000, 2002)}
    world.raw.pop("default/a")
    world.settle()
    world.restart()
    world.add(limited_pod("a", **{EGRESS: "20M"}))
    world.settled()
    assert (world.limits("default_a"), world.limits("default_b")) == (
        {"from-lport": (20_000, 2000)},
        {"from-lport": (20_000, 2002)},
    )
    elsewhere = limited_pod("c", **{EGRESS: "20M"})
    elsewhere["spec"]["nodeName"] = "n2"
    many = [limited_pod(f"m{number:02}", **{EGRESS: "1M"}) for number in range(60)]
    world.add(elsewhere, *many)
    world.settled()
    assert world.limits("default_c") == {"from-lport": (20_000, 2000)}
    found = {world.limits(f"default_m{number:02}")["from-lport"] for number in range(60)}
    assert len(found) == 60
    assert {rate for rate, _ in found} == {1000, 1001}


def test_a_refused_limit_keeps_its_form_for_itself() -> None:
    """After a restart, too: another one does not get it."""
    world = LimitedWorld()
    world.add(limited_pod(**{EGRESS: "20M"}))
    world.settled()
    world.annotate({EGRESS: "20 times as much"})
    world.restart()
    world.add(limited_pod("other", **{EGRESS: "20M"}))
    world.settled()
    assert world.limits() == {"from-lport": (20_000, 2000)}
    assert world.limits("default_other") == {"from-lport": (20_000, 2001)}


def test_a_name_with_quotes() -> None:
    """It is a text in the match, and no part of OVN's language."""
    desired = DesiredLimit(Rate(10**6, 10**5), MeterShape(1000, 100))
    (change,) = find_limit_changes('a"||1', "n1", {"from-lport": desired}, {})
    assert change.columns["match"] == r'inport == "a\"||1"'


@pytest.mark.parametrize(
    "said", [{"rate": 30_000, "burst": 2000}, {"rate": 19_999, "burst": 2000}, {"rate": 20_000, "burst": 3000}, {}]
)
def test_numbers_that_others_wrote(said: dict[str, int]) -> None:
    """More or less than was asked for is no form of it, though the row says that it was asked for."""
    world = LimitedWorld()
    world.add(limited_pod(**{EGRESS: "20M"}))
    world.settled()
    has = world.view.limits["default_app"]["from-lport"]
    world.view.limits["default_app"] = {"from-lport": FoundLimit("n1", {**has.columns, "bandwidth": said})}
    world.settled()
    assert world.limits() == {"from-lport": (20_000, 2000)}


def test_a_row_that_others_changed_or_left() -> None:
    """It is put back, and one of a port that is gone is removed, after a restart, too."""
    world = LimitedWorld()
    world.add(limited_pod(**{EGRESS: "3M"}))
    world.settled()
    has = world.view.limits["default_app"]["from-lport"]
    changed = FoundLimit("n1", {**has.columns, "bandwidth": {"rate": 9, "burst": 9}, "match": "1"})
    world.view.limits["default_app"] = {"from-lport": changed}
    world.view.limits["default_gone"] = {"to-lport": FoundLimit("n2", has.columns)}
    world.restart()
    world.settle()
    assert world.limits() == {"from-lport": (3000, 524)}
    assert world.view.limits["default_app"]["from-lport"].columns["match"] == 'inport == "default_app"'
    assert "default_gone" not in world.view.limits
