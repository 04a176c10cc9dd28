"""What the installation itself has on a node, beside its attachments: its directories, its sockets, its mounts.

`remove` takes them away once nothing is attached. It must never remove a file that it does not know by name, for an administrator
may have named a directory of others in the settings: so in each directory names have the form of ours, or stay. And it must never
enter a mount: below it lies what belongs to a pod.
"""
# Descriptors and paths of another root rather than pathlib's.
# ruff: noqa: PTH106, PTH108, PTH112, PTH114, PTH120, PTH208

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from userspace_cni.attachment.records import Record
from userspace_cni.attachment.shared_holders import keys_of
from userspace_cni.base.errors import DirectoryRefused
from userspace_cni.base.root import HostRoot
from userspace_cni.base.settings import Settings
from userspace_cni.base.whereabouts import CONFIG_FILE
from userspace_cni.host.files.device_directories import DOMAIN
from userspace_cni.host.files.mounts import detach_all, mount_points
from userspace_cni.host.files.whole_files import temporary

_RECORD: Final = re.compile(r".+\.json|\.localdb-.+")
_WHOLE_RECORD: Final = re.compile(r"[^.].*\.json")
_OF_SHORT: Final = re.compile(r"[0-9a-f]{16}|[0-9a-f-]{32,36}|probe-.+")
"""Mounts are named by a digest or the pod's UID; `node.probes` names the others."""
_OF_DEVICES: Final = re.compile(r".+-[0-9]{1,6}")
_OF_RUN: Final = {
    "claims": re.compile(r"\.?.+-[0-9]{1,6}(\.json)?(\.tmp)?"),
    "devices": _OF_DEVICES,
    "live": re.compile(r"[0-9a-f]{32}"),
    "locks": re.compile("bytes"),
}
_OF_STATE: Final = {
    "attachments": _RECORD,
    "node": _RECORD,
    "runs": _RECORD,
    "leases": re.compile(r"[a-z0-9][-a-z0-9.]*"),
    "places": _RECORD,
    "quarantine": re.compile(r".+\.[0-9]+|spool-.+|\.localdb-.+"),
    "spool": re.compile(r"(\.tmp-)?[0-9]{20}-.+"),
}
"""Names of directories of ours, and the form of the names in them."""
_LAST_OF_STATE: Final = ("identity", "agent.lock")
"""Without the identity what is left would count as another program's; without the lock an agent could begin during this."""
KNOWN_ROUTES: Final = "routes.json"
"""In the state directory: what the agent knows of routes in pods, for the next one."""
COMMANDED: Final = ("provider-networks.toml", "provider-networks.toml.lock", "provider-networks.new")
"""In the run directory: what commands have asked for of the node's own network, its lock, and what a killed one left."""
RUNTIME_NETWORK_COPY: Final = "runtime-network.json"
"""In the state directory: the network for runtimes that `install` was given. A killed one leaves it with its process's number."""
_OF_COPY: Final = re.compile(rf"\.?{re.escape(RUNTIME_NETWORK_COPY)}(\.[0-9]+)?")
_OF_SOCKET: Final = ("", ".lock", ".new")
_DEVICES: Final = "device-plugins"
_DEVICE_SOCKET: Final = re.compile(r"userspace-cni-.*\.sock")
"""In that directory of the kubelet's: an agent that was killed leaves them."""
_OF_CDI: Final = re.compile(rf"\.?{re.escape(DOMAIN)}-claim_.+\.json(\.tmp)?")
"""In the runtimes' directory of CDI files: those of claims."""
_REGISTRY: Final = "plugins_registry"
_REGISTERED: Final = re.compile(rf"{re.escape(DOMAIN)}-.+-reg\.sock")
_DRIVER: Final = f"plugins/{DOMAIN}"
_DRIVER_SOCKET: Final = re.compile(r"dra-.+\.sock")
"""In those directories of the kubelet's: an agent with the setting `dra` that was killed leaves them."""
_OF_FORMER: Final = re.compile(r"local-.*\.json")
_PROFILES: Final = "userspace-cni"
"""In a directory of seccomp profiles: ours."""
_OF_SECCOMP: Final = re.compile(r"dpdk\.json|\.dpdk\.json\.[0-9]+")
"""In that directory: `install` puts the profile for DPDK there; a killed one leaves the other name."""


def in_doubt(settings: Settings, root: HostRoot, records: Iterable[Record]) -> list[str]:
    """What may be in use though no attachment of `records` is it, one sentence each: the former plugin's, mounts for OVS."""
    held = {key.rpartition("/")[2] for record in records for key in keys_of(record.steps) if key.startswith("mount:")}
    former = settings.legacy_state_dir
    try:
        found = [f"{former}/{name}: an attachment of the former plugin" for name in names_in(root.path(former), _OF_FORMER)]
    except OSError as error:
        found = [f"{former}: {error.strerror}: whether the former plugin has attachments cannot be known"]
    short = root.resolve(settings.short_dir)
    points = (point.rpartition("/") for point in mount_points(root))
    mounted = sorted(
        f"{short}/{name}" for above, _, name in points if above == short and name not in held and _OF_SHORT.fullmatch(name)
    )
    return found + [f"{point}: a mount of a pod's directory that no attachment holds" for point in mounted]


def unread_records(settings: Settings, root: HostRoot) -> list[str]:
    """Records that are there although all that can be read were undone, one sentence each: a newer version wrote them."""
    found: list[str] = []
    for directory in (f"{settings.state_dir}/{name}" for name in ("attachments", "node")):
        try:
            names = names_in(root.path(directory), _WHOLE_RECORD)
        except OSError as error:
            found.append(f"{directory}: {error.strerror}")
        else:
            found += [
                f"{directory}/{name}: this version cannot read it: take the plugin away with that which wrote it"
                for name in names
            ]
    return found


