"""Finds a container's interfaces: in the downward-API annotations file, or in configData files beside the sockets.

Both may be out of date. Kubelet writes the annotations file before the pod's network is made and refreshes it later (seconds to a
minute and a half), by swapping a symlink. Until then a pod with a new sandbox can see the former one's entries, all of them
well-formed. A directory can hold a file that a delayed DEL has not removed yet. So entries are checked:

1. by sandbox. Every container of a pod has files of its sandbox bind-mounted (/etc/hostname, /etc/resolv.conf, /dev/shm), and
   the source path in /proc/self/mountinfo names the sandbox: the same ID as the entry's containerId. An entry with the full ID
   of another sandbox is stale. Where mountinfo names no sandbox (a VM, an unknown runtime), all entries count.
2. by network-status, which Multus writes after the last interface was made. If it lists an interface with another MAC, one of
   the two is out of date. If networks are asked for and there is no status yet, more entries may come.

An entry that neither rule excludes is shown. Must only read: never wait, never write.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .document import (
    CONFIGURATION_DATA,
    DEFAULT_MAPPED_DIR,
    MAPPED_DIR,
    NETWORK_STATUS,
    NETWORKS,
    DocumentError,
    Entry,
    parse,
    parse_annotations,
    parse_entry,
)
from .interface import Interface, interfaces

ANNOTATIONS_FILES = ("/etc/podinfo/annotations", "/etc/podnetinfo/annotations")
MOUNTINFO = "/proc/self/mountinfo"

_FILE = "configData-*.json"
_OF_CLAIM = "_"
"""What the containerId of a claim's device begins with; its UID follows."""
_FULL_ID = re.compile(r"[0-9a-f]{64}")
_SANDBOX = re.compile(r"/(?:sandboxes|overlay-containers|containers)/([0-9a-f]{64})/")
_OF_THE_SANDBOX = ("/etc/hostname", "/etc/resolv.conf", "/dev/shm")  # noqa: S108 -- looked up in mountinfo, never opened


@dataclass(frozen=True)
class SourceLook:
    """The result of one look at one source. `trouble` says why interfaces may be missing; "" when none are."""

    source: str
    interfaces: tuple[Interface, ...] = ()
    trouble: str = ""
    settled: bool = True


@dataclass(frozen=True)
class Sources:
    """Where to look, in order; the first source with an interface counts.

    `container_id`: only entries whose containerId starts with it. `own_ids`: the sandboxes that this process can be in; entries
    of others are left out. Empty: not known.
    """

    annotations: Sequence[str] = ANNOTATIONS_FILES
    directories: Sequence[str] = (DEFAULT_MAPPED_DIR,)
    container_id: str = ""
    own_ids: frozenset[str] = field(default_factory=frozenset)

    def look(self) -> SourceLook:
        """Return the first source with an interface, else a result whose trouble names every source and what is wrong there."""
        found = [self._annotations(path) for path in self.annotations]
        found += [self._directory(path) for path in self.directories]
        for one in found:
            if one.interfaces:
                return one
        return SourceLook("", (), "; ".join(f"{one.source}: {one.trouble}" for one in found), settled=False)

    def _annotations(self, path: str) -> SourceLook:
        try:
            annotations = parse_annotations(_text(Path(path)))
            entries = parse(annotations.get(CONFIGURATION_DATA, ""))
            if not entries:
                return _nothing(path, f"annotation {CONFIGURATION_DATA}")
            return self._judged(path, entries, annotations.get(MAPPED_DIR, DEFAULT_MAPPED_DIR), annotations)
        except (OSError, DocumentError) as error:
            return SourceLook(path, (), _reason(error), settled=False)

    def _directory(self, path: str) -> SourceLook:
        try:
            files = [file for file in Path(path).iterdir() if file.match(_FILE)]
            entries = [parse_entry(_text(file)) for file in files]
            entries += [_from_below(file.parent.name, parse_entry(_text(file))) for file in Path(path).glob(f"*/{_FILE}")]
            entries = _each_socket_once(entries)
            entries.sort(key=lambda entry: _natural(entry["ifName"]))
            return self._judged(path, entries, path, {}) if entries else _nothing(path, "file configData-*.json")
        except (OSError, DocumentError) as error:
            return SourceLook(path, (), _reason(error), settled=False)

    def _judged(self, source: str, entries: list[Entry], directory: str, annotations: dict[str, str]) -> SourceLook:
        mine = [entry for entry in entries if self._is_mine(entry)]
        if not mine:
            others = ", ".join(sorted({entry["containerId"][:12] for entry in entries}))
            return SourceLook(source, (), f"only entries of another sandbox ({others})", settled=False)
        usable = interfaces(mine, directory)
        trouble = _contradiction(usable, annotations) if usable else "entries, but none for a vhost-user interface"
        return SourceLook(source, tuple(usable), trouble, settled=not trouble)

    def _is_mine(self, entry: Entry) -> bool:
        container = entry["containerId"]
        if self.container_id:
            return str(container).startswith(self.container_id)
        return is_of(container, self.own_ids)


