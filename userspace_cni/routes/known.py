"""What is known of Routes, pods, Services and the cluster at one moment; and its JSON form, in which the agent keeps it. Pure.

The agent that starts while the API server is away goes on from what its predecessor knew: what is not known is never taken for
gone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network, IPv6Network, collapse_addresses, ip_address, ip_network
from typing import Any, Final, TypeVar

from userspace_cni.base.routing import Address, Network
from userspace_cni.routes.cluster_facts import ClusterFacts, ClusterService, RoutePod
from userspace_cni.routes.prefixes import prefix
from userspace_cni.routes.route_values import why_never

SCHEMA: Final = 3
_APP: Final = "k8s-app"
"""Label by which distributions name the cluster's DNS, whatever their Service of it is called."""
_MIRROR: Final = "kubernetes.io/config.mirror"
"""Annotation of a static pod's object: the UID that the pod has on its node."""
_METADATA: Final = ("name", "uid", "creationTimestamp", "generation")
_CHAINED: Final = {"ReplicaSet": "Deployment", "Job": "CronJob"}

RANGES_MAX: Final = 256
"""Networks of the cluster that are kept in each pod; more count as not known."""
T = TypeVar("T")
Parents = Mapping[str, tuple[str, str]]
"""The owner (kind, name) of each ReplicaSet or Job, by "namespace/name"; ("", "") for none."""


@dataclass(frozen=True)
class KeptPod:
    """A pod as its watch keeps it. `owner`: the kind and name of what controls it, ("", "") for nothing."""

    pod: RoutePod
    node_uid: str
    owner: tuple[str, str] = ("", "")


@dataclass(frozen=True)
class KnownCluster:
    """All of it. `objects`: Route objects of the API; `from_file`: those of `routes_file`. `pods`: by the UID that each has here.

    `has_api`: a pod is then believed only if it is among `pods`; without an API server every sandbox is a pod. `complete`:
    Routes, Services and pods are known by complete lists, of whatever age. `protocols`: the numbers that routes of ours in pods
    may have, by this and before.
    """

    objects: tuple[Mapping[str, Any], ...] = ()
    from_file: tuple[Mapping[str, Any], ...] = ()
    services: tuple[ClusterService, ...] = ()
    pods: Mapping[str, RoutePod] = field(default_factory=dict)
    cluster: ClusterFacts = field(default_factory=ClusterFacts)
    has_api: bool = False
    complete: bool = False
    protocols: tuple[int, ...] = ()

    @property
    def is_enough(self) -> bool:
        """Whether anything may follow from it: with an API, pods, Routes and Services must have been listed once."""
        return self.complete or not self.has_api


# -- from the objects of the API -------------------------------------------------------------------------------------------------


def read_route(thing: Mapping[str, Any]) -> Mapping[str, Any]:
    """What is kept of a Route: no status, and of its metadata what decides."""
    metadata = {key: thing["metadata"][key] for key in _METADATA if key in thing["metadata"]}
    return {"metadata": metadata, "spec": thing.get("spec")}


def read_service(thing: Mapping[str, Any]) -> ClusterService:
    """A Service. Raises ValueError, KeyError for what is none."""
    metadata, spec = thing["metadata"], thing.get("spec") or {}
    given = spec.get("clusterIPs") or [spec.get("clusterIP")]
    found = _addresses(each for each in given if each != "None")
    is_dns = metadata["namespace"] == "kube-system" and (metadata.get("labels") or {}).get(_APP) == "kube-dns"
    return ClusterService(
        metadata["namespace"], metadata["name"], found, "None" in given, spec.get("type") or "ClusterIP", is_dns
    )


