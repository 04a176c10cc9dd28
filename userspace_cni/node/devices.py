"""The devices of bridges as this node has them: which of them an interface takes, and what the kubelet is told of each bridge.

A device is nothing but a directory for a socket, and room on a bridge. The kubelet gives devices to pods, and only its word
counts here: a network's `deviceID` is a tenant's, and must never lead to another pod's directory.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import InvalidConfig, UserspaceError
from userspace_cni.cni.options import Options
from userspace_cni.cni.request import Environment
from userspace_cni.host.files.device_directories import DOMAIN, device_id, number_of, resource_of
from userspace_cni.host.node_net.numa import node_of_nic, nodes_of_mask
from userspace_cni.pod.document import DEFAULT_MAPPED_DIR

if TYPE_CHECKING:
    from userspace_cni.attachment.journal import Journal
    from userspace_cni.base.root import HostRoot
    from userspace_cni.node.bridge_room import BridgeRoom
    from userspace_cni.node.installation import Installation
    from userspace_cni.switch.ports import PortDriver

ALLOCATE_S: Final = 10.0
"""How long an allocation waits for an ADD or DEL that has the device's directory."""
SILENT_S: Final = 10.0
"""An ovs-vswitchd is silent for seconds while it allocates memory; one that is silent for longer hangs."""
TOPOLOGY_S: Final = 30.0
"""Seconds between two looks at the NUMA nodes of NICs and polling threads: they change when an administrator changes them."""


def device_of(environment: Environment, options: Options, here: Installation, journal: Journal, deadline: Deadline) -> str:
    """The ID of the device that this interface takes, of those that the kubelet gave to its pod; "" where it gave none.

    The device that the network names, else the first of the bridge that no other interface of the container has. Raises
    InvalidConfig for a device that is not this pod's, or of another bridge, and when all devices are taken; Unavailable when the
    kubelet does not answer.
    """
    from userspace_cni.host.runtimes.podresources import devices_of

    asked, bridge = options.asked.device_id, options.bridge
    namespace, pod = environment.pod_namespace, environment.pod_name
    if not namespace or not pod:
        return ""  # no pod of a cluster: no kubelet knows it
    given = devices_of(namespace, pod, here.root.path(here.settings.kubelet_dir), deadline)
    if asked and asked not in given.get(resource_of(bridge), ()):
        _require_foreign(asked, bridge, f"{namespace}/{pod}", given)
        return ""
    numbers = {number_of(bridge, device) for device in given.get(resource_of(bridge), ())} - {None}
    mine = [device_id(bridge, number) for number in sorted(number for number in numbers if number is not None)]
    if asked:
        return asked if asked in mine else ""
    free = [device for device in mine if not _taken(device, environment, here, journal)]
    if mine and not free:
        raise InvalidConfig(
            f"pod {namespace}/{pod} has {len(mine)} of {resource_of(bridge)}, and other interfaces of it have taken them",
            f"{', '.join(mine)}; ask for one per interface in the limits of its containers",
        )
    return free[0] if free else ""


def list_given(here: Installation) -> Mapping[str, tuple[str, ...]]:
    """The IDs of the devices that the kubelet has given to pods, by resource. Raises Unavailable when it does not answer."""
    from userspace_cni.host.runtimes.podresources import given_devices

    return given_devices(here.root.path(here.settings.kubelet_dir), Deadline.after(ALLOCATE_S))


def _require_foreign(asked: str, bridge: str, pod: str, given: Mapping[str, tuple[str, ...]]) -> None:
    """Raise InvalidConfig unless the pod has the device of another device plugin."""
    resource = next((resource for resource, devices in given.items() if asked in devices), "")
    if not resource:
        raise InvalidConfig(
            f"'deviceID' is {asked!r}, and the kubelet gave no such device to pod {pod}, nor has a claim of it one that is free",
            "Multus sets it from the resourceName of the NetworkAttachmentDefinition; write none into a network",
        )
    if resource.startswith(f"{DOMAIN}/"):
        raise InvalidConfig(
            f"'deviceID' is {asked!r}, a device of {resource}, and the network's bridge is {bridge}",
            f"its resourceName has to be {resource_of(bridge) or 'left out: a bridge of this name has no devices'}",
        )


def _taken(device: str, environment: Environment, here: Installation, journal: Journal) -> bool:
    """Whether another interface of the container has the device. One ADD of a container chooses at a time."""
    shared = journal.read_shared(here.devices.path(device))
    keys = shared.holders if shared else ()
    return any(key.startswith(f"{environment.container_id}@") for key in keys)


