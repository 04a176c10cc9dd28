"""What is known of pods, Services and the cluster, as far as it decides about routes. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, NamedTuple

from userspace_cni.base.routing import Address, Network
from userspace_cni.routes.prefixes import Prefix, alone, host, prefix
from userspace_cni.routes.resource import FeatureGates
from userspace_cni.routes.route_values import why_never

ID_SHOWN: Final = 12
"""So many digits of a sandbox's ID name it, as with docker and crictl."""
_ID: Final = re.compile(r"[0-9a-f]{64}")
_ENDED: Final = ("Succeeded", "Failed")
_APISERVER: Final = (("default", "kubernetes"),)
_DNS: Final = (("kube-system", "kube-dns"), ("kube-system", "coredns"), ("openshift-dns", "dns-default"))
"""Services by which pods reach API server and DNS in any cluster, whatever else is known of their addresses."""


@dataclass(frozen=True)
class RoutePod:
    """A pod, as the API has it.

    `owners`: the chain of its owners as (kind, name), a ReplicaSet and its Deployment, say; None while it is not known.
    """

    namespace: str
    name: str
    uid: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    owners: tuple[tuple[str, str], ...] | None = ()
    phase: str = ""
    terminating: bool = False
    host_network: bool = False

    @property
    def title(self) -> str:
        return title_of(self.namespace, self.name)


@dataclass(frozen=True)
class ClusterService:
    """A Service. `addresses`: its clusterIPs, () for none yet. `kind`: its `type`. `is_dns`: its label says that."""

    namespace: str
    name: str
    addresses: tuple[Address, ...] = ()
    headless: bool = False
    kind: str = "ClusterIP"
    is_dns: bool = False


@dataclass(frozen=True)
class ClusterFacts:
    """What is known of the cluster; empty where it is not.

    `service_ranges`, `pod_ranges`: networks of Services and of all nodes' pods; `own_ranges`: of this node's pods;
    `named_ranges`: networks of both as the settings have them. `apiservers`: the API server's addresses, endpoints too; `dns`:
    those of the Service; `nodes`: those of this node. `namespaces`: labels by namespace.
    """

    service_ranges: tuple[Network, ...] = ()
    pod_ranges: tuple[Network, ...] = ()
    own_ranges: tuple[Network, ...] = ()
    named_ranges: tuple[Network, ...] = ()
    nodes: tuple[Address, ...] = ()
    apiservers: tuple[Address, ...] = ()
    dns: tuple[Address, ...] = ()
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @cached_property
    def needs(self) -> tuple[ClusterNeed, ...]:
        """What stays with a former default route, wide networks first."""
        wide = [ClusterNeed(prefix(each), each, "Services", "keep_cluster_routes", True) for each in self.service_ranges]
        wide += [
            ClusterNeed(prefix(each), each, "pods", "keep_cluster_routes", True) for each in (*self.pod_ranges, *self.own_ranges)
        ]
        wide += [ClusterNeed(prefix(each), each, "the cluster", "keep_cluster_routes", True) for each in self.named_ranges]
        wide = [each for each in wide if not why_never(each.prefix)]  # what one node says of its pods is done in all pods
        wide.sort(key=lambda each: each.prefix.length)
        hosts = [ClusterNeed(host(each), alone(each), "this node", "keep_cluster_routes", True) for each in self.nodes]
        hosts += [ClusterNeed(host(each), alone(each), "the API server", "allow_apiserver", False) for each in self.apiservers]
        hosts += [ClusterNeed(host(each), alone(each), "the cluster's DNS", "allow_dns", False) for each in self.dns]
        return (*wide, *hosts)

    def why_unknown(self, version: int) -> str:
        """Which networks that a default route of this version of IP would take are not known; "" for none.

        Where the node has no address of the version, as outside of a cluster, there are none.
        """
        if any(each.version == version for each in self.named_ranges) or not any(each.version == version for each in self.nodes):
            return ""
        known = (("Services", self.service_ranges), ("other nodes' pods", self.pod_ranges))
        return " and ".join(what for what, ranges in known if not any(each.version == version for each in ranges))


class ClusterNeed(NamedTuple):
    """What a pod must reach in the cluster. `gate`: the gate that decides about it; `kept_by`: its value with which it stays."""

    prefix: Prefix
    dst: Network
    what: str
    gate: str
    kept_by: bool

    def stays(self, gates: FeatureGates) -> bool:
        """Whether it stays with the former default route by these gates."""
        return bool(getattr(gates, self.gate) == self.kept_by)


NOTHING_KNOWN: Final = ClusterFacts()


def title_of(namespace: str, name: str, sandbox: str = "") -> str:
    """How a pod is called: NAMESPACE/NAME, or NAME where there is no namespace, as of a container outside of a cluster.

    One without a name is called by the ID of its sandbox: of a runtime's 64 digits the first 12.
    """
    if not name:
        return sandbox[:ID_SHOWN] if _ID.fullmatch(sandbox) else sandbox
    return f"{namespace}/{name}" if namespace else name


def why_none(service: ClusterService) -> str:
    """Why there can be no route to the Service; "" where there can."""
    if service.kind == "ExternalName":
        return "it is an ExternalName, which has no address"
    if service.headless:
        return "it is headless, and has no address of its own"
    return "" if service.addresses else "it has no ClusterIP yet"


def add_service_addresses(cluster: ClusterFacts, services: Iterable[ClusterService]) -> ClusterFacts:
    """The cluster with the addresses that the Services of API server and DNS have themselves."""
    apiservers, dns = dict.fromkeys(cluster.apiservers), dict.fromkeys(cluster.dns)
    for each in services:
        if (each.namespace, each.name) in _APISERVER:
            apiservers |= dict.fromkeys(each.addresses)
        if each.is_dns or (each.namespace, each.name) in _DNS:
            dns |= dict.fromkeys(each.addresses)
    return replace(cluster, apiservers=tuple(apiservers), dns=tuple(dns))


def why_left_alone(pod: RoutePod) -> str:
    """Why no Route concerns the pod; "" where some may."""
    if pod.host_network:
        return "it is in the node's own network"
    if pod.phase in _ENDED:
        return f"it has ended ({pod.phase})"
    return "it is terminating" if pod.terminating else ""
