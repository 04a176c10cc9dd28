"""The status of a Route, from what nodes report of their pods. Pure.

A thousand nodes report in their own objects; here it becomes one word, counts, a few reasons and three conditions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from userspace_cni.base.errors import on_one_line
from userspace_cni.controller.cluster import ClusterState, SummedObject, number, tables, text
from userspace_cni.routes.resource import RouteObject, read_route

FAILURES_MAX: Final = 10
MESSAGE_MAX: Final = 1024
_PODS: Final = ("matched", "applied", "skipped", "failed")

Status = dict[str, Any]


Reports = Mapping[str, Mapping[str, Mapping[str, Any]]]


def reports_of(cluster: ClusterState) -> Reports:
    """What each node with a part in Routes says, by its name and by the Route's."""
    return {
        node: {text(each, "name"): each for each in state.routes}
        for node, state in sorted(cluster.states.items())
        if state.routes is not None and node in cluster.nodes
    }


def route_status(name: str, cluster: ClusterState, said_by: Reports, now: str) -> Status:
    """The status of the Route of that name. `said_by`: of `reports_of`; `now`: the time, as conditions have it."""
    kept = cluster.routes[name]
    route = read_route({"metadata": {"name": name, "generation": kept.generation}, "spec": kept.spec})
    reports = {node: said.get(name) for node, said in said_by.items()}
    current = {node: each for node, each in reports.items() if each and _is_of(each, kept)}
    if route.is_unusable:
        reports, current = {}, {}
    pods = {key: sum(number(each, key) for each in current.values()) for key in _PODS}
    failing = {node: each for node, each in current.items() if number(each, "failed")}
    conflicts = sum(number(each, "conflicts") for each in current.values())
    said = next((text(each, "message") for each in current.values() if text(each, "message")), "")
    return {
        "status": _word(route, waiting=not current or len(current) < len(reports), degraded=bool(failing or said)),
        "observedGeneration": kept.generation,
        "nodes": {"total": len(reports), "applied": len(current) - len(failing), "failed": len(failing)},
        "pods": pods,
        "failures": _failures(failing),
        "conditions": _conditions(
            {
                "Valid": (on_one_line("; ".join([*route.problems, *([said] if said else [])])), "Valid", "Invalid"),
                "Applied": (_why_not_applied(route, reports, current, failing), "Applied", "NotEverywhere"),
                "NoConflict": (_conflicting(conflicts), "NoConflict", "Conflict"),
            },
            kept,
            now,
        ),
    }


def _is_of(report: Mapping[str, Any], kept: SummedObject) -> bool:
    """Whether a node reports this version of this very Route, and not of a former one of the same name."""
    return number(report, "generation") == kept.generation and text(report, "uid") == kept.uid


def _conflicting(destinations: int) -> str:
    return f"{destinations} destinations in pods are another Route's" if destinations else ""


def _word(route: RouteObject, *, waiting: bool, degraded: bool) -> str:
    if route.is_unusable:
        return "Invalid"
    if waiting:
        return "Progressing"
    return "Degraded" if degraded or route.problems else "Applied"


def _failures(failing: Mapping[str, Mapping[str, Any]]) -> list[Status]:
    found = [
        {"node": node, "pod": text(each, "pod"), "text": text(each, "message")}
        for node, said in failing.items()
        for each in tables(said, "failures")
    ]
    return found[:FAILURES_MAX]


def _why_not_applied(
    route: RouteObject, reports: Mapping[str, Any], current: Mapping[str, Any], failing: Mapping[str, Mapping[str, Any]]
) -> str:
    """Why it is not as it says on all nodes; "" where it is."""
    if route.is_unusable:
        return "nothing of it is applied"
    if not reports:
        return "no node keeps routes: the setting routes"
    if behind := [node for node in reports if node not in current]:
        return f"{len(behind)} of {len(reports)} nodes have not reported this version yet, such as {behind[0]}"
    if failing:
        node, said = next(iter(failing.items()))
        first: Sequence[Mapping[str, Any]] = tables(said, "failures")
        why = f": {text(first[0], 'pod')}: {text(first[0], 'message')}" if first else ""
        return f"a part of it cannot be applied on {len(failing)} of {len(reports)} nodes, as {node}{why}"
    return ""


def _conditions(found: Mapping[str, tuple[str, str, str]], kept: SummedObject, now: str) -> list[Status]:
    """Conditions by type: a message where it is false, and a reason for each case. Each keeps the time since when it is so."""
    former = {text(each, "type"): each for each in tables(kept.status, "conditions")}
    made = []
    for kind, (message, good, bad) in found.items():
        status, before = "False" if message else "True", former.get(kind, {})
        since = text(before, "lastTransitionTime") if text(before, "status") == status else ""
        words = {"message": message[:MESSAGE_MAX]} if message else {}
        made.append(
            {"type": kind, "status": status, "reason": bad if message else good, **words, "lastTransitionTime": since or now}
        )
    return made
