"""What the API says that routes depend on: the watches, and what is known by them.

Namespaces' labels, ReplicaSets and Jobs are followed from when a Route asks for them: most clusters have none that does. What was
not listed to its end stays as it was known before, by this agent or the one before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from userspace_cni.kube.object_watch import ObjectWatch
from userspace_cni.kube.resources import (
    APISERVER,
    JOBS,
    NAMESPACES,
    NODES,
    PODS,
    REPLICA_SETS,
    ROUTES,
    SERVICES,
    Resource,
)
from userspace_cni.routes.known import (
    Known,
    by_uid,
    kept_endpoints,
    kept_labels,
    kept_node,
    kept_parent,
    kept_pod,
    kept_route,
    kept_service,
)
from userspace_cni.routes.resource import Route, Selection

if TYPE_CHECKING:
    from collections.abc import Iterable

    from userspace_cni.kube.credentials import Session
    from userspace_cni.kube.list_watch import Pace

_PARENTS: Final = {"ReplicaSet": REPLICA_SETS, "Job": JOBS}
_NEEDS_PARENTS: Final = frozenset({"Deployment", "Job", "CronJob"})


class Watching:
    """The watches for the node `node`, as the API calls it. `changed` may not wait. Safe to use from any thread."""

    def __init__(self, session: Session, node: str, changed: Callable[[], None], pace: Pace | None = None) -> None:
        self._session = session
        self._node = node
        self._changed = changed
        self._pace = pace
        kept: Mapping[Resource, tuple[Callable[[Mapping[str, Any]], Any], str]] = {
            ROUTES: (kept_route, ""),
            PODS: (kept_pod, f"spec.nodeName={node}"),
            SERVICES: (kept_service, ""),
            NODES: (kept_node, f"metadata.name={node}"),
            APISERVER: (kept_endpoints, "metadata.name=kubernetes"),
        }
        self._watches = {resource: self._watch(resource, keep, fields) for resource, (keep, fields) in kept.items()}

    def start(self) -> None:
        """Start the threads; returns at once. Raises Unavailable."""
        for watch in self._watches.values():
            watch.start()

    def stop(self) -> None:
        """End the threads; waits 1 s for each at most."""
        for watch in list(self._watches.values()):
            watch.stop()

    @property
    def alive(self) -> bool:
        """Whether all threads run."""
        return all(watch.alive for watch in list(self._watches.values()))

    @property
    def problem(self) -> str:
        """Why something is not watched now; "" when all is."""
        return " | ".join(watch.problem for watch in list(self._watches.values()) if watch.problem)

    def follow(self, routes: Sequence[Route]) -> None:
        """Follow what these Routes' selectors ask for beside pods, from now on. Raises Unavailable."""
        chosen = [selection for each in routes for selection in (each.selection, each.exclude)]
        wanted: set[Resource] = set()
        # what excludes a workload excludes each pod whose owners are not known
        if _workloads(chosen) & _NEEDS_PARENTS or any(each.exclude.workloads for each in routes):
            wanted |= set(_PARENTS.values())
        if any(each.labels for selection in chosen for each in selection.namespaces):
            wanted.add(NAMESPACES)
        for resource in wanted - self._watches.keys():
            watch = self._watch(resource, kept_labels if resource is NAMESPACES else kept_parent, "")
            self._watches = {**self._watches, resource: watch}
            watch.start()

    def known(self, before: Known) -> Known:
        """What is known now; `before` where there was no complete list yet."""
        routes, services, pods = self._of(ROUTES), self._of(SERVICES), self._of(PODS)
        parents = {kind: self._of(resource) for kind, resource in _PARENTS.items()}
        cluster = before.cluster
        if (nodes := self._of(NODES)) is not None:
            addresses, ranges = nodes.get(self._node, ((), ()))
            cluster = replace(cluster, nodes=addresses, pod_ranges=ranges)
        if (apiserver := self._of(APISERVER)) is not None:
            cluster = replace(cluster, apiservers=apiserver.get("default/kubernetes", ()))
        if (namespaces := self._of(NAMESPACES)) is not None:
            cluster = replace(cluster, namespaces=namespaces)
        return replace(
            before,
            objects=before.objects if routes is None else tuple(routes.values()),
            services=before.services if services is None else tuple(services.values()),
            pods=before.pods if pods is None else by_uid(pods.values(), parents, before.pods),
            cluster=cluster,
            has_api=True,
            complete=before.complete or None not in (routes, services, pods),
        )

    def _of(self, resource: Resource) -> Mapping[str, Any] | None:
        watch = self._watches.get(resource)
        return watch.objects() if watch else None

    def _watch(self, resource: Resource, keep: Callable[[Mapping[str, Any]], Any], fields: str) -> ObjectWatch:
        return ObjectWatch(self._session, resource, field_selector=fields, keep=keep, on_change=self._changed, pace=self._pace)


def _workloads(chosen: Iterable[Selection]) -> set[str]:
    return {each.kind for selection in chosen for each in selection.workloads}