def remove(settings: Settings, root: HostRoot, seccomp_dirs: Iterable[str]) -> tuple[list[str], list[str]]:
    """Remove them. May be repeated after it was cut short. Mounts directly below `short_dir` are taken off.

    `seccomp_dirs`: the host's directories of seccomp profiles in which ours may be.

    Returns what could not be removed, and what is not ours to remove, one sentence each.
    """
    failed: list[str] = []
    run, state, short = map(root.path, (settings.run_dir, settings.state_dir, settings.short_dir))
    for directory, names in ((short, _OF_SHORT), (f"{run}/devices", _OF_DEVICES), (f"{run}/claims", _OF_DEVICES)):
        failed += _unmount(directory, names)
    files = [root.path(settings.agent_socket) + end for end in _OF_SOCKET]
    files += [f"{run}/{name}" for name in COMMANDED]
    kubelet = root.path(settings.kubelet_dir)
    for directory, names in (
        (f"{kubelet}/{_DEVICES}", _DEVICE_SOCKET),
        (f"{kubelet}/{_REGISTRY}", _REGISTERED),
        (f"{kubelet}/{_DRIVER}", _DRIVER_SOCKET),
        (root.path(settings.cdi_dir), _OF_CDI),
        (state, _OF_COPY),
    ):
        try:
            files += [f"{directory}/{name}" for name in names_in(directory, names)]
        except OSError as error:
            failed.append(f"{directory}: {error.strerror}")
    for path in files:
        failed += _delete_file(path)
    ours = {f"{above}/{name}": names for above, each in ((run, _OF_RUN), (state, _OF_STATE)) for name, names in each.items()}
    ours |= {f"{root.path(directory)}/{_PROFILES}": _OF_SECCOMP for directory in seccomp_dirs}
    for directory, names in ours.items():
        failed += _clear(directory, names, root)
    others = _remove_empty((*ours, f"{kubelet}/{_DRIVER}", short, run))
    for name in _LAST_OF_STATE:
        failed += _delete_file(f"{state}/{name}")
    # the kubelet made the directory of the node's settings, when there was none
    settings_of_the_node = (root.path(os.path.dirname(CONFIG_FILE)),) if root.elsewhere else ()
    others += _remove_empty((state, *settings_of_the_node))
    return failed, list(dict.fromkeys(others))


def has_profile(seccomp_dir: str, root: HostRoot) -> bool:
    """Whether our seccomp profile, or what a killed `install` left of it, is in the host's directory. Raises OSError."""
    return bool(names_in(f"{root.path(seccomp_dir)}/{_PROFILES}", _OF_SECCOMP))


def names_in(directory: str, form: re.Pattern[str]) -> list[str]:
    """The names of that form in the directory, sorted; none where there is no directory. Raises OSError if it cannot be read."""
    try:
        return sorted(filter(form.fullmatch, os.listdir(directory)))
    except (FileNotFoundError, NotADirectoryError):
        return []


def forget_routes(settings: Settings, root: HostRoot) -> list[str]:
    """Remove what is known of routes in pods, once none is there; what could not be removed, one sentence each."""
    state = root.path(settings.state_dir)
    return [why for name in (KNOWN_ROUTES, temporary(KNOWN_ROUTES)) for why in _delete_file(f"{state}/{name}")]


def _unmount(directory: str, names: re.Pattern[str]) -> list[str]:
    """Take off what is mounted directly in the directory under such names, and remove what is empty then."""
    try:
        dirfd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return []
    failed = []
    try:
        for name in filter(names.fullmatch, os.listdir(dirfd)):
            try:
                detach_all(dirfd, name)
                with suppress(NotADirectoryError):
                    os.rmdir(name, dir_fd=dirfd)
            except (OSError, DirectoryRefused) as error:
                failed.append(f"{directory}/{name}: {_reason(error)}")
    finally:
        os.close(dirfd)
    return failed


def _clear(directory: str, names: re.Pattern[str], root: HostRoot) -> list[str]:
    """Delete what has such names in the directory, each with all that is in it, unless something is mounted there."""
    if os.path.islink(directory):
        return []
    seen = root.resolve(directory.removeprefix(root.path("/").rstrip("/")))
    if within := [point for point in mount_points(root) if point == seen or point.startswith(f"{seen}/")]:
        return [f"{directory}: {within[0]} is mounted there"]
    try:
        found = names_in(directory, names)
    except OSError as error:
        return [f"{directory}: {_reason(error)}"]
    failed = []
    for path in (f"{directory}/{name}" for name in found):
        try:
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            failed.append(f"{path}: {_reason(error)}")
    return failed


def _delete_file(path: str) -> list[str]:
    """Delete a socket or a regular file: settings may name a directory of others."""
    try:
        mode = os.lstat(path).st_mode
        if not (stat.S_ISSOCK(mode) or stat.S_ISREG(mode)):
            return [f"{path}: it is neither a socket nor a file, and is left alone"]
        os.unlink(path)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        return [f"{path}: {_reason(error)}"]
    return []


def _remove_empty(directories: Iterable[str]) -> list[str]:
    """Remove those that are empty; what is in the others, one sentence each."""
    others = []
    for directory in directories:
        try:
            os.rmdir(directory)
        except FileNotFoundError:
            pass
        except OSError as error:
            with suppress(OSError):
                names = os.listdir(directory)
                others.append(f"{directory}: in it is {_some(names)}" if names else f"{directory}: {_reason(error)}")
    return others


def _some(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:5]) + (f" and {len(ordered) - 5} more" if len(ordered) > 5 else "")


def _reason(error: OSError | DirectoryRefused) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
