"""Borrowed sockets: `ping` and `load` make them for a moment where a pod's application would make its own.

A socket stays as a file when its process is killed, and then the application finds the name taken. So a note is written first, in
`<run_dir>/stand-ins` under the name of the run (`probe_directories`): it names the places of the sockets, and is removed after
them. A command or an agent that finds the note of a dead run removes the dead sockets in these places.

Must never remove a socket that a process has, or any other file; and never connect to one, because OVS may be the other side.
"""
# Single names in a directory of ours rather than pathlib's.
# ruff: noqa: PTH103, PTH108, PTH123, PTH208

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from userspace_cni.attachment.steps import Socket, SocketFile
from userspace_cni.base.beneath import directory_if_there, plain, translated
from userspace_cni.base.errors import DirectoryRefused
from userspace_cni.base.root import HostRoot
from userspace_cni.fastpath.vhost.sockets import remove_dead
from userspace_cni.host.files.probe_directories import Run

_TEMPORARY: Final = re.compile(r"\.vhost-[0-9a-f]{12}")
"""The temporary name of a socket, before it has its own (`fastpath.vhost.sockets`)."""


@contextmanager
def noted(run: Run, places: Sequence[Socket], run_dir: str, root: HostRoot) -> Iterator[None]:
    """Keep a note of the places while inside. Raises DirectoryRefused, Unavailable."""
    directory = _directory(run_dir, root)
    path = f"{directory}/{run.name}"
    text = json.dumps([[each.directory, each.trusted, each.name] for each in places])
    with translated(f"note {path}"):
        os.makedirs(directory, mode=0o700, exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
        yield
    finally:
        with suppress(FileNotFoundError):
            os.unlink(path)


def notes(run_dir: str, root: HostRoot) -> Mapping[Run, tuple[SocketFile, ...]]:
    """The places of every run that has a note, living or dead; none when these cannot be read."""
    try:
        directory = _directory(run_dir, root)
        names = os.listdir(directory)
    except (OSError, DirectoryRefused):
        return {}
    found = ((Run.parse(name), f"{directory}/{name}") for name in names)
    return {run: _read(path) for run, path in found if run is not None}


def clear(run: Run, places: Sequence[Socket], run_dir: str, root: HostRoot) -> list[str]:
    """Remove a dead run's sockets, then its note; returns the sockets' paths. Raises DirectoryRefused, Unavailable."""
    removed = []
    for place in places:
        with directory_if_there(place.directory, place.trusted, root) as dirfd:
            if dirfd is not None:
                temporary = [name for name in os.listdir(dirfd) if _TEMPORARY.fullmatch(name)]
                removed += [f"{place.directory}/{name}" for name in (plain(place.name), *temporary) if remove_dead(dirfd, name)]
    path = f"{_directory(run_dir, root)}/{run.name}"
    with translated(f"note {path}"), suppress(FileNotFoundError):
        os.unlink(path)
    return removed


def _directory(run_dir: str, root: HostRoot) -> str:
    return f"{root.path(run_dir)}/stand-ins"


def _read(path: str) -> tuple[SocketFile, ...]:
    """The places in the note; none for an incomplete note, whose writer had made no socket yet."""
    try:
        with open(path, encoding="utf-8") as file:
            return tuple(SocketFile(directory, trusted, name) for directory, trusted, name in json.load(file))
    except (OSError, ValueError, TypeError):
        return ()
