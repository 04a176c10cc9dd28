"""The runtime's own records of its sandboxes: the files that libcni writes after each ADD and removes after DEL.

They tell of pods of any CNI plugin where their namespaces are. Each file is of one interface; those of a sandbox are taken
together. Files can be empty or torn after a crash, or of a former boot: such are left out and counted. Root writes them, so what
they say is true of the moment in which they were written, and no more: a path is only a name. A runtime that gives up an ADD
while a plugin is at work can leave the file of a sandbox that never ran, for ever: one whose path is not there is left out.
"""
# Descriptors and single names rather than paths: pathlib cannot express them.
# ruff: noqa: PTH208

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from userspace_cni.base.errors import DirectoryRefused, of_kernel
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.host.files.whole_files import read_file
from userspace_cni.linux.boot import boottime_ns

_RESULTS: Final = "results"
_KIND: Final = "cniCacheV1"
_SIZE_MAX: Final = 1 << 20
_OF_PROCESSES: Final = "/proc/"
"""A path below it can lead to another namespace after a boot; other ones are not there then. The file's time counts for these
alone, for the clock may have been set since."""
_UID, _NAMESPACE, _NAME = "K8S_POD_UID", "K8S_POD_NAMESPACE", "K8S_POD_NAME"


@dataclass(frozen=True)
class Sandbox:
    """A sandbox as its runtime tells of it. `uid` "" for a container that is in no cluster; `path` of its network namespace."""

    id: str
    namespace: str
    name: str
    uid: str
    path: str


class CniCache:
    """The files below `directory`. One that has not changed is not read again. For one thread at a time."""

    def __init__(self, directory: str, root: HostRoot = HERE) -> None:
        self._directory = f"{directory}/{_RESULTS}"
        self._root = root
        self._known: dict[str, tuple[tuple[int, ...], Sandbox | None]] = {}
        self.unreadable = 0
        """How many files the last look could not use."""
        self.interfaces: Mapping[str, tuple[tuple[int, ...], ...]] = {}
        """What tells the files of each sandbox, by its id, from those of another moment."""

    def sandboxes(self) -> list[Sandbox]:
        """Every sandbox whose namespace is there. Two files that tell otherwise of one tell nothing. Raises UserspaceError."""
        found: dict[str, Sandbox] = {}
        doubtful: set[str] = set()
        interfaces: dict[str, tuple[tuple[int, ...], ...]] = {}
        self.unreadable = 0
        for identity, read in self._read():
            if read is None:
                self.unreadable += 1
                continue
            interfaces[read.id] = (*interfaces.get(read.id, ()), identity)
            if found.setdefault(read.id, read) != read:
                doubtful.add(read.id)
        self.unreadable += len(doubtful)
        self.interfaces = interfaces
        return [each for name, each in found.items() if name not in doubtful and self._is_there(each.path)]

    def _is_there(self, path: str) -> bool:
        """Also where a look is refused: who opens it is told why."""
        try:
            os.lstat(self._root.path(path))
        except FileNotFoundError:
            return False
        except (OSError, DirectoryRefused, ValueError):
            return True
        return True

    def _read(self) -> Iterator[tuple[tuple[int, ...], Sandbox | None]]:
        """What tells each file from another one, and what it tells, None for one that cannot be used."""
        known, self._known = self._known, {}
        booted_s = time.time() - boottime_ns() / 1e9
        try:
            dirfd = os.open(self._root.path(self._directory), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        except OSError as error:
            raise of_kernel(f"{self._directory}: reading it", error, "is the setting cni_cache_dir right?") from error
        try:
            for name in sorted(os.listdir(dirfd)):
                with suppress(FileNotFoundError):
                    facts = os.stat(name, dir_fd=dirfd, follow_symlinks=False)
                    identity = facts.st_ino, facts.st_size, facts.st_mtime_ns
                    before = known.get(name)
                    read = before[1] if before and before[0] == identity else _sandbox(_content(dirfd, name))
                    if read is not None:
                        self._known[name] = identity, read
                        if read.path.startswith(_OF_PROCESSES) and facts.st_mtime < booted_s:
                            read = None
                    yield identity, read
        finally:
            os.close(dirfd)


def _content(dirfd: int, name: str) -> Any:
    """The JSON value of a file, None for one that has none. It is read twice, for it may have been written meanwhile."""
    for _ in range(2):
        with suppress(ValueError, RecursionError, OSError):
            return json.loads(read_file(dirfd, name, _SIZE_MAX) or b"")
    return None


def _sandbox(content: Any) -> Sandbox | None:
    """What a file tells; None where it is no such file, or has no namespace."""
    if not isinstance(content, Mapping) or content.get("kind") != _KIND:
        return None
    said = content.get("cniArgs")
    args = {
        each[0]: each[1]
        for each in (said if isinstance(said, list) else ())
        if isinstance(each, list) and len(each) == 2 and all(isinstance(part, str) for part in each)
    }
    found = {path for path in _namespaces(content) if path.startswith("/")}
    sandbox = content.get("containerId")
    if len(found) != 1 or not isinstance(sandbox, str) or not sandbox:
        return None
    return Sandbox(sandbox, args.get(_NAMESPACE, ""), args.get(_NAME, ""), args.get(_UID, ""), found.pop())


def _namespaces(content: Mapping[str, Any]) -> Iterator[str]:
    """Every path of a namespace in a file: newer libcni has a key for it, and each result names it at the interfaces inside."""
    yield str(content.get("netns") or "")
    result = content.get("result")
    interfaces = result.get("interfaces") if isinstance(result, Mapping) else None
    for each in interfaces if isinstance(interfaces, list) else ():
        if isinstance(each, Mapping):
            yield str(each.get("sandbox") or "")
