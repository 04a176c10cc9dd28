"""The file by which the node's runtimes know a network, in their directory: the driver of RuntimeNetwork.

Runtimes look at the directory whenever something changes in it, and take the first file by name. So the file comes and changes by
a rename, and its temporary name has none of the endings that they read. A file without our mark is another program's: it is
neither replaced nor removed, and a link counts as one. A file that we have put there and others have changed is put back.
"""
# Descriptors and single names rather than paths: pathlib cannot express them.
# ruff: noqa: PTH103, PTH112

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from userspace_cni.attachment.drift import Absent, Drift, Other
from userspace_cni.attachment.steps import Driver, RuntimeNetwork, SharedReads
from userspace_cni.base.beneath import look, translate_errors
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import NameTaken
from userspace_cni.base.log import say
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.cni.conflist import FILE_MAX, store_of
from userspace_cni.host.files.whole_files import read_file, remove_file, temporary, write_temporary

_MODE: Final = 0o600
"""What runtimes need, who are root, and audits (CIS Kubernetes Benchmark, "CNI file permissions") ask for."""
_ENDINGS: Final = (".conf", ".conflist", ".json")
"""Of the files that runtimes read."""


@dataclass(frozen=True)
class FoundFile:
    """The file that is at a step's place. `store`: whose mark it carries, "" for another program's file."""

    store: str
    content: bytes


class RuntimeNetworkDriver(Driver[RuntimeNetwork]):
    """Files of runtimes that carry our mark."""

    def __init__(self, root: HostRoot = HERE) -> None:
        self._root = root

    def apply(self, step: RuntimeNetwork, deadline: Deadline) -> None:
        """Put the file in place, durably, and then remove those of ours that it is to replace.

        The directory is made when missing. Raises NameTaken where another program has a file of that name.
        """
        deadline.require(_what(step))
        with _made(step, self._root) as dirfd:
            found = _found(dirfd, step.name)
            require_ours(step, found)
            if found is None or found.content != step.content.encode():
                _place(dirfd, step, is_new=found is None)
            else:
                remove_temporary(dirfd, step.name)
            _remove(dirfd, step.instead_of, step.store)

    def undo(self, step: RuntimeNetwork, deadline: Deadline) -> None:
        """Remove the file, if it carries our mark, and leftovers of an interrupted write."""
        deadline.require(_what(step))
        with _if_there(step, self._root) as dirfd:
            if dirfd is None:
                return
            found = _found(dirfd, step.name)
            if found and found.store != step.store:
                say("warning", f"{_what(step)}: it is another program's by now, and left alone")
            remove_temporary(dirfd, step.name)
            _remove(dirfd, (step.name, *step.instead_of), step.store)

    def check(self, step: RuntimeNetwork, deadline: Deadline) -> list[Drift]:
        deadline.require(_what(step))
        found = look_at(step, self._root)
        if found is None:
            return [Drift(_what(step), "", "a file", Absent())]
        return self._drift(step, found)

    def is_lost(self, step: RuntimeNetwork, seen: SharedReads, deadline: Deadline) -> bool:  # noqa: ARG002 - the interface
        """Whether there is no file of that name."""
        deadline.require(_what(step))
        return look_at(step, self._root) is None

    def find_changes(self, step: RuntimeNetwork, seen: SharedReads, deadline: Deadline) -> list[Drift]:  # noqa: ARG002 - the interface
        """Another content of a file of ours."""
        deadline.require(_what(step))
        found = look_at(step, self._root)
        return self._drift(step, found) if found and found.store == step.store else []

    def _drift(self, step: RuntimeNetwork, found: FoundFile) -> list[Drift]:
        if found.content == step.content.encode():
            return []
        return [Drift(_what(step), "", "the content that the agent wrote", Other("another"), f"cat {step.path}")]


def look_at(step: RuntimeNetwork, root: HostRoot = HERE) -> FoundFile | None:
    """The file that is at the step's place; None when there is none. Raises UserspaceError."""
    with _if_there(step, root) as dirfd:
        return None if dirfd is None else _found(dirfd, step.name)


