"""A runtime's configuration of a network: a list of plugins in a file `*.conflist`, as libcni reads it. Pure.

libcni passes over keys of a list that it does not know. One such key says which installation has put the file in place: so the
file itself tells whose it is, whatever became of records.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from userspace_cni.base.errors import InvalidConfig, Undecodable
from userspace_cni.cni.outline import NEW
from userspace_cni.cni.result import SUPPORTED_VERSIONS
from userspace_cni.pod.strict_json import JsonReader, marks, once

OUR_TYPE: Final = "userspace"
"""The CNI type of this plugin."""
MARK: Final = "userspace-cni.io/store"
"""The key; its value is the id of the state directory whose agent has put the file there."""
LARGEST: Final = NEW
"""A list that is larger than what ADD reads of one plugin is none that can be meant."""
FILE_MAX: Final = 2 * LARGEST.octets
"""Bytes of a file with our mark, which is written with a line for each key."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\.conflist")
_INHERITED: Final = ("name", "cniVersion")
"""Keys that a list gives to its plugins."""
_READER: Final = JsonReader(once, deepest=99)


def require_name(name: str, where: str) -> str:
    """`name` if a list's file can have it. Raises InvalidConfig, which says `where` the name is from."""
    if not _NAME.fullmatch(name):
        raise InvalidConfig(
            f"{where}: the name of the file is {name[:120]!r}",
            "it must end with .conflist, with letters, digits, '.', '_' and '-' before that, as 10-net.conflist",
        )
    return name


def read_list(text: bytes, where: str) -> dict[str, Any]:
    """The list in the file `where`. Raises Undecodable or InvalidConfig for what no runtime reads as one."""
    try:
        written = text.decode()
        if len(text) > LARGEST.octets or marks(written) > LARGEST.marks:
            raise InvalidConfig(f"{where}: it is too large", f"at most {LARGEST.octets} bytes are read")
        found = _READER.read(written)
    except ValueError as error:
        raise Undecodable(f"{where}: it is not JSON: {str(error)[:100]}", "runtimes read it as JSON (RFC 8259)") from None
    plugins = found.get("plugins") if isinstance(found, dict) else None
    if not isinstance(plugins, list) or not plugins:
        raise InvalidConfig(
            f"{where}: it is not a list of plugins", 'it must look like {"cniVersion": …, "name": …, "plugins": [{…}]}'
        )
    for number, plugin in enumerate(plugins):
        if not isinstance(plugin, dict) or not isinstance(plugin.get("type"), str) or not plugin["type"]:
            raise InvalidConfig(f"{where}: plugins[{number}] has no 'type'", "it names the plugin's program")
    if MARK in found:
        raise InvalidConfig(f"{where}: it has the key '{MARK}'", "the agent adds it: give the file without it")
    return dict(found)


def plugins_of(config: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each plugin of a list with its number, and with the keys that a runtime adds; before these those of `given`."""
    inherited = {**given, **{key: config[key] for key in _INHERITED if key in config}}
    if "cniVersion" not in inherited and (version := _newest(config.get("cniVersions"))):
        inherited["cniVersion"] = version
    for number, plugin in enumerate(config["plugins"]):
        if isinstance(plugin, Mapping):
            yield number, {**plugin, **inherited}


def mark(config: Mapping[str, Any], store: str) -> str:
    """The text of the file that the installation with this state directory puts in place. Raises InvalidConfig for a long one."""
    text = json.dumps({**config, MARK: store}, indent=2, ensure_ascii=False) + "\n"
    if len(text.encode()) > FILE_MAX:
        raise InvalidConfig(f"network {config.get('name')}: with a line for each key its file has more than {FILE_MAX} bytes")
    return text


def store_of(text: bytes) -> str:
    """The state directory whose mark the file carries; "" for another program's, whatever is in it."""
    if len(text) > FILE_MAX:
        return ""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    store = found.get(MARK) if isinstance(found, dict) else None
    return store if isinstance(store, str) else ""


def _newest(versions: object) -> str:
    """The newest of a list's `cniVersions` that this plugin knows, which a runtime takes; "" for none."""
    known = [each for each in versions if each in SUPPORTED_VERSIONS] if isinstance(versions, list) else []
    return max(known, key=SUPPORTED_VERSIONS.index, default="")
