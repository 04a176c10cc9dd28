"""The socket of a claim where its driver's metadata is missing: in the directory that the claim gives to the sidecar's container.

From 1.10 on KubeVirt gives a VM's claims to the sidecars of bindings, so that a container of theirs has what the driver has its
runtime add. Our driver adds the directory of each device, and a variable that names those of a request (`pod.claimed`). What is
in the directory QEMU can write, too: it is read as a stranger's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from kubevirt.dra import Device
from kubevirt.interface_mac import read_mac
from kubevirt.json_input import decode, read_typed
from kubevirt.mounted_files import read_file
from kubevirt.network_info import read_mtu
from kubevirt.sidecar_errors import BadInput
from kubevirt.vmi import NetworkClaim, VirtualMachine
from userspace_cni.pod import claimed, launcher

_FILE: Final = re.compile(r"configData-[0-9A-Za-z_.-]{1,200}\.json", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,106}", re.ASCII)
_ENTRIES_MAX: Final = 64
_REMEDY: Final = "look at the agent's log on this node: it made the directory, and QEMU can write in it"


def find_in_directory(environment: Mapping[str, str], machine: VirtualMachine, claim: NetworkClaim) -> Device | None:
    """The port of the claim's request by the container's environment; None unless that names one directory, which is there.

    Raises BadInput for a file there that cannot be read.
    """
    variable = claimed.variable(claim.named or claim.name, claim.request)
    directories = environment.get(variable, "").split(":")
    directory = Path(directories[0])
    if not claim.request or len(directories) > 1 or not (directory.is_absolute() and directory.is_dir()):
        return None
    files = [name for name in _entries(directory) if _FILE.fullmatch(name)]
    if files:
        return _read(directory, files[0]) if len(files) == 1 else None
    name = claimed.name_in_pod(claimed.called("" if claim.named else claim.name, claim.named or ""), claim.request, 0)
    mac = launcher.derive_mac(machine.namespace, launcher.machine_part(machine.name), name)
    return Device(f"{directory}/{claimed.SOCKET}", mac=mac)


def _entries(directory: Path) -> list[str]:
    """The first names that it has: a directory with more is not as we made it."""
    try:
        with os.scandir(directory) as found:
            return [entry.name for entry, _ in zip(found, range(_ENTRIES_MAX), strict=False)]
    except OSError:
        return []


def _read(directory: Path, name: str) -> Device:
    """The device as the agent describes it to an application (`pod.document`)."""
    where = f"{directory}/{name}"
    entry = _object(decode(read_file(where, follow=False) or b"", where, _REMEDY), where)
    vhost = _object(_object(entry.get("config"), f"{where}: config").get("vhost"), f"{where}: config.vhost")
    socket: str = read_typed(vhost.get("socketfile"), str, f"{where}: config.vhost.socketfile", _REMEDY)
    if not _NAME.fullmatch(socket):
        raise BadInput(f"{where}: config.vhost.socketfile is {socket[:64]!r}, which is no socket's name", _REMEDY)
    interfaces = _object(entry.get("ipResult"), f"{where}: ipResult").get("interfaces", [])
    listed: list[Any] = read_typed(interfaces, list, f"{where}: ipResult.interfaces", _REMEDY)
    first = _object(listed[0] if listed else {}, f"{where}: ipResult.interfaces[0]")
    mtu, mac = first.get("mtu"), first.get("mac") or ""
    return Device(
        path=f"{directory}/{socket}",
        mtu=read_mtu(None if mtu is None else read_typed(mtu, int, f"{where}: mtu", _REMEDY), f"{where}: mtu", _REMEDY),
        mac=read_mac(read_typed(mac, str, f"{where}: mac", _REMEDY), f"{where}: mac", _REMEDY),
    )


def _object(value: Any, where: str) -> dict[str, Any]:
    found: dict[str, Any] = read_typed({} if value is None else value, dict, where, _REMEDY)
    return found
