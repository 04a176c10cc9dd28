"""What of `/etc/openvswitch/ovn_k8s.conf`, the file of ovn-kubernetes' first tools, still has a meaning. Pure.

A setting of ours wins. Values are Python's literals there, or plain text.
"""

from __future__ import annotations

import ast
import configparser
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from userspace_cni.base.errors import InvalidConfig
from userspace_cni.base.settings import Settings

FORMER_FILE: Final = "/etc/openvswitch/ovn_k8s.conf"
_KEYS: Final[Mapping[str, str]] = {
    "private_key": "ovn_private_key",
    "certificate": "ovn_certificate",
    "ca_cert": "ovn_ca_cert",
    "unix_socket": "ovn_nb",
}
"""Keys of the file, and our settings."""


def add_former(settings: Settings, text: str, northbound: str = "", *, is_there: Callable[[str], bool]) -> Settings:
    """The settings with what the file says where they say nothing. `northbound`: what the switch says, which wins over it.

    `is_there`: whether a file exists; the file of the tools names some by default that are not. Raises InvalidConfig.
    """
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(text)
    except configparser.Error as error:
        raise InvalidConfig(f"{FORMER_FILE} cannot be read: {error.message.splitlines()[0]}", "remove it, or mend it") from None
    found: dict[str, str] = {}
    for key, setting in _KEYS.items():
        value = _literal(parser.get("default", key, fallback=""))
        if value and not getattr(settings, setting) and is_there(value):
            found[setting] = f"unix:{value}" if setting == "ovn_nb" else value
    if northbound:
        found.pop("ovn_nb", None)
    return replace(settings, **found)  # type: ignore[arg-type]


def _literal(text: str) -> str:
    try:
        return str(ast.literal_eval(text))
    except (ValueError, SyntaxError):
        return text.strip()