def require_ours(step: RuntimeNetwork, found: FoundFile | None) -> None:
    """Raise NameTaken unless the place is free, or what is there carries the step's mark."""
    if found is None or found.store == step.store:
        return
    if found.store:
        why = "another state directory's agent has put it there, or this one's before its state directory was lost"
        raise NameTaken(f"{_what(step)}: {why}", "remove it if that is gone; it says whose it is")
    raise NameTaken(
        f"{_what(step)}: another program's file has this name", "give the network's file another name, or remove that"
    )


def remove_temporary(dirfd: int, name: str) -> None:
    """Remove leftovers of an interrupted write."""
    facts = look(dirfd, temporary(name))
    if facts is not None and stat.S_ISREG(facts.st_mode):
        os.unlink(temporary(name), dir_fd=dirfd)


def _place(dirfd: int, step: RuntimeNetwork, *, is_new: bool) -> None:
    """Give the directory the file. A new one never takes the place of what came there meanwhile."""
    with write_temporary(dirfd, step.name, step.content, _MODE, durable=True) as beside:
        if is_new:
            try:
                os.link(beside, step.name, src_dir_fd=dirfd, dst_dir_fd=dirfd)
            except FileExistsError:
                remove_temporary(dirfd, step.name)
                require_ours(step, _found(dirfd, step.name))
                return  # an agent's before this one: the next look compares
            os.unlink(beside, dir_fd=dirfd)
        else:
            _require_still_ours(dirfd, step)
            os.rename(beside, step.name, src_dir_fd=dirfd, dst_dir_fd=dirfd)
    os.fsync(dirfd)
    there = [name for name in sorted(os.listdir(dirfd)) if name.endswith(_ENDINGS) and not name.startswith(".")]
    # none where another program has taken ours away already, as those do that want the directory for themselves
    if there and there[0] != step.name:
        first = f"{step.directory}/{there[0]}"
        say("warning", "runtimes that take the first network by name take another file than ours", ours=step.path, first=first)


def _require_still_ours(dirfd: int, step: RuntimeNetwork) -> None:
    """Raise NameTaken where another program's file has come while ours was written and flushed, which may take long."""
    try:
        require_ours(step, _found(dirfd, step.name))
    except NameTaken:
        remove_temporary(dirfd, step.name)
        raise


def _remove(dirfd: int, names: Iterable[str], store: str) -> None:
    """Durably remove those of these files that carry the mark of this state directory, and leftovers of interrupted writes."""
    for name in names:
        remove_temporary(dirfd, name)
        found = _found(dirfd, name)
        if found and found.store == store:
            remove_file(dirfd, name)
    os.fsync(dirfd)


def _found(dirfd: int, name: str) -> FoundFile | None:
    if look(dirfd, name) is None:
        return None
    content = read_file(dirfd, name, FILE_MAX + 1) or b""
    return FoundFile(store_of(content), content)


@contextmanager
def _made(step: RuntimeNetwork, root: HostRoot) -> Iterator[int]:
    """A descriptor of the directory, which is made when missing. Errors in the block name the file and become ours."""
    with translate_errors(_what(step)):
        path = root.path(step.directory)
        os.makedirs(path, 0o755, exist_ok=True)
        with _opened(path) as dirfd:
            yield dirfd


@contextmanager
def _if_there(step: RuntimeNetwork, root: HostRoot) -> Iterator[int | None]:
    """The same; None where there is no directory."""
    with translate_errors(_what(step)):
        path = root.path(step.directory)
        if not os.path.isdir(path):
            yield None
            return
        with _opened(path) as dirfd:
            yield dirfd


@contextmanager
def _opened(path: str) -> Iterator[int]:
    dirfd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield dirfd
    finally:
        os.close(dirfd)


def _what(step: RuntimeNetwork) -> str:
    return f"file {step.path}"
