"""The status of a Route, from what nodes report; and what it costs with many nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.lab.kube.apiserver import ApiServer
from tests.lab.kube.cluster_objects import node, state
from tests.unit.controller.test_rounds import AT_REST, NODES, Leader, leader, writes
from userspace_cni.controller.cluster import ClusterNode, ClusterState, ReportedState, SummedObject
from userspace_cni.controller.route_statuses import FAILURES_MAX, reports_of, route_status
from userspace_cni.controller.writes import summaries

__all__ = ["leader"]
NOW = "2026-02-01T00:00:00Z"
LATER = "2026-02-02T00:00:00Z"
SPEC: dict[str, Any] = {"route": [{"dst": "172.16.0.0/16", "dev": "eth1"}], "svc": []}


def use(generation: int = 1, **changes: Any) -> dict[str, Any]:
    """What a node says of the Route `one`."""
    counts = {"generation": generation, "matched": 3, "applied": 2, "skipped": 1, "failed": 0, "conflicts": 0}
    return {"name": "one", "uid": "u", **counts, **changes}


def cluster(*uses: dict[str, Any] | None, spec: Any = SPEC, generation: int = 1, status: Any = None) -> ClusterState:
    """A cluster with the Route and a node for each report; None for a node without a report about it."""
    states = {f"n{number}": ReportedState("u", (), (), [each] if each else []) for number, each in enumerate(uses)}
    return ClusterState(
        routes={"one": SummedObject("u", "1", NOW, spec, status or {}, generation)},
        states=states | {"off": ReportedState("u", (), (), None)},
        nodes={name: ClusterNode("u", "") for name in (*states, "off")},
    )


def told(of: ClusterState, now: str = NOW) -> dict[str, Any]:
    return route_status("one", of, reports_of(of), now)


def conditions(status: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {each["type"]: (each["status"], each.get("message", "")) for each in status["conditions"]}


def test_applied() -> None:
    """All nodes with a part in it have reported this version: counts are summed up, and nothing is wrong."""
    status = told(cluster(use(), use()))
    assert (status["status"], status["observedGeneration"]) == ("Applied", 1)
    assert status["nodes"] == {"total": 2, "applied": 2, "failed": 0}
    assert status["pods"] == {"matched": 6, "applied": 4, "skipped": 2, "failed": 0}
    assert conditions(status) == {"Valid": ("True", ""), "Applied": ("True", ""), "NoConflict": ("True", "")}


def test_progressing() -> None:
    """A node that reports a former version, or nothing yet, is behind."""
    status = told(cluster(use(2), use(1), None, generation=2))
    assert (status["status"], status["nodes"]["applied"], status["pods"]["matched"]) == ("Progressing", 1, 3)
    assert "2 of 3 nodes have not reported this version yet, such as n1" in conditions(status)["Applied"][1]


def test_when_no_node_keeps_routes_any_more() -> None:
    """The last node's report does not stay; a Route that no node ever reported has no status of ours."""
    before = told(cluster(use()))
    gone = replace(cluster(status=before), states={"n0": ReportedState("u", (), (), None)})
    [write] = summaries(gone, (), NOW)
    assert (write.status["status"], write.status["nodes"]["total"]) == ("Progressing", 0)
    assert conditions(dict(write.status))["Applied"] == ("False", "no node keeps routes: the setting routes")
    assert list(summaries(replace(gone, routes={"one": replace(gone.routes["one"], status={})}), (), NOW)) == []


def test_degraded() -> None:
    """Pods in which it cannot be made are named, at most ten, with node and reason; so are conflicts."""
    failures = [{"pod": f"default/{number}", "message": "no way to 192.0.2.9"} for number in range(8)]
    status = told(cluster(use(failed=8, failures=failures), use(failed=8, failures=failures, conflicts=2), use()))
    assert (status["status"], status["nodes"]["failed"], len(status["failures"])) == ("Degraded", 2, FAILURES_MAX)
    assert status["failures"][0] == {"node": "n0", "pod": "default/0", "text": "no way to 192.0.2.9"}
    assert "on 2 of 3 nodes, as n0: default/0: no way to 192.0.2.9" in conditions(status)["Applied"][1]
    assert conditions(status)["NoConflict"] == ("False", "2 destinations in pods are another Route's")


def test_entries_that_cannot_be() -> None:
    """Refused entries are reported, from the object or from nodes; a Route that cannot be read is Invalid."""
    spec = {"route": [{"dst": "127.0.0.0/8", "dev": "eth1"}]}
    status = told(cluster(use(message="there is no such Service"), spec={"route": [*spec["route"], *SPEC["route"]]}))
    assert status["status"] == "Degraded"
    assert "loopback" in conditions(status)["Valid"][1]
    assert "there is no such Service" in conditions(status)["Valid"][1]
    assert told(cluster(use(message="it has an address of\nthe API server")))["status"] == "Degraded"
    for unusable in (spec, {"pods": 7}):
        status = told(cluster(None, spec=unusable))
        assert (status["status"], status["nodes"]["total"]) == ("Invalid", 0)


def test_another_route_of_the_name() -> None:
    """Reports about a deleted Route do not count for a new one with its name and the same generation."""
    status = told(cluster(use(uid="former"), use()))
    assert (status["status"], status["pods"]["applied"]) == ("Progressing", 2)


def test_since_when_a_condition_is_so() -> None:
    """The time stays while the condition's status does, so that nothing is written when nothing has changed."""
    first = told(cluster(use()))
    assert told(cluster(use(), status=first), LATER) == first
    later = {
        each["type"]: each["lastTransitionTime"] for each in told(cluster(use(conflicts=1), status=first), LATER)["conditions"]
    }
    assert later == {"Valid": NOW, "Applied": NOW, "NoConflict": LATER}


@pytest.mark.usefixtures("leader")
def test_many_nodes(api: ApiServer, leader: Leader) -> None:
    """All reports together are one write of the Route's status, one that changes is another, and at rest there is none."""
    api.add({"apiVersion": "k8s.ovn.org/v1", "kind": "Route", "metadata": {"name": "one"}, "spec": SPEC})
    uid = api.objects("routes.k8s.ovn.org").get("", "one")["metadata"]["uid"]
    for number in range(NODES):
        api.add(node(f"n{number:04}"))
        api.add(reporting(f"n{number:04}", use(uid=uid)))
    leader.known(lambda known: len(known.states) == NODES and len(known.nodes) == NODES and known.routes)
    assert leader.settle() == 1
    found = api.objects("routes.k8s.ovn.org").get("", "one")["status"]
    assert (found["status"], found["nodes"]["total"], found["pods"]["applied"]) == ("Applied", NODES, 2 * NODES)
    before = len(writes(api))
    api.add(reporting("n0125", use(uid=uid, failed=1, failures=[{"pod": "default/web", "message": "no"}])))
    leader.known(lambda known: (known.states["n0125"].routes or [{}])[0].get("failed"))
    assert leader.settle() == 1
    assert api.objects("routes.k8s.ovn.org").get("", "one")["status"]["status"] == "Degraded"
    assert sum(leader.rounds.round() for _ in range(AT_REST)) == 0
    assert len(writes(api)) == before + 1


def reporting(name: str, *uses: dict[str, Any]) -> dict[str, Any]:
    made = state(name)
    return {**made, "status": {**made["status"], "routes": list(uses)}}
