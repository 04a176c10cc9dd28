"""The file in the pod's directory that gives an application the facts of its interface, where no API server is used.

The pod can write the directory. So the file is made under a temporary name with O_EXCL and then renamed: no link or file that the
pod put there is opened, and the application never reads half a file.
"""
# Descriptors and single names rather than paths: pathlib cannot express them.
# ruff: noqa: PTH123

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from userspace_cni.attachment.drift import Drift, Other
from userspace_cni.attachment.steps import ConfigFile, Driver
from userspace_cni.base.beneath import directory, directory_if_there, kind, look, open_regular, plain
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import PASSING, DirectoryRefused, InvalidConfig, Unavailable
from userspace_cni.base.root import HERE, HostRoot

_MODE = 0o644
"""The application may run as any user."""


class ConfigFileDriver(Driver[ConfigFile]):
    """Files with an attachment's facts."""

    def __init__(self, root: HostRoot = HERE) -> None:
        self._root = root

    def apply(self, step: ConfigFile, deadline: Deadline) -> None:
        """Write the file, or replace it. Raises DirectoryRefused when something else than a regular file has the name."""
        deadline.require(_what(step))
        name = plain(step.name)
        with directory(step.directory, step.trusted, self._root) as dirfd:
            facts = look(dirfd, name)
            if facts is not None and not stat.S_ISREG(facts.st_mode):
                raise DirectoryRefused(f"{_what(step)}: {kind(facts.st_mode)} is in its place", "the pod's own directory")
            replace_file(dirfd, name, step.content, _MODE)

    def undo(self, step: ConfigFile, deadline: Deadline) -> None:
        """Remove the file; anything but a regular file stays, because we did not make it."""
        deadline.require(_what(step))
        with directory_if_there(step.directory, step.trusted, self._root) as dirfd:
            if dirfd is not None:
                remove_file(dirfd, plain(step.name))

    def check(self, step: ConfigFile, deadline: Deadline) -> list[Drift]:
        """A missing file, or other content than was written."""
        deadline.require(_what(step))
        with directory_if_there(step.directory, step.trusted, self._root) as dirfd:
            found = None if dirfd is None else read_file(dirfd, plain(step.name), len(step.content.encode()) + 1)
        if found is None:
            return [Drift(_what(step), "", "a file", "nothing that could be read")]
        if found != step.content.encode():
            return [Drift(_what(step), "", "the content that ADD wrote", Other("another"))]
        return []


def replace_file(dirfd: int, name: str, content: str, mode: int) -> None:
    """Write `name` in the directory so that it is complete or not there."""
    with write_temporary(dirfd, name, content, mode) as beside:
        os.rename(beside, name, src_dir_fd=dirfd, dst_dir_fd=dirfd)


@contextmanager
def write_temporary(dirfd: int, name: str, content: str, mode: int, *, durable: bool = False) -> Iterator[str]:
    """The temporary name under which the content is written, to be renamed in the block; `durable`: it is flushed.

    It is always the same name, so that `remove_file` finds what a crash leaves.
    """
    beside = temporary(name)
    _remove_regular(dirfd, beside)
    try:
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=dirfd)
    except FileExistsError:
        facts = look(dirfd, beside)
        found = kind(facts.st_mode) if facts else "something that came and went"
        raise DirectoryRefused(f"file {name}: {found} is at its temporary name {beside}", "the pod's own directory") from None
    try:
        try:
            os.fchmod(fd, mode)
            rest = memoryview(content.encode())
            while rest:
                rest = rest[os.write(fd, rest) :]
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        yield beside
    except OSError:
        with suppress(OSError):  # half a file would keep the last room of a full disk
            _remove_regular(dirfd, beside)
        raise


def remove_file(dirfd: int, name: str) -> None:
    """Remove the file of `replace_file`, and its temporary file."""
    _remove_regular(dirfd, temporary(name))
    _remove_regular(dirfd, name)


def read_file(dirfd: int, name: str, limit: int) -> bytes | None:
    """At most `limit` bytes of a regular file; None when it is absent or anything else, which is not opened."""
    fd = open_regular(dirfd, name)
    if fd is None:
        return None
    with open(fd, "rb") as file:
        return file.read(limit)


def read_trusted(dirfd: int, name: str, limit: int) -> bytes | None:
    """As `read_file`, of a file that root alone can have written. Raises InvalidConfig for another one."""
    fd = open_regular(dirfd, name)
    if fd is None:
        return None
    with open(fd, "rb") as file:
        _require_roots(os.fstat(fd), f"file {name}")
        return file.read(limit)


def read_of_root(path: str, what: str, limit: int) -> bytes | None:
    """At most `limit` bytes of a regular file that root alone can have written, links followed; None when it is absent.

    Raises InvalidConfig for another one, which begins with `what`, Unavailable when it cannot be read now.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            facts = os.fstat(fd)
            if not stat.S_ISREG(facts.st_mode):
                raise InvalidConfig(f"{what}: not a regular file", "it must be one")
            _require_roots(facts, what)
            with open(fd, "rb", closefd=False) as file:
                return file.read(limit)
        finally:
            os.close(fd)
    except FileNotFoundError:
        return None
    except OSError as error:
        wrong = Unavailable if error.errno in PASSING else InvalidConfig
        raise wrong(f"{what}: {error.strerror}", "it must be a regular file") from None


def _require_roots(facts: os.stat_result, what: str) -> None:
    if facts.st_uid not in (0, os.geteuid()) or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise InvalidConfig(
            f"{what}: it belongs to user {facts.st_uid}, with mode {stat.S_IMODE(facts.st_mode):o}",
            "it must be root's, writable by root alone",
        )


def _remove_regular(dirfd: int, name: str) -> None:
    facts = look(dirfd, name)
    if facts is None or not stat.S_ISREG(facts.st_mode):
        return
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=dirfd)


def temporary(name: str) -> str:
    return f".{name}.tmp"


def _what(step: ConfigFile) -> str:
    return f"file {step.directory}/{step.name}"
