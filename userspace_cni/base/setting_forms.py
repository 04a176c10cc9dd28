"""What a setting can be: why a value cannot be it, and the same as JSON Schema says it. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_network
from typing import Any, Final

from userspace_cni.base.whereabouts import is_path, normalize_path
from userspace_cni.pod.socket_path import SUN_PATH_MAX

_ADDRESS: Final = r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]\s]+):[0-9]{1,5}"
"""HOST:PORT, an IPv6 address in brackets."""
_COLLECTOR: Final = r"https?://(\[[0-9A-Fa-f:.]+\]|[-0-9A-Za-z._]+)(:[0-9]{1,5})?(/[!-\"$->A-~]*)?"
"""The beginning of a URL, without an account (`@`), a query (`?`) or a fragment (`#`)."""
_NUMBER_MAX: Final = 1e6


@dataclass(frozen=True)
class SettingForm:
    """What a setting can be. `wrong` says why a value of the right type cannot be it, and what would be right; "" if it can.

    `schema`: what JSON Schema can say of that beside the type; `partly`: which is not all. `normal`: a value in its one spelling.
    """

    wrong: Callable[[Any], str] = lambda _: ""
    schema: Mapping[str, Any] = field(default_factory=dict)
    normal: Callable[[Any], Any] = lambda value: value
    partly: bool = False


ANYTHING: Final = SettingForm()


def one_of(choices: tuple[str, ...]) -> SettingForm:
    return SettingForm(
        lambda value: "" if value in choices else f"it can be one of {', '.join(choices)}", {"enum": list(choices)}
    )


def matching(pattern: str, reason: str) -> SettingForm:
    return SettingForm(lambda text: "" if re.fullmatch(pattern, text) else reason, {"pattern": f"^({pattern})$"})


def between(least: int, most: int, *, none: bool = False, never: Mapping[int, str] | None = None) -> SettingForm:
    """A number from the least to the most; with `none` also 0, and not one of `never`, each with the reason."""
    others, right = never or {}, f"it must be {'0 or ' if none else ''}from {least} to {most}"
    allowed = {"anyOf": [{"const": 0}, {"minimum": least, "maximum": most}]} if none else {"minimum": least, "maximum": most}
    return SettingForm(
        lambda value: others.get(value) or ("" if (none and value == 0) or least <= value <= most else right),
        {**allowed, "not": {"enum": list(others)}} if others else allowed,
    )


POSITIVE: Final = SettingForm(
    lambda value: "" if 0 < value < _NUMBER_MAX else "it must be greater than 0 and less than a million",
    {"exclusiveMinimum": 0, "exclusiveMaximum": _NUMBER_MAX},
)
LISTENED: Final = SettingForm(
    lambda text: "" if not text or _is_address(text) else "it must be HOST:PORT, with an IPv6 address as [ADDRESS]:PORT",
    {"pattern": f"^({_ADDRESS})?$"},
    partly=True,
)
COLLECTOR: Final = SettingForm(
    lambda text: (
        ""
        if not text or _is_collector(text)
        else "it must be http://HOST:PORT or https://HOST:PORT, without a password or a query"
    ),
    {"pattern": f"^({_COLLECTOR})?$"},
    partly=True,
)
"""The address of a collector of OpenTelemetry; "" for none."""
REMOTE: Final = SettingForm(
    lambda text: (
        "" if _is_remote(text) else f"it must be unix:/PATH, with a path of at most {SUN_PATH_MAX} bytes, or tcp:IP:PORT"
    ),
    {"pattern": f"^(unix:/.*|tcp:{_ADDRESS})$", "maxLength": len("unix:") + SUN_PATH_MAX},
    partly=True,
)
REMOTES: Final = SettingForm(
    lambda text: (
        ""
        if all(map(_is_database, _addresses(text)))
        else f"it must be unix:/PATH, with a path of at most {SUN_PATH_MAX} bytes, tcp:IP:PORT, ssl:IP:PORT, or several of them"
    ),
    {"pattern": f"^((unix:/[^,]*|(tcp|ssl):{_ADDRESS})(,(unix:/[^,]*|(tcp|ssl):{_ADDRESS}))*)?$"},
)
"""The addresses of a database that may be a cluster; "" for none."""
NETWORK: Final = SettingForm(
    lambda text: "" if _is_network(text) else "it must be a network, such as 10.96.0.0/12", {"pattern": "/"}, partly=True
)
_NO_PATH: Final = "it must be an absolute path without '..'"
FILE: Final = SettingForm(
    lambda text: "" if is_path(text, empty=True) else _NO_PATH, {"pattern": r"^(/(?!([^/]*/)*\.\.(/|$)).*)?$"}
)
"""The path of a file; "" for none."""


def directory(*, empty: bool = False, root: bool = False, longest: int = 0) -> SettingForm:
    """The path of a directory of its own, with `root` also the root, of at most `longest` bytes; `empty`: or ""."""

    def wrong(text: str) -> str:
        if not is_path(text, empty=empty):
            return _NO_PATH
        if text and not root and not text.strip("/."):
            return "it must be a directory of its own"
        if longest and len(os.fsencode(text)) > longest:
            return f"socket paths below it have to fit {SUN_PATH_MAX} bytes: at most {longest} for itself"
        return ""

    pattern = rf"^(/(?!([^/]*/)*\.\.(/|$)).*{'' if root else '[^/.].*'}){'?' if empty else ''}$"
    schema = {"pattern": pattern, **({"maxLength": longest} if longest else {})}
    return SettingForm(wrong, schema, lambda text: normalize_path(text) if text else text, partly=bool(longest))


def _is_network(text: str) -> bool:
    """Whether it is a network with the length of its prefix."""
    try:
        return "/" in text and ip_network(text) is not None
    except ValueError:
        return False


def _is_address(text: str) -> bool:
    """Whether it is HOST:PORT that can be listened on."""
    return bool(re.fullmatch(_ADDRESS, text)) and 0 < int(text.rpartition(":")[2]) < 1 << 16


def _is_collector(text: str) -> bool:
    """Whether it is the beginning of a URL that requests can be sent to."""
    found = re.fullmatch(_COLLECTOR, text)
    return found is not None and _is_host(found[1]) and (not found[2] or 0 < int(found[2][1:]) < 1 << 16)


def _is_host(text: str) -> bool:
    """Whether a name has no label that is empty or too long, and whether it is an IPv6 address in brackets."""
    try:
        return bool(IPv6Address(text[1:-1]) if text.startswith("[") else text.encode("idna"))
    except ValueError:
        return False


def _is_remote(text: str) -> bool:
    """Whether it is a remote of OVSDB. The OVS library gives no clear error for a path or port that no socket can have."""
    scheme, _, rest = text.partition(":")
    if scheme == "unix":
        return rest.startswith("/") and "\0" not in rest and len(os.fsencode(rest)) <= SUN_PATH_MAX
    return scheme == "tcp" and _is_address(rest)


def _is_database(text: str) -> bool:
    """Whether it is an address of a database of a cluster, which may be reached by TLS."""
    return _is_remote(f"tcp:{text.removeprefix('ssl:')}" if text.startswith("ssl:") else text)


def _addresses(text: str) -> list[str]:
    return text.split(",") if text else []
