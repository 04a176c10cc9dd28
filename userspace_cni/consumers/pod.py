"""A pod's application as the consumer of an interface: a note describes everything to it, and it may be in any pod.

Its directory is found by the rules of the plugin that this one replaces, in this order: the pod volume of the configured name
(an emptyDir, found by the pod's UID without asking the API; or a hostPath, known from the pod's spec), the directory of a device
that the kubelet gave to the pod (`node.devices`), `sharedDir`, the default directory, which the pod sees only if a hostPath of it
has that directory. A further kind of place is found before that last one; only a place that is `unseen` can be refused.

We never own a directory that was there before. The author of a pod's spec, and of `sharedDir` in a network, is a user of a
namespace, and we are root: so a directory that they name is made only in one that the administrator allows. The kubelet makes a
hostPath of type DirectoryOrCreate before ADD; one without a type is missing then, and the runtime makes it too late.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from userspace_cni.attachment.facts import Allocation, Pod, SocketPlace, Volume
from userspace_cni.base.errors import DirectoryRefused, InvalidConfig
from userspace_cni.base.log import say
from userspace_cni.base.root import HostRoot
from userspace_cni.base.settings import Settings
from userspace_cni.base.tenancy import Bounds
from userspace_cni.cni.options import Access, Role, Warn
from userspace_cni.cni.request import Request
from userspace_cni.consumers import pod_volumes
from userspace_cni.pod import document, mac

_SHOWN_MAX: Final = 8
"""Names of volumes in a message."""


class PodConsumer:
    """The consumer in pods, with the former plugin's terms: either side may make the socket, by default OVS."""

    default_role: Role = "server"
    reads_note = True
    needs_hugepages = True
    naming_remedy = "give 'host.vhost.socketfile'"

    def check(self, top: Mapping[str, Any], vhost: Mapping[str, Any], warn: Warn) -> None:
        """Accept every key of a network."""

    def access(self, access: Access) -> Access:
        """The network's access, unchanged: existing directories are left as they are."""
        return access

    def find_place(self, pod: Pod, container_id: str, shared_dir: str, settings: Settings, root: HostRoot) -> SocketPlace:
        """The directory for the pod's sockets, as the host calls it.

        Raises DirectoryRefused for a volume of the pod's spec that the node does not have, InvalidConfig for a `sharedDir` that
        is out of bounds.
        """
        if pod.uid and root.is_directory(pod_volumes.empty_dir(settings, pod.uid, settings.shared_volume)):
            return _empty_dir_place(settings, pod.uid)
        volume = _shared_volume(pod, settings)
        if volume and volume.kind == "emptyDir":
            raise DirectoryRefused(
                f"the pod's emptyDir '{volume.name}' is not at {pod_volumes.empty_dir(settings, pod.uid, volume.name)}",
                "the kubelet makes it if a container mounts it; else see the setting kubelet_dir, or the kubelet's volume errors",
            )
        if volume and volume.kind == "hostPath":
            return _host_path_place(volume, settings.bounds(pod.namespace), root)
        expected = pod_volumes.pod_directory(settings, pod.uid)
        if pod.uid and not root.is_directory(expected):
            say("warning", "the kubelet's directory of this pod is not where it should be", expected=expected)
        name, bounds = container_id[:12], settings.bounds(pod.namespace)
        if shared_dir and bounds:
            return _place_within(shared_dir, bounds, name, root)
        base = shared_dir.rstrip("/") or settings.default_shared_dir
        unseen = "" if shared_dir or _sees(pod, base, root) else _why_unseen(pod, settings)
        return SocketPlace(f"{base}/{name}", trusted=base, create=True, own=False, unseen=unseen)

    def takes_device(self, pod: Pod, settings: Settings, root: HostRoot) -> bool:
        """Where the pod has no volume for its sockets, an emptyDir or a hostPath of the configured name."""
        volume = _shared_volume(pod, settings)
        known = volume is not None and volume.kind in ("emptyDir", "hostPath")
        return not known and not (pod.uid and root.is_directory(pod_volumes.empty_dir(settings, pod.uid, settings.shared_volume)))

    def mapped_dir(self, pod: Pod, settings: Settings) -> str:
        """The last mount of the shared volume, else upstream's default."""
        mounts = pod.mounts.get(settings.shared_volume, ())
        try:
            return document.mapped_dir_value(mounts[-1]) if mounts else document.DEFAULT_MAPPED_DIR
        except document.DocumentError as error:
            where = f"the volumeMount named {settings.shared_volume}"
            raise InvalidConfig(f"pod {pod.namespace}/{pod.name}: {error}", where) from None

    def check_allocation(self, allocation: Allocation) -> None:
        """Accept either role."""

    def socket_file(self, ifname: str) -> str:  # noqa: ARG002
        """Not derived: a note tells the application."""
        return ""

    def derive_mac(self, request: Request, pod: Pod) -> str:  # noqa: ARG002
        """A MAC of network, container and interface."""
        return mac.derive_mac(request.network.name, request.environment.container_id, request.environment.ifname)

    def logical_owner(self, pod: Pod) -> tuple[str, str]:
        return pod.name, pod.api_uid or pod.uid

    def marks(self, pod: Pod) -> Mapping[str, str]:  # noqa: ARG002
        return {}


