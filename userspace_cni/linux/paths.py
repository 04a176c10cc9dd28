"""The system calls of `paths.c` as Python functions: integers and paths in, file descriptors out, OSError with errno and path.

Must not decide anything: the caller knows which path is trusted, which flags a mount needs and what an error means to a pod.
A file descriptor that is returned belongs to the caller and is close-on-exec.
"""

from __future__ import annotations

import errno
import os

from userspace_cni.linux._native import ffi, lib

BENEATH: int = lib.RESOLVE_BENEATH | lib.RESOLVE_NO_SYMLINKS | lib.RESOLVE_NO_MAGICLINKS
"""Only below the given directory and through no link of any kind. Mount points are crossed: an emptyDir in memory is one."""

MOUNT_NOSYMFOLLOW: int = lib.MOUNT_ATTR_NOSYMFOLLOW
MOUNT_NOSUID: int = lib.MOUNT_ATTR_NOSUID
MOUNT_NODEV: int = lib.MOUNT_ATTR_NODEV
MOUNT_NOEXEC: int = lib.MOUNT_ATTR_NOEXEC
PRIVATE: int = lib.MS_PRIVATE
DETACH: int = lib.MNT_DETACH
NETWORK: int = lib.CLONE_NEWNET
_CHANGED: int = (
    lib.IN_CLOSE_WRITE | lib.IN_ATTRIB | lib.IN_MOVE | lib.IN_DELETE | lib.IN_DELETE_SELF | lib.IN_MOVE_SELF | lib.IN_ONLYDIR
)


def openat2(dirfd: int, path: str, flags: int, mode: int = 0) -> int:
    """Open `path` below `dirfd` under the rules of BENEATH. `mode` only with O_CREAT."""
    return _checked(lib.linux_openat2(dirfd, _bytes(path), flags, mode, BENEATH), path)


def directory(trusted: str, below: str = "") -> int:
    """The directory `below`, a relative path without "." and "..", in the directory `trusted`.

    `trusted` is opened like any other path. Users of a pod may write below it, so `below` is opened under the rules of BENEATH.
    """
    prefix = os.open(trusted, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    if not below:
        return prefix
    try:
        return openat2(prefix, below, os.O_RDONLY | os.O_DIRECTORY)
    finally:
        os.close(prefix)


def open_tree(dirfd: int, path: str = "") -> int:
    """A detached clone of the mount at `path` below `dirfd`, or of `dirfd` itself. Closing it before `move_mount` ends it."""
    return _checked(lib.linux_open_tree(dirfd, _bytes(path)), path)


def mount_setattr(fd: int, attributes: int, propagation: int = 0) -> None:
    """Add MOUNT_* flags to the mount whose root is `fd`."""
    _checked(lib.linux_mount_setattr(fd, attributes, propagation), _name(fd))


def move_mount(tree: int, target: int) -> None:
    """Attach the detached mount `tree` over the object that `target` was opened on."""
    _checked(lib.linux_move_mount(tree, target), _name(target))


def mount_tmpfs(target: str, options: str) -> None:
    """Mount a new file system in memory, with options of tmpfs(5), that runs no program and has no devices."""
    _checked(lib.linux_mount_tmpfs(_bytes(target), lib.MS_NOSUID | lib.MS_NODEV | lib.MS_NOEXEC, _bytes(options)), target)


def umount2(path: str, flags: int) -> None:
    """Take the topmost mount off `path`."""
    _checked(lib.linux_umount2(_bytes(path), flags), path)


def setns(fd: int, nstype: int) -> None:
    """Move the calling thread into the namespace `fd`, which must be of type `nstype`."""
    _checked(lib.linux_setns(fd, nstype), _name(fd))


def inotify(directory: str) -> int:
    """A descriptor that is readable once a file in the directory was written, renamed, removed or got another owner or mode.

    What it reads is of no use but to be read away.
    """
    fd = _checked(lib.linux_inotify_init(), directory)
    try:
        _checked(lib.linux_inotify_add_watch(fd, _bytes(directory), _CHANGED), directory)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _checked(result: int, path: str) -> int:
    if result < 0:
        number = ffi.errno
        raise OSError(number, os.strerror(number), path)
    return result


def _bytes(path: str) -> bytes:
    encoded = os.fsencode(path)
    if b"\0" in encoded:  # C would silently use the part before it
        raise OSError(errno.EINVAL, "NUL byte in a path", path)
    return encoded


def _name(fd: int) -> str:
    """The path behind `fd`, for an error message only."""
    try:
        return str(os.readlink(f"/proc/self/fd/{fd}"))  # noqa: PTH115 - pathlib costs an import and gives nothing here
    except OSError:
        return f"fd {fd}"
