"""What the pods' annotations say of an interface; ADD waits for them where the network says that they have the addresses.

A controller writes them when it likes, or never. A wait is bounded by the verb's deadline, asks nothing in a loop, and only so
many ADDs wait at once: tenants write networks and pods, and an agent has other pods to serve.
"""

from __future__ import annotations

from threading import BoundedSemaphore
from typing import TYPE_CHECKING, Final

from userspace_cni.base.errors import ContainerGone, InvalidConfig, Unavailable
from userspace_cni.base.notices import ANNOTATION_IGNORED, give
from userspace_cni.cni.addressing import Noted, missing, read_noted
from userspace_cni.cni.annotations import PodInterface

if TYPE_CHECKING:
    from userspace_cni.attachment.facts import Pod
    from userspace_cni.base.deadline import Deadline
    from userspace_cni.base.settings import Settings
    from userspace_cni.cni.request import Request
    from userspace_cni.node.local import LocalNode

WAITING_MAX: Final = 64
"""ADDs that wait at once: a quarter of an agent's threads."""
_SPARE_S: Final = 5.0
"""What is left of the deadline for the ADD itself."""

_waiting: Final = BoundedSemaphore(WAITING_MAX)


def interface_of(request: Request, settings: Settings) -> PodInterface:
    """The interface of a call, as annotations know it."""
    environment = request.environment
    return PodInterface(request.network.name, environment.pod_namespace, environment.ifname, settings.kubeovn_annotations)


def noted_of(pod: Pod, interface: PodInterface) -> Noted:
    """What the pod's annotations say of the interface; the pod is told what is not done so. Raises InvalidConfig."""
    noted = read_noted(pod.annotations, interface)
    if noted.internal:
        name, value = interface.kubeovn(pod.annotations, "pod_nic_type")
        give(
            ANNOTATION_IGNORED,
            f"annotation '{name}' is {value!r}: {interface.ifname} is a veth, since ovs-vswitchd would make an internal port "
            "anew when it restarts, and the pod would keep a dead one",
        )
    return noted


def await_addresses(node: LocalNode, pod: Pod | None, interface: PodInterface, kubeconfig: str, deadline: Deadline) -> Pod:
    """The pod once its annotations have the interface's addresses.

    `pod`: as it is known by now, with its UID, None for none; `kubeconfig`: the credentials by which, "" for our own.

    Raises Unavailable naming what is missing, ContainerGone for a pod that goes meanwhile, NoteRefused for an account that may
    not watch, and InvalidConfig where no annotation could ever come or one cannot be meant.
    """
    asked = "key 'addresses' is 'annotations'"
    if not interface.kubeovn_read:
        raise InvalidConfig(
            f"{asked}: this node reads no addresses there", "set kubeovn_annotations to true, or give the network an 'ipam'"
        )
    if pod is None:
        raise InvalidConfig(
            f"{asked}: there is no pod of an API server",
            "it needs K8S_POD_NAMESPACE and K8S_POD_NAME in CNI_ARGS, and credentials: key or setting kubeconfig",
        )
    if not missing(pod.annotations, interface):
        return pod
    if not _waiting.acquire(blocking=False):
        raise Unavailable(
            f"{asked}: {WAITING_MAX} ADDs wait for their pods' addresses already",
            f"pod {pod.namespace}/{pod.name} lacks {missing(pod.annotations, interface)}",
        )
    try:
        found = _follow(node, pod, interface, kubeconfig, deadline)
    finally:
        _waiting.release()
    if found is None or (found.deleting and missing(found.annotations, interface)):
        raise ContainerGone(f"pod {pod.namespace}/{pod.name} was deleted before it had an address", "nothing was done")
    lacking = missing(found.annotations, interface)
    if lacking:
        raise Unavailable(
            f"{asked}: pod {pod.namespace}/{pod.name} has no annotation {lacking} yet",
            f"{interface.ifname} waited for it until most of deadline_s had passed: does the controller run that writes it?",
        )
    return found


def _follow(node: LocalNode, pod: Pod, interface: PodInterface, kubeconfig: str, deadline: Deadline) -> Pod | None:
    """The pod when it has what it lacks, or as it is when the time is over; by the watch of the node's pods if that knows it."""

    def ready(known: Pod) -> bool:
        return not missing(known.annotations, interface)

    left = deadline.remaining()
    limit = deadline.within(max(left - _SPARE_S, left / 2))
    if node.watch and not kubeconfig and node.watch.view(pod.namespace, pod.name, pod.uid):
        return node.watch.wait_for(pod, ready, limit)
    from userspace_cni.kube.following import follow

    return follow(node.clients.of(kubeconfig), pod, ready, limit)
