"""Objects of a cluster for tests: Nodes, what they report, and what people write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.lab.kube.network_objects import VERSION


def node(name: str, address: str = "") -> dict[str, Any]:
    addresses = [{"type": "Hostname", "address": name}, *([{"type": "InternalIP", "address": address}] if address else [])]
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {"addresses": addresses}}


def state(name: str, specs: Sequence[Mapping[str, Any]] = (), subnets: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    return ours("NodeState", name) | {"status": {"addresses": [], "specs": list(specs), "subnets": list(subnets)}}


def spec(name: str = "net1", *, ready: bool = True, message: str = "", source: str = "objects") -> dict[str, Any]:
    """What became of a provider network on a node."""
    about = {"kind": "provider-network", "name": name, "source": source, "ready": ready}
    return {**about, "reason": "Ready" if ready else "CannotBeMet", **({"message": message} if message else {})}


def ours(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": VERSION, "kind": kind, "metadata": {"name": name}, **({"spec": spec} if spec else {})}


def ip(name: str, subnet: str, on: str, v4: str = "", v6: str = "") -> dict[str, Any]:
    addresses = {key: value for key, value in (("v4IpAddress", v4), ("v6IpAddress", v6)) if value}
    return ours("IP", name, podName=name, namespace="default", subnet=subnet, nodeName=on, **addresses)
