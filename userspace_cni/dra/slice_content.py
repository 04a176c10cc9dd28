"""What this node's ResourceSlices say: a pool with the bridges as devices, within the limits of the API. Pure.

Where the server has consumable capacity, a bridge is one device that many claims may have, a port each. Elsewhere it is as many
devices as there is room, each for one claim. A bridge whose switch is dead is tainted where the server has taints of devices, and
left out elsewhere. The same bridges give the same content: each difference is a write, upon which the scheduler looks anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from userspace_cni.dra.device_names import DRIVER, device_name

TAINT: Final = f"{DRIVER}/switch"
"""Key of the taint of devices whose switch is dead."""
PORTS: Final = "ports"
"""The capacity of which each claim of a bridge takes 1."""
NUMA_NODE: Final = "resource.kubernetes.io/numaNode"
RESOURCE_NAME: Final = "k8s.cni.cncf.io/resourceName"
DEVICE_ID: Final = "k8s.cni.cncf.io/deviceID"
"""By these two Multus finds the network of a device."""
DEVICES_MAX: Final = 128
TAINTABLE_MAX: Final = 64
"""Devices in one slice; less where any of them may have a taint."""
_TEXT_MAX: Final = 64
"""Bytes of an attribute that is a text."""
_NAME_MAX: Final = 253
_NODE_MAX: Final = _NAME_MAX - len("-userspace-cni-9999")


@dataclass(frozen=True)
class ServerAbilities:
    """What the server keeps of a slice: `shared`, devices with many allocations; `taints` of devices."""

    shared: bool = False
    taints: bool = False


@dataclass(frozen=True)
class PoolBridge:
    """A bridge with room for so many ports, `free` of which claims may have: the others are devices that pods have by the device
    plugin.

    `claimed`: the device of each port that claims have. `numa` and `mtu`: None where uplinks do not agree on one, or where there
    are none. `vlans`: those that its uplinks carry, "" where they carry all.
    """

    name: str
    healthy: bool
    room: int
    free: int
    claimed: tuple[str, ...] = ()
    resource: str = ""
    datapath: str = ""
    numa: int | None = None
    mtu: int | None = None
    vlans: str = ""


def slice_name(node: str, number: int) -> str:
    """The name of the node's slice of that number, from 0."""
    short = (
        node
        if len(node) <= _NODE_MAX
        else f"{node[: _NODE_MAX - 9].rstrip('-.')}-{hashlib.sha256(node.encode()).hexdigest()[:8]}"
    )
    return f"{short}-userspace-cni-{number}"


def slice_specs(node: str, bridges: Iterable[PoolBridge], abilities: ServerAbilities) -> list[dict[str, Any]]:
    """The `spec` of each slice of the node, but for the pool's generation; always one at least."""
    devices = [each for bridge in bridges for each in _devices(bridge, abilities)]
    most = TAINTABLE_MAX if abilities.taints else DEVICES_MAX
    parts = [devices[begin : begin + most] for begin in range(0, len(devices), most)] or [[]]
    pool = {"name": node, "resourceSliceCount": len(parts)}
    return [{"driver": DRIVER, "nodeName": node, "pool": pool, "devices": part} for part in parts]


def trial_specs(node: str) -> dict[str, Any]:
    """A slice with all that a server may lack: what is left of it by a dry run tells what the server has."""
    bridge = PoolBridge("trial", healthy=False, room=1, free=1)
    [spec] = slice_specs(node, (bridge,), ServerAbilities(shared=True, taints=True))
    return spec


def read_abilities(spec: Mapping[str, Any]) -> ServerAbilities:
    """What a server has kept of `trial_specs`."""
    devices = spec.get("devices") or [{}]
    return ServerAbilities(bool(devices[0].get("allowMultipleAllocations")), bool(devices[0].get("taints")))


def device_health(bridges: Iterable[PoolBridge], *, shared: bool) -> dict[str, bool]:
    """Whether each device of these bridges can be used, by name; also of those that are left out of the slices now."""
    return {name: bridge.healthy for bridge in bridges for name in ([device_name(bridge.name)] if shared else _single(bridge))}


def _devices(bridge: PoolBridge, abilities: ServerAbilities) -> Iterable[dict[str, Any]]:
    if not bridge.healthy and not abilities.taints:
        return
    taints = {} if bridge.healthy else {"taints": [{"key": TAINT, "value": "dead", "effect": "NoSchedule"}]}
    if not abilities.shared:
        yield from ({"name": name, "attributes": _attributes(bridge, name), **taints} for name in _single(bridge))
    elif bridge.free > 0:  # a capacity of 0 is none of the API's
        name, one = device_name(bridge.name), {"default": "1", "validValues": ["1"]}
        capacity = {PORTS: {"value": str(bridge.free), "requestPolicy": one}}
        shared = {"allowMultipleAllocations": True, "capacity": capacity}
        yield {"name": name, "attributes": _attributes(bridge, name), **shared, **taints}


def _single(bridge: PoolBridge) -> list[str]:
    """The names of the bridge's devices where each is for one claim: those that claims have, and of the others the first ones."""
    whole, numbered = device_name(bridge.name), [device_name(bridge.name, number) for number in range(bridge.room)]
    others = [name for name in numbered if name not in bridge.claimed]
    offered = {*bridge.claimed, *others[: max(0, bridge.free - len(bridge.claimed))]} - {whole}
    return [name for name in numbered if name in offered] + sorted(offered.difference(numbered))


def _attributes(bridge: PoolBridge, device: str) -> dict[str, Any]:
    texts = {"bridge": bridge.name, "datapath": bridge.datapath, "vlans": bridge.vlans}
    if bridge.resource:
        texts |= {RESOURCE_NAME: bridge.resource, DEVICE_ID: device}
    numbers = {"mtu": bridge.mtu, NUMA_NODE: bridge.numa}
    said = {key: {"string": text} for key, text in texts.items() if text and len(text.encode()) <= _TEXT_MAX}
    return said | {key: {"int": number} for key, number in numbers.items() if number is not None}


def said_specs(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The `spec`s of slices as the server has them, without the generation and without what the server itself adds."""
    return [_said(each.get("spec") or {}) for each in found]


def _said(spec: Mapping[str, Any]) -> dict[str, Any]:
    pool = {key: value for key, value in (spec.get("pool") or {}).items() if key != "generation"}
    devices = [_without_time(each) for each in spec.get("devices") or ()]
    return {**spec, "pool": pool, "devices": devices}


def _without_time(device: Mapping[str, Any]) -> dict[str, Any]:
    if not device.get("taints"):
        return dict(device)
    taints = [{key: value for key, value in taint.items() if key != "timeAdded"} for taint in device["taints"]]
    return {**device, "taints": taints}
