"""Services and EndpointSlices for tests, as the API server has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.lab.kube.apiserver import ApiServer

CREATED = "2026-01-01T00:00:00Z"


def service(name: str, *ips: str, ports: Sequence[Mapping[str, Any]] = (), created: str = CREATED, **spec: Any) -> dict[str, Any]:
    """A Service of the namespace `default`; port 80 over TCP unless some are given. `status` of `spec` is its status."""
    status = spec.pop("status", {})
    ports = list(ports) or [{"port": 80, "protocol": "TCP", "targetPort": 8080}]
    said = {"type": "ClusterIP", "clusterIP": ips[0] if ips else "None", "clusterIPs": list(ips) or ["None"], "ports": ports}
    metadata = {"namespace": "default", "name": name, "uid": f"uid-{name}", "creationTimestamp": created}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": said | spec, "status": status}


def endpoint(address: str, node: str = "n1", **conditions: Any) -> dict[str, Any]:
    return {"addresses": [address], "conditions": {"ready": True} | conditions, "nodeName": node}


def endpoint_slice(
    name: str, of: str, *endpoints: Mapping[str, Any], ports: Sequence[Mapping[str, Any]] = (), kind: str = "IPv4"
) -> dict[str, Any]:
    """A slice of the Service `of` with these endpoints; port 8080 over TCP unless some are given."""
    metadata = {"namespace": "default", "name": name, "labels": {"kubernetes.io/service-name": of}}
    ports = list(ports) or [{"name": "", "port": 8080, "protocol": "TCP"}]
    said = {"addressType": kind, "endpoints": list(endpoints), "ports": ports}
    return {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata, **said}


def put(api: ApiServer, *things: Mapping[str, Any]) -> None:
    """Create these, or replace them. The server gives UIDs and times."""
    for each in things:
        metadata = {key: value for key, value in each["metadata"].items() if key not in ("uid", "creationTimestamp")}
        api.add({**each, "metadata": metadata}, "default")
