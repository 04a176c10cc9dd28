"""The node's bridges as devices in the agent: for the kubelet's device plugins, and for drivers of devices (DRA).

Each is there where a setting asks for it; an agent without them does not pay for gRPC. Where both are, they share the room of
each bridge.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property, partial
from typing import TYPE_CHECKING

from userspace_cni.base.log import say
from userspace_cni.base.supervisor import Supervisor

if TYPE_CHECKING:
    from userspace_cni.agent.agent_metrics import AgentMetrics
    from userspace_cni.deviceplugin.plugin import DevicePlugin
    from userspace_cni.dra.dra_service import NodeDra
    from userspace_cni.dra.node_slices import NodeSlices
    from userspace_cni.node.bridge_room import BridgeRoom
    from userspace_cni.node.devices import DeviceRoom
    from userspace_cni.node.local_node import LocalNode


class OfferedDevices(Supervisor):
    """What the settings ask for. After `start` its methods may be called from any thread."""

    def __init__(self, node: LocalNode, metrics: AgentMetrics) -> None:
        super().__init__()
        self._node = node
        self._settings = node.installation.settings
        self._plugin = self._make_plugin(metrics) if self._settings.devices_per_bridge else None
        self._slices = self._make_slices(metrics) if self._settings.dra else None
        self._claims = self._make_claims(metrics) if self._settings.dra else None

    def start(self) -> None:
        """Begin to offer them. Raises Unavailable."""
        self.begin(*(each for each in (self._plugin, self._slices, self._claims) if each))
        self.look()

    def look(self) -> None:
        """Tell of bridges that have changed, and of another kubelet. Called once a second; waits for nothing."""
        if self._plugin:
            self._plugin.look()
        if self._slices:
            self._slices.look()
        if self._claims:
            self._claims.look()

    def note_claims(self, namespace: str, names: Collection[str]) -> None:
        """A pod has come that names these claims. Waits for nothing."""
        if self._claims:
            self._claims.note_claims(namespace, names)

    @cached_property
    def room(self) -> BridgeRoom | None:
        """The room of the bridges, where claims take part of it."""
        settings = self._settings
        if not settings.dra:
            return None
        from userspace_cni.node.bridge_room import BridgeRoom
        from userspace_cni.node.claim_devices import list_claimed
        from userspace_cni.node.devices import list_given

        size = max(settings.ports_per_bridge, settings.devices_per_bridge)
        claimed = partial(list_claimed, self._node.store.journal)
        return BridgeRoom(size, claimed, partial(list_given, self._node.installation) if settings.devices_per_bridge else None)

    @cached_property
    def devices(self) -> DeviceRoom:
        """What the node does for devices."""
        from userspace_cni.node.devices import DeviceRoom

        return DeviceRoom(self._node.installation, self._node.store.journal, self._node.switch.ports, self.room)

    def _make_plugin(self, metrics: AgentMetrics) -> DevicePlugin:
        from userspace_cni.deviceplugin.plugin import DevicePlugin, OutcomeCounting

        counting = OutcomeCounting(metrics.count_registration, metrics.count_allocation)
        directory = self._node.installation.root.path(f"{self._settings.kubelet_dir}/device-plugins")
        plugin = DevicePlugin(self.devices, self._settings.devices_per_bridge, directory, counting)
        metrics.add_gauge("device_bridges", lambda: plugin.registered)
        return plugin

    def _make_claims(self, metrics: AgentMetrics) -> NodeDra | None:
        """What serves claims; None where there is no room of bridges."""
        from userspace_cni.dra.dra_service import NodeDra

        if self.room is None:
            return None
        dra = NodeDra(self._node, self.room, self._slices.health if self._slices else None, metrics.count_claim)
        metrics.add_gauge("dra_registered", lambda: dra.registered)
        return dra

    def _make_slices(self, metrics: AgentMetrics) -> NodeSlices | None:
        """What keeps the node's ResourceSlices; None without an account of the API server."""
        from userspace_cni.dra.node_pool import NodePool
        from userspace_cni.dra.node_slices import NodeSlices
        from userspace_cni.dra.slice_keeper import SliceTimes
        from userspace_cni.node.bridge_room import GIVEN_S

        installation, room = self._node.installation, self.room
        if not installation.has_account or room is None:
            say("warning", "no ResourceSlices are published", problem="no credentials; see the setting kubeconfig")
            return None
        pool = NodePool(self.devices.bridges, self._node.switch.list_bridges, room)
        times = SliceTimes(bridges_s=GIVEN_S) if self._settings.devices_per_bridge else SliceTimes()
        slices = NodeSlices(installation.clients.of("").session, installation.name, pool, metrics.count_slice_write, times)
        metrics.add_gauge("slice_devices", lambda: slices.keeper.devices)
        return slices
