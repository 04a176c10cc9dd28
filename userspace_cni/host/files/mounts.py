"""The mounts that show a pod's directory to OVS, so that OVS follows no link that the pod puts there.

OVS connects, as root, to a path in a directory that the pod can write. Below a mount with "nosymfollow" a link in that path fails
with ELOOP; elsewhere it is followed. The flags are set on a detached clone of the directory, and then the clone is attached: so
OVS never sees it without them. Nothing here may mount or unmount by walking a path into the pod's directory: source and target
are descriptors.

The target is `<short_dir>/<name>`; `short_dir` is ours and no pod can write it. A target has one of these states:

    absent      made and mounted
    a directory, no mount (a crash, or a reboot)    mounted
    a mount of the same device and inode            used, its flags set again; layers on top of each other count as one
    a mount of another directory                    refused: it may not be ours
"""
# Descriptors and single names rather than paths: pathlib cannot express them.
# ruff: noqa: PTH116

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress

from userspace_cni.attachment.drift import Absent, Drift, Other
from userspace_cni.attachment.steps import Driver, PodMount, SharedReads
from userspace_cni.base.beneath import directory, make_trusted, open_directory, plain, translate_errors
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import DirectoryRefused
from userspace_cni.base.log import say
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.host.files.mountinfo import MountPoints, mount_id, read
from userspace_cni.linux import paths

SHORT_DIR_MODE = 0o750
"""The mode of a `short_dir` that we make. An emptyDir is 0777: only the directories above it keep other users of the node out,
and a process that connects to an application's vhost-user socket gets its memory. So only root and OVS's group may enter:
`PodMountDriver` gives the directory to the group of OVS's own run directory."""

_FLAGS = paths.MOUNT_NOSYMFOLLOW | paths.MOUNT_NOSUID | paths.MOUNT_NODEV | paths.MOUNT_NOEXEC
_ST_NOSYMFOLLOW = 0x2000
"""statfs(2), f_flags; the os module has no name for it."""
_LAYERS_MAX = 64


