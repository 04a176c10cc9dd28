"""What the switch does with the frames of one attachment's port: its bridge, its counters, its flows. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from userspace_cni.attachment.port_now import DropCauses, count_frames, read_causes
from userspace_cni.attachment.records import Record
from userspace_cni.base.polling import PollingReading
from userspace_cni.base.seen_bridge import SeenBridge, SeenPort, TracedFrame


class Lately(NamedTuple):
    """The frames of one direction in a short time: those that were moved, and those that were dropped."""

    moved: int
    dropped: int


@dataclass(frozen=True)
class TrafficSight:
    """`statistics`: Interface.statistics of its port. `limit_drops`: what its limits have dropped, by direction, where that is
    known. `traced`: what becomes of a broadcast that it sends. `others`: the other attachments of the bridge. `own_addresses`: of
    the node's own links on it. `polling`: the threads that poll its queues. None for what is not known; `unasked` says why.

    `lately`: by direction, in the moment of the look; {} where nothing was dropped before."""

    bridge: SeenBridge
    port: SeenPort
    statistics: Mapping[str, int] = field(default_factory=dict)
    limit_drops: Mapping[str, int] = field(default_factory=dict)
    traced: TracedFrame | None = None
    others: tuple[Record, ...] = ()
    own_addresses: frozenset[str] | None = None
    polling: PollingReading | None = None
    unasked: tuple[tuple[str, str], ...] = ()
    lately: Mapping[str, Lately] = field(default_factory=dict)

    @property
    def causes(self) -> DropCauses:
        """Why its port has dropped frames."""
        return read_causes(self.statistics)

    def frames(self, direction: str) -> int:
        """The frames that were moved in that direction, `to_pod` or `from_pod`, as far as the switch says."""
        return (count_frames(self.statistics)[0] or {}).get(direction, 0)

    @property
    def peers(self) -> tuple[SeenPort, ...]:
        """The other ports of its bridge."""
        return tuple(each for each in self.bridge.ports if each.name != self.port.name)
