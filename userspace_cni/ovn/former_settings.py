"""What of `/etc/openvswitch/ovn_k8s.conf`, the file of ovn-kubernetes' first tools, still has a meaning. Pure.

A setting of ours wins. Values are Python's literals there, or plain text.
"""

from __future__ import annotations

import ast
import configparser
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from userspace_cni.base.errors import InvalidConfig, quote
from userspace_cni.base.settings import MTU_MAX, MTU_MIN, Settings

FORMER_FILE: Final = "/etc/openvswitch/ovn_k8s.conf"
_KEYS: Final[Mapping[str, str]] = {
    "private_key": "ovn_private_key",
    "certificate": "ovn_certificate",
    "ca_cert": "ovn_ca_cert",
    "unix_socket": "ovn_nb",
}
"""Keys of the file, and our settings."""


@dataclass(frozen=True)
class FormerPlaces:
    """What the file says of the plugin: its directory, that of the runtimes' networks, and their MTU; "" and 0 for nothing.

    `authority`: the file with the certificate of the API server's authority.
    """

    bin_dir: str
    conf_dir: str
    mtu: int
    authority: str


def add_former(settings: Settings, text: str, northbound: str = "", *, is_there: Callable[[str], bool]) -> Settings:
    """The settings with what the file says where they say nothing. `northbound`: what the switch says, which wins over it.

    `is_there`: whether a file exists; the file of the tools names some by default that are not. Raises InvalidConfig.
    """
    said, found = _read(text), dict[str, str]()
    for key, setting in _KEYS.items():
        value = said(key)
        try:
            counts = value and not getattr(settings, setting) and is_there(value)
        except (OSError, ValueError) as error:  # as of a name that no file can have
            raise InvalidConfig(f"{FORMER_FILE}: {key} is {quote(value)}", f"looking for that file: {error}") from None
        if counts:
            found[setting] = f"unix:{value}" if setting == "ovn_nb" else value
    if northbound:
        found.pop("ovn_nb", None)
    return replace(settings, **found)  # type: ignore[arg-type]


def read_places(text: str) -> FormerPlaces:
    """What the file says of the plugin; the defaults of then for what it does not say. Raises InvalidConfig."""
    said = _read(text)
    mtu = said("mtu")
    if mtu and not (mtu.isdecimal() and MTU_MIN <= int(mtu) <= MTU_MAX):
        raise InvalidConfig(f"{FORMER_FILE}: mtu is {quote(mtu)}", f"it must be from {MTU_MIN} to {MTU_MAX}")
    paths = {key: said(key) for key in ("cni_link_path", "cni_conf_path", "k8s_ca_certificate")}
    for key, path in paths.items():
        if path and not path.startswith("/"):
            raise InvalidConfig(f"{FORMER_FILE}: {key} is {quote(path)}", "it must be an absolute path")
    bin_dir, conf_dir, authority = paths.values()
    return FormerPlaces(bin_dir or "/opt/cni/bin", conf_dir, int(mtu or 0), authority or "/etc/openvswitch/k8s-ca.crt")


def _read(text: str) -> Callable[[str], str]:
    """What says the value of a key of the file, "" for none. Raises InvalidConfig."""
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(text)
    except configparser.Error as error:
        raise InvalidConfig(f"{FORMER_FILE} cannot be read: {error.message.splitlines()[0]}", "remove it, or mend it") from None
    return lambda key: _literal(parser.get("default", key, fallback=""))


def _literal(text: str) -> str:
    try:
        return str(ast.literal_eval(text))
    except (ValueError, SyntaxError):
        return text.strip()
