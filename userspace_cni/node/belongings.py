"""What the installation itself has on a node, beside its attachments: its directories, its sockets, its mounts.

`remove` takes them away once nothing is attached. It must never remove a file that it does not know by name, for an administrator
may have named a directory of others in the settings, and never enter a mount: below it lies what belongs to a pod.
"""
# Descriptors and paths of another root rather than pathlib's.
# ruff: noqa: PTH106, PTH108, PTH112, PTH114, PTH120, PTH207, PTH208

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from userspace_cni.base.errors import DirectoryRefused
from userspace_cni.base.root import HostRoot
from userspace_cni.base.settings import Settings
from userspace_cni.base.whereabouts import CONFIG_FILE
from userspace_cni.host.mounts import detach_all, mount_points

_OF_STATE: Final = ("agent.lock", "attachments", "places", "quarantine", "spool", "identity")
"""In this order: without the identity what is left would count as another program's."""
_OF_RUN: Final = ("devices", "live", "locks", "stand-ins")
_OF_SOCKET: Final = ("", ".lock", ".new")
_DEVICE_SOCKETS: Final = "device-plugins/userspace-cni-*.sock"
"""In the kubelet's directory: an agent that was killed leaves them."""


def in_doubt(settings: Settings, root: HostRoot) -> list[str]:
    """What may be in use though no attachment is recorded, one sentence each: records of the former plugin, mounts for OVS."""
    records = glob.glob("local-*.json", root_dir=root.path(settings.legacy_state_dir))
    found = [f"{settings.legacy_state_dir}/{name}: an attachment of the former plugin" for name in sorted(records)]
    short = root.resolved(settings.short_dir)
    mounted = sorted(point for point in mount_points(root) if point.startswith(f"{short}/"))
    return found + [f"{point}: a mount of a pod's directory that no attachment holds" for point in mounted]


def remove(settings: Settings, root: HostRoot) -> tuple[list[str], list[str]]:
    """Remove them. May be repeated after it was cut short. Mounts directly below `short_dir` are taken off.

    Returns what could not be removed, and what is not ours to remove, one sentence each.
    """
    failed: list[str] = []
    run, state, short = map(root.path, (settings.run_dir, settings.state_dir, settings.short_dir))
    for directory in (short, f"{run}/devices"):
        failed += _unmount(directory)
    files = [root.path(settings.agent_socket) + end for end in _OF_SOCKET]
    files += glob.glob(f"{glob.escape(root.path(settings.kubelet_dir))}/{_DEVICE_SOCKETS}")
    known = [*files, *(f"{run}/{name}" for name in _OF_RUN), *(f"{state}/{name}" for name in _OF_STATE)]
    for path in known:
        failed += _delete(path, root)
    others: list[str] = []
    # the kubelet made the directory of the node's settings, when there was none
    settings_of_the_node = (root.path(os.path.dirname(CONFIG_FILE)),) if root.elsewhere else ()
    for directory in (short, run, state, *settings_of_the_node):
        try:
            os.rmdir(directory)
        except FileNotFoundError:
            pass
        except OSError:
            with suppress(OSError):
                others.append(f"{directory}: in it is {_some(os.listdir(directory))}")
    return failed, others


def _unmount(directory: str) -> list[str]:
    """Take off what is mounted directly in the directory, and remove what is empty then."""
    try:
        dirfd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return []
    failed = []
    try:
        for name in os.listdir(dirfd):
            try:
                detach_all(dirfd, name)
                with suppress(NotADirectoryError):
                    os.rmdir(name, dir_fd=dirfd)
            except (OSError, DirectoryRefused) as error:
                failed.append(f"{directory}/{name}: {_reason(error)}")
    finally:
        os.close(dirfd)
    return failed


def _delete(path: str, root: HostRoot) -> list[str]:
    """Delete a file, or a directory with all that is in it, unless something is mounted there."""
    seen = root.resolved(path.removeprefix(root.path("/").rstrip("/")))
    if within := [point for point in mount_points(root) if point == seen or point.startswith(f"{seen}/")]:
        return [f"{path}: {within[0]} is mounted there"]
    try:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        return [f"{path}: {_reason(error)}"]
    return []


def _some(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:5]) + (f" and {len(ordered) - 5} more" if len(ordered) > 5 else "")


def _reason(error: OSError | DirectoryRefused) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
