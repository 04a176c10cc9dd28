"""The bridges of this node as its pool of devices: what the switch, the kubelet and prepared claims say of them, put together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from userspace_cni.base.errors import UserspaceError
from userspace_cni.dra.slice_content import PoolBridge
from userspace_cni.host.files.device_directories import resource_of
from userspace_cni.node.bridge_traits import BridgeTraits, traits_of

if TYPE_CHECKING:
    from userspace_cni.base.switch_bridges import SwitchBridge
    from userspace_cni.node.bridge_room import BridgeRoom
    from userspace_cni.node.devices import OfferedBridge

TRAITS_S: Final = 30.0
"""Seconds between two looks at MTU and VLANs of uplinks: they change when an administrator changes them."""


class NodePool:
    """The pool. `offered` gives the bridges of which devices are offered, None while they are not known, and waits for nothing;
    `rows` every bridge with its ports, and may raise Unavailable.
    """

    def __init__(
        self,
        offered: Callable[[], Sequence[OfferedBridge] | None],
        rows: Callable[[], Iterable[SwitchBridge]],
        room: BridgeRoom,
    ) -> None:
        self._offered = offered
        self._rows = rows
        self._room = room
        self._seen: object = None
        self._traits: Mapping[str, BridgeTraits] = {}
        self._traits_at = 0.0

    def has_changed(self) -> bool:
        """Whether the bridges, or who has ports of them, are others than at the last call. Waits for nothing."""
        offered = self._offered()
        seen = offered, self._room.claimed(), [self._room.given(each.name) for each in offered or ()]
        changed, self._seen = seen != self._seen, seen
        return changed

    def read(self) -> list[PoolBridge] | None:
        """The bridges now; None while they, or what pods have of them, are not known. Raises Unavailable. For one thread."""
        offered = self._offered()
        if offered is None:
            return None
        self._room.refresh()
        claimed, traits = self._room.claimed(), self._look_at(offered)
        found = []
        for bridge in offered:
            given = self._room.given(bridge.name)
            if given is None:
                return None
            of = traits.get(bridge.name, BridgeTraits(""))
            found.append(
                PoolBridge(
                    bridge.name,
                    bridge.healthy,
                    self._room.size,
                    max(0, self._room.size - len(given)),
                    claimed.get(bridge.name, ()),
                    resource_of(bridge.name),
                    of.datapath,
                    bridge.numa,
                    of.mtu,
                    of.vlans,
                )
            )
        return found

    def _look_at(self, offered: Sequence[OfferedBridge]) -> Mapping[str, BridgeTraits]:
        """The traits of the bridges; as they were last seen while OVSDB does not answer."""
        now = time.monotonic()
        if now - self._traits_at > TRAITS_S or not {each.name for each in offered} <= self._traits.keys():
            try:
                self._traits, self._traits_at = {each.name: traits_of(each) for each in self._rows()}, now
            except UserspaceError:
                return self._traits
        return self._traits
