"""Reads a ResourceClaim: which of its devices are ours, with which parameters, and which pods use it. Strict and pure.

The API server has checked the object, and a tenant has written a part of it. Only what was allocated counts: the parameters of
the class and of the claim are repeated there, as they were then.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from userspace_cni.attachment.claims import DEVICES_MAX
from userspace_cni.base.errors import InvalidConfig, Undecodable
from userspace_cni.cni.json_values import json_type, read_typed

POD_CLAIM: Final = "resource.kubernetes.io/pod-claim-name"
"""The annotation of a claim that was made of a template: how its pod calls it."""
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""What a pod can call a claim. The annotation is not checked by the API server, and becomes a part of paths in containers."""
_SOURCES: Final = ("FromClass", "FromClaim")
"""In the order in which they count."""


@dataclass(frozen=True)
class Parameters:
    """One object of parameters of ours. `source`: the class's, or the claim's."""

    source: str
    value: Mapping[str, Any]


@dataclass(frozen=True)
class AllocatedDevice:
    """A device of ours. `number`: which of those of the claim, in the order of the allocation, which never changes.

    `request`: with its subrequest, as "request/subrequest". `share`: which allocation of a device that several claims have.
    `admin`: it was allocated to look at a device that others may have (adminAccess), and takes none of its room.
    """

    number: int
    request: str
    pool: str
    device: str
    share: str
    parameters: tuple[Parameters, ...]
    admin: bool = False

    @property
    def said(self) -> dict[str, Any]:
        """What decides about the device, to be recorded. The parameters stand there as a digest: a tenant may write hundreds of
        KiB of them, and each device's record has those of all devices of its request."""
        text = json.dumps([[each.source, each.value] for each in self.parameters], sort_keys=True)
        return {"number": self.number, "device": self.device, "parameters": hashlib.sha256(text.encode()).hexdigest()}


@dataclass(frozen=True)
class ClaimConsumer:
    """Who may use a claim. `resource`: "pods", or another resource's plural."""

    resource: str
    name: str
    uid: str


@dataclass(frozen=True)
class SeenClaim:
    """A claim. `pod_claim`: as POD_CLAIM says, "" for none; `devices`: those of ours, () before it is allocated."""

    namespace: str
    name: str
    uid: str
    version: str
    pod_claim: str
    consumers: tuple[ClaimConsumer, ...]
    devices: tuple[AllocatedDevice, ...]
    statuses: tuple[Mapping[str, Any], ...] = ()
    """What `status.devices` says of ours."""

    def is_of(self, pool: str) -> bool:
        """Whether it has a device of that pool, which is a node: the same claim may be another pod's on another node later."""
        return any(each.pool == pool for each in self.devices)


def read_claim(raw: Mapping[str, Any], driver: str) -> SeenClaim:
    """Read the object. Raises Undecodable or InvalidConfig for one that the API server would not have taken."""
    metadata = read_typed(raw, "metadata", dict, {})
    status = read_typed(raw, "status", dict, {})
    allocation = read_typed(status, "allocation", dict, {}, path="status.")
    devices = read_typed(allocation, "devices", dict, {}, path="status.allocation.")
    annotations = read_typed(metadata, "annotations", dict, {}, path="metadata.")
    name: str = read_typed(metadata, "name", str, "", path="metadata.")
    results = _objects(devices, "results", "status.allocation.devices.")
    ours = [each for each in results if each.get("driver") == driver]
    if len(ours) > DEVICES_MAX:
        raise InvalidConfig(f"claim {name} has {len(ours)} devices of {driver}", f"at most {DEVICES_MAX} are prepared")
    configs = [each for each in _objects(devices, "config", "status.allocation.devices.") if _driver_of(each) == driver]
    return SeenClaim(
        namespace=read_typed(metadata, "namespace", str, "", path="metadata."),
        name=name,
        uid=read_typed(metadata, "uid", str, "", path="metadata."),
        version=read_typed(metadata, "resourceVersion", str, "", path="metadata."),
        pod_claim=_pod_claim(name, read_typed(annotations, POD_CLAIM, str, "", path="metadata.annotations.")),
        consumers=tuple(
            ClaimConsumer(*(read_typed(each, key, str, "", path="status.reservedFor.") for key in ("resource", "name", "uid")))
            for each in _objects(status, "reservedFor", "status.")
        ),
        devices=tuple(_device(number, each, configs) for number, each in enumerate(ours)),
        statuses=tuple(each for each in _objects(status, "devices", "status.") if each.get("driver") == driver),
    )


def _pod_claim(claim: str, said: str) -> str:
    if said and not _LABEL.fullmatch(said):
        raise InvalidConfig(
            f"annotation {POD_CLAIM} of claim {claim} is {said[:80]!r}, which is no name of a claim in a pod",
            "Kubernetes writes it where it makes a claim of a template: remove it from one that you wrote yourself",
        )
    return said


def _device(number: int, result: Mapping[str, Any], configs: Sequence[Mapping[str, Any]]) -> AllocatedDevice:
    path = "status.allocation.devices.results."
    request, pool, device, share = (
        read_typed(result, key, str, "", path=path) for key in ("request", "pool", "device", "shareID")
    )
    found = [_parameters(each) for each in configs if _is_for(each, request)]
    ordered = sorted(found, key=lambda each: _SOURCES.index(each.source))
    admin: bool = read_typed(result, "adminAccess", bool, False, path=path)
    return AllocatedDevice(number, request, pool, device, share, tuple(ordered), admin)


def _parameters(config: Mapping[str, Any]) -> Parameters:
    source: str = read_typed(config, "source", str, "", path="status.allocation.devices.config.")
    if source not in _SOURCES:
        raise InvalidConfig(f"parameters of the claim are from {source!r}", f"known are {' and '.join(_SOURCES)}")
    return Parameters(source, read_typed(config["opaque"], "parameters", dict, {}, path="opaque."))


def _driver_of(config: Mapping[str, Any]) -> object:
    opaque = config.get("opaque")
    return opaque.get("driver") if isinstance(opaque, dict) else None


def _is_for(config: Mapping[str, Any], request: str) -> bool:
    """Whether the parameters are for a request: they name none, it, or the request of which it is a subrequest."""
    requests = config.get("requests") or ()
    return not requests or request in requests or request.partition("/")[0] in requests


def _objects(raw: Mapping[str, Any], key: str, path: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = read_typed(raw, key, list, [], path=path)
    for item in items:
        if not isinstance(item, dict):
            raise Undecodable(f"key '{path}{key}' holds {json_type(item)}", "it must hold objects")
    return items
