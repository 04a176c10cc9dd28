"""Looks at what the node's ports carry, again and again, for a command that shows it as it goes. It changes nothing.

The counters are ovs-vswitchd's own, of the moment of the look. What changes rarely, records and what limits have dropped, is read
every few seconds: for hundreds of ports it costs more than the counters. One fault hides nothing else: each part has its problem.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from userspace_cni.attachment.listing import NOT_SERVING, LimitedDirection
from userspace_cni.attachment.records import Record
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import UserspaceError
from userspace_cni.base.polling import PollingReading
from userspace_cni.base.switch_bridges import SwitchBridge
from userspace_cni.fastpath.memory import hugepages
from userspace_cni.fastpath.memory.hugepages import HugepagePool
from userspace_cni.node.port_rates import WRITTEN_S, CountersReading

if TYPE_CHECKING:
    from userspace_cni.node.local_node import LocalNode
    from userspace_cni.switch.ovsdb.rows.port_row import KnownPort
    from userspace_cni.switch.vswitchd import DaemonLiveness

RARELY_S: Final = 5.0
"""Seconds between two looks at what changes rarely."""
_INTERVAL: Final = "stats-update-interval"
"""The key of other_config: milliseconds between two writes of counters into OVSDB, 5000 at least."""
T = TypeVar("T")


@dataclass(frozen=True)
class Traffic:
    """One look. `vswitchd` and `reason`: whether ovs-vswitchd lives, as of `Liveness`; `up_s`: for
    how long, None while it does not. `ports`: what OVSDB has of our ports, `marks` their marks, by name; `bridges`: all bridges
    with all ports. `problems`: why `records`, `ovsdb`, `counters` or `threads` could not be asked. Records are the
    former ones then, the others None."""

    vswitchd: str
    reason: str
    up_s: float | None = None
    records: tuple[Record, ...] = ()
    ports: Mapping[str, KnownPort] | None = None
    bridges: tuple[SwitchBridge, ...] = ()
    marks: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    counters: CountersReading | None = None
    threads: PollingReading | None = None
    limited: tuple[LimitedDirection, ...] = ()
    pools: tuple[HugepagePool, ...] = ()
    problems: Mapping[str, str] = field(default_factory=dict)

    @property
    def serves(self) -> bool:
        """Whether ovs-vswitchd may move frames."""
        return self.vswitchd not in NOT_SERVING


class TrafficLooks:
    """Looks at the node. `patient`: makes the deadline for what takes so many seconds at most on a node that is not busy."""

    def __init__(self, node: LocalNode, patient: Callable[[float], Deadline]) -> None:
        self._node = node
        self._patient = patient
        self._problems: dict[str, str] = {}
        self._due = 0.0
        self._records: tuple[Record, ...] = ()
        self._limited: tuple[LimitedDirection, ...] = ()
        self._bridges: tuple[SwitchBridge, ...] = ()

    def look(self) -> Traffic:
        """One look. What cannot be asked is a problem of its part."""
        self._problems = {}
        ports = self._node.switch.ports
        liveness: DaemonLiveness = ports.watch_liveness()
        serves = liveness.state not in NOT_SERVING
        if (now := time.monotonic()) >= self._due:
            records = self._ask("records", self._node.store.journal.records)
            self._records = self._records if records is None else tuple(records)
        known = self._ask("ovsdb", self._known_ports)
        counted = self._ask("counters", lambda: self._counters(liveness)) if serves and known is not None else None
        threads = self._ask("threads", lambda: ports.read_polling_threads(self._patient(1), lately=True)) if serves else None
        if now >= self._due:
            asked = serves and known is not None
            self._limited = tuple(self._node.switch.list_limited(self._records)) if asked else ()
            self._bridges = self._ask("ovsdb", self._node.switch.list_bridges) or () if asked else ()
            self._due = now + RARELY_S
        return Traffic(
            vswitchd=liveness.state,
            reason=liveness.reason,
            up_s=max(0.0, time.time() - liveness.born / 1e9) if liveness.process and liveness.born else None,
            records=self._records,
            ports=known,
            bridges=self._bridges,
            marks=ports.list_owned() if known is not None and ports.client.connected else {},
            counters=counted,
            threads=threads,
            limited=self._limited,
            pools=hugepages.read_hugepages().list_pools(),
            problems=self._problems,
        )

    def _ask(self, part: str, ask: Callable[[], T]) -> T | None:
        try:
            return ask()
        except UserspaceError as error:
            self._problems[part] = str(error)
            return None

    def _known_ports(self) -> dict[str, KnownPort]:
        ports = self._node.switch.ports
        ports.connect(self._patient(1))
        return {port.name: port for port in ports.list_ports() if port.ours}

    def _counters(self, liveness: DaemonLiveness) -> CountersReading:
        begin = time.monotonic()
        counted = self._node.switch.counters(others=True)
        at = (begin + time.monotonic()) / 2
        of_now = all(each.of_now for each in counted)
        statistics = {each.name: each.statistics for each in counted}
        return CountersReading(at, statistics, liveness.process, of_now, WRITTEN_S if of_now else self._written_s())

    def _written_s(self) -> float:
        config = self._node.switch.ports.read_settings(self._patient(1)).other_config
        asked = config.get(_INTERVAL, "")
        return max(WRITTEN_S, int(asked) / 1000 if asked.isdecimal() and len(asked) < 10 else 0.0)
