"""Paths of the kubelet's directories: where the volumes of a pod are."""

from __future__ import annotations

from userspace_cni.base.settings import Settings


def pod_directory(settings: Settings, uid: str) -> str:
    """The directory of the pod of that UID, as the host calls it."""
    return f"{settings.kubelet_dir}/pods/{uid}"


def empty_dir(settings: Settings, uid: str, volume: str) -> str:
    return f"{pod_directory(settings, uid)}/volumes/kubernetes.io~empty-dir/{volume}"