def read_pod(thing: Mapping[str, Any]) -> KeptPod:
    """A pod. Raises KeyError for what is none."""
    metadata, spec = thing["metadata"], thing.get("spec") or {}
    controller = next((each for each in metadata.get("ownerReferences") or () if each.get("controller")), None)
    pod = RoutePod(
        metadata["namespace"],
        metadata["name"],
        metadata["uid"],
        metadata.get("labels") or {},
        phase=(thing.get("status") or {}).get("phase") or "",
        terminating="deletionTimestamp" in metadata,
        host_network=bool(spec.get("hostNetwork")),
    )
    owner = (controller["kind"], controller["name"]) if controller else ("", "")
    mirrored = (metadata.get("annotations") or {}).get(_MIRROR) if owner[0] == "Node" else None
    node_uid = mirrored or metadata["uid"]
    return KeptPod(pod, node_uid, owner)


def read_parent(thing: Mapping[str, Any]) -> tuple[str, str]:
    """What controls a ReplicaSet or Job: kind and name, ("", "") for nothing."""
    found = (each for each in thing["metadata"].get("ownerReferences") or () if each.get("controller"))
    return next(((each["kind"], each["name"]) for each in found), ("", ""))


def read_labels(thing: Mapping[str, Any]) -> Mapping[str, str]:
    return thing["metadata"].get("labels") or {}


def read_endpoints(thing: Mapping[str, Any]) -> tuple[Address, ...]:
    """The addresses behind a Service."""
    parts = (each for subset in thing.get("subsets") or () for each in subset.get("addresses") or ())
    return _addresses(each.get("ip") for each in parts)


def read_node(thing: Mapping[str, Any]) -> tuple[tuple[Address, ...], tuple[Network, ...]]:
    """The addresses of a Node, and the ranges of its pods."""
    found = (thing.get("status") or {}).get("addresses") or ()
    addresses = _addresses(each.get("address") for each in found if each.get("type") in ("InternalIP", "ExternalIP"))
    return addresses, read_ranges(thing)


def read_ranges(thing: Mapping[str, Any]) -> tuple[Network, ...]:
    spec = thing.get("spec") or {}
    return _networks(spec.get("podCIDRs") or [spec.get("podCIDR")])


def read_service_ranges(thing: Mapping[str, Any]) -> tuple[Network, ...]:
    return _networks((thing.get("spec") or {}).get("cidrs") or ())


def merge_networks(ranges: Iterable[Network]) -> tuple[Network, ...]:
    """The same addresses by as few networks as there can be: those of neighbouring nodes are one. () where they are too many."""
    each = tuple(network for network in ranges if not why_never(prefix(network)))  # an odd one would swallow the others
    four = collapse_addresses(network for network in each if isinstance(network, IPv4Network))
    six = collapse_addresses(network for network in each if isinstance(network, IPv6Network))
    found: tuple[Network, ...] = (*four, *six)
    return found if len(found) <= RANGES_MAX else ()


def _networks(texts: Iterable[Any]) -> tuple[Network, ...]:
    found = []
    for each in texts:
        with suppress(ValueError):
            found.append(ip_network(each))
    return tuple(found)


def _addresses(texts: Iterable[Any]) -> tuple[Address, ...]:
    """The addresses among these. Servers take some that are none, as 10.096.0.50: one object must not hide all others."""
    found = []
    for each in texts:
        with suppress(ValueError):
            found.append(ip_address(each))
    return tuple(found)


def beside(found: Iterable[T], before: Iterable[T], name: Callable[[T], object]) -> tuple[T, ...]:
    """Everything that was found, and the known things that are missing in it."""
    return tuple({**{name(each): each for each in before}, **{name(each): each for each in found}}.values())


def route_name(thing: Mapping[str, Any]) -> object:
    return thing["metadata"].get("name")


def service_name(service: ClusterService) -> object:
    return service.namespace, service.name


def by_uid(pods: Iterable[KeptPod], parents: Mapping[str, Parents | None], before: Mapping[str, RoutePod]) -> dict[str, RoutePod]:
    """The pods by the UIDs that they have here, with their owners, of which `before` tells where they are not known now.

    A static pod has another UID here than in the API, and its object says so, as anyone's could: a pod's own UID comes first.
    """
    kept = list(pods)
    found = {each.node_uid: add_owners(each, parents) for each in kept if each.node_uid != each.pod.uid}
    found |= {each.pod.uid: add_owners(each, parents) for each in kept if each.node_uid == each.pod.uid}
    return {
        uid: replace(pod, owners=before[uid].owners) if pod.owners is None and uid in before else pod
        for uid, pod in found.items()
    }


