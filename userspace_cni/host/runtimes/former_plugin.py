"""Reads and removes what the former plugin left on a node: its records, and the directories that they lead to.

Its record is `local-<cid12>-<ifname>.json` with the OVS port's name under "vhostname"; everything else has to be read from the
port itself. Nothing is made here, and files are removed by exact name, where the former plugin removed by pattern.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path

from userspace_cni.attachment.steps import LegacyRecord, PodMount
from userspace_cni.base.beneath import refusal
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import DirectoryRefused
from userspace_cni.base.log import say
from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.host.files.mounts import PodMountDriver
from userspace_cni.host.files.whole_files import read_file

_MAX_BYTES = 65536


def find_record(legacy_dir: str, container_id: str, ifname: str, root: HostRoot = HERE) -> LegacyRecord | None:
    """The record of this attachment, if there is one. Raises DirectoryRefused where that cannot be seen."""
    path = f"{legacy_dir}/local-{container_id[:12]}-{ifname}.json"
    try:
        os.lstat(root.path(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise refusal(f"looking for the former plugin's record {path}", error) from error
    return LegacyRecord(path)


def read_port_name(path: str, root: HostRoot = HERE) -> str:
    """The OVS port that a record names; for a torn record the former plugin's default, which is the file's name."""
    default = Path(path).stem.removeprefix("local-")
    try:
        raw = json.loads(_read(Path(path), root))
    except (OSError, ValueError, RecursionError, DirectoryRefused) as error:
        say("warning", "a record of the former plugin cannot be read", path=path, port=default, error=error)
        return default
    name = raw.get("vhostname") if isinstance(raw, dict) else None
    return name if isinstance(name, str) and name and "/" not in name else default


def _read(path: Path, root: HostRoot) -> bytes:
    """The record's bytes. Pods may have been given the directory above: so only a regular file is opened."""
    directory = os.open(root.path(str(path.parent)), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return read_file(directory, path.name, _MAX_BYTES) or b""
    finally:
        os.close(directory)


def other_port_names(path: str, root: HostRoot = HERE) -> list[str]:
    """The ports that the other records beside this one name. Raises DirectoryRefused where they cannot be seen."""
    directory, own = Path(path).parent, Path(path).name
    try:
        names = os.listdir(root.path(str(directory)))  # noqa: PTH208
    except FileNotFoundError:
        return []
    except OSError as error:
        raise refusal(f"looking for the former plugin's records in {directory}", error) from error
    others = (name for name in names if name.startswith("local-") and name.endswith(".json") and name != own)
    return [name for name in (read_port_name(f"{directory}/{other}", root) for other in others) if name]


def remove_record(path: str, root: HostRoot = HERE) -> None:
    """Remove the record, and with the last one its directory, which the former plugin makes again when it needs it.

    Raises DirectoryRefused when the record stays; a directory that stays is only a line on stderr.
    """
    directory = Path(root.path(str(Path(path).parent)))
    try:
        (directory / Path(path).name).unlink(missing_ok=True)
    except OSError as error:
        raise refusal(f"removing the former plugin's record {path}", error) from error
    _remove_empty(directory)


def remove_socket(
    server_path: str, cid12: str, short_dir: str, others: list[str], deadline: Deadline, root: HostRoot = HERE
) -> None:
    """Remove a client port's socket, and the directory or mount made for it unless a path of `others` is below it."""
    directory = Path(server_path).parent
    seen = Path(root.path(str(directory)))
    socket = seen / Path(server_path).name
    try:
        if stat.S_ISSOCK(socket.lstat().st_mode):
            socket.unlink()
    except (FileNotFoundError, NotADirectoryError) as error:
        say("debug", "the former plugin's socket is gone already", path=server_path, error=error)
    except OSError as error:
        raise refusal(f"removing the former plugin's socket {server_path}", error) from error
    if any(Path(other).parent == directory for other in others if other != server_path):
        return
    if directory.parent == Path(short_dir):
        PodMountDriver(root=root).undo(PodMount("", "", str(directory)), deadline)
    elif directory.name == cid12:
        _remove_empty(seen)


def _remove_empty(directory: Path) -> None:
    """Remove an empty directory of the former plugin's; a link in its place stays."""
    try:
        directory.rmdir()
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            say("info", "the former plugin's directory stays", directory=str(directory), error=error)
