"""KubeVirt's network-info file: what Multus' network-status says of the interfaces of one launcher pod. Pure.

    {"interfaces": [{"network": "net1", "mac": "02:…", "mtu": 9000,
                     "deviceInfo": {"type": "vhost-user", "version": "1.1.0", "vhost-user": {"mode": "server", "path": "/…"}}}]}

`network` is the VM's name for the network, `mode` the role of the container's side, which is QEMU. Who writes what:

- virt-controller makes it of the pod's network-status, for interfaces whose binding is registered with `downwardAPI:
  device-info`;
- until KubeVirt 1.7 only networks with a device-info get an entry, and none of them: the file stays empty. From 1.8 on every
  network of such a binding has one, with its MAC; its MTU came later (pkg/network/pod/annotations, pkg/network/downwardapi);
- it comes in one piece: Multus writes network-status once, when all networks are attached. An entry that is not in a filled
  file will not come.

Unknown keys are left alone: a newer KubeVirt may add some. Absent, null and 0 (Go's omitted values) all mean that nothing is
told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from kubevirt.annotation import MTU_RANGE
from kubevirt.interface_mac import read_mac
from kubevirt.json_input import decode, read_typed
from kubevirt.sidecar_errors import BadInput
from kubevirt.vm_socket_source import Role

REMEDY: Final = (
    "compare annotation kubevirt.io/network-info of the launcher pod with its k8s.v1.cni.cncf.io/network-status: "
    "the network's CNI or device plugin wrote that"
)
_WHAT: Final = "network-info"


@dataclass(frozen=True)
class NetworkInfoEntry:
    """The entry of one network. `device`: the type of its device-info, "" without one; `path` only for type vhost-user."""

    device: str = ""
    path: str = ""
    mode: Role = "server"
    mac: str = ""
    mtu: int | None = None


def read_network_info(text: bytes | str) -> dict[str, NetworkInfoEntry] | None:
    """Read the entries by network; None for an empty file, which may be filled later or never. Raises BadInput."""
    if not text.strip():
        return None
    root = read_typed(decode(text, _WHAT, REMEDY), dict, _WHAT, REMEDY)
    found: dict[str, NetworkInfoEntry] = {}
    interfaces: list[Any] = _get(root, "interfaces", list, _WHAT) or []
    for number, entry in enumerate(interfaces):
        where = f"{_WHAT}: interfaces[{number}]"
        raw = read_typed(entry, dict, where, REMEDY)
        network: str = _get(raw, "network", str, where) or ""
        if not network or network in found:
            raise BadInput(
                f"{where} has " + (f"network {network[:64]!r} for the second time" if network else "no network"), REMEDY
            )
        found[network] = _read_attached(raw, where)
    return found


def _read_attached(raw: Mapping[str, Any], where: str) -> NetworkInfoEntry:
    info: Mapping[str, Any] = _get(raw, "deviceInfo", dict, where) or {}
    device: str = _get(info, "type", str, f"{where}.deviceInfo") or ""
    path, mode = _read_socket(info, f"{where}.deviceInfo") if device == "vhost-user" else ("", "server")
    return NetworkInfoEntry(
        device=device,
        path=path,
        mode=cast("Role", mode),
        mac=read_mac(_get(raw, "mac", str, where) or "", f"{where}.mac", REMEDY),
        mtu=read_mtu(_get(raw, "mtu", int, where), f"{where}.mtu", REMEDY),
    )


def _read_socket(info: Mapping[str, Any], where: str) -> tuple[str, str]:
    socket: Mapping[str, Any] = _get(info, "vhost-user", dict, where) or {}
    path: str = _get(socket, "path", str, f"{where}.vhost-user") or ""
    mode: str = _get(socket, "mode", str, f"{where}.vhost-user") or "server"
    if not path:
        raise BadInput(f"{where} has type vhost-user and no path", REMEDY)
    if mode not in ("server", "client"):
        raise BadInput(f"{where}.vhost-user.mode is {mode[:64]!r}: it can be 'server' or 'client'", REMEDY)
    return path, mode


def read_mtu(mtu: int | None, where: str, remedy: str) -> int | None:
    """A port's MTU as told; None for 0. Raises BadInput for what no interface can have."""
    if mtu and not MTU_RANGE[0] <= mtu <= MTU_RANGE[1]:
        raise BadInput(f"{where} is {mtu}: it must be from {MTU_RANGE[0]} to {MTU_RANGE[1]}", remedy)
    return mtu or None


def _get(raw: Mapping[str, Any], key: str, kind: type[Any], where: str) -> Any:
    value = raw.get(key)
    return None if value is None else read_typed(value, kind, f"{where}.{key}", REMEDY)
