"""What became of Routes on this node: per Route for the report to the API, and all of it as JSON values for people. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import Any, Final, NamedTuple

from userspace_cni.base.routing import DesiredRoute, Network
from userspace_cni.node.state import RouteUse
from userspace_cni.routes.passes import HIDDEN, Passes, VisitedSandbox
from userspace_cni.routes.resource import RouteObject
from userspace_cni.routes.rules import RouteRemark

FAILURES_MAX: Final = 10
ALL_FAILURES_MAX: Final = 100
"""Of all Routes together: an object of the API has its limit, and says more than this."""
TEXT_MAX: Final = 256


def uses(passes: Passes) -> tuple[RouteUse, ...]:
    """What this node has of each Route of the API that can be used; the same pods give the same. Nothing of the file's."""
    looks, told = _looks(_sorted(passes)), _told(passes)
    used = [_use(each, looks.get(each.name, ()), told.get(each.name, ())) for each in passes.routes if _counts(each)]
    hidden = [
        RouteUse(each.name, each.generation, 0, 0, 0, 0, message=HIDDEN, uid=each.uid)
        for each in passes.routes
        if HIDDEN in each.problems
    ]
    left, bounded = ALL_FAILURES_MAX, []
    for each in sorted([*used, *hidden], key=lambda each: each.name):
        bounded.append(replace(each, failures=each.failures[:left]))
        left -= len(bounded[-1].failures)
    return tuple(bounded)


def _told(passes: Passes) -> Mapping[str, Sequence[RouteRemark]]:
    """What is told of each Route that can be used, but for remarks."""
    return {each.route.name: [one for one in each.told if one.kind != "remark"] for each in passes.book.expanded}


class _VisitFaults(NamedTuple):
    """A sandbox, and the first of its faults for each Route, with its place among all of them."""

    visited: VisitedSandbox
    faults: Mapping[str, tuple[int, str]]


def _looks(visited: Iterable[VisitedSandbox]) -> Mapping[str, Sequence[_VisitFaults]]:
    """The pods that each Route selects, by its name: a thousand Routes may select each pod, and each pod is gone through once."""
    found: dict[str, list[_VisitFaults]] = {}
    for each in visited:
        if each.host:
            continue
        first: dict[str, tuple[int, str]] = {}
        for number, (name, text) in enumerate(faults(each)):
            first.setdefault(name, (number, text))
        look = _VisitFaults(each, first)
        for name in each.asked.routes:
            found.setdefault(name, []).append(look)
    return found


def _counts(route: RouteObject) -> bool:
    """Whether it is of the API, and can be used."""
    return bool(route.uid) and not route.is_unusable


def _use(route: RouteObject, matched: Sequence[_VisitFaults], told: Iterable[RouteRemark]) -> RouteUse:
    failures: list[tuple[str, str]] = []
    failed = conflicts = applied = 0
    for each, first in matched:
        of_route = (first[name] for name in (route.name, "") if name in first)
        if fault := each.problem or min(of_route, default=(0, ""))[1]:
            failed += 1
            failures.append((each.pod.title, fault[:TEXT_MAX]))
        elif route.name in each.resolved.applied:
            applied += 1
        conflicts += each.resolved.lost[route.name]
    return RouteUse(
        route.name,
        route.generation,
        len(matched),
        applied,
        len(matched) - applied - failed,
        failed,
        conflicts,
        tuple(failures[:FAILURES_MAX]),
        _said(told),
        route.uid,
    )


def _said(told: Iterable[RouteRemark]) -> str:
    """The one message that is shown for a Route: a permanent fault before one that may pass. "" for none."""
    first: Sequence[RouteRemark] = sorted(told, key=lambda each: each.kind != "refused")
    return first[0].text if first else ""


def faults(visited: VisitedSandbox) -> Iterator[tuple[str, str]]:
    """What cannot be in this very pod, each with its Route, "" where that is not known; not what cannot be in any pod."""
    if visited.refused:
        kernel = {str(each.wanted): each.asked_by for each in visited.resolved.wanted}
        yield from ((kernel.get(text.partition(": ")[0], ""), text) for text in visited.refused)
    yield from ((each.route, each.text) for each in visited.resolved.refusals)


def describe(passes: Passes) -> dict[str, Any]:
    visited = _sorted(passes)
    looks = _looks(visited)
    told = {each.route.name: each.told for each in passes.book.expanded}
    return {
        "routes": [
            _of_route(each, looks.get(each.name, ()), () if each.is_unusable else told.get(each.name, ()))
            for each in passes.routes
        ],
        "pods": [_of_pod(each) for each in visited],
    }


def _of_route(route: RouteObject, matched: Sequence[_VisitFaults], told: Sequence[RouteRemark]) -> dict[str, Any]:
    counted = ("matched", "applied", "skipped", "failed")
    use = None if route.is_unusable else _use(route, matched, told)
    return {
        "name": route.name,
        "generation": route.generation,
        "usable": not route.is_unusable,
        "problems": list(route.problems),
        "remarks": [*route.remarks, *(each.text for each in told if each.kind == "remark")],
        "told": _texts(each for each in told if each.kind != "remark"),
        "pods": {name: getattr(use, name) if use else 0 for name in counted},
    }


def _of_pod(visited: VisitedSandbox) -> dict[str, Any]:
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
        "refused": [*_texts(visited.resolved.refusals), *visited.refused],
        "conflicts": _texts(visited.resolved.conflicts),
        "overridden": [format_destination(each) for each in visited.resolved.overridden],
        "problem": visited.problem,
    }


def _sorted(passes: Passes) -> list[VisitedSandbox]:
    visited: Mapping[str, VisitedSandbox] = passes.visited
    return sorted(visited.values(), key=lambda each: (each.pod.namespace, each.pod.name, each.located.place.sandbox))


def _wanted(wanted: DesiredRoute) -> dict[str, Any]:
    return {"dst": format_destination(wanted.dst), "dev": wanted.dev, "via": str(wanted.via or ""), "metric": wanted.metric}


def read_wanted(told: Mapping[str, Any]) -> DesiredRoute:
    """A route that a pod is to have, from the JSON values of `describe`."""
    dst = _DEFAULTS.get(told["dst"]) or ip_network(told["dst"])
    return DesiredRoute(dst, told["dev"], ip_address(told["via"]) if told["via"] else None, told["metric"])


def format_destination(dst: Network) -> str:
    return str(dst) if dst.prefixlen else f"default ({'IPv4' if dst.version == 4 else 'IPv6'})"


_DEFAULTS: Final[Mapping[str, Network]] = {format_destination(each): each for each in map(ip_network, ("0.0.0.0/0", "::/0"))}


def _texts(told: Iterable[RouteRemark]) -> list[str]:
    return [f"{each.route}: {each.text}" for each in told]
