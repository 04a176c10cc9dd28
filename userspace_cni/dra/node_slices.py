"""The ResourceSlices of this node in the agent: who keeps them, the watch of what others do to them, and the devices' health."""

from __future__ import annotations

from collections.abc import Callable, Collection
from threading import TIMEOUT_MAX
from typing import TYPE_CHECKING

from userspace_cni.base.supervisor import StayingThread, Supervisor
from userspace_cni.dra.health_feed import HealthFeed
from userspace_cni.dra.slice_keeper import SliceKeeper, SliceTimes, version_of
from userspace_cni.kube.object_requests import Objects
from userspace_cni.kube.object_watch import ObjectWatch
from userspace_cni.kube.resources import RESOURCE_SLICES

if TYPE_CHECKING:
    from userspace_cni.dra.node_pool import NodePool
    from userspace_cni.kube.credentials import ApiSession


class NodeSlices(Supervisor):
    """The slices of node `node`, and the health of its devices. `count` is called with the outcome of each write."""

    def __init__(
        self,
        session: ApiSession,
        node: str,
        pool: NodePool,
        count: Callable[[str], None],
        times: SliceTimes | None = None,
    ) -> None:
        super().__init__()
        self._pool = pool
        self.health = HealthFeed(node)
        self.keeper = SliceKeeper(Objects(session), node, pool.read, self.health.tell, count, times)
        self._watch = ObjectWatch(
            session,
            RESOURCE_SLICES,
            field_selector=f"metadata.name={self.keeper.name}",
            keep=version_of,
            on_change=lambda: self.keeper.note_watched(self._watch.objects()),
        )

    def start(self) -> None:
        """Begin. Raises Unavailable."""
        self.begin(self._watch, self.keeper)

    def stop(self, within_s: float = TIMEOUT_MAX, *, but: Collection[StayingThread] = ()) -> None:
        """End. The slices stay: the next agent goes on from them, and the kubelet deletes them if none comes."""
        self.health.close()
        super().stop(within_s, but=but)

    def look(self) -> None:
        """Have the slices compared if the bridges have changed. Called once a second; waits for nothing."""
        if self._pool.has_changed():
            self.keeper.ask()
