"""What the API says that routes depend on: the watches, and what is known by them.

Namespaces' labels, ReplicaSets, Jobs, all Nodes and ServiceCIDRs are followed from when a Route asks for them: most clusters have
none that does. What was not listed to its end stays as it was known before, by this agent or the one before it; so does what
only the first list lacks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from userspace_cni.base.supervisor import Supervisor
from userspace_cni.kube.object_watch import ObjectWatch
from userspace_cni.kube.resources import (
    APISERVER,
    JOBS,
    NAMESPACES,
    NODES,
    PODS,
    REPLICA_SETS,
    ROUTES,
    SERVICE_CIDRS,
    SERVICES,
    ApiResource,
)
from userspace_cni.routes.known import (
    KnownCluster,
    beside,
    by_uid,
    merge_networks,
    read_endpoints,
    read_labels,
    read_node,
    read_parent,
    read_pod,
    read_ranges,
    read_route,
    read_service,
    read_service_ranges,
    route_name,
    service_name,
)
from userspace_cni.routes.resource import RouteObject, Selection

if TYPE_CHECKING:
    from collections.abc import Iterable

    from userspace_cni.kube.credentials import ApiSession
    from userspace_cni.kube.list_watch import WatchTimes
    from userspace_cni.routes.cluster_facts import ClusterFacts


class _Followed(NamedTuple):
    """Objects that are followed, what is kept of each, and the field selector, "{}" in it for the node's name."""

    resource: ApiResource
    keep: Callable[[Mapping[str, Any]], Any]
    fields: str = ""


_ROUTES: Final = _Followed(ROUTES, read_route)
_PODS: Final = _Followed(PODS, read_pod, "spec.nodeName={}")
_SERVICES: Final = _Followed(SERVICES, read_service)
_OWN_NODE: Final = _Followed(NODES, read_node, "metadata.name={}")
_APISERVER: Final = _Followed(APISERVER, read_endpoints, "metadata.name=kubernetes")
_DEFAULT: Final = "default/kubernetes"
_ALWAYS: Final = (_ROUTES, _PODS, _SERVICES, _OWN_NODE, _APISERVER)
_NAMESPACES: Final = _Followed(NAMESPACES, read_labels)
_PARENTS: Final = {"ReplicaSet": _Followed(REPLICA_SETS, read_parent), "Job": _Followed(JOBS, read_parent)}
_NEEDS_PARENTS: Final = frozenset({"Deployment", "Job", "CronJob"})
SETTLE_S: Final = 10.0
"""How long at most what is followed anew is awaited before anything is done: a list of thousands of Nodes comes page by page."""
START_S: Final = 2.0
"""The same until something is listed: much may be known already of what a former agent has kept."""
_NODES: Final = _Followed(NODES, read_ranges)
_SERVICE_CIDRS: Final = _Followed(SERVICE_CIDRS, read_service_ranges)
ALL: Final = tuple(dict.fromkeys(each.resource for each in (*_ALWAYS, _NAMESPACES, *_PARENTS.values(), _NODES, _SERVICE_CIDRS)))
"""Whatever may be followed: the account needs to list and watch each."""


