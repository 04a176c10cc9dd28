"""What the pods' annotations say of an interface; ADD waits for them where the network says that they have the addresses.

A controller writes them when it likes, or never. So an ADD waits before it begins, with nothing done and no lock held, for most
of the verb's deadline, and asks nothing in a loop. Where it waits is decided by who serves it: a process of one call has
nothing else to do, an agent has other pods to serve.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Final

from userspace_cni.base.errors import ContainerGone, InvalidConfig, Unavailable, UserspaceError
from userspace_cni.base.notices import ANNOTATION_IGNORED, give
from userspace_cni.base.threads import start
from userspace_cni.cni.addressing import NotedAddresses, missing, read_noted
from userspace_cni.cni.annotations import Logical, PodInterface

if TYPE_CHECKING:
    from userspace_cni.attachment.facts import Pod
    from userspace_cni.base.deadline import Deadline
    from userspace_cni.base.port_kinds import PortKind
    from userspace_cni.base.settings import Settings
    from userspace_cni.cni.call import Awaited
    from userspace_cni.cni.request import Request
    from userspace_cni.kube.pod_requests import KubeClient
    from userspace_cni.kube.watch import PodWatch

_SPARE_S: Final = 5.0
"""What is left of the deadline for the ADD itself."""
_ASKED: Final = "key 'addresses' is 'annotations'"


Sources = Callable[[], "tuple[PodWatch | None, KubeClient]"]
"""The watch of the node's pods, None where it is not for this pod, and the account by which it is followed elsewhere."""


def interface_of(request: Request, settings: Settings, logical: Logical = "") -> PodInterface:
    environment, read = request.environment, settings.kubeovn_annotations
    return PodInterface(request.network.name, environment.pod_namespace, environment.ifname, read, logical)


def read_addresses(pod: Pod, interface: PodInterface, kind: PortKind) -> NotedAddresses:
    """What the pod's annotations say of the interface; the pod gets an Event about the difference. Raises InvalidConfig.

    `kind`: the port that the network makes.
    """
    noted = read_noted(pod.annotations, interface)
    made = "a vhost-user interface" if kind == "vhostuser" else "a veth"
    if noted.nic_type and noted.nic_type != ("dpdk-port" if kind == "vhostuser" else "veth-pair"):
        name, value = interface.kubeovn(pod.annotations, "pod_nic_type")
        why = "as its network says"
        if value == "internal-port" and kind != "vhostuser":
            why = "since ovs-vswitchd would recreate an internal port when it restarts, and the pod would keep a dead one"
        give(ANNOTATION_IGNORED, f"annotation '{name}' is {value!r}: {interface.ifname} is {made}, {why}")
    return noted


def find_awaited_addresses(sources: Sources, pod: Pod | None, interface: PodInterface, deadline: Deadline) -> Awaited | None:
    """What the ADD has to wait for until the pod's annotations have the interface's addresses; None when they are there.

    `sources`: by what the pod is followed, asked for when it has to be. `pod`: as it is known by now, with its UID, None
    for none. Raises InvalidConfig where no annotation could ever come, or one cannot be meant.
    """
    if not (interface.kubeovn_read or interface.ovn_annotation):
        raise InvalidConfig(
            f"{_ASKED}: this node reads no addresses there", "set kubeovn_annotations to true, or give the network an 'ipam'"
        )
    known = _require_pod(pod)
    if known.deleting or not _lacking(known, interface):
        return None
    left = deadline.remaining()
    limit = deadline.within(max(left - _SPARE_S, left / 2))
    return _MissingAnnotations(known, interface, limit, sources())


def has_enough(pod: Pod, interface: PodInterface) -> bool:
    """Whether there is nothing to wait for in the pod's annotations; what cannot be meant is for the ADD to refuse."""
    try:
        return pod.deleting or not _lacking(pod, interface)
    except InvalidConfig:
        return True


