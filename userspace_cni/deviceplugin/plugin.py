"""Keeps the devices of this node's bridges registered with the kubelet.

One thread speaks to the kubelet; the watchdog's round tells it, once a second and without waiting, of bridges that changed and of
another kubelet. A bridge's devices are offered while a kubelet watches their list. When that ends, for whatever reason, they are
registered again: at once with a kubelet that has just come, else after a pause that doubles with each try. A kubelet that is away
is waited for; nothing of this may keep the agent from serving verbs, or make it not ready.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from userspace_cni.base.back_off import BackOff
from userspace_cni.base.errors import DirectoryRefused, Unavailable, UserspaceError
from userspace_cni.base.log import say
from userspace_cni.base.loops import Loop
from userspace_cni.deviceplugin.endpoint import DeviceEndpoint
from userspace_cni.deviceplugin.kubelet import Identity, Kubelet
from userspace_cni.deviceplugin.protocol import v1beta1_pb2 as v1beta1

BACK_OFF: Final = BackOff(1.0, 30.0)
"""Pauses between two tries to register with the same kubelet."""
WATCH_S: Final = 10.0
"""How long a kubelet that took the registration may need until it watches the list."""
STOP_S: Final = 3.0
_HEALTH: Final = {True: "Healthy", False: "Unhealthy"}


class DeviceBridge(Protocol):
    """A bridge of which devices are offered."""

    @property
    def name(self) -> str: ...

    @property
    def healthy(self) -> bool:
        """Whether its datapath works."""
        ...

    @property
    def numa(self) -> int | None:
        """The NUMA node on which its traffic is polled; None where it is not known, or there are several."""
        ...

    @property
    def closed(self) -> frozenset[str]:
        """Its devices that no pod may get now, because claims have their room."""
        ...


class DeviceNode(Protocol):
    """What the node does for devices."""

    def bridges(self) -> tuple[DeviceBridge, ...] | None:
        """The bridges now; None while they are not known. Waits for nothing."""
        ...

    def resource(self, bridge: str) -> str:
        """The name of the bridge's resource; "" where it cannot have one."""
        ...

    def device(self, bridge: str, number: int) -> str: ...

    def give(self, bridge: str, devices: Sequence[str]) -> None:
        """Let a pod have these devices. Raises Unavailable where claims have the bridge's room."""
        ...

    def directory(self, device: str) -> str:
        """The device's directory on the host, made anew. Raises UserspaceError."""
        ...

    def mapped(self, device: str) -> str:
        """Where that directory is in containers."""
        ...


@dataclass(frozen=True)
class OutcomeCounting:
    """What is called with the outcome, "ok" or "failed", of each registration and each allocation."""

    registration: Callable[[str], None]
    allocation: Callable[[str], None]


class _BridgeDevices:
    """The devices of one bridge, as `endpoint.Devices`, with the state of their registration."""

    def __init__(self, bridge: DeviceBridge, count: int, room: DeviceNode, counting: OutcomeCounting) -> None:
        self.bridge = bridge
        self.resource = room.resource(bridge.name)
        self.devices = [room.device(bridge.name, number) for number in range(count)]
        self.due = self.pause_s = 0.0
        self.gone = False
        self._room = room
        self._counting = counting

    def list_devices(self) -> v1beta1.ListAndWatchResponse:
        """Every device, with the bridge's health and NUMA node."""
        bridge = self.bridge
        topology = None if bridge.numa is None else v1beta1.TopologyInfo(nodes=[v1beta1.NUMANode(ID=bridge.numa)])
        serves = bridge.healthy and not self.gone
        devices = [
            v1beta1.Device(ID=device, health=_HEALTH[serves and device not in bridge.closed], topology=topology)
            for device in self.devices
        ]
        return v1beta1.ListAndWatchResponse(devices=devices)

    def allocate(self, devices: list[str]) -> v1beta1.ContainerAllocateResponse:
        """A mount for each device, and a variable that names where they are."""
        try:
            answer = self._mounts(devices)
        except UserspaceError:
            self._counting.allocation("failed")
            raise
        self._counting.allocation("ok")
        return answer

    def _mounts(self, devices: list[str]) -> v1beta1.ContainerAllocateResponse:
        unknown = sorted(set(devices) - set(self.devices))
        if unknown:
            raise DirectoryRefused(f"device {unknown[0]!r}: {self.resource} has no such device", "setting devices_per_bridge")
        self._room.give(self.bridge.name, devices)
        mounts = [
            v1beta1.Mount(container_path=self._room.mapped(device), host_path=self._room.directory(device)) for device in devices
        ]
        places = ":".join(mount.container_path for mount in mounts)
        return v1beta1.ContainerAllocateResponse(envs={variable_of(self.resource): places}, mounts=mounts)


