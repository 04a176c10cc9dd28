"""ResourceClaims as the API server has them, in short."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from userspace_cni.dra.claim_parameters import API_VERSION, KIND
from userspace_cni.dra.device_names import DRIVER


def config(source: str, requests: Sequence[str] = (), driver: str = DRIVER, **parameters: Any) -> dict[str, Any]:
    """Parameters in an allocation."""
    value = {"apiVersion": API_VERSION, "kind": KIND, **parameters}
    return {"source": source, "requests": list(requests), "opaque": {"driver": driver, "parameters": value}}


def result(request: str = "net", device: str = "br0", driver: str = DRIVER, **more: Any) -> dict[str, Any]:
    return {"request": request, "driver": driver, "pool": "n1", "device": device} | more


def claim(
    *results: Mapping[str, Any],
    configs: Sequence[Mapping[str, Any]] = (),
    pods: Sequence[str] = ("app",),
    devices: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """The claim `blue/c` of UID u1, for these pods."""
    return {
        "metadata": {"name": "c", "namespace": "blue", "uid": "u1", "resourceVersion": "7"},
        "status": {
            "allocation": {"devices": {"results": list(results), "config": list(configs)}},
            "reservedFor": [{"resource": "pods", "name": name, "uid": f"uid-{name}"} for name in pods],
            "devices": list(devices),
        },
    }
