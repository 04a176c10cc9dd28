"""Directories that a pod can write, and everything that is done in them as root.

A path has two parts. The administrator or the kubelet made its trusted prefix, which is opened like any other directory. A pod
may rewrite what is below at any moment, so that is opened with openat2(2), which follows no link. From then on there are only
file descriptors and single names below them: neither this module nor its users may walk such a path a second time.
Paths are the host's: `root` translates the prefix, and messages name the host's paths.

Library and kernel errors end here: what leaves is an error of `userspace_cni.base.errors` that names the path and what was found.
No text says "not found" or "no such file or directory": container runtimes take an error with these words for a success.
"""
# Descriptors and single names rather than paths: pathlib cannot express them.
# ruff: noqa: PTH101, PTH102, PTH112, PTH120

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager

from userspace_cni.base.errors import PASSING, DirectoryRefused, Unavailable, UserspaceError
from userspace_cni.base.log import say
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.linux import paths

DIRECTORY_MODE = 0o750
"""The mode of a directory made for one attachment when the network asks for none: the former plugin's."""

PARENT_MODE = 0o711
"""The mode of a missing prefix: users who may enter the directory must be able to reach it, and cannot list its parents."""

GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})
"""Errors of opening without following links that say that the object that we made is no longer at its path. ENAMETOOLONG says
that it never was: the name is too long for this file system."""

_PASSING = PASSING | {errno.EBUSY, errno.EDQUOT, errno.ENOSPC}

_SETTLED_NS = 50_000_000
"""Several ticks of the clock that the kernel takes a file's times from."""

_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFSOCK: "a socket",
    stat.S_IFREG: "a regular file",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


def kind(mode: int) -> str:
    """Name the kind of file of an `st_mode`, in words."""
    return _KINDS.get(stat.S_IFMT(mode), f"an object of type {stat.S_IFMT(mode):o}")


def plain(name: str) -> str:
    """Return `name` if it is one component of a path. Raises DirectoryRefused otherwise."""
    if name in {"", ".", ".."} or "/" in name or "\0" in name:
        raise DirectoryRefused(f"name {name!r}: it is not the name of a file", "the record or the network's configuration")
    return name


def refusal(what: str, error: OSError, found: str = "") -> UserspaceError:
    """The error for `what`, which failed with `error`; Unavailable where that is transient."""
    if error.errno == errno.ENOENT:
        reason = "it does not exist"
    elif error.errno == errno.EXDEV:
        reason = "it leads out of the directory that it must be below"
    elif error.errno == errno.ELOOP:
        reason = "there is a symbolic link in it, and none is followed"
    else:
        reason = os.strerror(error.errno) if error.errno else str(error)
    wrong = Unavailable if error.errno in _PASSING else DirectoryRefused
    return wrong(f"{what}: {found or reason}", f"errno {errno.errorcode.get(error.errno or 0, error.errno)}")


@contextmanager
def translate_errors(what: str) -> Iterator[None]:
    """Within this block every OSError becomes the error that says that `what` failed."""
    try:
        yield
    except OSError as error:
        raise refusal(what, error) from error


def look(dirfd: int, name: str) -> os.stat_result | None:
    """Facts of `name` in the directory, of a link itself and not of its target; None when there is nothing."""
    try:
        return os.stat(name, dir_fd=dirfd, follow_symlinks=False)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENAMETOOLONG):  # nothing has a name that is too long
            raise
        return None


def open_regular(dirfd: int, name: str) -> int | None:
    """A descriptor for reading the regular file `name` in the directory; None when there is nothing, or anything else.

    The file is checked before it is opened, for a pod may have put a device node there: opening one can start a watchdog or load
    a driver.
    """
    try:
        seen = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dirfd)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENAMETOOLONG):
            raise
        return None
    try:
        return reopen(seen)
    finally:
        os.close(seen)