def add_owners(kept: KeptPod, parents: Mapping[str, Parents | None]) -> RoutePod:
    """The pod with the chain of its owners. `parents`: of "ReplicaSet" and "Job", None while they are not known."""
    kind, name = kept.owner
    if not kind:
        return kept.pod
    if kind not in _CHAINED:
        return replace(kept.pod, owners=(kept.owner,))
    above = (parents.get(kind) or {}).get(f"{kept.pod.namespace}/{name}")
    if above is None:  # pods may be told of before what owns them
        return replace(kept.pod, owners=None)
    return replace(kept.pod, owners=(kept.owner, above) if above[0] else (kept.owner,))


# -- as a file -------------------------------------------------------------------------------------------------------------------


def as_json(known: KnownCluster) -> str:
    cluster = known.cluster
    return json.dumps(
        {
            "schema": SCHEMA,
            "objects": list(known.objects),
            "from_file": list(known.from_file),
            "services": [
                [each.namespace, each.name, _texts(each.addresses), each.headless, each.kind, each.is_dns]
                for each in known.services
            ],
            "pods": {uid: _of_pod(each) for uid, each in known.pods.items()},
            "cluster": {
                "service_ranges": _texts(cluster.service_ranges),
                "pod_ranges": _texts(cluster.pod_ranges),
                "own_ranges": _texts(cluster.own_ranges),
                "named_ranges": _texts(cluster.named_ranges),
                "nodes": _texts(cluster.nodes),
                "apiservers": _texts(cluster.apiservers),
                "dns": _texts(cluster.dns),
                "namespaces": {name: dict(labels) for name, labels in cluster.namespaces.items()},
            },
            "has_api": known.has_api,
            "complete": known.complete,
            "protocols": list(known.protocols),
        }
    )


def from_json(text: str) -> KnownCluster:
    """What was kept. Raises ValueError for what is no such text, or of another release's form."""
    try:
        said = json.loads(text)
        if said["schema"] != SCHEMA:
            raise ValueError(f"schema {said['schema']!r}")
        cluster = said["cluster"]
        return KnownCluster(
            tuple(said["objects"]),
            tuple(said["from_file"]),
            tuple(
                ClusterService(namespace, name, tuple(map(ip_address, addresses)), headless, kind, is_dns)
                for namespace, name, addresses, headless, kind, is_dns in said["services"]
            ),
            {
                uid: RoutePod(namespace, name, own, labels, _owners(owners), phase, terminating, host_network)
                for uid, (namespace, name, own, labels, owners, phase, terminating, host_network) in said["pods"].items()
            },
            ClusterFacts(
                tuple(map(ip_network, cluster["service_ranges"])),
                tuple(map(ip_network, cluster["pod_ranges"])),
                tuple(map(ip_network, cluster["own_ranges"])),
                tuple(map(ip_network, cluster["named_ranges"])),
                tuple(map(ip_address, cluster["nodes"])),
                tuple(map(ip_address, cluster["apiservers"])),
                tuple(map(ip_address, cluster["dns"])),
                cluster["namespaces"],
            ),
            bool(said["has_api"]),
            bool(said["complete"]),
            tuple(map(int, said["protocols"])),
        )
    except (KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise ValueError(f"it is not what an agent keeps: {error!r}") from error


def _of_pod(pod: RoutePod) -> list[Any]:
    owners = None if pod.owners is None else [list(each) for each in pod.owners]
    return [pod.namespace, pod.name, pod.uid, dict(pod.labels), owners, pod.phase, pod.terminating, pod.host_network]


def _owners(said: Sequence[Sequence[str]] | None) -> tuple[tuple[str, str], ...] | None:
    return None if said is None else tuple((kind, name) for kind, name in said)


def _texts(values: Iterable[object]) -> list[str]:
    return [str(each) for each in values]
