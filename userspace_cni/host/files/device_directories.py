"""The directories that are offered to pods as devices, one per device of a bridge, and their names; and those of claims' devices.

Each is a small file system in memory, which the kubelet mounts into the container that was given the device. An allocation gets a
new one, under the same path: what the former pod left is not read, emptied or walked, it goes with its file system when its last
mount goes. A port of a former pod whose DEL has not come keeps that pod's file system through a mount of its own, and never
reaches the new pod's sockets. The size is bounded, because a pod can write it.

A directory outlives agent, kubelet and container; only a reboot ends it, and the kubelet remembers the path over that. So the
path follows from the device alone, and `present` makes what is missing.

The directory of a claim's device is such a file system, too. It is a step of the claim, under a name that no other claim will
have, and goes with it.
"""
# Descriptors and mount points rather than pathlib's paths.

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from typing import Final

from userspace_cni.attachment.drift import Absent, Drift
from userspace_cni.attachment.steps import ClaimDirectory, Driver, PodMount, SharedReads
from userspace_cni.base.beneath import make_trusted, plain, translate_errors
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import DirectoryRefused
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.host.files.mounts import detach_all, find_mount, remove_directory
from userspace_cni.host.files.ownership import Ownership, set_ownership
from userspace_cni.linux import paths

DOMAIN: Final = "userspace-cni.io"
"""The part of a resource's name before the "/"."""
_PARENT_MODE: Final = 0o700
"""A device's directory is open to all users of a pod: only the directory above it keeps other users of the node out."""
_OPTIONS: Final = "size=1m,nr_inodes=256,mode=0777"
"""An application makes sockets there, which take an inode each; the configData files have some KiB."""
_RESOURCE: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
"""What Kubernetes takes as a resource's name; a bridge's name is short enough."""


def resource_of(bridge: str) -> str:
    """The name of the bridge's resource; "" for a bridge whose name cannot be part of one."""
    return f"{DOMAIN}/{bridge}" if _RESOURCE.fullmatch(bridge) else ""


def device_id(bridge: str, number: int) -> str:
    """The ID of the bridge's device of that number, from 0. It is the name of the device's directory."""
    return f"{bridge}-{number}"


def number_of(bridge: str, device: str) -> int | None:
    """The inverse of `device_id`; None for an ID that is not one of this bridge."""
    head, _, tail = device.rpartition("-")
    return int(tail) if head == bridge and tail.isascii() and tail.isdecimal() and len(tail) < 7 else None


@dataclass(frozen=True)
class DeviceDirectory:
    """One of them, as the host calls it. `identity` is another one after each allocation; `trusted` is above it."""

    path: str
    trusted: str
    identity: str


class DeviceDirectories:
    """All of them, below the run directory `run_dir`. Methods raise DirectoryRefused and Unavailable."""

    def __init__(self, run_dir: str, root: HostRoot = HERE) -> None:
        self._trusted = f"{run_dir}/devices"
        self._root = root

    def path(self, device: str) -> str:
        return f"{self._trusted}/{plain(device)}"

    def renew(self, device: str) -> DeviceDirectory:
        """Give the device a new, empty directory. What mounts the former one keeps that."""
        return self._made(device, anew=True)

    def present(self, device: str) -> DeviceDirectory:
        """The device's directory, made if a reboot ended it."""
        return self._made(device, anew=False)

    def _made(self, device: str, *, anew: bool) -> DeviceDirectory:
        path, name = self.path(device), plain(device)
        with translate_errors(f"directory {path} of device {device}"):
            device_number = _mount_memory(self._root.path(self._trusted), name, anew=anew)
        return DeviceDirectory(path, self._trusted, _identity(path, device_number))

    def allows(self, step: PodMount, source: os.stat_result) -> bool:
        """Whether the mount may show `source`, the directory that is at its path now: not a later pod's of the device."""
        return step.trusted != self._trusted or step.target.rpartition("/")[2] == _identity(step.source, source.st_dev)


class ClaimDirectoryDriver(Driver[ClaimDirectory]):
    """The directories of claims' devices."""

    def __init__(self, root: HostRoot = HERE) -> None:
        self._root = root

    def apply(self, step: ClaimDirectory, deadline: Deadline) -> None:
        """Make the file system, unless it is there, and set its owner, mode and label."""
        deadline.require(_what(step))
        wanted = Ownership.of(step, self._root)
        parent, name = self._split(step)
        with translate_errors(_what(step)):
            _mount_memory(parent, name, anew=False)
            fd = os.open(f"{parent}/{name}", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                set_ownership(fd, wanted, _what(step))
            finally:
                os.close(fd)

    def undo(self, step: ClaimDirectory, deadline: Deadline) -> None:
        """Take the file system off, and remove the directory below it. A container that still has it keeps it until it ends."""
        deadline.require(_what(step))
        parent, name = self._split(step)
        with translate_errors(_what(step)):
            try:
                dirfd = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except FileNotFoundError:
                return
            try:
                detach_all(dirfd, name)
                remove_directory(dirfd, name, step.path)
            finally:
                os.close(dirfd)

    def check(self, step: ClaimDirectory, deadline: Deadline) -> list[Drift]:
        """A missing file system."""
        deadline.require(_what(step))
        parent, name = self._split(step)
        with translate_errors(_what(step)):
            try:
                dirfd = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except FileNotFoundError:
                return [Drift(_what(step), "", "a file system in memory", Absent("no directory for it"))]
            try:
                mounted = _is_mounted(dirfd, name)
            finally:
                os.close(dirfd)
        return [] if mounted else [Drift(_what(step), "", "a file system in memory", Absent("no mount"))]

    def is_lost(self, step: ClaimDirectory, seen: SharedReads, deadline: Deadline) -> bool:
        """Whether nothing is mounted there. A container that has had it keeps it, and sees the new one when it is restarted."""
        del seen
        return bool(self.check(step, deadline))

    def _split(self, step: ClaimDirectory) -> tuple[str, str]:
        """The directory above it, as this process sees it, and its name there. Raises DirectoryRefused."""
        above, _, name = step.path.rpartition("/")
        if above != step.trusted:
            raise DirectoryRefused(f"{_what(step)}: it is not in {step.trusted}", "the record of the claim")
        return self._root.path(above), plain(name)


def _what(step: ClaimDirectory) -> str:
    return f"directory {step.path} of a claim"


def _mount_memory(parent: str, name: str, *, anew: bool) -> int:
    """Mount a small file system at the name in `parent`, both as this process sees them; the device's number.

    `anew`: also where one is mounted, which leaves the tree.
    """
    make_trusted(parent, _PARENT_MODE)
    make_trusted(f"{parent}/{name}", _PARENT_MODE)
    dirfd = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if anew:
            detach_all(dirfd, name)
        if anew or not _is_mounted(dirfd, name):
            paths.mount_tmpfs(f"{parent}/{name}", _OPTIONS)
        return os.stat(name, dir_fd=dirfd).st_dev
    finally:
        os.close(dirfd)


def _identity(path: str, device_number: int) -> str:
    return hashlib.sha256(f"{path}@{device_number}".encode()).hexdigest()[:16]


def _is_mounted(dirfd: int, name: str) -> bool:
    target = find_mount(dirfd, name)
    if target is not None:
        os.close(target)
    return target is not None