class PodMountDriver(Driver[PodMount]):
    """Mounts of pod directories below `short_dir`.

    `ovs_rundir`: the directory of OVS's own sockets; its group is the group that OVS runs with. `allows`: whether the directory
    that is found at a step's source, with these facts, is the one that the step means.
    """

    def __init__(
        self,
        ovs_rundir: str = "/var/run/openvswitch",
        root: HostRoot = HERE,
        allows: Callable[[PodMount, os.stat_result], bool] = lambda _step, _source: True,
    ) -> None:
        self._ovs_rundir = ovs_rundir
        self._root = root
        self._allows = allows
        self._points = MountPoints()

    def apply(self, step: PodMount, deadline: Deadline) -> None:
        """Make the mount, or use one that already shows the same directory."""
        deadline.require(f"mount {step.target}")
        with directory(step.source, step.trusted, self._root) as source, translate_errors(f"mount {step.target}"):
            if not self._allows(step, os.stat(source)):
                raise DirectoryRefused(
                    f"mount {step.target}: {step.source} is another pod's now", "this pod's is gone: delete it"
                )
            short_dir, name = self._split(step.target)
            make_short_dir(short_dir, self._root.path(self._ovs_rundir))
            parent = os.open(short_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                _mount(source, parent, name, step)
            finally:
                os.close(parent)

    def undo(self, step: PodMount, deadline: Deadline) -> None:
        """Unmount every layer at the target and remove it. A directory that is not empty below the mount is left."""
        deadline.require(f"mount {step.target}")
        short_dir, name = self._split(step.target)
        with translate_errors(f"mount {step.target}"):
            try:
                parent = os.open(short_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except FileNotFoundError:
                return
            try:
                detach_all(parent, name)
                remove_directory(parent, name, step.target)
            finally:
                os.close(parent)

    def check(self, step: PodMount, deadline: Deadline) -> list[Drift]:
        """A missing mount, a mount of another directory, or one without nosymfollow."""
        deadline.require(f"mount {step.target}")
        short_dir, name = self._split(step.target)
        what = f"mount {step.target}"
        with translate_errors(what):
            try:
                parent = os.open(short_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except FileNotFoundError:
                return [Drift(what, "", step.source, Absent("no directory for it"))]
            try:
                target = find_mount(parent, name)
            finally:
                os.close(parent)
            if target is None:
                return [Drift(what, "", step.source, Absent("no mount"))]
            try:
                return _differences(target, step, self._root)
            finally:
                os.close(target)

    def is_present(self, step: PodMount) -> bool:
        """Whether something is already mounted at the target."""
        short_dir, name = self._split(step.target)
        with translate_errors(f"mount {step.target}"):
            try:
                parent = os.open(short_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except FileNotFoundError:
                return False
            try:
                target = find_mount(parent, name)
                if target is not None:
                    os.close(target)
                return target is not None
            finally:
                os.close(parent)

    def is_lost(self, step: PodMount, seen: SharedReads, deadline: Deadline) -> bool:
        """Whether nothing is mounted at the target that shows the pod's directory."""
        return not self.is_mounted(step, seen) and bool(self.check(step, deadline))

    def is_mounted(self, step: PodMount, seen: SharedReads) -> bool:
        return step.target in seen.once(self._mount_points)

    def signs(self, step: PodMount, seen: SharedReads, before: object) -> object:  # noqa: ARG002 - the mount table alone tells
        """That there is a mount: then it is not lost."""
        return self.is_mounted(step, seen) or None

    def _mount_points(self) -> frozenset[str]:
        return _of_host(self._points.read(), self._root)

    def _split(self, target: str) -> tuple[str, str]:
        """`short_dir` as this process sees it, and the name in it."""
        short_dir, _, name = target.rstrip("/").rpartition("/")
        if not short_dir.startswith("/"):
            raise DirectoryRefused(f"mount {target}: not an absolute path below a directory", "setting short_dir")
        return self._root.path(short_dir), plain(name)


def make_short_dir(short_dir: str, ovs_rundir: str) -> None:
    """Make `short_dir` unless it exists, and give it to the group of OVS's run directory; both as this process sees them."""
    made = make_trusted(short_dir, SHORT_DIR_MODE)
    facts = os.stat(short_dir)
    if facts.st_gid != 0 and not made:
        return
    # An older directory with root's group gets it too: OVS may have had no run directory when it was made. Root's group gives OVS
    # no access, so this overwrites no choice of an administrator.
    try:
        group = os.stat(ovs_rundir).st_gid
    except OSError:
        return
    if group != facts.st_gid:
        os.chown(short_dir, -1, group)


def protected_clone(dirfd: int, name: str = "") -> int:
    """A detached mount of `name` in the directory, or of the directory itself, with all protecting flags set.

    Private: mounts made later in the pod's directory do not appear in ours, where they would lack the flags.
    """
    tree = paths.open_tree(dirfd, name)
    try:
        paths.mount_setattr(tree, _FLAGS, paths.PRIVATE)
    except OSError as error:
        if error.errno not in {errno.ENOSYS, errno.EINVAL}:
            os.close(tree)
            raise
        say(
            "warning",
            "this kernel cannot make mounts that refuse symbolic links (Linux 5.14 can): a pod could lead OVS to a socket "
            "that is not its own",
        )
    return tree


def mount_points(root: HostRoot = HERE) -> frozenset[str]:
    """Every mount point of this mount namespace, as a path of the host; proc_pid_mountinfo(5)."""
    return _of_host(frozenset(mount.point for mount in read().values()), root)


def _of_host(points: frozenset[str], root: HostRoot) -> frozenset[str]:
    """The same points as paths of the host."""
    prefix = root.path("/").rstrip("/")
    return frozenset(point.removeprefix(prefix) or "/" for point in points if point.startswith(prefix)) if prefix else points


def find_mount(dirfd: int, name: str) -> int | None:
    """The root of the mount at `name` in the directory, opened with O_PATH; None when nothing is mounted there."""
    try:
        target = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dirfd)
    except FileNotFoundError:
        return None
    if mount_id(target) != mount_id(dirfd):
        return target
    os.close(target)
    return None


def detach_all(dirfd: int, name: str) -> int:
    """Unmount every mount at `name` in the directory; returns how many there were.

    Each is named by a descriptor of its own root, so that a name that is swapped meanwhile does not matter. Lazily, because a
    process in the mount (an administrator's shell, OVS during connect) must not make DEL fail: the mount leaves the tree at once,
    and the kernel frees it after its last user.
    """
    for count in range(_LAYERS_MAX):
        target = find_mount(dirfd, name)
        if target is None:
            return count
        try:
            paths.umount2(f"/proc/self/fd/{target}", paths.DETACH)
        finally:
            os.close(target)
    raise DirectoryRefused(f"mount {name}: more than {_LAYERS_MAX} mounts on top of each other", "findmnt shows them")


def remove_directory(dirfd: int, name: str, what: str) -> None:
    """Remove the empty directory `name`; what is not empty, not a directory or a mount point stays, with a warning.

    One whose name no file can have there never was.
    """
    try:
        os.rmdir(name, dir_fd=dirfd)
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ENAMETOOLONG}:
            return
        if error.errno not in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EBUSY}:
            raise
        say("warning", f"directory {what}: {os.strerror(error.errno)}; left there")


def _mount(source: int, parent: int, name: str, step: PodMount) -> None:
    existing = find_mount(parent, name)
    if existing is not None:
        try:
            _use(existing, source, step)
        finally:
            os.close(existing)
        return
    tree = protected_clone(source)
    try:
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=parent)
        target = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            paths.move_mount(tree, target)
        finally:
            os.close(target)
    finally:
        os.close(tree)


def _use(existing: int, source: int, step: PodMount) -> None:
    """Use an existing mount if it shows the same directory. Raises DirectoryRefused."""
    if not os.path.samestat(os.stat(existing), os.stat(source)):
        raise DirectoryRefused(
            f"mount {step.target}: shows another directory than {step.source}",
            f"{_facts(existing, source)}; findmnt {step.target}",
        )
    try:  # the former plugin mounts without these flags
        paths.mount_setattr(existing, _FLAGS)
    except OSError as error:
        if error.errno not in {errno.ENOSYS, errno.EINVAL}:
            raise


def _differences(target: int, step: PodMount, root: HostRoot) -> list[Drift]:
    what = f"mount {step.target}"
    try:
        source = open_directory(step.source, step.trusted, root)
    except DirectoryRefused as error:
        return [Drift(what, "", step.source, f"that {error.message}")]
    found = []
    try:
        if not os.path.samestat(os.stat(target), os.stat(source)):
            found.append(Drift(what, "", step.source, Other("another directory"), _facts(target, source)))
    finally:
        os.close(source)
    if not os.fstatvfs(target).f_flag & _ST_NOSYMFOLLOW:
        found.append(Drift(what, "", "nosymfollow", "a mount without it"))
    return found


def _facts(target: int, source: int) -> str:
    there, wanted = os.stat(target), os.stat(source)
    return (
        f"mounted: device {os.major(there.st_dev)}:{os.minor(there.st_dev)} inode {there.st_ino}, "
        f"wanted: device {os.major(wanted.st_dev)}:{os.minor(wanted.st_dev)} inode {wanted.st_ino}"
    )
