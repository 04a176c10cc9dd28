"""Looks for what an agent needs and cannot make: the host's namespaces, mounts that reach the host, capabilities.

Without one of these an agent in a container starts, and fails at the first pod, or worse: when a mount does not reach the host,
OVS retries a socket for ever. So all of them are looked at once, at start, and reported in words. Nothing is changed or refused
here: this node may not need what is missing.
"""
# Descriptors and paths of another root rather than pathlib's.
# ruff: noqa: PTH110, PTH112, PTH116, PTH120, PTH123

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from userspace_cni.base.errors import DirectoryRefused
from userspace_cni.base.root import HostRoot
from userspace_cni.base.settings import Settings
from userspace_cni.host.files import mountinfo
from userspace_cni.host.files.mountinfo import Mount
from userspace_cni.host.runtimes.ipam import CHROOT

_CAPABILITIES: Final = {
    "CHOWN": (0, "pod directories are given to their users"),
    "DAC_OVERRIDE": (1, "pod directories belong to other users"),
    "FOWNER": (3, "modes and labels of what belongs to other users are set"),
    "NET_ADMIN": (12, "kernel links of pods, their limits and guards are made"),
    "NET_RAW": (13, "neighbours are told who has the addresses of a kernel link"),
    "SYS_ADMIN": (21, "pod directories are mounted, network namespaces entered"),
}
"""Name without CAP_: its number (linux/capability.h), and why it is needed."""
_CAPABILITIES_ELSEWHERE: Final = {
    "SYS_CHROOT": (18, "IPAM plugins are run in the host's root"),
    "SYS_PTRACE": (19, "namespaces are looked at in the host's /proc"),
}

_NAMESPACES: Final = {"pid": "process ids (hostPID: true)", "net": "network (hostNetwork: true)"}
_SPARE_BYTES: Final = 1 << 16
"""Bytes of disk that must be free: more than the records of an ADD need."""
_INIT: Final = "/proc/1"
_NETNS_DIR: Final = "/var/run/netns"


def missing(settings: Settings) -> list[str]:
    """What this process lacks to be the node's agent, one sentence each; empty when nothing is."""
    root = HostRoot(settings.host_root)
    wanted = _CAPABILITIES | (_CAPABILITIES_ELSEWHERE if root.elsewhere else {})
    lacking = [f"capability CAP_{name}: {why}" for name, (number, why) in wanted.items() if not holds(number)]
    if root.elsewhere:
        if not os.path.isdir(f"{root.directory}{_INIT}"):
            seen = "setting host_root; the host's / is mounted there with everything below it"
            return [*lacking, f"the host's root is not seen at {root.directory}: {seen}"]
        lacking += _namespaces(root) + _propagation(root, settings)
        if not os.access(CHROOT, os.X_OK):
            lacking.append(f"program {CHROOT}: IPAM plugins are run in the host's root with it")
    return lacking + _unwritable(root, settings.state_dir)


def unwritable(path: str) -> str:
    """Why nothing can be written to `path`, or to its nearest parent that exists; "" if something can. Writes nothing."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    if not os.access(path, os.W_OK | os.X_OK):
        return "it cannot be written"
    disk = os.statvfs(path)
    full = disk.f_blocks and disk.f_bavail * disk.f_frsize < _SPARE_BYTES
    return "its file system is full" if full or (disk.f_files and not disk.f_favail) else ""


def holds(capability: int) -> bool:
    """Whether this process has the capability of that number in effect."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as lines:
            effective = next(line.split()[1] for line in lines if line.startswith("CapEff:"))
    except OSError:
        return False
    return bool(int(effective, 16) >> capability & 1)


def _namespaces(root: HostRoot) -> list[str]:
    lacking = []
    for name, words in _NAMESPACES.items():
        try:
            same = os.path.samestat(os.stat(f"/proc/self/ns/{name}"), os.stat(root.path(f"{_INIT}/ns/{name}")))
            problem = "" if same else "this process has one of its own"
        except OSError as error:
            problem = f"it cannot be compared: {root.path(_INIT)}/ns/{name}: {error.strerror}"
        if problem:
            lacking.append(f"the host's namespace of {words}: {problem}")
    return lacking


def _propagation(root: HostRoot, settings: Settings) -> list[str]:
    """Check that our mounts reach the host, and the host's later mounts (namespaces, volumes in memory) reach us."""
    ours = _mounts("/proc/self/mountinfo")
    theirs = {group for mount in _mounts(root.path(f"{_INIT}/mountinfo")).values() for group in mount.shared}
    lacking = []
    mount = _mount_of(root, settings.short_dir, ours)
    if not mount.shared & theirs:
        found = "is shared, but not with the host" if mount.shared else "is not shared"
        lacking.append(
            f"short_dir {settings.short_dir}: the mount {mount.point}, on which it is, {found} "
            "(mountPropagation: Bidirectional): what is mounted there for OVS stays here"
        )
    for what, path in (("kubelet_dir", settings.kubelet_dir), ("network namespaces in", _NETNS_DIR)):
        mount = _mount_of(root, path, ours)
        if not mount.groups:
            lacking.append(
                f"{what} {path}: the mount {mount.point}, on which it is, is private (mountPropagation: Bidirectional): "
                "what the host mounts there from now on is not seen here"
            )
    return lacking


def _mount_of(root: HostRoot, path: str, mounts: Mapping[int, Mount]) -> Mount:
    """The mount on which `path`, or its nearest parent that exists, is."""
    unknown = Mount(0, "", "", "?")
    try:
        fd = os.open(_nearest(root, path), os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return unknown
    try:
        return mountinfo.mount_of(fd, mounts) or unknown
    finally:
        os.close(fd)


def _mounts(path: str) -> dict[int, Mount]:
    try:
        return mountinfo.read(path)
    except OSError:
        return {}


def _nearest(root: HostRoot, path: str) -> str:
    """`path` as this process sees it, or its nearest parent that exists."""
    try:
        seen = root.path(path)
    except DirectoryRefused:
        return root.directory
    while not os.path.exists(seen):
        seen = os.path.dirname(seen)
    return seen


def _unwritable(root: HostRoot, state_dir: str) -> list[str]:
    writable = os.access(_nearest(root, state_dir), os.W_OK | os.X_OK)
    return [] if writable else [f"state_dir {state_dir}: it cannot be written, and nothing can be attached without a record"]
