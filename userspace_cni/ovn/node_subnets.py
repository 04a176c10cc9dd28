"""The subnets that the cluster gave a node for its pods: Node.spec.podCIDRs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from userspace_cni.node.installation import Installation


def read_pod_subnets(installation: Installation, node: str) -> str:
    """Them, between commas; "" without credentials for the API server, without such a Node, and where it has none.

    Raises Unavailable, ObjectRefused.
    """
    from userspace_cni.kube.object_requests import Objects
    from userspace_cni.kube.resources import NODES

    if not installation.has_account:
        return ""
    found = Objects(installation.clients.of("").session).get(NODES, node) or {}
    spec = found.get("spec") or {}
    return ",".join(map(str, spec.get("podCIDRs") or filter(None, [spec.get("podCIDR")])))