class DevicePlugin(Loop):
    """The plugin: `count` devices for each bridge of `room`. `directory`: the kubelet's for device plugins, as we see it.

    When it has stopped, the kubelet sees the devices as unhealthy until the next agent registers them.
    """

    failing = "offering devices to the kubelet failed: "
    end_s = STOP_S
    first_s = None
    back_off = BACK_OFF

    def __init__(self, room: DeviceNode, count: int, directory: str, counting: OutcomeCounting) -> None:
        super().__init__("devices", "offers devices to the kubelet")
        self._room = room
        self._count = count
        self._kubelet = Kubelet(directory)
        self._counting = counting
        self._bridges: dict[str, DeviceBridge] | None = None
        self._seen: Identity | None = None
        self._served_to: Identity | None = None
        self._offers: dict[str, tuple[_BridgeDevices, DeviceEndpoint]] = {}
        self._said: dict[str, tuple[str, str]] = {}

    @property
    def registered(self) -> int:
        """How many bridges' devices the kubelet watches."""
        return sum(endpoint.watched for _, endpoint in list(self._offers.values()))

    def look(self) -> None:
        """Wake the thread if bridges or kubelet have changed. Called once a second; waits for nothing."""
        bridges, seen = self._room.bridges(), self._kubelet.identify()
        known = None if bridges is None else {bridge.name: bridge for bridge in bridges}
        with self._wake:
            if (known is not None and known != self._bridges) or seen != self._seen:
                self._bridges, self._seen = (self._bridges if known is None else known), seen
                self.ask()

    # -- the thread -------------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        for name in list(self._offers):
            self._offers.pop(name)[1].close()
        self._kubelet.let_go()

    def _round(self) -> float | None:
        """Make the offers those of the bridges, and register what no kubelet watches; seconds until something is due."""
        with self._wake:
            bridges, seen = dict(self._bridges or {}), self._seen
        if seen != self._served_to:
            for offer, _ in self._offers.values():
                offer.due = offer.pause_s = 0.0
            self._served_to = seen
        self._said = {name: said for name, said in self._said.items() if not name or name in bridges}
        for name in self._offers.keys() - bridges.keys():
            offer, endpoint = self._offers.pop(name)
            offer.gone = True
            endpoint.retire()
            say("info", "a bridge has gone, and its devices with it", bridge=name)
        if seen is None:
            self._tell(
                "", "info", "the kubelet has no socket for device plugins; the agent waits for it", self._kubelet.directory
            )
            return None
        try:
            if not self._kubelet.hold():
                self._tell(
                    "", "warning", "another agent offers devices to this kubelet; the agent waits for it", self._kubelet.directory
                )
                return BACK_OFF.first_s
        except Unavailable as error:
            self._tell("", "warning", "devices cannot be offered", str(error))
            return BACK_OFF.most_s
        self._said.pop("", None)
        for bridge in bridges.values():
            self._offer(bridge)
        waits = []
        for name, (offer, endpoint) in self._offers.items():
            if endpoint.watched:
                offer.pause_s = 0.0
            else:
                waits.append(self._register(name, offer, endpoint))
        return min(waits, default=None)

    def _offer(self, bridge: DeviceBridge) -> None:
        known = self._offers.get(bridge.name)
        if known:
            offer, endpoint = known
            changed, offer.bridge = offer.bridge != bridge, bridge
            if changed:
                say("info", "the devices of a bridge have changed", bridge=bridge.name, health=_HEALTH[bridge.healthy])
                endpoint.tell()
            return
        offer = _BridgeDevices(bridge, self._count, self._room, self._counting)
        if not offer.resource:
            self._tell(bridge.name, "warning", "a bridge has no devices: its name cannot be part of a resource's", bridge.name)
            return
        path = f"{self._kubelet.directory}/userspace-cni-{bridge.name}.sock"
        self._offers[bridge.name] = offer, DeviceEndpoint(offer, path, self.ask)

    def _register(self, name: str, offer: _BridgeDevices, endpoint: DeviceEndpoint) -> float:
        """Register an offer whose time has come; seconds until its next try."""
        now = time.monotonic()
        if now < offer.due:
            return offer.due - now
        offer.pause_s = pause = BACK_OFF.after(offer.pause_s)
        offer.due = now + pause
        try:
            endpoint.serve()
            self._kubelet.register(offer.resource, endpoint.path.rpartition("/")[2])
        except Unavailable as error:
            self._counting.registration("failed")
            self._tell(name, "warning", "devices cannot be registered; it is tried again", str(error))
            return pause
        self._counting.registration("ok")
        self._said.pop(name, None)
        say("info", "devices are registered with the kubelet", resource=offer.resource, devices=self._count)
        offer.due = time.monotonic() + max(pause, WATCH_S)
        return max(pause, WATCH_S)

    def _tell(self, name: str, level: str, text: str, problem: str) -> None:
        """Log a problem of a bridge, or of all with "", unless it was the last one."""
        if self._said.get(name) != (text, problem):
            self._said[name] = text, problem
            say(level, text, problem=problem)


def variable_of(resource: str) -> str:
    """The environment variable that tells a container where the directories of its devices of a resource are."""
    name = "".join(letter if letter.isalnum() else "_" for letter in resource.rpartition("/")[2])
    return f"USERSPACE_CNI_DIRS_{name.upper()}"
