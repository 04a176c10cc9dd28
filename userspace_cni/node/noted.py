"""What the pods' annotations say of an interface; ADD waits for them where the network says that they have the addresses.

A controller writes them when it likes, or never. So an ADD waits before it begins, with nothing done and no lock held, for most
of the verb's deadline, and asks nothing in a loop. Where it waits is decided by who serves it: a process of one call has
nothing else to do, an agent has other pods to serve.
"""

from __future__ import annotations

from threading import Thread
from typing import TYPE_CHECKING, Final

from userspace_cni.base.errors import ContainerGone, InvalidConfig, Unavailable, UserspaceError
from userspace_cni.base.notices import ANNOTATION_IGNORED, give
from userspace_cni.base.threads import start
from userspace_cni.cni.addressing import Noted, missing, read_noted
from userspace_cni.cni.annotations import PodInterface

if TYPE_CHECKING:
    from collections.abc import Callable

    from userspace_cni.attachment.facts import Pod
    from userspace_cni.base.deadline import Deadline
    from userspace_cni.base.settings import Settings
    from userspace_cni.cni.call import Awaited
    from userspace_cni.cni.request import Request
    from userspace_cni.kube.client import KubeClient
    from userspace_cni.kube.watch import PodWatch
    from userspace_cni.node.local import LocalNode

_SPARE_S: Final = 5.0
"""What is left of the deadline for the ADD itself."""
_ASKED: Final = "key 'addresses' is 'annotations'"


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


def awaited_addresses(
    node: LocalNode, pod: Pod | None, interface: PodInterface, kubeconfig: str, deadline: Deadline
) -> Awaited | None:
    """What the ADD has to wait for until the pod's annotations have the interface's addresses; None when they are there.

    `pod`: as it is known by now, with its UID, None for none; `kubeconfig`: the credentials by which, "" for our own. Raises
    InvalidConfig where no annotation could ever come, or one cannot be meant.
    """
    if not interface.kubeovn_read:
        raise InvalidConfig(
            f"{_ASKED}: this node reads no addresses there", "set kubeovn_annotations to true, or give the network an 'ipam'"
        )
    known = _require_pod(pod)
    if known.deleting or not missing(known.annotations, interface):
        return None
    left = deadline.remaining()
    limit = deadline.within(max(left - _SPARE_S, left / 2))
    if node.watch and not kubeconfig and node.watch.view(known.namespace, known.name, known.uid):
        return _Watched(known, interface, limit, node.watch)
    return _Followed(known, interface, limit, node.clients.of(kubeconfig))


def require_addresses(pod: Pod | None, interface: PodInterface) -> None:
    """Raise unless the annotations of the pod, as it is known now, have the interface's addresses.

    Unavailable names what is missing; ContainerGone for a pod that is being deleted; InvalidConfig as `awaited_addresses`.
    """
    known = _require_pod(pod)
    lacking = missing(known.annotations, interface)
    if lacking and known.deleting:
        raise ContainerGone(f"pod {known.namespace}/{known.name} was deleted before it had an address", "nothing was done")
    if lacking:
        raise Unavailable(
            f"{_ASKED}: pod {known.namespace}/{known.name} has no annotation {lacking} yet",
            f"{interface.ifname} waited for it until most of deadline_s had passed: does the controller run that writes it?",
        )


def _require_pod(pod: Pod | None) -> Pod:
    if pod is None:
        raise InvalidConfig(
            f"{_ASKED}: there is no pod of an API server",
            "it needs K8S_POD_NAMESPACE and K8S_POD_NAME in CNI_ARGS, and credentials: key or setting kubeconfig",
        )
    return pod


class _Lacking:
    """The annotations that a pod lacks: an `Awaited`."""

    def __init__(self, pod: Pod, interface: PodInterface, until: Deadline) -> None:
        self.pod = pod.namespace, pod.name
        self.until = until
        self.text = f"pod {pod.namespace}/{pod.name} lacks {missing(pod.annotations, interface)}"
        self._known = pod
        self._interface = interface

    def _ready(self, pod: Pod) -> bool:
        """Whether the pod has what it lacked; what cannot be meant is for the ADD to refuse."""
        try:
            return pod.deleting or not missing(pod.annotations, self._interface)
        except InvalidConfig:
            return True


class _Watched(_Lacking):
    """Of a pod that the watch of the node's pods knows, which tells of its changes."""

    runs = False

    def __init__(self, pod: Pod, interface: PodInterface, until: Deadline, watch: PodWatch) -> None:
        super().__init__(pod, interface, until)
        self._watch = watch

    def begin(self, changed: Callable[[], None]) -> None:
        """Nothing has to be begun: the watch runs."""

    def over(self) -> bool:
        """Whether the pod has what it lacked, or is not known any more."""
        view = self._watch.view(*self.pod, self._known.uid)
        return view is None or self._ready(view)

    def settle(self) -> None:
        """Do nothing: what is known of the pod is known to who asks for it."""


class _Followed(_Lacking):
    """Of a pod that is followed with credentials of its own: here, or in the background by a thread of its own."""

    def __init__(self, pod: Pod, interface: PodInterface, until: Deadline, client: KubeClient) -> None:
        super().__init__(pod, interface, until)
        self._client = client
        self._thread: Thread | None = None
        self._ended = False
        self._error: UserspaceError | None = None

    def begin(self, changed: Callable[[], None]) -> None:
        """Follow the pod in the background."""

        def run() -> None:
            try:
                self._follow()
            finally:
                self._ended = True
                changed()

        self._thread = Thread(target=run, name="following-pod", daemon=True)
        start(self._thread, "following the pod")

    def over(self) -> bool:
        """Whether following has ended."""
        return self._ended

    @property
    def runs(self) -> bool:
        """Whether the thread is there."""
        return self._thread is not None and not self._ended

    def settle(self) -> None:
        """Follow the pod here, or tell why it could not be followed."""
        if self._thread is None:
            self._follow()
        if self._error:
            raise self._error

    def _follow(self) -> None:
        from userspace_cni.kube.following import follow

        try:
            follow(self._client, self._known, self._ready, self.until)
        except UserspaceError as error:
            self._error = error
