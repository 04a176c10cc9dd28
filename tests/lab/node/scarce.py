"""A process in which a chosen call to the kernel fails, as when threads, descriptors, locks or disk are used up."""

from __future__ import annotations

import fcntl
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

CALLS = (
    *((os, name) for name in ("open", "read", "write", "pwrite", "fsync", "ftruncate", "close", "pipe", "eventfd")),
    *((os, name) for name in ("mkdir", "rmdir", "rename", "replace", "link", "unlink", "chmod", "fchmod", "chown", "fchown")),
    *((os, name) for name in ("stat", "fstat", "lstat", "listdir", "scandir", "readlink", "getxattr", "setxattr")),
    (fcntl, "flock"),
    (fcntl, "ioctl"),
    (socket, "socket"),
    (threading, "_start_new_thread"),
    (os, "eventfd_write"),
)
"""Module or class, and name, of each function that is counted and can fail."""


@dataclass
class Scarcity:
    """Counts the calls on this thread, and makes the one numbered `at` fail with `error`; 0: none."""

    at: int = 0
    error: Exception = field(default_factory=OSError)
    only: frozenset[str] = frozenset()
    """Names of the functions that count; all when it is empty."""
    made: list[str] = field(default_factory=list)
    thread: int = field(default_factory=threading.get_ident)

    def wrapped(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            if threading.get_ident() == self.thread and (not self.only or name in self.only):
                self.made.append(name)
                if len(self.made) == self.at:
                    raise self.error
            return call(*arguments, **options)

        return counted


@contextmanager
def scarce(at: int = 0, error: Exception | None = None, only: frozenset[str] = frozenset()) -> Iterator[Scarcity]:
    """Within this block that call fails."""
    scarcity = Scarcity(at, error or OSError(), only)
    with pytest.MonkeyPatch.context() as patch:
        for module, name in CALLS:
            call = getattr(module, name)
            if name == "socket":
                patch.setattr(module, name, _socket(scarcity, call))
            else:
                patch.setattr(module, name, scarcity.wrapped(name, call))
        yield scarcity


def _socket(scarcity: Scarcity, kind: type[socket.socket]) -> type[socket.socket]:
    """The socket class; a subclass replaces it, because others derive from it and use isinstance."""

    class Counted(kind):  # type: ignore[misc, valid-type]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            if "fileno" not in options:
                scarcity.wrapped("socket", lambda: None)()
            super().__init__(*arguments, **options)

    return Counted
