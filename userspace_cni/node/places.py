"""Where a pod's sockets go on the host.

The rules of the plugin that this one replaces, in its order: the pod volume of the configured name (an emptyDir, found by the
pod's UID without asking the API; or a hostPath, known from the pod's spec), `sharedDir`, the default directory. What a pod's
spec names is never made or owned by us: the spec is the pod author's, we are root. `sharedDir` is written by a user of a
namespace, too: with a pod of a cluster it can only be where the administrator allows it.

A VM has one place only, known by the pod's UID: QEMU must find its sockets at the same path in every launcher pod of the VM.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from userspace_cni.attachment.facts import Place
from userspace_cni.base.errors import BadEnvironment, DirectoryRefused, InvalidConfig
from userspace_cni.base.log import say
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.base.settings import Settings
from userspace_cni.base.tenancy import Bounds
from userspace_cni.kube.client import PodView, Volume
from userspace_cni.pod import launcher


@dataclass(frozen=True)
class SharedDir:
    """`sharedDir` of a network, "" for none. `bounds`: where it must lie; None when the network is the administrator's own."""

    path: str = ""
    bounds: Bounds | None = None


def find_place(
    settings: Settings, uid: str, view: PodView | None, container_id: str, shared_dir: SharedDir, root: HostRoot = HERE
) -> Place:
    """The directory for a pod's sockets, as the host calls it. `view` is the pod as the API knows it, None without an API server.

    Raises DirectoryRefused for a volume that the pod's spec promises and the node does not have, InvalidConfig for a `sharedDir`
    that is out of bounds.
    """
    if uid and _is_directory(_empty_dir(settings, uid), root):
        return _empty_dir_place(settings, uid)
    volume = next((volume for volume in view.volumes if volume.name == settings.shared_volume), None) if view else None
    if volume and volume.kind == "emptyDir" and view:
        path = _empty_dir(settings, view.uid)
        if not _is_directory(path, root):
            raise DirectoryRefused(
                f"the pod's emptyDir '{volume.name}' is not at {path}",
                "see the setting kubelet_dir, or the kubelet's volume errors",
            )
        return _empty_dir_place(settings, view.uid)
    if volume and volume.kind == "hostPath":
        return _host_path_place(volume, root)
    if volume:
        say("warning", "the pod's shared volume is neither an emptyDir nor a hostPath and is not used", volume=volume.name)
    if uid and not _is_directory(f"{settings.kubelet_dir}/pods/{uid}", root):
        say(
            "warning",
            "the kubelet's directory of this pod is not where it should be",
            expected=f"{settings.kubelet_dir}/pods/{uid}",
        )
    name = container_id[:12]
    if shared_dir.path and shared_dir.bounds:
        return _place_within(shared_dir.path, shared_dir.bounds, name, root)
    base = shared_dir.path.rstrip("/") or settings.default_shared_dir
    if not shared_dir.path:
        say("warning", "the pod has no shared volume and the network no sharedDir: using the default directory", directory=base)
    return Place(f"{base}/{name}", trusted=base, create=True, own=False)


def find_launcher_place(settings: Settings, uid: str, root: HostRoot = HERE) -> Place:
    """The directory for the sockets of the VM in the virt-launcher pod of that UID. There is no other place to fall back to.

    Raises BadEnvironment for a pod whose UID is not known, DirectoryRefused for one that is no virt-launcher.
    """
    if not uid:
        raise BadEnvironment(
            "CNI_ARGS holds no K8S_POD_UID, and consumer 'kubevirt' needs the pod's UID",
            "a runtime that does not send it needs a 'kubeconfig' in the network; this network is for virt-launcher pods",
        )
    volume = _empty_dir(settings, uid, launcher.VOLUME)
    if not _is_directory(volume, root):
        raise DirectoryRefused(
            f"the pod's emptyDir '{launcher.VOLUME}' is not at {volume}",
            "every virt-launcher pod has it, and consumer 'kubevirt' is for no other pods; is the setting kubelet_dir right?",
        )
    return Place(f"{volume}/{launcher.DIRECTORY}", trusted=settings.kubelet_dir, create=True, own=True)


def _is_directory(path: str, root: HostRoot) -> bool:
    return os.path.isdir(root.path(path))  # noqa: PTH112 - pathlib fails for a name that is too long


def _empty_dir(settings: Settings, uid: str, volume: str = "") -> str:
    return f"{settings.kubelet_dir}/pods/{uid}/volumes/kubernetes.io~empty-dir/{volume or settings.shared_volume}"


def _empty_dir_place(settings: Settings, uid: str) -> Place:
    """The kubelet's: every user of the pod may write in it, or its fsGroup; no network has to say who."""
    return Place(_empty_dir(settings, uid), trusted=settings.kubelet_dir, create=False, own=False, mount_name=uid)


def _host_path_place(volume: Volume, root: HostRoot) -> Place:
    """Resolved once; from then on every component must be the directory that it is now."""
    path = root.resolved(volume.path)
    if not _is_directory(path, root):
        raise DirectoryRefused(
            f"the pod's hostPath '{volume.name}', {volume.path}, is not a directory",
            "the kubelet makes it before ADD for type DirectoryOrCreate; it is never made here",
        )
    return Place(path, trusted="/", create=False, own=False)


def _place_within(shared_dir: str, bounds: Bounds, name: str, root: HostRoot) -> Place:
    """Links are followed once, and the result compared; from the allowed directory on, what is below it may be a tenant's."""
    path = root.resolved(shared_dir).rstrip("/")
    ours = next((own for own in bounds.never if _is_in(path, root.resolved(own))), "")
    if ours:
        raise InvalidConfig(
            f"key 'sharedDir' is {shared_dir!r}, in {ours}, where this plugin keeps its own things",
            f"it must be another directory of {', '.join(bounds.directories)} ({bounds.said_by})",
        )
    for allowed in bounds.directories:
        trusted = root.resolved(allowed).rstrip("/")
        if _is_in(path, trusted):
            return Place(f"{path}/{name}", trusted=trusted or "/", create=True, own=False, parents=True)
    raise InvalidConfig(
        f"key 'sharedDir' is {shared_dir!r}, where a pod of namespace {bounds.namespace!r} cannot have its sockets",
        f"it must be, with all links followed, one of these directories or below: {', '.join(bounds.directories) or 'none'} "
        f"({bounds.said_by})",
    )


def _is_in(path: str, directory: str) -> bool:
    return f"{path}/".startswith(f"{directory}/")