@dataclass(frozen=True)
class OfferedBridge:
    """A bridge of which devices are offered. `numa`: the node on which its NICs are polled, or without any the one of all polling
    threads; None where that is more than one, or not known. `closed`: devices that no pod may get now: claims have their room."""

    name: str
    healthy: bool
    numa: int | None = None
    closed: frozenset[str] = frozenset()


class DeviceRoom:
    """What the node does for a device plugin: `deviceplugin.plugin.DeviceNode`. `room`: where claims take room, too."""

    def __init__(self, installation: Installation, journal: Journal, ports: PortDriver, room: BridgeRoom | None = None) -> None:
        self._count = installation.settings.devices_per_bridge if room else 0
        self._room = room
        self._directories = installation.devices
        self._journal = journal
        self._bridges = _OfferedBridges(ports, installation.root)

    def bridges(self) -> tuple[OfferedBridge, ...] | None:
        """The bridges of which devices are offered; None while they are not known."""
        bridges, room = self._bridges.look(), self._room
        if bridges is None or room is None:
            return bridges
        return tuple(replace(each, closed=room.closed(each.name, self._devices(each.name))) for each in bridges)

    def resource(self, bridge: str) -> str:
        """The name of the bridge's resource; "" for a name that cannot be part of one."""
        return resource_of(bridge)

    def device(self, bridge: str, number: int) -> str:
        """The ID of the bridge's device of that number, from 0."""
        return device_id(bridge, number)

    def give(self, bridge: str, devices: Sequence[str]) -> None:
        """Let a pod have these devices. Raises Unavailable where claims have the bridge's room."""
        if self._room:
            self._room.give(bridge, devices)

    def _devices(self, bridge: str) -> list[str]:
        return [device_id(bridge, number) for number in range(self._count)]

    def directory(self, device: str) -> str:
        """Give the device a new directory, and return its path on the host. Raises DirectoryRefused and Unavailable."""
        with self._journal.place_lock(self._directories.path(device), Deadline.after(ALLOCATE_S)):
            return self._directories.renew(device).path

    def mapped(self, device: str) -> str:
        """The path of that directory in containers."""
        return DEFAULT_MAPPED_DIR + device


class _OfferedBridges:
    """The bridges that an administrator made and that can have our ports. Bridges of ours go with their last port, and a pod
    could not be scheduled onto one before it is made: so they are not offered.

    While OVSDB does not answer, the last known state stays: OVS forwards without it.
    """

    def __init__(self, ports: PortDriver, root: HostRoot) -> None:
        self._ports = ports
        self._root = root
        self._answered = time.monotonic()
        self._numa: Mapping[str, int | None] = {}
        self._numa_at = 0.0

    def look(self) -> tuple[OfferedBridge, ...] | None:
        """The bridges now, by name; None while they are not known. Waits for nothing."""
        ports = self._ports
        now = time.monotonic()
        try:
            names = ports.list_administrators_bridges()
            if names != self._numa.keys() or now - self._numa_at > TOPOLOGY_S:
                self._numa, self._numa_at = self._numa_of(names), now
            dpdk = ports.dpdk
        except UserspaceError:
            return None
        seen = ports.daemon.seen
        if seen is None or seen.state != "silent":
            self._answered = now
        dead = seen is not None and seen.state == "dead"
        healthy = dpdk and not dead and now - self._answered < SILENT_S
        return tuple(OfferedBridge(name, healthy, self._numa[name]) for name in sorted(names))

    def _numa_of(self, names: frozenset[str]) -> Mapping[str, int | None]:
        uplinks, mask = self._ports.read_hardware()
        polling = nodes_of_mask(mask, self._root) if mask else frozenset[int]()
        if polling is None:
            return dict.fromkeys(names)
        found = {name: frozenset(node_of_nic(devargs, self._root) for devargs in uplinks.get(name, ())) for name in names}
        return {name: _node_of(nics, polling) for name, nics in found.items()}


def _node_of(nics: frozenset[int | None], polling: frozenset[int]) -> int | None:
    """`OfferedBridge.numa`. `nics`: the nodes of the bridge's NICs; `polling`: those of polling threads, empty where OVS chooses.

    OVS polls a NIC on the NIC's own node where it has a thread there, whatever threads it has elsewhere, and starts one there
    where it chooses itself.
    """
    nodes = nics or polling
    node = next(iter(nodes)) if len(nodes) == 1 else None
    return node if node in polling or not polling else None
