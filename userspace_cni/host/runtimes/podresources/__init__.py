"""Asks the kubelet which devices it has given to a pod: its pod-resources API, as it is since Kubernetes 1.20.

The kubelet is the only one that knows. A network says which device it wants, and its author is a tenant: without the kubelet's
word a pod could name another pod's device. So an answer that does not come is an error, and never "no devices". Nothing here may
wait longer than ASK_S.

`v1.proto` is our own and holds only what is asked here; package, service and method names, field numbers and types are the
kubelet's (k8s.io/kubelet, pkg/apis/podresources/v1). `v1_pb2` is made of it, never edited, at the top of the repository:

    .venv/bin/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. userspace_cni/host/runtimes/podresources/*.proto
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from userspace_cni.base.deadline import Deadline
from userspace_cni.host.runtimes.unix_rpc import GrpcConnection

if TYPE_CHECKING:
    from userspace_cni.host.runtimes.podresources.v1_pb2 import ListPodResourcesResponse, PodResources

ASK_S: Final = 2.0
"""The kubelet answers from its memory, in milliseconds."""
_SOCKET: Final = "pod-resources/kubelet.sock"
_ANSWER_MAX: Final = 64 << 20
"""A node's pods with all their devices; gRPC's own bound, 4 MiB, is 40,000 devices with long names."""


def devices_of(namespace: str, pod: str, kubelet_dir: str, deadline: Deadline) -> Mapping[str, tuple[str, ...]]:
    """The IDs of the devices of that pod's containers, by resource name, in no order.

    `kubelet_dir`: the kubelet's root directory as this process sees it. A pod that the kubelet does not know has none. Raises
    Unavailable when it does not answer.
    """
    answer = _list(f"asking the kubelet for the devices of pod {namespace}/{pod}", kubelet_dir, deadline)
    return _by_resource(known for known in answer.pod_resources if (known.namespace, known.name) == (namespace, pod))


def given_devices(kubelet_dir: str, deadline: Deadline) -> Mapping[str, tuple[str, ...]]:
    """The IDs of the devices of all pods, by resource name, in no order. Raises Unavailable when the kubelet does not answer."""
    return _by_resource(_list("asking the kubelet for the devices of its pods", kubelet_dir, deadline).pod_resources)


def _list(what: str, kubelet_dir: str, deadline: Deadline) -> ListPodResourcesResponse:
    from userspace_cni.host.runtimes.podresources import v1_pb2

    path = f"{kubelet_dir}/{_SOCKET}"
    seconds = min(ASK_S, deadline.require(what))
    details = f"its pod-resources API is at {path}: does the kubelet run? is the setting kubelet_dir right?"
    with GrpcConnection(path, _ANSWER_MAX, details) as kubelet:
        request = v1_pb2.ListPodResourcesRequest()
        return kubelet.ask(what, "/v1.PodResourcesLister/List", request, v1_pb2.ListPodResourcesResponse, seconds)


def _by_resource(pods: Iterable[PodResources]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for devices in (each for pod in pods for container in pod.containers for each in container.devices):
        found[devices.resource_name] = (*found.get(devices.resource_name, ()), *devices.device_ids)
    return found