def is_of(container: str, sandboxes: frozenset[str]) -> bool:
    """Whether an entry's containerId is one of `sandboxes`, or may be: none are known, or it is no full ID."""
    return not sandboxes or container in sandboxes or not _FULL_ID.fullmatch(container)


def own_sandbox_ids(mountinfo: str = MOUNTINFO) -> frozenset[str]:
    """The sandbox IDs that this process's mounts name (proc(5), fields 4 and 5 of mountinfo); empty when they name none."""
    try:
        lines = [line.split(" ") for line in _text(Path(mountinfo)).split("\n")]
    except OSError:
        return frozenset()
    roots = [line[3] for line in lines if len(line) > 4 and line[4] in _OF_THE_SANDBOX]
    return frozenset(identifier for root in roots for identifier in _SANDBOX.findall(root))


def _from_below(name: str, entry: Entry) -> Entry:
    """The entry of a file in the directory `name`, whose names begin there, with names that begin above it."""
    config = entry.get("config")
    vhost = config.get("vhost") if isinstance(config, dict) else None
    if not isinstance(config, dict) or not isinstance(vhost, dict) or not isinstance(vhost.get("socketfile"), str):
        return entry
    return {**entry, "config": {**config, "vhost": {**vhost, "socketfile": f"{name}/{vhost['socketfile']}"}}}


def _each_socket_once(entries: list[Entry]) -> list[Entry]:
    """The entries without those of claims' devices which a network has joined: its own entry says the same, and addresses."""
    joined = {_socket(entry) for entry in entries if not _is_of_claim(entry)}
    return [entry for entry in entries if not _is_of_claim(entry) or _socket(entry) not in joined]


def _is_of_claim(entry: Entry) -> bool:
    return str(entry["containerId"]).startswith(_OF_CLAIM)


def _socket(entry: Entry) -> str:
    config = entry.get("config")
    vhost = config.get("vhost") if isinstance(config, dict) else None
    return str(vhost.get("socketfile")) if isinstance(vhost, dict) else ""


def _nothing(source: str, missing: str) -> SourceLook:
    return SourceLook(source, (), f"nothing about vhost-user interfaces yet, no {missing}", settled=False)


def _text(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "surrogateescape")


def _contradiction(found: Iterable[Interface], annotations: dict[str, str]) -> str:
    status = _status(annotations.get(NETWORK_STATUS, ""))
    if not status:
        return f"{NETWORKS} asks for interfaces and no {NETWORK_STATUS} is there yet" if annotations.get(NETWORKS) else ""
    for interface in found:
        reported = status.get(interface.ifname, "")
        if reported and interface.mac and reported.lower() != interface.mac.lower():
            return f"{interface.ifname} has another MAC address in {NETWORK_STATUS}"
    return ""


def _status(text: str) -> dict[str, str]:
    """Read a network-status annotation: interface name -> MAC; empty when it cannot be read."""
    try:
        items = json.loads(text) if text else []
    except (ValueError, RecursionError):
        return {}
    known = [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
    return {str(item.get("interface", "")): str(item.get("mac", "")) for item in known}


def _natural(ifname: str) -> list[tuple[int, str]]:
    """A sort key that puts net2 before net10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"([0-9]+)", ifname)]


def _reason(error: Exception) -> str:
    return error.strerror or "cannot be read" if isinstance(error, OSError) else str(error)
