"""What the controller watches, and the cluster as it is known by that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from userspace_cni.base.supervisor import Supervisor
from userspace_cni.controller import cluster
from userspace_cni.controller.cluster import ClusterState
from userspace_cni.kube.credentials import ApiSession
from userspace_cni.kube.list_watch import WatchTimes
from userspace_cni.kube.object_watch import ObjectWatch
from userspace_cni.kube.resources import (
    IPS,
    NODE_STATES,
    NODES,
    PROVIDER_NETWORKS,
    RESOURCE_SLICES,
    ROUTES,
    SUBNETS,
    VLANS,
    ApiResource,
)

_KEPT: Final[tuple[tuple[str, ApiResource, Callable[[Mapping[str, Any]], Any]], ...]] = (
    ("provider_networks", PROVIDER_NETWORKS, cluster.read_object),
    ("vlans", VLANS, cluster.read_object),
    ("subnets", SUBNETS, cluster.read_object),
    ("routes", ROUTES, cluster.read_object),
    ("states", NODE_STATES, cluster.read_node_state),
    ("nodes", NODES, cluster.node),
    ("addresses", IPS, cluster.address),
)
"""Each field of ClusterState that has objects: which ones, and what is kept of one."""


_SLICES: Final = ("slices", RESOURCE_SLICES, cluster.offered_slice)
_OF_DRIVER: Final = "spec.driver=userspace-cni.io"
_NOT_AWAITED: Final = ("routes", "slices")
"""Other programs', or not in every cluster: where they are not known, there are none."""


class Watches(Supervisor):
    """A watch for each kind of objects. `on_change` is called when anything kept has changed; it must not wait. `slices`: whether
    nodes offer devices (DRA), so that ResourceSlices are among them."""

    def __init__(
        self, session: ApiSession, on_change: Callable[[], None], times: WatchTimes | None = None, *, slices: bool = False
    ) -> None:
        super().__init__()
        self._kept = (*_KEPT, _SLICES) if slices else _KEPT
        self._watches = {
            name: ObjectWatch(
                session,
                resource,
                field_selector=_OF_DRIVER if resource == RESOURCE_SLICES else "",
                keep=keep,
                on_change=on_change,
                times=times,
            )
            for name, resource, keep in self._kept
        }

    def start(self) -> None:
        """Start the threads; returns at once. Raises Unavailable."""
        self.begin(*self._watches.values())

    @property
    def obstacles(self) -> list[str]:
        """Why some objects are not watched now."""
        return [each.problem for each in self._watches.values() if each.problem]

    def cluster(self) -> ClusterState | None:
        """What is known; None until two lists of each kind have told it. Routes may be another program's matter: none then."""
        if not all(each.confirmed for name, each in self._watches.items() if name not in _NOT_AWAITED):
            return None
        known: dict[str, Any] = {name: each.objects() or {} for name, each in self._watches.items()}
        return ClusterState(**known, nodes_watched=not self._watches["nodes"].problem)

    def counts(self) -> Mapping[str, Callable[[], float]]:
        """How many objects of each kind are known: a function by the resource's name."""
        return {resource.plural: _counter(self._watches[name]) for name, resource, _ in self._kept}


def _counter(watch: ObjectWatch) -> Callable[[], float]:
    return lambda: len(watch.objects() or ())
