"""What the API server has of a pod for the question why its network does not work, read with this process's own account."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from userspace_cni.attachment.facts import Pod
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.root import HostRoot
from userspace_cni.host.runtimes.cni_cache import CniCache
from userspace_cni.kube.pod_requests import KubeClient, annotations_of, is_named, view_of

__all__ = ["NETWORKS", "SeenContainer", "SeenPod", "is_named", "list_sandboxes", "see_pod"]
NETWORKS: Final = "k8s.v1.cni.cncf.io/networks"
"""The annotation by which a pod asks Multus for networks."""
_CONTAINERS_MAX: Final = 64
_STATES: Final = ("running", "waiting", "terminated")


@dataclass(frozen=True)
class SeenContainer:
    """A container. `state`: `running`, `waiting` or `terminated`, "" while the kubelet has not said; `reason` of that state.
    `exit_code`: of how it ended last, None where it never did."""

    name: str
    state: str
    reason: str = ""
    restarts: int = 0
    exit_code: int | None = None


@dataclass(frozen=True)
class SeenPod:
    """A pod. `node`: "" before it is scheduled; `networks`: what its annotation asks Multus for; `view`: what an ADD reads of
    it."""

    namespace: str
    name: str
    uid: str
    node: str
    phase: str
    networks: str = ""
    lacks_hugepages: bool = False
    deleting: bool = False
    containers: tuple[SeenContainer, ...] = ()
    view: Pod = field(default_factory=Pod)


def see_pod(client: KubeClient, namespace: str, name: str, deadline: Deadline) -> SeenPod | None:
    """The pod, None where there is none of this name. Raises UserspaceError where the server cannot be asked, or refuses."""
    body = client.read(namespace, name, deadline, tries=1)
    if body is None:
        return None
    pod, spec, status = view_of(body), body.get("spec") or {}, body.get("status") or {}
    listed = status.get("containerStatuses")
    statuses = [each for each in listed if isinstance(each, dict)][:_CONTAINERS_MAX] if isinstance(listed, list) else []
    return SeenPod(
        namespace,
        name,
        pod.uid,
        str(spec.get("nodeName") or ""),
        str(status.get("phase") or ""),
        str(annotations_of(body).get(NETWORKS, "")),
        pod.lacks_hugepages,
        pod.deleting,
        tuple(map(_container, statuses)),
        pod,
    )


def list_sandboxes(cache_dir: str, root: HostRoot, name: str) -> tuple[str, ...]:
    """The pods of this name (NAMESPACE/POD) of which the runtime keeps a sandbox here. Raises UserspaceError."""
    found = CniCache(cache_dir, root).sandboxes()
    return tuple(sorted({f"{each.namespace}/{each.name}" for each in found if each.name == name}))


def _container(status: Mapping[str, Any]) -> SeenContainer:
    state = _mapping(status.get("state"))
    name = next((each for each in _STATES if each in state), "")
    ended = [_mapping(each.get("terminated")) for each in (state, _mapping(status.get("lastState")))]
    codes: Sequence[int] = [each["exitCode"] for each in ended if isinstance(each.get("exitCode"), int)]
    reasons = [str(each) for each in (_mapping(state.get(name)).get("reason"), *(each.get("reason") for each in ended)) if each]
    restarts = status.get("restartCount")
    return SeenContainer(
        str(status.get("name") or ""),
        name,
        reasons[0] if reasons else "",
        restarts if isinstance(restarts, int) else 0,
        codes[0] if codes else None,
    )


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
