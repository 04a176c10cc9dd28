"""Composes the driver of devices for the agent, of what the node has."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from userspace_cni.base.supervisor import Supervisor
from userspace_cni.dra.claim_keeper import ClaimKeeper
from userspace_cni.dra.dra_driver import DraDriver
from userspace_cni.dra.dra_sockets import DraSockets
from userspace_cni.dra.health_feed import SERVICES
from userspace_cni.dra.preparing import Preparing, PreparingCalls
from userspace_cni.kube.object_requests import Objects
from userspace_cni.node.claim_devices import ClaimDevices

if TYPE_CHECKING:
    from userspace_cni.dra.health_feed import HealthFeed
    from userspace_cni.node.bridge_room import BridgeRoom
    from userspace_cni.node.local_node import LocalNode


class NodeDra(Supervisor):
    """The driver of this node. `count` is called with what was done with a claim, "prepare" or "unprepare", and the outcome, "ok"
    or "failed"."""

    def __init__(
        self,
        node: LocalNode,
        room: BridgeRoom,
        health: HealthFeed | None,
        count: Callable[[str, str], None],
    ) -> None:
        super().__init__()
        here = node.installation
        objects = Objects(here.clients.of("").session.for_own_threads()) if here.has_account else None
        devices = ClaimDevices(node)
        self._keeper = ClaimKeeper(node, devices, objects)
        told = PreparingCalls(count, lambda claim: self._keeper.note(claim.uid))
        self._preparing = Preparing(node, devices, objects, room, told)
        kubelet = here.settings.kubelet_dir
        handlers, services = (health.handlers(), SERVICES) if health else ((), ())
        sockets = DraSockets(self._preparing, kubelet, here.root.path(kubelet), handlers, services)
        self._driver = DraDriver(sockets, self._keeper, self._preparing.close)

    @property
    def registered(self) -> int:
        """1 while the kubelet knows the driver."""
        return self._driver.registered

    def start(self) -> None:
        """Begin. Raises Unavailable."""
        self.begin(self._driver, self._keeper)

    def note_claims(self, namespace: str, names: Collection[str]) -> None:
        """A pod has come that names these claims: it may be the second one. Waits for nothing."""
        self._keeper.note_named(namespace, names)

    def look(self) -> None:
        """Look whether the kubelet's directory is as it was. Called once a second; waits for nothing."""
        self._driver.look()
