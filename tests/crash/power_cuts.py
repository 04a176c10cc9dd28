"""Power cuts, replayed: what a disk may hold at each point of what a process wrote.

`Trace` notes every change below a directory as the process asks the kernel for it, and every flush. `images` lists what a power
cut at a point of that trace can leave: what was flushed, and of the rest any part that the disk may have got to. Names come to
the disk in their order up to any of them (journals keep that order), or each on its own (nothing promises that they do not);
content that was not flushed is there, torn, or empty.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

Image = Mapping[str, bytes]
"""Content by path below the traced directory."""
_LOTTERIES = 6
"""How many of the orders in which single names may reach the disk are tried at each point."""


@dataclass(frozen=True)
class Named:
    """A directory entry now names that file; None for no file."""

    path: str
    file: int | None


@dataclass(frozen=True)
class Written:
    """A file now has this content."""

    file: int
    content: bytes


@dataclass(frozen=True)
class Flushed:
    """The content of a file, or the names in a directory, are on the disk."""

    what: int | str


Change = Named | Written | Flushed


class Trace:
    """What the process does below `root` while `noting` is patched in. `changes` grows with each call."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.changes: list[Change] = []
        self._paths: dict[int, str] = {}
        self._files: dict[str, int] = {}
        self._content: dict[int, bytes] = {}
        self._born: list[str] = []

    def note(self, patch: pytest.MonkeyPatch, *, flushes: bool = True) -> None:
        """Record calls until the patches are undone. Without `flushes` no flush is recorded, as on a disk that lies."""
        noted: dict[str, Callable[..., Any]] = {
            "open": self._opening,
            "write": self._writing,
            "fsync": self._flushing if flushes else self._passing,
            "replace": self._moving,
            "rename": self._moving,
            "link": self._linking,
            "unlink": self._unlinking,
            "close": self._closing,
        }
        for name, wrap in noted.items():
            patch.setattr(os, name, wrap(getattr(os, name)))

    def path_of(self, file: int) -> str:
        """The file's first name."""
        return self._born[file]

    def _below(self, path: Any, dir_fd: int | None = None) -> str:
        """The path below `root`; "" for a path elsewhere."""
        whole = os.fsdecode(path) if dir_fd is None else f"{_path_of(dir_fd)}/{os.fsdecode(path)}"
        return os.path.relpath(whole, self.root) if whole.startswith(f"{self.root}/") else ""

    def _opening(self, real: Callable[..., int]) -> Callable[..., int]:
        def call(path: Any, flags: int, *rest: Any, dir_fd: int | None = None, **more: Any) -> int:
            fd = real(path, flags, *rest, dir_fd=dir_fd, **more)
            below = self._below(path, dir_fd) or ("." if os.fsdecode(path) == self.root else "")
            if below:
                self._paths[fd] = below
                if flags & os.O_EXCL:
                    self._files[below] = number = len(self._content)
                    self._content[number] = b""
                    self._born.append(below)
                    self.changes += [Written(number, b""), Named(below, number)]
            return fd

        return call

    def _writing(self, real: Callable[..., int]) -> Callable[..., int]:
        def call(fd: int, data: Any) -> int:
            count = real(fd, data)
            number = self._files.get(self._paths.get(fd, ""))
            if number is not None:
                self._content[number] += bytes(data)[:count]
                self.changes.append(Written(number, self._content[number]))
            return count

        return call

    def _flushing(self, real: Callable[..., None]) -> Callable[..., None]:
        def call(fd: int) -> None:
            real(fd)
            path = self._paths.get(fd)
            if path is not None:
                self.changes.append(Flushed(self._files.get(path, path)))

        return call

    def _passing(self, real: Callable[..., None]) -> Callable[..., None]:
        return real

    def _moving(self, real: Callable[..., None]) -> Callable[..., None]:
        def call(source: Any, target: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
            before, after = self._below(source, src_dir_fd), self._below(target, dst_dir_fd)
            real(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
            if before and after:
                number = self._files.pop(before)
                self._files[after] = number
                self.changes += [Named(after, number), Named(before, None)]

        return call

    def _linking(self, real: Callable[..., None]) -> Callable[..., None]:
        def call(source: Any, target: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
            before, after = self._below(source, src_dir_fd), self._below(target, dst_dir_fd)
            real(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
            if before and after:
                self._files[after] = self._files[before]
                self.changes.append(Named(after, self._files[before]))

        return call

    def _unlinking(self, real: Callable[..., None]) -> Callable[..., None]:
        def call(path: Any, *, dir_fd: int | None = None) -> None:
            below = self._below(path, dir_fd)
            real(path, dir_fd=dir_fd)
            if below:
                self._files.pop(below, None)
                self.changes.append(Named(below, None))

        return call

    def _closing(self, real: Callable[..., None]) -> Callable[..., None]:
        def call(fd: int) -> None:
            self._paths.pop(fd, None)
            real(fd)

        return call


def images(changes: Sequence[Change], chance: random.Random) -> Iterator[Image]:
    """List what a power cut after these changes may leave. The same image may come more than once."""
    content: dict[int, bytes] = {}
    safe: dict[int, bytes] = {}
    names: dict[str, int] = {}
    loose: list[Named] = []
    for change in changes:
        if isinstance(change, Written):
            content[change.file] = change.content
        elif isinstance(change, Named):
            loose.append(change)
        elif isinstance(change.what, int):
            safe[change.what] = content[change.what]
        else:
            _apply(names, [name for name in loose if _directory(name) == change.what])
            loose = [name for name in loose if _directory(name) != change.what]
    kept = [loose[:count] for count in range(len(loose) + 1)]
    kept += [[name for name in loose if chance.random() < 0.5] for _ in range(_LOTTERIES if loose else 0)]
    for some in kept:
        for unflushed in ("whole", "torn", "empty"):
            on_disk = dict(names)
            _apply(on_disk, some)
            yield {path: _as_left(file, content, safe, unflushed) for path, file in on_disk.items()}


def restore(image: Image, root: Path) -> None:
    """Write the disk's content into the directory."""
    for path, content in image.items():
        place = root / path
        for directory in [*reversed(place.relative_to(root).parents)][1:]:
            (root / directory).mkdir(mode=0o700, exist_ok=True)
        place.write_bytes(content)


def _path_of(fd: int) -> str:
    return str(Path(f"/proc/self/fd/{fd}").readlink())


def _directory(name: Named) -> str:
    return os.path.dirname(name.path) or "."  # noqa: PTH120 - as it is noted


def _apply(names: dict[str, int], changes: Sequence[Named]) -> None:
    for change in changes:
        if change.file is None:
            names.pop(change.path, None)
        else:
            names[change.path] = change.file


def _as_left(file: int, content: Mapping[int, bytes], safe: Mapping[int, bytes], unflushed: str) -> bytes:
    if safe.get(file) == content[file] or unflushed == "whole":
        return content[file]
    return content[file][: len(content[file]) // 2] if unflushed == "torn" else safe.get(file, b"")
