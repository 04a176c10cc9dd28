"""The forms that values of a network's keys must have. Pure.

Each function returns the value, or raises InvalidConfig that names the key (`where`), the value and what would be right.
"""

from __future__ import annotations

import re
from typing import Final

from userspace_cni.base.errors import InvalidConfig
from userspace_cni.pod.mac import six_octets

NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")
_PATH_MAX = 1024


def unicast(mac: str, where: str) -> str:
    """A MAC address that a port can have, as `six_octets` writes it. `where` is a whole subject, as "key 'host.mac'"."""
    found = six_octets(mac)
    if not found:
        raise InvalidConfig(f"{where} is {mac!r}", "it must be six octets in hexadecimal, as 02:00:00:00:00:01")
    if int(found[:2], 16) & 1 or not found.strip("0:"):
        raise InvalidConfig(f"{where} is {mac!r}", "a port needs a unicast address: the first octet even, not all zero")
    return found


def matching(value: str, pattern: re.Pattern[str], where: str) -> str:
    """A text that the whole pattern matches; never a name of a directory itself."""
    if not pattern.fullmatch(value) or value in {".", ".."}:
        raise InvalidConfig(f"key '{where}' is {value!r}", f"it must match {pattern.pattern}")
    return value


def in_range(value: int | None, bounds: tuple[int, int], where: str) -> int | None:
    """A number from the first bound to the second, or None."""
    if value is not None and not bounds[0] <= value <= bounds[1]:
        raise InvalidConfig(f"key '{where}' is {value}", f"it must be from {bounds[0]} to {bounds[1]}")
    return value


def printable(value: str, where: str) -> str:
    """Printable ASCII, or ""."""
    if value and not (value.isascii() and value.isprintable()):
        raise InvalidConfig(f"key '{where}' is {value!r}", "it must be printable ASCII")
    return value


def absolute(value: str, where: str) -> str:
    """An absolute path without "..", or ""."""
    if value and (not value.startswith("/") or "\0" in value or ".." in value.split("/")):
        raise InvalidConfig(f"key '{where}' is {value!r}", "it must be an absolute path without '..'")
    if len(value.encode()) > _PATH_MAX:  # directories made name by name can be deeper than the kernel takes a path
        raise InvalidConfig(f"key '{where}' has {len(value.encode())} bytes", f"a path of a network has at most {_PATH_MAX}")
    return value
