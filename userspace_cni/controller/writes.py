"""The writes that are due: the differences between the desired and the present statuses, and nothing else.

Pure. An object is left alone until the watch has shown the last write to it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from userspace_cni.controller.cluster import ClusterState, SummedObject, tables, text
from userspace_cni.controller.route_statuses import reports_of, route_status
from userspace_cni.controller.statuses import NODE_RANGES, StatusSums, is_written
from userspace_cni.kube.resources import (
    IPS,
    NODE_STATES,
    PROVIDER_NETWORKS,
    RESOURCE_SLICES,
    ROUTES,
    SUBNETS,
    VLANS,
    ApiResource,
)

Version = tuple[ApiResource, str, str, str]
"""An object as it was: its resource, name, UID and resourceVersion."""


@dataclass(frozen=True)
class Summary:
    """The status that an object is to have, which follows from its `version`, with the status `before`. `urgent`: nodes wait."""

    resource: ApiResource
    name: str
    uid: str
    version: str
    status: Mapping[str, Any]
    urgent: bool = False
    before: Mapping[str, Any] = field(default_factory=dict)

    @property
    def follows(self) -> Version:
        return self.resource, self.name, self.uid, self.version


@dataclass(frozen=True)
class Garbage:
    """An object about a node that is gone."""

    resource: ApiResource
    name: str
    uid: str


def summaries(cluster: ClusterState, held: Collection[str], now: str) -> Iterator[Summary]:
    """The statuses that are not as they should be. `held`, `now`: as `StatusSums` has them."""
    sums = StatusSums(cluster, held, now)
    status_of: Mapping[ApiResource, Callable[[str], dict[str, Any]]] = {
        SUBNETS: sums.subnet,
        PROVIDER_NETWORKS: sums.provider_network,
        VLANS: sums.vlan,
        ROUTES: partial(route_status, cluster=cluster, said_by=reports_of(cluster), now=now),
    }
    for resource, name, kept in _summed_up(cluster):
        status = status_of[resource](name)
        if not is_written(status, kept.status):
            awaited = {key: value for key, value in status.items() if key == NODE_RANGES}
            urgent = not is_written(awaited, kept.status)
            yield Summary(resource, name, kept.uid, kept.version, status, urgent, kept.status)


def versions(cluster: ClusterState) -> frozenset[Version]:
    """The objects that have a status of ours, as they are known."""
    return frozenset((resource, name, kept.uid, kept.version) for resource, name, kept in _summed_up(cluster))


def _summed_up(cluster: ClusterState) -> Iterator[tuple[ApiResource, str, SummedObject]]:
    """The objects with a status of ours. Ranges of nodes come first: pods wait for them."""
    kinds = (
        (SUBNETS, cluster.subnets),
        (PROVIDER_NETWORKS, cluster.provider_networks),
        (VLANS, cluster.vlans),
        (ROUTES, _kept_routes(cluster)),
    )
    for resource, objects in kinds:
        yield from ((resource, name, kept) for name, kept in sorted(objects.items()))


def _kept_routes(cluster: ClusterState) -> Mapping[str, SummedObject]:
    """The Routes, where some node keeps them; else those of which a node did, for their status says so still."""
    if any(state.routes is not None for state in cluster.states.values()):
        return cluster.routes
    return {name: kept for name, kept in cluster.routes.items() if "nodes" in kept.status}


def garbage(cluster: ClusterState, held: Collection[str]) -> Iterator[Garbage]:
    """What is left of nodes that are gone. Pods of the others are their agents' matter."""
    for name, state in sorted(cluster.states.items()):
        if name not in held:
            yield Garbage(NODE_STATES, name, state.uid)
    for name, address in sorted(cluster.addresses.items()):
        if address.node and address.node not in held:
            yield Garbage(IPS, name, address.uid)
    for name, offered in sorted(cluster.slices.items()):
        if offered.node and offered.node not in held:
            yield Garbage(RESOURCE_SLICES, name, offered.uid)


def list_nodes(cluster: ClusterState) -> Iterator[str]:
    yield from cluster.states
    yield from (each.node for each in cluster.addresses.values())
    yield from (each.node for each in cluster.slices.values())
    for subnet in cluster.subnets.values():
        yield from (text(each, "node") for each in tables(subnet.status, NODE_RANGES))
