"""What the plugin that this one replaces left on a node: its records, and the directories that they lead to.

Its record is `local-<cid12>-<ifname>.json` with the OVS port's name under "vhostname"; everything else has to be read from the
port itself. Only ever removed, never made; by exact name, where that plugin removed by pattern.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

from userspace_cni.deadline import Deadline
from userspace_cni.errors import DirectoryRefused
from userspace_cni.host.mounts import PodMountDriver
from userspace_cni.log import say
from userspace_cni.steps import LegacyRecord, PodMount

_MAX_BYTES = 65536


def find_record(legacy_dir: str, container_id: str, ifname: str) -> LegacyRecord | None:
    """The record of this attachment, if there is one."""
    path = f"{legacy_dir}/local-{container_id[:12]}-{ifname}.json"
    return LegacyRecord(path) if os.path.lexists(path) else None


def read_port_name(path: str) -> str:
    """The OVS port that a record names; of a torn one the name that the former plugin gives by default, which is the file's."""
    default = Path(path).stem.removeprefix("local-")
    try:
        with Path(path).open("rb") as file:
            raw = json.loads(file.read(_MAX_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        say("warning", "a record of the former plugin can not be read", path=path, port=default, error=error)
        return default
    name = raw.get("vhostname") if isinstance(raw, dict) else None
    return name if isinstance(name, str) and name and "/" not in name else default


def other_port_names(path: str) -> list[str]:
    """The ports that the other records beside this one name."""
    others = (other for other in Path(path).parent.glob("local-*.json") if str(other) != path)
    return [name for name in (read_port_name(str(other)) for other in others) if name]


def remove_record(path: str) -> None:
    """Remove the record, and its directory with the last one."""
    try:
        Path(path).unlink(missing_ok=True)
    except OSError as error:
        raise DirectoryRefused(
            f"removing the former plugin's record {path}: {error.strerror}", "the plugin runs as root"
        ) from error


def remove_socket(server_path: str, cid12: str, short_dir: str, others: list[str], deadline: Deadline) -> None:
    """Remove a client port's socket, and the directory or mount that was made for it when no path of `others` is below it."""
    path = Path(server_path)
    directory = path.parent
    try:
        if stat.S_ISSOCK(path.lstat().st_mode):
            path.unlink()
    except OSError as error:
        say("debug", "the former plugin's socket is gone already", path=server_path, error=error)
    if any(Path(other).parent == directory for other in others if other != server_path):
        return
    if directory.parent == Path(short_dir):
        PodMountDriver().undo(PodMount("", "", str(directory)), deadline)
    elif directory.name == cid12:
        try:
            directory.rmdir()
        except OSError as error:
            say("info", "the former plugin's directory stays", directory=str(directory), error=error)
