"""The forms that values of a network's keys must have. Pure.

Each function returns the value, or raises InvalidConfig that names the key (`where`), the value and what would be right.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from userspace_cni.base.errors import InvalidConfig, Undecodable
from userspace_cni.pod.mac import is_unicast, six_octets

IDENTIFIER: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.\-]*")
"""The name of a network, and a container's ID."""
NETWORK_NAME_MAX: Final = 255
"""It is in every row, record and metric of its attachments."""
NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")
OCTAL: Final = re.compile(r"(0o?)?[0-7]{3,4}")
OBJECT: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
PATH_MAX: Final = 1024


def unicast(mac: str, where: str) -> str:
    """A MAC address that a port can have, as `six_octets` writes it. `where` is a whole subject, as "key 'host.mac'"."""
    found = six_octets(mac)
    if not found:
        raise InvalidConfig(f"{where} is {mac!r}", "it must be six octets in hexadecimal, such as 02:00:00:00:00:01")
    if not is_unicast(found):
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
    if len(value.encode()) > PATH_MAX:  # directories made name by name can be deeper than the kernel takes a path
        raise InvalidConfig(f"key '{where}' has {len(value.encode())} bytes", f"a path of a network has at most {PATH_MAX}")
    return value


def permissions(value: str, where: str) -> str:
    """Permission bits in octal."""
    if not OCTAL.fullmatch(value):
        raise InvalidConfig(f"key '{where}' is {value!r}", "it must be permission bits in octal, such as '0775'")
    return value


def object_name(value: str, where: str) -> str:
    if not OBJECT.fullmatch(value):
        raise InvalidConfig(f"key '{where}' is {value!r}", "it must be the name of a Subnet object")
    return value


def read_typed(raw: Mapping[str, Any], key: str, kind: type[Any], default: Any, *, path: str = "") -> Any:
    """Return `raw[key]` of the JSON type `kind`; `default` when it is absent or null. Raises Undecodable for another type."""
    value = raw.get(key)
    if value is None:
        return default
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise Undecodable(f"key '{path}{key}' is {json_type(value)}", f"it must be {_NAMES[kind]}")
    return value


_NAMES: Final[Mapping[type[Any], str]] = {
    str: "a string",
    int: "a whole number",
    dict: "an object",
    list: "a list",
    bool: "a boolean",
}


def json_type(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, float):
        return "a number"
    return _NAMES.get(type(value), type(value).__name__)
