"""Reads small files of proc(5), sysfs(5) and /etc of the host."""
# Paths of another root rather than pathlib's.
# ruff: noqa: PTH123, PTH208

from __future__ import annotations

import os
from typing import Final

from userspace_cni.base.errors import Unavailable
from userspace_cni.base.root import HostRoot

_BYTES_MAX: Final = 1 << 20


def read_text(path: str, root: HostRoot) -> str | None:
    """The content of a file of the host; None when there is no such file. Raises Unavailable when it cannot be read."""
    try:
        with open(root.path(path), encoding="utf-8", errors="replace") as file:
            return file.read(_BYTES_MAX)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise unreadable(path, error) from error


def read_word(path: str, root: HostRoot) -> str:
    """The same without blanks around it; "" when there is no such file, or it cannot be read."""
    try:
        return (read_text(path, root) or "").strip()
    except Unavailable:
        return ""


def list_names(path: str, root: HostRoot) -> list[str]:
    """The sorted names in a directory of the host; none when there is no such directory. Raises Unavailable."""
    try:
        return sorted(os.listdir(root.path(path)))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: str, error: OSError) -> Unavailable:
    return Unavailable(f"{path} cannot be read: {error.strerror}", "run this as root, on the host or in the agent's container")


def read_link(path: str, root: HostRoot) -> str:
    """Where a link of the host leads; "" when there is no link."""
    try:
        return os.readlink(f"{root.directory.rstrip('/')}{path}")  # noqa: PTH115
    except OSError:
        return ""
