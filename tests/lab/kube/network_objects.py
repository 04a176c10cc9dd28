"""Objects of userspace-cni.io on the API server for tests, as users and the controller write them."""

from __future__ import annotations

from typing import Any, Final

from tests.lab.kube.apiserver import ApiServer

GROUP: Final = "userspace-cni.io"
VERSION: Final = f"{GROUP}/v1alpha1"
IPS: Final = f"ips.{GROUP}"
SUBNETS: Final = f"subnets.{GROUP}"


def add(api: ApiServer, kind: str, name: str, **parts: Any) -> None:
    """Create the object, or replace it; `parts`: `spec`, `status`, `labels`."""
    metadata = {"name": name, "labels": parts.pop("labels", {})}
    api.add({"apiVersion": VERSION, "kind": kind, "metadata": metadata, **parts})


def ips(api: ApiServer) -> dict[str, dict[str, Any]]:
    """The `spec` of each IP object, by name."""
    store = api.objects(IPS)
    return {name: store.read("", name)["spec"] for _, name in store.names()}