def _shared_volume(pod: Pod, settings: Settings) -> Volume | None:
    return next((volume for volume in pod.volumes if volume.name == settings.shared_volume), None)


def _sees(pod: Pod, directory: str, root: HostRoot) -> bool:
    """Whether a hostPath of the pod, whatever its name, has the directory in it."""
    path = root.resolve(directory)
    return any(_is_in(path, root.resolve(volume.path).rstrip("/")) for volume in pod.volumes if volume.path)


def _why_unseen(pod: Pod, settings: Settings) -> str:
    volume = _shared_volume(pod, settings)
    if volume:
        return f"its volume '{volume.name}' is of kind '{volume.kind}', neither an emptyDir nor a hostPath, and is not used"
    others = ", ".join(volume.name for volume in pod.volumes[:_SHOWN_MAX])
    return f"it has no volume '{settings.shared_volume}'" + (f" (but {others})" if others else "")


def _empty_dir_place(settings: Settings, uid: str) -> SocketPlace:
    """The emptyDir: every user of the pod, or its fsGroup, may write in it, so no network has to name an owner."""
    path = pod_volumes.empty_dir(settings, uid, settings.shared_volume)
    return SocketPlace(path, trusted=settings.kubelet_dir, create=False, own=False, mount_name=uid)


def _host_path_place(volume: Volume, bounds: Bounds | None, root: HostRoot) -> SocketPlace:
    """The hostPath with its links resolved once; later every component must still be the same directory.

    In an allowed directory that is there it is made when missing, with its last component alone: what is between would stay.
    """
    path = root.resolve(volume.path).rstrip("/") or "/"
    allowed = _allowed(path, bounds, root) if bounds else ""
    if allowed not in ("", path) and root.is_directory(path.rpartition("/")[0] or "/"):
        return SocketPlace(path, trusted=allowed, create=True, own=False)
    if not root.is_directory(path):
        where = f"below {', '.join(bounds.directories)} ({bounds.said_by})" if bounds and bounds.directories else "nowhere"
        raise DirectoryRefused(
            f"the pod's hostPath '{volume.name}', {volume.path}, is not a directory",
            f"write `type: DirectoryOrCreate` beside its path, and the kubelet makes it before ADD; without, it is made {where}, "
            "and the directory above it has to be there",
        )
    return SocketPlace(path, trusted="/", create=False, own=False)


def _place_within(shared_dir: str, bounds: Bounds, name: str, root: HostRoot) -> SocketPlace:
    """The place in `shared_dir`, with its links resolved once. Directories below the allowed one may be a tenant's."""
    path = root.resolve(shared_dir).rstrip("/")
    if ours := _kept_for_us(path, bounds, root):
        raise InvalidConfig(
            f"key 'sharedDir' is {shared_dir!r}, in {ours}, where this plugin keeps its own things",
            f"it must be another directory of {', '.join(bounds.directories)} ({bounds.said_by})",
        )
    if trusted := _allowed(path, bounds, root):
        return SocketPlace(f"{path}/{name}", trusted=trusted, create=True, own=False, parents=True)
    raise InvalidConfig(
        f"key 'sharedDir' is {shared_dir!r}, where a pod of namespace {bounds.namespace!r} cannot have its sockets",
        f"it must be, with all links followed, one of these directories or below: {', '.join(bounds.directories) or 'none'} "
        f"({bounds.said_by})",
    )


def _allowed(path: str, bounds: Bounds, root: HostRoot) -> str:
    """The allowed directory, links followed, that is the path or has it in it; "" for none."""
    if _kept_for_us(path, bounds, root):
        return ""
    trusted = (root.resolve(each).rstrip("/") for each in bounds.directories)
    return next((each or "/" for each in trusted if _is_in(path, each)), "")


def _kept_for_us(path: str, bounds: Bounds, root: HostRoot) -> str:
    """The directory of this plugin's own things that is the path or has it in it; "" for none."""
    return next((own for own in bounds.never if _is_in(path, root.resolve(own))), "")


def _is_in(path: str, directory: str) -> bool:
    return f"{path}/".startswith(f"{directory}/")