class Watching(Supervisor):
    """The watches for the node `node`, as the API calls it. `changed` may not wait. Safe to use from any thread.

    `find_ranges`: follow what tells the networks of Services and of all nodes' pods, from when a default route would take them.
    """

    def __init__(
        self,
        session: ApiSession,
        node: str,
        changed: Callable[[], None],
        *,
        find_ranges: bool = True,
        times: WatchTimes | None = None,
    ) -> None:
        super().__init__()
        self._session = session
        self._node = node
        self._changed = changed
        self._find_ranges = find_ranges
        self._times = times
        self._settled_at = 0.0
        self._watches = {each: self._watch(each) for each in _ALWAYS}

    def start(self) -> None:
        """Start the threads; returns at once. Raises Unavailable."""
        self._settled_at = time.monotonic() + START_S
        self.begin(*self._watches.values())

    @property
    def problem(self) -> str:
        """Why something is not watched now; "" when all is."""
        return " | ".join(dict.fromkeys(watch.problem for watch in list(self._watches.values()) if watch.problem))

    def follow(self, routes: Sequence[RouteObject]) -> None:
        """Follow what these Routes ask for beside pods and Services, from now on. Raises Unavailable."""
        chosen = [selection for each in routes for selection in (each.selection, each.exclude)]
        wanted: set[_Followed] = set()
        # what excludes a workload excludes each pod whose owners are not known
        if _workloads(chosen) & _NEEDS_PARENTS or any(each.exclude.workloads for each in routes):
            wanted |= set(_PARENTS.values())
        if any(each.labels for selection in chosen for each in selection.namespaces):
            wanted.add(_NAMESPACES)
        if self._find_ranges and any(map(takes_cluster, routes)):
            wanted |= {_NODES, _SERVICE_CIDRS}
        for each in wanted - self._watches.keys():
            watch = self._watch(each)
            self._watches = {**self._watches, each: watch}
            if self.has_listed:
                self._settled_at = time.monotonic() + SETTLE_S
            self.begin(watch)

    @property
    def settling(self) -> bool:
        """Whether what was asked for just now may be known in a moment: a default route must not come before it."""
        return time.monotonic() < self._settled_at and not all(watch.tried for watch in self._watches.values())

    @property
    def has_listed(self) -> bool:
        """Whether Routes, pods and Services have been listed by these very watches."""
        return None not in (self._of(_ROUTES), self._of(_SERVICES), self._of(_PODS))

    def known(self, before: KnownCluster) -> KnownCluster:
        """What is known now; `before` where there was no complete list yet, and what only one list lacks of it."""
        confirmed = {each for each, watch in self._watches.items() if watch.confirmed}  # looked at first: then nothing is lacking
        routes, services, pods = self._of(_ROUTES), self._of(_SERVICES), self._of(_PODS)
        parents = {kind: self._of(followed) for kind, followed in _PARENTS.items()}
        found = replace(
            before,
            objects=before.objects if routes is None else tuple(routes.values()),
            services=before.services if services is None else tuple(services.values()),
            pods=before.pods if pods is None else by_uid(pods.values(), parents, before.pods),
            cluster=self._cluster(before.cluster, confirmed),
            has_api=True,
            complete=before.complete or None not in (routes, services, pods),
        )
        return replace(
            found,
            objects=found.objects if _ROUTES in confirmed else beside(found.objects, before.objects, route_name),
            services=found.services if _SERVICES in confirmed else beside(found.services, before.services, service_name),
            pods=found.pods if _PODS in confirmed else {**before.pods, **found.pods},
        )

    def _cluster(self, cluster: ClusterFacts, confirmed: Collection[_Followed]) -> ClusterFacts:
        if (own := self._of(_OWN_NODE)) is not None and (self._node in own or _OWN_NODE in confirmed):
            addresses, ranges = own.get(self._node, ((), ()))
            cluster = replace(cluster, nodes=addresses, own_ranges=ranges)
        if (found := self._of(_APISERVER)) is not None and (_DEFAULT in found or _APISERVER in confirmed):
            cluster = replace(cluster, apiservers=found.get(_DEFAULT, ()))
        if (namespaces := self._of(_NAMESPACES)) is not None:
            had = {} if _NAMESPACES in confirmed else cluster.namespaces
            cluster = replace(cluster, namespaces={**had, **namespaces})
        if (nodes := self._of(_NODES)) is not None:
            kept = () if _NODES in confirmed else cluster.pod_ranges
            cluster = replace(
                cluster, pod_ranges=merge_networks((*kept, *(each for ranges in nodes.values() for each in ranges)))
            )
        if (services := self._of(_SERVICE_CIDRS)) is not None:
            kept = () if _SERVICE_CIDRS in confirmed else cluster.service_ranges
            cluster = replace(
                cluster, service_ranges=merge_networks((*kept, *(each for ranges in services.values() for each in ranges)))
            )
        return cluster

    def _of(self, followed: _Followed) -> Mapping[str, Any] | None:
        watch = self._watches.get(followed)
        return watch.objects() if watch else None

    def _watch(self, each: _Followed) -> ObjectWatch:
        return ObjectWatch(
            self._session,
            each.resource,
            field_selector=each.fields.format(self._node),
            keep=each.keep,
            on_change=self._changed,
            times=self._times,
        )


def takes_cluster(route: RouteObject) -> bool:
    """Whether the Route has a default route, with which the cluster's networks are to stay where they are."""
    return route.gates.keep_cluster_routes and any(not each.dst.prefixlen for each in route.networks)


def _workloads(chosen: Iterable[Selection]) -> set[str]:
    return {each.kind for selection in chosen for each in selection.workloads}
