"""What became of Routes on this node: per Route for the report to the API, and all of it as JSON values for people. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from userspace_cni.base.routing import Network, Wanted
from userspace_cni.node.state import RouteUse
from userspace_cni.routes.passes import Passes, Visited
from userspace_cni.routes.resource import Route
from userspace_cni.routes.rules import Told

FAILURES_MAX: Final = 10
ALL_FAILURES_MAX: Final = 100
"""Of all Routes together: an object of the API has its limit, and says more than this."""
TEXT_MAX: Final = 256


def uses(passes: Passes) -> tuple[RouteUse, ...]:
    """What this node has of each Route that can be used and selects a pod here. The same pods give the same."""
    visited = _sorted(passes)
    told = {each.route.name: each.told for each in passes.book.expanded}
    used = [_use(each, visited, told.get(each.name, ())) for each in passes.routes if not each.is_unusable]
    left, bounded = ALL_FAILURES_MAX, []
    for each in sorted(used, key=lambda each: each.name):
        bounded.append(replace(each, failures=each.failures[:left]))
        left -= len(bounded[-1].failures)
    return tuple(bounded)


def _use(route: Route, visited: Iterable[Visited], told: Iterable[Told]) -> RouteUse:
    matched = [each for each in visited if route.name in each.asked.routes and not each.host]
    failures: list[tuple[str, str]] = []
    failed = conflicts = applied = 0
    for each in matched:
        faults = [each.problem] if each.problem else _faults(route, each)
        if faults:
            failed += 1
            failures.append((f"{each.pod.namespace}/{each.pod.name}", faults[0][:TEXT_MAX]))
        elif any(one.asked_by == route.name for one in each.resolved.wanted):
            applied += 1
        conflicts += sum(one.kind == "conflict" and one.route == route.name for one in each.asked.told)
    return RouteUse(
        route.name,
        route.generation,
        len(matched),
        applied,
        len(matched) - applied - failed,
        failed,
        conflicts,
        tuple(failures[:FAILURES_MAX]),
        next((each.text for each in told), ""),
    )


def _faults(route: Route, visited: Visited) -> list[str]:
    """What of the Route cannot be in the pod."""
    refused = visited.outcome.refused if visited.outcome else ()
    kernel = {str(each.wanted): each.asked_by for each in visited.resolved.wanted}
    own = [text for text in refused if kernel.get(text.partition(": ")[0], route.name) == route.name]
    return [*own, *(each.text for each in visited.resolved.refusals if each.route == route.name)]


def described(passes: Passes) -> dict[str, Any]:
    """Routes and pods, as JSON values."""
    told = {each.route.name: each.told for each in passes.book.expanded}
    known = {each.name: each for each in uses(passes)}
    return {
        "routes": [_of_route(each, known.get(each.name), told.get(each.name, ())) for each in passes.routes],
        "pods": [_of_pod(each) for each in _sorted(passes)],
    }


def _of_route(route: Route, use: RouteUse | None, told: Iterable[Told]) -> dict[str, Any]:
    counted = ("matched", "applied", "skipped", "failed")
    return {
        "name": route.name,
        "generation": route.generation,
        "usable": not route.is_unusable,
        "problems": list(route.problems),
        "remarks": list(route.remarks),
        "told": _texts(told),
        "pods": {name: getattr(use, name) if use else 0 for name in counted},
    }


def _of_pod(visited: Visited) -> dict[str, Any]:
    """What the last look at a pod showed."""
    outcome = visited.outcome
    return {
        "namespace": visited.pod.namespace,
        "name": visited.pod.name,
        "uid": visited.pod.uid,
        "sandbox": visited.located.place.sandbox,
        "netns": visited.located.place.path,
        "source": visited.located.source,
        "state": visited.state,
        "host_network": visited.host,
        "routes": list(visited.asked.routes),
        "wanted": [{**_wanted(each.wanted), "route": each.asked_by, "why": each.why} for each in visited.resolved.wanted],
        "skipped": _texts(visited.resolved.skipped),
        "refused": [*_texts(visited.resolved.refusals), *(outcome.refused if outcome else ())],
        "conflicts": _texts(each for each in visited.asked.told if each.kind == "conflict"),
        "overridden": [shown(each) for each in visited.resolved.overridden],
        "problem": visited.problem,
    }


def _sorted(passes: Passes) -> list[Visited]:
    visited: Mapping[str, Visited] = passes.visited
    return sorted(visited.values(), key=lambda each: (each.pod.namespace, each.pod.name, each.located.place.sandbox))


def _wanted(wanted: Wanted) -> dict[str, Any]:
    return {"dst": shown(wanted.dst), "dev": wanted.dev, "via": str(wanted.via or ""), "metric": wanted.metric}


def shown(dst: Network) -> str:
    """A destination for people."""
    return str(dst) if dst.prefixlen else f"default ({'IPv4' if dst.version == 4 else 'IPv6'})"


def _texts(told: Iterable[Told]) -> list[str]:
    return [f"{each.route}: {each.text}" for each in told]
