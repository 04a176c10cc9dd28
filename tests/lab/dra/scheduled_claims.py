"""Claims as users write them and as the scheduler allocates them: with devices, and reserved for a pod."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.lab.kube.apiserver import ApiServer
from tests.lab.kube.objectstore import Write
from tests.lab.kube.pods import Pod
from tests.lab.kube.resource_definitions import CLAIMS, GROUP, define_resources
from userspace_cni.dra.claim_objects import POD_CLAIM
from userspace_cni.dra.device_names import DRIVER

VERSION = f"{GROUP}/v1"


@dataclass(frozen=True)
class Given:
    """A request of a claim, and the devices that the scheduler gives to it. `shares`: a share of each for a device that several
    claims may have.
    """

    devices: Sequence[str]
    request: str = "net"
    shares: Sequence[str] = ()

    def results(self, node: str) -> list[dict[str, Any]]:
        about = {"request": self.request, "driver": DRIVER, "pool": node}
        shares = [{"shareID": each} for each in self.shares] or [{} for _ in self.devices]
        return [{**about, "device": device, **share} for device, share in zip(self.devices, shares, strict=True)]


@dataclass(frozen=True)
class Scheduler:
    """The part of the scheduler, and of users, for claims of one node on this server."""

    api: ApiServer
    node: str = "n1"

    def __post_init__(self) -> None:
        define_resources(self.api)

    def claim(self, name: str, pod: Pod, *given: Given, parameters: Mapping[str, Any] | None = None, pod_claim: str = "") -> str:
        """Make a claim of these devices, which the pod may use; its UID. `parameters`: what it says to the driver.

        `pod_claim`: it is made of a template, and the pod calls it so.
        """
        claim = claim_object(name, pod, given, self.node, parameters)
        if pod_claim:
            claim["metadata"]["annotations"] = {POD_CLAIM: pod_claim}
        return str(self.api.add(claim, pod.namespace)["metadata"]["uid"])

    def reserve(self, name: str, *pods: Pod) -> None:
        """Let exactly these pods use the claim."""
        patch = {"status": {"reservedFor": [_consumer(each) for each in pods]}}
        self.api.objects(CLAIMS).patch(pods[0].namespace, name, patch, Write("kube-scheduler", "status"))

    def read(self, namespace: str, name: str) -> dict[str, Any]:
        """The claim as it is now; KeyError without one."""
        return self.api.objects(CLAIMS).get(namespace, name)

    def delete(self, name: str, namespace: str = "default") -> None:
        """Delete the claim at once, finalizers or not, as when a user removed them."""
        self.api.objects(CLAIMS).remove(namespace, name)


def claim_object(
    name: str, pod: Pod, given: Sequence[Given], node: str, parameters: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The claim, allocated on this node."""
    requests = [{"name": each.request, "exactly": {"deviceClassName": DRIVER, "count": len(each.devices)}} for each in given]
    config = [] if parameters is None else [{"opaque": {"driver": DRIVER, "parameters": dict(parameters)}}]
    results = [result for each in given for result in each.results(node)]
    allocated = {"results": results, "config": [{"source": "FromClaim", **each} for each in config]}
    return {
        "apiVersion": VERSION,
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": requests, "config": config}},
        "status": {"allocation": {"devices": allocated}, "reservedFor": [_consumer(pod)]},
    }


def _consumer(pod: Pod) -> dict[str, str]:
    return {"resource": "pods", "name": pod.name, "uid": pod.uid}
