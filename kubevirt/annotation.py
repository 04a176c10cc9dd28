"""The VMI annotation `userspace/vhostuser`: specs of a VM's owner for which KubeVirt's API has no field. Strict and pure.

A JSON object by network name (spec.networks[].name); every key of an entry is optional:

    userspace/vhostuser: |
      {"net1": {"mtu": 9000, "queues": 2, "rxQueueSize": 1024, "txQueueSize": 1024},
       "net2": {"path": "/var/run/kubevirt/mine/net2.sock", "mode": "server"}}

A misspelt key would silently be missing in the VM, so unknown keys, unknown networks and values out of range are refused. `mode`
is QEMU's role: "server" makes the socket.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from kubevirt.json_input import decode, read_typed
from kubevirt.sidecar_errors import BadInput, DefinitionRefused
from kubevirt.vm_socket_source import Role

ANNOTATION: Final = "userspace/vhostuser"
MTU_RANGE: Final = (68, 65535)
"""What an Ethernet interface of QEMU can have (virtio 1.2, 5.1.4.1: at least 68)."""
QUEUES_MAX: Final = 256
"""KubeVirt's own limit for queue pairs of an interface."""
RING_SIZES: Final = (256, 512, 1024)
"""What QEMU's virtio-net takes for a vhost-user back-end: a power of two from 256 to 1024 (hw/net/virtio-net.c)."""

_KEYS: Final = ("path", "mode", "mtu", "queues", "rxQueueSize", "txQueueSize")
_REMEDY: Final = (
    f"correct annotation {ANNOTATION} in the VM's template (spec.template.metadata.annotations); see docs/kubevirt.md"
)


@dataclass(frozen=True)
class InterfaceAnnotation:
    """The specs for one network; "" and None where there is none. `path` and `mode` as QEMU sees them; sizes in descriptors."""

    path: str = ""
    mode: Role | None = None
    mtu: int | None = None
    queues: int | None = None
    rx_queue_size: int | None = None
    tx_queue_size: int | None = None


def read_annotation(text: str, networks: Collection[str]) -> dict[str, InterfaceAnnotation]:
    """Read the specs by network; none for "". `networks`: the VM's networks. Raises BadInput, and Refused for ring-size."""
    if not text.strip():
        return {}
    where = f"annotation {ANNOTATION}"
    entries = read_typed(decode(text, where, _REMEDY), dict, where, _REMEDY)
    for network in entries:
        if network not in networks:
            known = ", ".join(sorted(networks)) or "none"
            raise BadInput(f"{where} names network {network[:64]!r}, which the VM does not have (it has: {known})", _REMEDY)
    return {network: _read_spec(entry, f"{where}, network {network!r}") for network, entry in entries.items()}


def _read_spec(entry: Any, where: str) -> InterfaceAnnotation:
    raw = cast("Mapping[str, Any]", read_typed(entry, dict, where, _REMEDY))
    for key in raw:
        if key not in _KEYS:
            raise BadInput(f"{where}: key {key[:64]!r} is unknown (known: {', '.join(_KEYS)})", _REMEDY)
    path = read_typed(raw.get("path", ""), str, f"{where}: key 'path'", _REMEDY)
    if "path" in raw and not path:
        raise BadInput(f"{where}: key 'path' is empty", _REMEDY)
    return InterfaceAnnotation(
        path=path,
        mode=_read_mode(raw, where),
        mtu=_read_number(raw, "mtu", MTU_RANGE, where),
        queues=_read_number(raw, "queues", (1, QUEUES_MAX), where),
        rx_queue_size=_read_ring(raw, "rxQueueSize", where),
        tx_queue_size=_read_ring(raw, "txQueueSize", where),
    )


def _read_mode(raw: Mapping[str, Any], where: str) -> Role | None:
    if "mode" not in raw:
        return None
    mode = read_typed(raw["mode"], str, f"{where}: key 'mode'", _REMEDY)
    if mode not in ("server", "client"):
        raise BadInput(f"{where}: key 'mode' is {mode[:64]!r}: it can be 'server' or 'client', QEMU's role", _REMEDY)
    return cast("Role", mode)


def _read_number(raw: Mapping[str, Any], key: str, bounds: tuple[int, int], where: str) -> int | None:
    if key not in raw:
        return None
    number = read_typed(raw[key], int, f"{where}: key {key!r}", _REMEDY)
    if not bounds[0] <= number <= bounds[1]:
        raise BadInput(f"{where}: key {key!r} is {number}: it must be from {bounds[0]} to {bounds[1]}", _REMEDY)
    return number


def _read_ring(raw: Mapping[str, Any], key: str, where: str) -> int | None:
    if key not in raw:
        return None
    size = read_typed(raw[key], int, f"{where}: key {key!r}", _REMEDY)
    if size not in RING_SIZES:
        sizes = ", ".join(map(str, RING_SIZES))
        raise DefinitionRefused("ring-size", f"{where}: key {key!r} is {size}: QEMU takes {sizes}", _REMEDY)
    return size
