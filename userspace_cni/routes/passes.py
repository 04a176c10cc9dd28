"""Passes over this node's pods: for each, which routes of ours it is to have, and its namespace made so.

The namespace is the record: what was done is not remembered beyond it, and a pass that was cut off is done again. A pod is looked
at when something it depends on has changed, when its devices may still come, after a failure, and from time to time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from userspace_cni.base.back_off import BackOff
from userspace_cni.base.errors import HostNamespace, UserspaceError
from userspace_cni.base.routing import DesiredRoute, Inside
from userspace_cni.host.pod_net.pod_routes import PodNamespace, RoutePass
from userspace_cni.routes.cluster_facts import ClusterFacts, RoutePod
from userspace_cni.routes.known import KnownCluster
from userspace_cni.routes.places import LocatedSandbox
from userspace_cni.routes.resolving import ResolvedRoutes, resolve
from userspace_cni.routes.resource import RouteObject, read_route, without_services
from userspace_cni.routes.rules import PodClaims, Rulebook

LATER_S: Final = (0.2, 1.0, 5.0, 30.0)
"""After how many seconds a pod with a new interface, which lacks a device, is looked at again: others attach it later."""
_AGAIN: Final = BackOff(1.0, 300.0)
RESYNC_S: Final = 600.0
HIDDEN: Final = "the routes_file of this node has a Route of this name, which counts here in its place"


class RouteKernel(Protocol):
    """What passes need of `host.pod_routes.PodRoutes`."""

    protocol: int

    def converge(self, place: PodNamespace, decide: Callable[[Inside], Iterable[DesiredRoute]]) -> RoutePass: ...

    def keep(self, sandboxes: Collection[str]) -> None: ...


@dataclass(frozen=True)
class Rules:
    """How routes are made: `metric6` of those of IPv6; `exclude`: namespaces that a Route concerns only if it names them."""

    metric6: int = 100
    exclude: tuple[str, ...] = ()


@dataclass
class VisitedSandbox:
    """A sandbox, and what the last look at it showed and did. `problem`: why there was none; `host`: it has the node's network.
    `refused`: what the kernel refused. What the namespace has is not kept: a pod may put thousands of routes there.

    `since` and `due`: CLOCK_MONOTONIC of the first look since interfaces came, and of the next one; `pause_s`: between them,
    where the last one failed.
    """

    located: LocatedSandbox
    pod: RoutePod
    asked: PodClaims
    cluster: ClusterFacts
    resolved: ResolvedRoutes = field(default_factory=ResolvedRoutes)
    refused: tuple[str, ...] = ()
    problem: str = ""
    host: bool = False
    since: float = 0.0
    due: float = 0.0
    pause_s: float = 0.0

    @property
    def state(self) -> str:
        """In one word: "none" (nothing is asked), "applied", "skipped" (it has nothing of what is asked), "failed"."""
        if self.host or not self.asked.claims:
            return "none" if not self.problem else "failed"
        if self.problem or self.refused or self.resolved.refusals:
            return "failed"
        return "applied" if self.resolved.wanted else "skipped"


class Passes:
    """The pods of this node. For one thread at a time. `clock`: as time.monotonic."""

    def __init__(self, kernel: RouteKernel, rules: Rules, clock: Callable[[], float] = time.monotonic) -> None:
        self._kernel = kernel
        self._rules = rules
        self._clock = clock
        self._known: KnownCluster | None = None
        self._resync = 0.0
        self.routes: tuple[RouteObject, ...] = ()
        """All Routes, also those that cannot be used."""
        self.book = Rulebook((), ())
        self._visited: dict[str, VisitedSandbox] = {}
        self._asked: dict[str, tuple[RoutePod, PodClaims]] = {}
        """What the book asks of each pod, by UID: each round wants to know it of all."""

    def learn(self, known: KnownCluster) -> None:
        """Go by this from now on."""
        before, self._known = self._known, known
        if before and replace(before, pods=known.pods) == known:
            self._asked = {uid: asked for uid, asked in self._asked.items() if uid in known.pods}
            return
        self._asked = {}
        self.routes = routes_of(known)
        self.book = Rulebook(self.routes, known.services, known.cluster, self._rules.exclude)

    def list_wanted(self) -> Collection[str] | None:
        """The UIDs of the pods for which routes are asked, or were when they were looked at; None where every sandbox counts."""
        if self._known is None or not self._known.has_api:
            return None
        had = {each.located.uid for each in self._visited.values() if each.asked.claims}
        return had | {uid for uid, pod in self._known.pods.items() if self._asked_of(uid, pod).claims}

    def find_claims(self, located: LocatedSandbox) -> PodClaims | None:
        """What is asked of the pod of a sandbox; None for one that is not proven."""
        pod = self._pod(located)
        return self.book.claims(pod) if pod else None

    def _asked_of(self, uid: str, pod: RoutePod) -> PodClaims:
        had = self._asked.get(uid)
        if had and had[0] == pod:
            return had[1]
        asked = self.book.claims(pod)
        self._asked[uid] = pod, asked
        return asked

    @property
    def overdue(self) -> bool:
        """Whether it is time to look at everything: at first, and every ten minutes."""
        return self._clock() >= self._resync

    def visit(self, located: Iterable[LocatedSandbox], sandboxes: Collection[str] = (), *, everything: bool = False) -> int:
        """Look at the pods that are due, at these sandboxes, or at `everything`, and make their routes so; how many were looked
        at."""
        now = self._clock()
        if everything:
            self._resync = now + RESYNC_S
        pods = {each.place.sandbox: (each, pod) for each in located if (pod := self._pod(each))}
        for gone in self._visited.keys() - pods.keys():
            del self._visited[gone]
        self._kernel.keep(pods.keys())
        looked = 0
        for sandbox, (each, pod) in pods.items():
            asked = self._asked_of(each.uid, pod) if each.uid else self.book.claims(pod)
            before = self._visited.get(sandbox)
            if asked.skipped:  # a pod that ends keeps what it has
                if before:
                    before.due = self._resync
                continue
            same = before and (before.asked, before.located, before.cluster) == (asked, each, self.book.cluster)
            if before and same and not everything and sandbox not in sandboxes and now < before.due:
                before.pod, before.asked = pod, asked
                continue
            has_more = sandbox in sandboxes or (before and before.located != each)
            visited = VisitedSandbox(each, pod, asked, self.book.cluster, since=before.since if before and not has_more else now)
            visited.pause_s = before.pause_s if before else 0.0
            self._look(visited)
            self._visited[sandbox] = visited
            looked += 1
        return looked

    @property
    def next_due(self) -> float:
        """CLOCK_MONOTONIC of the next look that is due."""
        return min((each.due for each in self._visited.values()), default=self._resync)

    @property
    def visited(self) -> Mapping[str, VisitedSandbox]:
        """What the last look at each sandbox showed, by its id."""
        return dict(self._visited)

    def _pod(self, located: LocatedSandbox) -> RoutePod | None:
        """The pod of a sandbox; None for one that is not proven: the API has no pod of that name and UID on this node."""
        known = self._known or KnownCluster()
        if not known.has_api:
            return RoutePod(located.namespace, located.name, located.uid)
        pod = known.pods.get(located.uid)
        return pod if pod and (pod.namespace, pod.name) == (located.namespace, located.name) else None

    def _look(self, visited: VisitedSandbox) -> None:
        def decide(inside: Inside) -> Iterator[DesiredRoute]:
            visited.resolved = resolve(visited.asked, inside, visited.cluster, self._rules.metric6, self._kernel.protocol)
            return iter(visited.resolved.routes)

        now = self._clock()
        try:
            visited.refused = self._kernel.converge(visited.located.place, decide).refused
        except HostNamespace:
            visited.host = True
        except UserspaceError as error:
            visited.problem = str(error)
        except Exception as error:  # noqa: BLE001 -- whatever a pod has in its namespace must not keep the others waiting
            visited.problem = repr(error)
        if visited.problem or visited.refused:
            visited.pause_s = _AGAIN.after(visited.pause_s)
            visited.due = now + visited.pause_s
            return
        visited.pause_s = 0.0
        later = [at for each in LATER_S if (at := visited.since + each) > now] if _lacks(visited.resolved) else []
        visited.due = min(later, default=now + RESYNC_S)


def _lacks(resolved: ResolvedRoutes) -> bool:
    """Whether there is something that may still come: a device, or its address, by which a gateway is reached."""
    return bool(resolved.skipped or resolved.refusals)


def routes_of(known: KnownCluster) -> tuple[RouteObject, ...]:
    """The Routes of the file, which have no uid, and of the API. The file's Services are known only where there is a cluster."""
    from_file = (read_route(each) for each in known.from_file)
    own = tuple(replace(each if known.has_api else without_services(each), uid="") for each in from_file)
    taken = {each.name for each in own}
    return (*own, *(_hidden(each) if each.name in taken else each for each in map(read_route, known.objects)))


def _hidden(route: RouteObject) -> RouteObject:
    return replace(route, problems=(*route.problems, HIDDEN), is_unusable=True)
