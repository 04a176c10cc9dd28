"""The texts that describe its vhost-user interfaces to a pod, byte for byte as applications in use expect them.

`userspace/configuration-data` is a JSON list with one entry per interface; `userspace/mapped-dir` the directory in the container
that holds the sockets. Three readers that cannot be changed fix the format, and every text made here must suit all of them:

    testpmd.sh    greps `containerId` and takes the fifth `"`-separated field: containerId is the first key of the first entry
    app-netutil   splits a line at `=` and drops it when there is more than one; deletes every backslash and blank; joins
                  mapped-dir and socket name without a separator
    virtink       takes the entry by `ifName` and decodes it as JSON

So a text must never have `=`, `\\"` or `\\\\` in it (they are written as \\u escapes, which stay JSON without the backslashes),
and mapped-dir ends in `/` and has no blank. Reading accepts what other writers wrote, and raises DocumentError only.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterable, Mapping
from typing import Any

from .strict_json import JsonReader

CONFIGURATION_DATA = "userspace/configuration-data"
MAPPED_DIR = "userspace/mapped-dir"
DPDK_ARGS = "userspace/dpdk-args"
NETWORK_STATUS = "k8s.v1.cni.cncf.io/network-status"
NETWORKS = "k8s.v1.cni.cncf.io/networks"

DEFAULT_MAPPED_DIR = "/var/lib/cni/usrspcni/"
"""Where the sockets are when no container mounts the shared volume (upstream's default, with its missing slash)."""

Entry = dict[str, Any]

_SCALARS = ("engine", "iftype", "netType")
_BLOCKS = ("memif", "vhost", "bridge")
_VHOST = ("mode", "group", "socketfile", "queues", "queueSize")
_IP = ("version", "interface", "address", "gateway")

_LINE = re.compile(r'([^="\s]+)="((?:[^"\\]|\\.)*)"\s*')
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
_NAMED = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\", '"': '"', "'": "'"}


class DocumentError(ValueError):
    """A malformed text. The message says what is wrong with it, and never quotes it whole."""


def build_entry(container_id: str, ifname: str, network: str, config: Mapping[str, Any], ip_result: Mapping[str, Any]) -> Entry:
    """Build one entry, with its keys in the order in which upstream wrote them.

    `config` is the application's side (engine, iftype, netType, memif, vhost, bridge): empty scalars are left out, the three
    blocks are always there. `ip_result` is a CNI result of 1.x; every address gets back its `version`, which only results
    before 1.0 have and without which app-netutil drops the address.
    """
    ordered: Entry = {key: config[key] for key in _SCALARS if config.get(key)}
    ordered.update({key: dict(config.get(key) or {}) for key in _BLOCKS})
    ordered["vhost"] = _in_order(ordered["vhost"], _VHOST)
    ordered.update({key: value for key, value in config.items() if key not in ordered and value not in ("", None)})
    result = dict(ip_result)
    if result.get("ips"):
        result["ips"] = [_with_version(address) for address in result["ips"]]
    return {"containerId": container_id, "ifName": ifname, "name": network, "config": ordered, "ipResult": result}


def parse(text: str) -> list[Entry]:
    """Parse the entries of a configuration-data text: a JSON list of objects, one object alone, or nothing."""
    if not text.strip():
        return []
    decoded = _decode(text)
    items = [decoded] if isinstance(decoded, dict) else decoded
    if not isinstance(items, list):
        raise DocumentError("configuration data is not a list of objects")
    for number, item in enumerate(items):
        if not isinstance(item, dict):
            raise DocumentError(f"entry {number} of the configuration data is not an object")
        for key in ("containerId", "ifName"):
            if not isinstance(item.get(key), str) or not item[key]:
                raise DocumentError(f"entry {number} of the configuration data has no {key}")
    return items


def parse_entry(text: str) -> Entry:
    """Parse the one entry that a file or a record holds."""
    entries = parse(text)
    if len(entries) != 1:
        raise DocumentError(f"expected one entry, found {len(entries)}")
    return entries[0]


def render(entries: Iterable[Mapping[str, Any]]) -> str:
    """Write the text of configuration-data: in upstream's layout, without characters that a reader cannot take."""
    return "[" + ",".join(_rendered(entry, indent=4) for entry in entries) + "]"


def render_file(entry: Mapping[str, Any]) -> str:
    """Write the text of a configData file: one compact object."""
    return _rendered(entry, indent=None)


def replace_entry(entries: Iterable[Entry], entry: Entry) -> list[Entry]:
    """Return `entries` with `entry` in the place of those with its ifName, or at the end.

    In place, because some readers take the first entry: that of a former sandbox of the pod must not stay first.
    """
    result: list[Entry] = []
    placed = False
    for known in entries:
        if known["ifName"] != entry["ifName"]:
            result.append(known)
        elif not placed:
            result.append(entry)
            placed = True
    return result if placed else [*result, entry]


def remove_entry(entries: Iterable[Entry], container_id: str, ifname: str) -> list[Entry]:
    """Return `entries` without those of this container and interface; a newer sandbox's entry stays."""
    return [entry for entry in entries if (entry["containerId"], entry["ifName"]) != (container_id, ifname)]


def mapped_dir_value(mount_path: str) -> str:
    """Return `mount_path` as a value of mapped-dir: absolute, clean, with a trailing slash."""
    if not mount_path.startswith("/"):
        raise DocumentError(f"mapped directory {mount_path!r} is not absolute")
    if re.search(r'[\s=\\"\x00-\x1f]', mount_path):
        raise DocumentError(f"mapped directory {mount_path!r} has a blank, '=', quote or backslash, which readers do not survive")
    return _clean(mount_path)


def same_directory(one: str, other: str) -> bool:
    """Whether two values of mapped-dir name the same directory."""
    return _clean(one) == _clean(other)


def parse_annotations(text: str) -> dict[str, str]:
    """Parse the annotations in a downward-API file: one `key="value"` per line, quoted as Go's strconv.Quote does.

    A line of another form is skipped, unless it is one of ours.
    """
    annotations = {}
    for number, line in enumerate(text.split("\n"), 1):
        match = _LINE.fullmatch(line)
        if match:
            annotations[match[1]] = _unquote(match[2], number)
        elif line.startswith("userspace/"):
            raise DocumentError(f'line {number} of the annotations is not key="value"')
    return annotations


def _clean(path: str) -> str:
    inner = posixpath.normpath(f"/{path}").strip("/")
    return f"/{inner}/" if inner else "/"


def _decode(text: str) -> Any:
    try:
        return JsonReader().read(text)
    except ValueError as error:
        raise DocumentError(f"not JSON: {error}") from None


def _rendered(entry: Mapping[str, Any], indent: int | None) -> str:
    first = {"containerId": entry["containerId"], **entry}
    text = json.dumps(first, indent=indent, allow_nan=False)
    text = re.sub(r"\\(.)", lambda found: f"\\u{ord(found[1]):04x}" if found[1] in '"\\' else found[0], text)
    return text.replace("=", "\\u003d")


def _in_order(block: Mapping[str, Any], keys: Iterable[str]) -> Entry:
    known = {key: block[key] for key in keys if block.get(key) not in (None, "")}
    return {**known, **{key: value for key, value in block.items() if key not in known and value not in (None, "")}}


def _with_version(address: Mapping[str, Any]) -> Entry:
    version = "6" if ":" in str(address.get("address", "")) else "4"
    return _in_order({"version": version, **address}, _IP)


def _unquote(body: str, number: int) -> str:
    def character(found: re.Match[str]) -> str:
        escape = found[1]
        if len(escape) == 1:
            if escape not in _NAMED:
                raise DocumentError(f"line {number} of the annotations has the unknown escape \\{escape}")
            return _NAMED[escape]
        code = int(escape[1:], 16)
        if code > 0x10FFFF:
            raise DocumentError(f"line {number} of the annotations has no character \\{escape}")
        # Go writes \x only for what is not UTF-8; such a byte is kept the way os.fsdecode keeps it.
        return chr(0xDC00 + code) if escape[0] == "x" and code > 0x7F else chr(code)

    return _ESCAPE.sub(character, body)
