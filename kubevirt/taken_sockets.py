"""Checks the paths at which QEMU may make or use a socket. Pure.

QEMU runs as the user of KubeVirt's own sockets in that container and, as server, unlinks what is at the path. So a path must be
below known directories, wherever it comes from. The annotation, which a VM's owner writes, may name fewer of them than the
cluster's device plugins and drivers, whose directories their administrators choose.
"""

from __future__ import annotations

import posixpath
from typing import Final, Generic, TypeVar

from kubevirt.sidecar_errors import DefinitionRefused
from userspace_cni.pod import launcher
from userspace_cni.pod.socket_path import SUN_PATH_MAX

OWNER_ROOTS: Final = (f"{launcher.MOUNT}/", "/var/run/ovsdpdk/", "/var/run/vhostuser/", "/var/lib/cni/usrspcni/")
"""Where the annotation may point: KubeVirt's public volume, and where the known drivers and device plugins mount directories."""
CLUSTER_ROOTS: Final = ("/var/run/", "/var/lib/")
"""Where a device plugin or a DRA driver may point. /run is the same as /var/run there."""
KEPT: Final = (
    *(f"{launcher.MOUNT}/{name}/" for name in ("sockets", "container-disks", "hotplug-disks")),
    *(
        "/var/run/kubevirt-hooks/",
        "/var/run/kubevirt-plugin/",
        "/var/run/kubevirt-private/",
        "/var/run/kubevirt-ephemeral-disks/",
    ),
    *("/var/run/libvirt/", "/var/lib/libvirt/", "/var/run/kubernetes.io/", "/var/run/secrets/"),
)
"""Where no path may point: directories of KubeVirt, libvirt and Kubernetes."""


T = TypeVar("T")


def canonical(path: str) -> str:
    """The path by which two that are the same are recognised."""
    return f"/var{path}" if path.startswith("/run/") else path


def collide(one: str, other: str) -> bool:
    """Whether two sockets cannot both be: they are one path, or the one would be a directory for the other."""
    first, second = f"{canonical(one)}/", f"{canonical(other)}/"
    return first.startswith(second) or second.startswith(first)


class TakenSockets(Generic[T]):
    """The sockets of some networks, to find the first with which a further one collides; a path too long for a socket is none."""

    def __init__(self) -> None:
        self._there: dict[str, tuple[int, T]] = {}
        self._above: dict[str, tuple[int, T]] = {}
        """By the directories in which they are."""

    def take(self, path: str, whose: T) -> T | None:
        """Whose path collides with this one, None for none; this one is kept beside it."""
        known = canonical(path)
        if len(known) > SUN_PATH_MAX:
            return None
        above = [known[:at] for at, character in enumerate(known) if character == "/"]
        found = [self._there[each] for each in (*above, known) if each in self._there]
        found += [self._above[known]] if known in self._above else []
        mine = len(self._there), whose
        self._there.setdefault(known, mine)
        for each in above:
            self._above.setdefault(each, mine)
        return min(found, key=lambda each: each[0])[1] if found else None


def check_owners(path: str, own: str, where: str) -> None:
    """Raise Refused for a path from the annotation in the plugin's own directory, where each network has its socket (`own`).

    The plugin makes, watches and clears that directory: other names in it are unused, or another network's.
    """
    if canonical(path) != own and collide(path, launcher.MAPPED_DIR.rstrip("/")):
        raise DefinitionRefused(
            "path-not-allowed",
            f"{where}: socket path {path!r} is in the plugin's own directory, where this network has {own}",
            "leave 'path' out for a network of the plugin; name another directory for one of another CNI",
        )


def check_path(path: str, roots: tuple[str, ...], where: str) -> None:
    """Raise Refused unless `path` is one that QEMU can be given: path-not-allowed, path-too-long. `where` says who gave it."""
    remedy = (
        f"correct it where it comes from ({where}): an absolute path of at most {SUN_PATH_MAX} bytes below {', '.join(roots)}"
    )
    if not (path.isprintable() and path.isascii()) or any(blank in path for blank in " \"'<>&,"):
        raise DefinitionRefused(
            "path-not-allowed", f"{where}: socket path {path[:200]!a} holds a character that QEMU or XML would mistake", remedy
        )
    if not path.startswith("/") or path.startswith("//") or posixpath.normpath(path) != path:
        raise DefinitionRefused(
            "path-not-allowed", f"{where}: socket path {path[:200]!r} is not absolute or not in its shortest form", remedy
        )
    if len(path) > SUN_PATH_MAX:
        raise DefinitionRefused(
            "path-too-long", f"{where}: socket path {path[:200]!r} has {len(path)} bytes, {SUN_PATH_MAX} fit", remedy
        )
    known = canonical(path)
    if not known.startswith(tuple(canonical(root) for root in roots)):
        raise DefinitionRefused("path-not-allowed", f"{where}: socket path {path!r} is below none of {', '.join(roots)}", remedy)
    if any(f"{known}/".startswith(kept) or kept.startswith(f"{known}/") for kept in KEPT):
        raise DefinitionRefused(
            "path-not-allowed", f"{where}: socket path {path!r} is where KubeVirt, libvirt or Kubernetes have their own", remedy
        )
