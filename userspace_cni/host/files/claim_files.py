"""The files about claims' devices: for the runtime (CDI), which reads all of a directory, and for containers.

A runtime that reads half a file refuses every container with a device of it, and a power cut may leave one that was renamed
before its content was written. So each is written under another name, and renamed; those that a runtime reads are flushed before.
"""
# Descriptors and single names rather than paths: pathlib cannot express them.

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from userspace_cni.attachment.drift import Absent, Drift, Other
from userspace_cni.attachment.steps import ClaimFile, Driver, SharedReads
from userspace_cni.base.beneath import make_trusted, plain, translate_errors
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import Unavailable
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.host.files.whole_files import read_file, remove_file, write_temporary

_DIRECTORY_MODE = 0o755
_MODE = 0o644
"""Containers read theirs as any user."""


class ClaimFileDriver(Driver[ClaimFile]):
    """Files in directories that root alone can write."""

    def __init__(self, root: HostRoot = HERE) -> None:
        self._root = root

    def apply(self, step: ClaimFile, deadline: Deadline) -> None:
        """Write the file, or replace it."""
        deadline.require(_what(step))
        with translate_errors(_what(step)):
            make_trusted(self._root.path(step.directory), _DIRECTORY_MODE)
            with self._directory(step) as dirfd:
                if dirfd is None:
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
                with write_temporary(dirfd, plain(step.name), step.content, _MODE, durable=step.flushed) as beside:
                    os.rename(beside, step.name, src_dir_fd=dirfd, dst_dir_fd=dirfd)
                if step.flushed:
                    os.fsync(dirfd)

    def undo(self, step: ClaimFile, deadline: Deadline) -> None:
        """Remove the file, and what a killed process left of it."""
        deadline.require(_what(step))
        with translate_errors(_what(step)), self._directory(step) as dirfd:
            if dirfd is not None:
                try:
                    remove_file(dirfd, plain(step.name))
                except OSError as error:
                    if error.errno != errno.EROFS:
                        raise
                    raise Unavailable(
                        f"{_what(step)}: its file system is read-only", "it is removed when the file system takes writes again"
                    ) from error

    def check(self, step: ClaimFile, deadline: Deadline) -> list[Drift]:
        """A missing file, or another content."""
        deadline.require(_what(step))
        wanted = step.content.encode()
        with translate_errors(_what(step)), self._directory(step) as dirfd:
            found = None if dirfd is None else read_file(dirfd, plain(step.name), len(wanted) + 1)
        if found is None:
            return [Drift(_what(step), "", "a file", Absent("nothing that could be read"))]
        return [] if found == wanted else [Drift(_what(step), "", "the content that was written", Other("another"))]

    def is_lost(self, step: ClaimFile, seen: SharedReads, deadline: Deadline) -> bool:
        """Whether it is missing, or says something else: the runtime refuses a container whose device it does not find."""
        del seen
        return bool(self.check(step, deadline))

    @contextmanager
    def _directory(self, step: ClaimFile) -> Iterator[int | None]:
        try:
            dirfd = os.open(self._root.path(step.directory), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):  # in neither is a file of ours
            yield None
            return
        try:
            yield dirfd
        finally:
            os.close(dirfd)


def _what(step: ClaimFile) -> str:
    return f"file {step.directory}/{step.name}"
