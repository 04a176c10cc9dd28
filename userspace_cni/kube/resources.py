"""The resources of the API that are used beside pods and Events: where they are, and how they are called. Pure.

Names come from objects that others write and become part of paths: one that could lead elsewhere is refused here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import quote

from userspace_cni.base.errors import InvalidConfig

GROUP: Final = "userspace-cni.io"
VERSION: Final = "v1alpha1"

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


@dataclass(frozen=True)
class ApiResource:
    """A kind of objects. `group` "" is the core's; `namespace` "" for objects of the cluster."""

    group: str
    version: str
    plural: str
    kind: str
    namespace: str = ""

    @property
    def api_version(self) -> str:
        """What an object of it says as its apiVersion."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def title(self) -> str:
        """How the resource is called in messages, and how kubectl takes it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def within(self, namespace: str) -> ApiResource:
        return replace(self, namespace=namespace)

    def path(self, name: str | None = None, *, subresource: str = "") -> str:
        """Path of the collection (None), of an object, or of its part ("status"). Raises InvalidConfig for what is no name."""
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        parts += ["namespaces", _named(self.namespace)] if self.namespace else []
        parts += [self.plural, *([] if name is None else [_named(name)]), *([subresource] if subresource else [])]
        return "/" + "/".join(quote(part) for part in parts)


def _named(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidConfig(f"{name!r} is not a name of an object", "lower-case letters, digits, '-' and '.', at most 253")
    return name


PROVIDER_NETWORKS: Final = ApiResource(GROUP, VERSION, "provider-networks", "ProviderNetwork")
VLANS: Final = ApiResource(GROUP, VERSION, "vlans", "Vlan")
SUBNETS: Final = ApiResource(GROUP, VERSION, "subnets", "Subnet")
IPS: Final = ApiResource(GROUP, VERSION, "ips", "IP")
NODE_STATES: Final = ApiResource(GROUP, VERSION, "nodestates", "NodeState")
NODES: Final = ApiResource("", "v1", "nodes", "Node")
ROUTES: Final = ApiResource("k8s.ovn.org", "v1", "routes", "Route")
PODS: Final = ApiResource("", "v1", "pods", "Pod")
SERVICES: Final = ApiResource("", "v1", "services", "Service")
NAMESPACES: Final = ApiResource("", "v1", "namespaces", "Namespace")
ENDPOINT_SLICES: Final = ApiResource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
FORMER_ENDPOINT_SLICES: Final = replace(ENDPOINT_SLICES, version="v1beta1")
"""As Kubernetes before 1.21 has them."""
NETWORK_POLICIES: Final = ApiResource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
MULTI_NETWORK_POLICIES: Final = ApiResource("k8s.cni.cncf.io", "v1beta1", "multi-networkpolicies", "MultiNetworkPolicy")
"""Policies for Multus' networks. Clusters without their definition have none."""
RESOURCE_SLICES: Final = ApiResource("resource.k8s.io", "v1", "resourceslices", "ResourceSlice")
"""What nodes offer by drivers of devices (DRA). Servers before Kubernetes 1.34 have none such in this version."""
RESOURCE_CLAIMS: Final = ApiResource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim")
"""What pods ask for by drivers of devices (DRA): `RESOURCE_CLAIMS.within(namespace)`."""
REPLICA_SETS: Final = ApiResource("apps", "v1", "replicasets", "ReplicaSet")
JOBS: Final = ApiResource("batch", "v1", "jobs", "Job")
APISERVER: Final = ApiResource("", "v1", "endpoints", "Endpoints", "default")
"""Among these the one named kubernetes has the API server's addresses."""
SERVICE_CIDRS: Final = ApiResource("networking.k8s.io", "v1", "servicecidrs", "ServiceCIDR")
"""The networks of Services. Servers before Kubernetes 1.33 have none such."""
NETWORK_DEFINITIONS: Final = ApiResource("k8s.cni.cncf.io", "v1", "network-attachment-definitions", "NetworkAttachmentDefinition")
"""Multus' networks. Clusters without Multus have none."""
PLUGINS: Final = ApiResource("plugin.kubevirt.io", "v1alpha1", "plugins", "Plugin")
KUBEVIRTS: Final = ApiResource("kubevirt.io", "v1", "kubevirts", "KubeVirt")
"""Of all namespaces: a cluster has one such object."""
LEASES: Final = ApiResource("coordination.k8s.io", "v1", "leases", "Lease")
"""`LEASES.within(namespace)`: Leases are objects of a namespace."""