def reopen(seen: int) -> int | None:
    """A descriptor for reading the file that `seen` was opened on with O_PATH; None unless it is a regular file.

    The file cannot be exchanged in between. O_NONBLOCK: a process with a lease on the file must not keep us waiting.
    """
    if not stat.S_ISREG(os.fstat(seen).st_mode):
        return None
    return os.open(f"/proc/self/fd/{seen}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


def open_directory(path: str, trusted: str, root: HostRoot = HERE) -> int:
    """Open the directory at `path`, below the prefix `trusted`. Raises DirectoryRefused naming what is in the way."""
    below = _below(path, trusted)
    try:
        return _open(path, trusted, root)
    except OSError as error:
        raise refusal(f"directory {path}", error, _obstacle(trusted, below, root)) from error


def open_if_there(path: str, trusted: str, root: HostRoot = HERE) -> int | None:
    """Open the directory at `path` for removing something in it; None when it is gone.

    A link or a file in its place also means gone: what we made can only be reached through what a pod put there. A pod must not
    be able to prevent its own deletion in this way.
    """
    below = _below(path, trusted)
    try:
        return _open(path, trusted, root)
    except OSError as error:
        if error.errno not in GONE:
            raise refusal(f"directory {path}", error) from error
        if error.errno != errno.ENOENT:
            say("warning", f"directory {path}: {_obstacle(trusted, below, root) or 'something else is in its place'}; left alone")
        return None


@contextmanager
def directory(path: str, trusted: str, root: HostRoot = HERE) -> Iterator[int]:
    """`open_directory`, closed at the end; OSErrors inside are translated, naming the path."""
    dirfd = open_directory(path, trusted, root)
    try:
        with translate_errors(f"directory {path}"):
            yield dirfd
    finally:
        os.close(dirfd)


@contextmanager
def directory_if_there(path: str, trusted: str, root: HostRoot = HERE) -> Iterator[int | None]:
    """`open_if_there`, closed at the end; OSErrors inside are translated, naming the path."""
    dirfd = open_if_there(path, trusted, root)
    try:
        with translate_errors(f"directory {path}"):
            yield dirfd
    finally:
        if dirfd is not None:
            os.close(dirfd)


def stamp_directory(path: str, trusted: str, root: HostRoot = HERE) -> tuple[int, ...] | None:
    """What changes with the directory at `path`, its owner, mode and label, and the names in it; None where it is gone, or where
    it changed so lately that the next change may have the same time. Raises DirectoryRefused, Unavailable."""
    try:
        dirfd = _open(path, trusted, root)
    except OSError as error:
        if error.errno not in GONE:
            raise refusal(f"directory {path}", error) from error
        return None
    try:
        facts = os.fstat(dirfd)
    finally:
        os.close(dirfd)
    settled = 0 <= facts.st_ctime_ns < time.time_ns() - _SETTLED_NS
    return (facts.st_dev, facts.st_ino, facts.st_ctime_ns) if settled else None


def make_directory(path: str, trusted: str, mode: int, root: HostRoot = HERE, *, parents: bool = False) -> tuple[int, bool]:
    """Open the directory at `path`, made with `mode` when it is missing; also return whether it was made now.

    A missing prefix is made with PARENT_MODE, whatever `mode` is: a mode asked for the pod's directory must not open ours. With
    `parents` the directories between are made in the same way. Without, they must exist: directories made while the kubelet
    removes a pod would stay for ever.
    """
    components = _below(path, trusted)
    with translate_errors(f"directory {trusted}"):
        prefix = root.path(trusted)
        made = make_trusted(prefix, PARENT_MODE if components else mode)
        current = os.open(prefix, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    if not components:
        return current, made
    try:
        parent = _walk(current, components[:-1], make=parents)
        try:
            made, below = _make_component(components[-1], parent, mode)
        finally:
            os.close(parent)
    except OSError as error:
        raise refusal(f"directory {path}", error, _obstacle(trusted, components, root)) from error
    finally:
        os.close(current)
    return below, made


def make_trusted(path: str, mode: int) -> bool:
    """Make a directory that no pod can write, with its parents (0755, as mkdir -p makes them). Whether it was made now.

    `path` is as this process sees it.
    """
    if os.path.isdir(path):
        return False
    parent = os.path.dirname(path.rstrip("/"))
    make_trusted(parent, 0o755)
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        return False
    os.chmod(path, mode)  # whatever the umask is
    return True


def _walk(dirfd: int, components: list[str], *, make: bool) -> int:
    """Open the directory at `components` below `dirfd`, without following links; `make`: make each that is missing."""
    if not make:
        return paths.openat2(dirfd, "/".join(components) or ".", os.O_RDONLY | os.O_DIRECTORY)
    current = os.dup(dirfd)
    for name in components:
        try:
            _, below = _make_component(name, current, PARENT_MODE)
        finally:
            os.close(current)
        current = below
    return current


def _make_component(name: str, dirfd: int, mode: int) -> tuple[bool, int]:
    try:
        os.mkdir(name, mode, dir_fd=dirfd)
        made = True
    except FileExistsError:
        made = False
    below = paths.openat2(dirfd, name, os.O_RDONLY | os.O_DIRECTORY)
    if made:
        os.fchmod(below, mode)  # whatever the umask is
    return made, below


def _open(path: str, trusted: str, root: HostRoot) -> int:
    return paths.directory(root.path(trusted), "/".join(_below(path, trusted)))


def _below(path: str, trusted: str) -> list[str]:
    """The components of `path` below `trusted`. Raises DirectoryRefused for a path that is not below it."""
    prefix, whole = trusted.rstrip("/") + "/", path.rstrip("/") + "/"
    components = [name for name in whole[len(prefix) :].split("/") if name]
    if not trusted.startswith("/") or not whole.startswith(prefix) or {".", ".."} & set(components):
        raise DirectoryRefused(f"directory {path}: it is not below {trusted}", "the record or the network's configuration")
    return components


def _obstacle(trusted: str, components: list[str], root: HostRoot) -> str:
    """For a message, the first component that is no directory; "" when there is none (any more)."""
    try:
        prefix = os.open(root.path(trusted), os.O_PATH | os.O_CLOEXEC)
    except (OSError, DirectoryRefused):
        return ""
    try:
        for depth in range(1, len(components) + 1):
            way = "/".join(components[:depth])
            fd = paths.openat2(prefix, way, os.O_PATH | os.O_NOFOLLOW)
            try:
                mode = os.fstat(fd).st_mode
            finally:
                os.close(fd)
            if not stat.S_ISDIR(mode):
                return f"{trusted.rstrip('/')}/{way} is {kind(mode)}, not a directory"
    except OSError:
        pass
    finally:
        os.close(prefix)
    return ""