def _lacking(pod: Pod, interface: PodInterface) -> str:
    """As `missing`, after all else that is read of the interface with its addresses. Raises InvalidConfig."""
    interface = interface.judged(pod.annotations)
    read_noted(pod.annotations, interface)
    return missing(pod.annotations, interface)


def require_addresses(pod: Pod | None, interface: PodInterface) -> None:
    """Raise unless the annotations of the pod, as it is known now, have the interface's addresses.

    Unavailable names what is missing; ContainerGone for a pod that is being deleted; InvalidConfig as `find_awaited_addresses`.
    """
    known = _require_pod(pod)
    lacking = missing(known.annotations, interface.judged(known.annotations))
    if lacking and known.deleting:
        raise ContainerGone(f"pod {known.namespace}/{known.name} was deleted before it had an address", "nothing was done")
    if lacking:
        raise Unavailable(
            f"{_ASKED}: pod {known.namespace}/{known.name} has no annotation {lacking} yet",
            f"an ADD waits for it for most of deadline_s: does the controller run that writes it, for {interface.ifname}?",
        )


def _require_pod(pod: Pod | None) -> Pod:
    if pod is None:
        raise InvalidConfig(
            f"{_ASKED}: there is no pod of an API server",
            "it needs K8S_POD_NAMESPACE and K8S_POD_NAME in CNI_ARGS, and credentials: key or setting kubeconfig",
        )
    return pod


class _MissingAnnotations:
    """The annotations that a pod lacks: an `Awaited`.

    `sources`: the watch of the node's pods, None where it is not for this pod, and the account by which the pod is followed
    where the watch keeps nothing of it: here, or in the background by a thread of its own.
    """

    def __init__(self, pod: Pod, interface: PodInterface, until: Deadline, sources: tuple[PodWatch | None, KubeClient]) -> None:
        from userspace_cni.kube.following import FollowedPod

        self.pod = pod.namespace, pod.name
        self.until = until
        self.text = f"pod {pod.namespace}/{pod.name} lacks {missing(pod.annotations, interface.judged(pod.annotations))}"
        self._uid = pod.uid
        self._ready = partial(has_enough, interface=interface)
        self._watch, client = sources
        self._following = FollowedPod(client, pod, self._ready, until)
        self._changed: Callable[[], None] | None = None
        self._thread: Thread | None = None
        self._ended = False
        self._error: UserspaceError | None = None

    def begin(self, changed: Callable[[], None]) -> None:
        """Follow the pod in the background, unless the watch tells of it."""
        self._changed = changed
        if not self._view():
            self._follow_behind(changed)

    def over(self) -> bool:
        """Whether the pod has what it lacked, or cannot be followed any more. From then on it is followed if it must be."""
        view = None if self._ended or self._thread else self._view()
        if view:
            return self._ready(view)
        if not (self._ended or self._thread or self._changed is None):
            try:
                self._follow_behind(self._changed)
            except UserspaceError as error:
                self._error = error
                self._ended = True
        return self._ended

    def end(self) -> None:
        self._following.end()

    @property
    def runs(self) -> bool:
        return self._thread is not None and not self._ended

    def settle(self) -> None:
        """Follow the pod here, or tell why it could not be followed."""
        if self._changed is None:
            self._follow()
        if self._error:
            raise self._error

    def _view(self) -> Pod | None:
        """The pod as the watch keeps it; it keeps nothing of one that has too much under our keys."""
        return self._watch.view(*self.pod, self._uid) if self._watch else None

    def _follow_behind(self, changed: Callable[[], None]) -> None:
        def run() -> None:
            try:
                self._follow()
            finally:
                self._ended = True
                changed()

        thread = Thread(target=run, name="following-pod", daemon=True)
        start(thread, "following the pod")
        self._thread = thread

    def _follow(self) -> None:
        try:
            self._following.run()
        except UserspaceError as error:
            self._error = error
