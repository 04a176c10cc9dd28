"""Gathers for `why` what the switch does with the frames of attachments' ports: each bridge once, and a trace for each port.

What cannot be asked is named, and hides nothing else. It changes nothing: a trace is no frame.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from userspace_cni.attachment.listing import addresses
from userspace_cni.attachment.port_now import count_frames, read_causes
from userspace_cni.attachment.records import Record
from userspace_cni.base.errors import UserspaceError
from userspace_cni.base.seen_bridge import SeenBridge, SeenPort, TracedFrame
from userspace_cni.cli.site import LIFE_S, Site, patient
from userspace_cni.diagnosis.why.attachment_sight import Fact, SwitchSight, Unasked
from userspace_cni.diagnosis.why.traffic_sight import Lately, TrafficSight

T = TypeVar("T")
_ANY_MAC = "02:00:00:00:00:01"
_BETWEEN_S = 0.5
"""Seconds between two looks at counters, where frames have been dropped."""
_BROADCAST = ("dl_dst=ff:ff:ff:ff:ff:ff", "dl_type=0x0806", "arp_op=1")


class _TwoLooks:
    """The switch's counters, looked at twice: when it is made, and `_BETWEEN_S` later, when a difference is first asked for."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._lock = threading.Lock()
        self._first, self._first_at = _counted(site), time.monotonic()
        self._second: Mapping[str, Mapping[str, int]] | None = None

    def changes(self, port: str) -> Mapping[str, Lately]:
        """The frames of each direction between the looks; {} where the switch has not said them."""
        with self._lock:
            if self._second is None:
                time.sleep(max(0.0, self._first_at + _BETWEEN_S - time.monotonic()))
                self._second = _counted(self._site)
        (moved, dropped), (moved_now, dropped_now) = (count_frames(each.get(port)) for each in (self._first, self._second))
        if not (moved and dropped and moved_now and dropped_now):
            return {}
        between = {way: Lately(moved_now[way] - moved[way], dropped_now[way] - dropped[way]) for way in moved}
        return {way: lately for way, lately in between.items() if min(lately) >= 0}  # else the port was opened anew meanwhile


class WhyTraffic:
    """Looks at the bridges of the attachments `records` when it is made; `of` has what is known of each."""

    def __init__(self, site: Site, records: Sequence[Record], switch: Fact[SwitchSight]) -> None:
        self._site = site
        self._serves = isinstance(switch, SwitchSight) and switch.serves and site.given is None
        self._unasked: list[tuple[str, str]] = []
        self._problem = ""
        self._bridges: dict[str, SeenBridge] = {}
        if not self._serves:
            return
        ports, named = site.drivers.switch.ports, [step for each in records if (step := each.port)]
        try:
            self._bridges = ports.read_bridges({step.bridge for step in named}, patient(LIFE_S))
        except UserspaceError as error:
            self._problem = str(error)
        self._statistics = site.node.switch.read_statistics([step.name for step in named])
        limited = site.node.switch.list_limited(records)
        self._drops = {(each.key, each.direction): each.drops for each in limited}
        self._polling = self._ask(
            "the switch's polling threads", lambda: ports.read_polling_threads(patient(LIFE_S)), self._unasked
        )
        self._every = site.node.store.journal.records()
        self._twice = _TwoLooks(site)
        self._own = {each.name: self._addresses(each) for each in self._bridges.values()}

    def of(self, record: Record) -> Fact[TrafficSight]:
        """What is known of the traffic of an attachment; None while its port or its bridge is not there."""
        if self._problem:
            return Unasked(self._problem)
        step = record.port
        bridge = self._bridges.get(step.bridge) if step and self._serves else None
        port = bridge.find(step.name) if bridge and step else None
        if bridge is None or port is None or step is None:
            return None
        unasked = [*self._unasked, *bridge.unasked]
        drops = {way: count for way in ("to_pod", "from_pod") if (count := self._drops.get((record.key, way)))}
        traced = self._trace(record, bridge, port, unasked) if step.logical is None else None
        return TrafficSight(
            bridge,
            port,
            self._statistics.get(port.name, {}),
            drops,
            traced,
            tuple(other for other in self._every if other.key != record.key and other.port and other.port.bridge == bridge.name),
            self._own.get(bridge.name),
            self._polling,
            tuple(unasked),
            self._twice.changes(port.name) if self._drops_at(port.name) or drops else {},
        )

    def _drops_at(self, port: str) -> bool:
        """Whether frames at a port were dropped by something that may still do so."""
        causes = read_causes(self._statistics.get(port, {}))
        return any((causes.unread, causes.limit_to_pod, causes.limit_from_pod))

    def _addresses(self, bridge: SeenBridge) -> frozenset[str] | None:
        switch = self._site.drivers.switch
        return self._ask(f"addresses of the node on {bridge.name}", lambda: switch.read_own_addresses(bridge), self._unasked)

    def _trace(self, record: Record, bridge: SeenBridge, port: SeenPort, unasked: list[tuple[str, str]]) -> TracedFrame | None:
        """What becomes of a broadcast of the pod: an ARP request, in the first of its VLANs if it sends with tags alone."""
        if not port.number:
            return None
        vlan, senders = port.vlan, [address.partition("/")[0] for address in addresses(record) if ":" not in address]
        fields = [f"in_port={port.number}", f"dl_src={port.mac or _ANY_MAC}", *_BROADCAST]
        fields += [f"dl_vlan={vlan.trunks[0]}"] if vlan.tag is None and vlan.trunks and vlan.trunks[0] else []
        fields += [f"arp_spa={address}" for address in senders[:1]]
        ports = self._site.drivers.switch.ports
        return self._ask(
            f"the flows of {bridge.name}",
            lambda: ports.trace_frame(bridge.name, ",".join(fields), patient(LIFE_S)),
            unasked,
        )

    def _ask(self, what: str, question: Callable[[], T], unasked: list[tuple[str, str]]) -> T | None:
        try:
            return question()
        except UserspaceError as error:
            unasked.append((what, str(error)))
            return None


def _counted(site: Site) -> Mapping[str, Mapping[str, int]]:
    return {each.name: each.statistics for each in site.node.switch.list_counted() or ()}
