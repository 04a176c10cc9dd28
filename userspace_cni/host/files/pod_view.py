"""Checks whether the processes of a pod see a socket that was mounted for them (`placement`, across devices).

A later mount on the host, such as the new socket of a restarted ovs-vswitchd, reaches a container only if the container's mount
of the volume follows the host's (`mountPropagation: HostToContainer`). The host's mount table does not show that. So the pod's
processes are found by their network namespace, and their mount tables and the socket's name are read in /proc.

It changes nothing, connects to nothing and enters no namespace. A pod controls the files in its mounts: they are opened only with
O_PATH, through no link, and only compared. A process that ends meanwhile is left out.
"""
# Descriptors and single names rather than paths: pathlib cannot express them.
# ruff: noqa: PTH116, PTH208

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress

from userspace_cni.attachment.drift import Drift, Hidden, Unfollowed, Value
from userspace_cni.attachment.steps import Directory, PlacedSocket
from userspace_cni.base.beneath import directory_if_there, kind, look, plain, translate_errors
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.host.files import mountinfo
from userspace_cni.host.files.mountinfo import Mount
from userspace_cni.host.files.mounts import find_mount
from userspace_cni.linux import paths

_REMEDY = "'mountPropagation: HostToContainer' at the volumeMount, and a new pod"


def find_hidden(step: PlacedSocket, netns_inode: int, deadline: Deadline, root: HostRoot = HERE) -> list[Drift]:
    """What hides the socket from processes in that network namespace, now or after a restart of ovs-vswitchd.

    Raises Unavailable at the deadline, because a pod may have any number of processes and mounts. Empty for a socket that was
    renamed into the pod's directory and not mounted: every mount of that directory shows it.
    """
    what = f"socket {step.directory}/{step.name}"
    with directory_if_there(step.directory, step.trusted, root) as dirfd:
        target = None if dirfd is None or not netns_inode else find_mount(dirfd, plain(step.name))
        if dirfd is None or target is None:
            return []
        try:
            socket = os.fstat(target)
        finally:
            os.close(target)
        if not stat.S_ISSOCK(socket.st_mode):
            return []
        with translate_errors(f"{what}, as the pod sees it"):
            volume = mountinfo.mount_of(dirfd, mountinfo.read())
            if volume is None:
                return []
            place = mountinfo.place_of(dirfd, volume)
            proc = root.path("/proc")
            found: list[Drift] = []
            for pid in _processes(proc, netns_inode):
                # the process may end at any moment, and its mounts may change
                with suppress(OSError):
                    seen = f"{what}, as process {pid} of the pod sees it"
                    for sight in _judged(f"{proc}/{pid}", step.name, (dirfd, socket), (volume, place)):
                        deadline.require(seen)
                        found += [Drift(seen, "", *sight)] if sight else []
            return list(dict.fromkeys(found))


def sees_directory(step: Directory, processes: Iterable[int], deadline: Deadline, root: HostRoot = HERE) -> bool | None:
    """Whether one of the processes sees the directory anywhere; None where the directory is not there, or none can be looked at.

    Raises Unavailable at the deadline.
    """
    what = f"directory {step.path}, as the pod sees it"
    with directory_if_there(step.path, step.trusted, root) as dirfd:
        volume = None if dirfd is None else mountinfo.mount_of(dirfd, mountinfo.read())
        if dirfd is None or volume is None:
            return None
        place, proc = mountinfo.place_of(dirfd, volume), root.path("/proc")
        looked: dict[int, bool] = {}
        for pid in processes:
            with suppress(OSError):  # it may end at any moment
                namespace = os.stat(f"{proc}/{pid}/ns/mnt").st_ino
                if namespace not in looked:
                    deadline.require(what)
                    looked[namespace] = _shows(f"{proc}/{pid}", dirfd, (volume, place))
                if looked[namespace]:
                    return True
        return False if looked else None


def _shows(process: str, dirfd: int, where: tuple[Mount, str]) -> bool:
    """Whether a mount of the process shows the directory. Raises OSError."""
    volume, place = where
    top = os.open(f"{process}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for mount in mountinfo.read(f"{process}/mountinfo").values():
            path = mountinfo.seen_as(place, mount) if mount.device == volume.device else None
            there = None if path is None else _directory(top, path, mount)
            if there is not None:
                try:
                    if os.path.samestat(os.fstat(there), os.fstat(dirfd)):
                        return True
                finally:
                    os.close(there)
        return False
    finally:
        os.close(top)


def _processes(proc: str, netns_inode: int) -> Iterator[int]:
    """One process of each mount namespace in the network namespace."""
    seen = set()
    for name in os.listdir(proc):
        if name.isdigit():
            with suppress(OSError):
                if os.stat(f"{proc}/{name}/ns/net").st_ino == netns_inode:
                    mounts = os.stat(f"{proc}/{name}/ns/mnt").st_ino
                    if mounts not in seen:
                        seen.add(mounts)
                        yield int(name)


def _judged(
    process: str, name: str, host: tuple[int, os.stat_result], where: tuple[Mount, str]
) -> Iterator[tuple[str, Value, str] | None]:
    """For each mount of the process that shows the directory: expected, found and why; None when nothing is wrong."""
    (dirfd, socket), (volume, place) = host, where
    top = os.open(f"{process}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for mount in mountinfo.read(f"{process}/mountinfo").values():
            path = mountinfo.seen_as(place, mount) if mount.device == volume.device else None
            there = None if path is None else _directory(top, path, mount)
            if there is None:
                yield None
                continue
            try:
                same = os.path.samestat(os.fstat(there), os.fstat(dirfd))
                facts = look(there, name)
            finally:
                os.close(there)
            if not same:
                yield None
            elif facts is None or not os.path.samestat(facts, socket):
                yield "the socket on which OVS listens", _named(facts), f"remedy: {_REMEDY}"
            elif not _follows(mount, volume):
                why = f"the pod loses the socket when ovs-vswitchd restarts; remedy: {_REMEDY}"
                yield "a mount that follows the host's", Unfollowed("a private one"), why
            else:
                yield None
    finally:
        os.close(top)


def _directory(top: int, path: str, mount: Mount) -> int | None:
    """Open the directory at `path` below the process's root; None if it is not on `mount`: another mount may cover it."""
    try:
        fd = paths.openat2(top, path.lstrip("/") or ".", os.O_PATH | os.O_DIRECTORY)
    except OSError:
        return None
    if mountinfo.mount_of(fd, {mount.ident: mount}):
        return fd
    os.close(fd)
    return None


def _follows(mount: Mount, volume: Mount) -> bool:
    """Whether later mounts on the host's `volume` appear on `mount`: it is the same mount, a peer or a slave.

    The slave's master is not compared: other mounts may be in between, as those of a runtime in another mount namespace.
    """
    slave = any(group.startswith("master:") for group in mount.groups)
    return mount.ident == volume.ident or slave or bool(mount.shared & volume.shared)


def _named(facts: os.stat_result | None) -> Hidden:
    if facts is None:
        return Hidden("nothing")
    return Hidden("an older one" if stat.S_ISSOCK(facts.st_mode) else f"{kind(facts.st_mode)} in its place")
