"""What ports carry per second, from two readings of their counters. Pure.

A rate is only told of two readings by the same ovs-vswitchd: counters that began anew, or a port that was not in the reading
before, have none yet. OVSDB's counters change when ovs-vswitchd writes them, every few seconds, not when they are read: there the
time between two rates is that of its writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Final

SHORTEST_S: Final = 0.2
"""Seconds between two readings that are compared: of a shorter time a rate would be mostly noise."""
WRITTEN_S: Final = 5.0
"""Seconds between two writes of counters into OVSDB, unless `other_config:stats-update-interval` asks for longer."""
_OVERDUE: Final = 2.5
"""After so many intervals without a change in OVSDB nothing has moved."""


@dataclass(frozen=True)
class TrafficRates:
    """What a port carries per second, seen from its pod: frames, bits of frames without checksum and gaps, frames that were
    dropped, and frames with errors in both directions. None for what the port does not count."""

    frames_to_pod: float | None = None
    frames_from_pod: float | None = None
    bits_to_pod: float | None = None
    bits_from_pod: float | None = None
    drops_to_pod: float | None = None
    drops_from_pod: float | None = None
    errors: float | None = None

    @property
    def frames(self) -> float | None:
        """In both directions."""
        return add(self.frames_to_pod, self.frames_from_pod)

    @property
    def bits(self) -> float | None:
        """In both directions."""
        return add(self.bits_to_pod, self.bits_from_pod)

    @property
    def drops(self) -> float | None:
        """In both directions."""
        return add(self.drops_to_pod, self.drops_from_pod)


_COUNTERS: Final[tuple[tuple[str, tuple[str, ...], int], ...]] = (
    ("frames_to_pod", ("tx_packets",), 1),
    ("frames_from_pod", ("rx_packets",), 1),
    ("bits_to_pod", ("tx_bytes",), 8),
    ("bits_from_pod", ("rx_bytes",), 8),
    ("drops_to_pod", ("tx_dropped",), 1),
    ("drops_from_pod", ("rx_dropped",), 1),
    ("errors", ("rx_errors", "tx_errors"), 1),
)
"""Each rate, the counters of Interface.statistics that it is the sum of, and their factor. The switch's rx is from the pod."""
UNKNOWN: Final = TrafficRates()


@dataclass(frozen=True)
class CountersReading:
    """The counters of ports by name, at a moment of the monotonic clock. `process` names the ovs-vswitchd that counts, "" for
    unknown; `of_now`: whether it said them itself; else `written_s` is the time between its writes into OVSDB."""

    at: float
    ports: Mapping[str, Mapping[str, int]]
    process: str = ""
    of_now: bool = True
    written_s: float = WRITTEN_S


class RateMeter:
    """Makes rates of readings, one after the other."""

    def __init__(self) -> None:
        self._former: CountersReading | None = None
        self._rates: dict[str, TrafficRates] = {}
        self.seconds = 0.0
        """The time over which the latest rates were measured; 0 before there are any."""

    def take(self, reading: CountersReading) -> dict[str, TrafficRates]:
        """The rates by port, `UNKNOWN` where there are none yet."""
        former = self._former
        if former is None or former.process != reading.process or former.of_now != reading.of_now:
            self._begin(reading)
        elif reading.of_now:
            if reading.at - former.at >= SHORTEST_S:
                self._compare(former, reading, reading.at - former.at)
        elif reading.ports != former.ports:
            writes = max(1, round((reading.at - former.at) / reading.written_s))
            self._compare(former, reading, writes * reading.written_s)
        elif reading.at - former.at > _OVERDUE * reading.written_s:
            self._compare(former, reading, reading.at - former.at)
        return {name: self._rates.get(name, UNKNOWN) for name in reading.ports}

    def lose(self) -> None:
        """There was no reading: the next one begins anew."""
        self._former, self._rates, self.seconds = None, {}, 0.0

    def _begin(self, reading: CountersReading) -> None:
        self._former, self._rates, self.seconds = reading, {}, 0.0

    def _compare(self, former: CountersReading, reading: CountersReading, seconds: float) -> None:
        self._rates = {
            name: compare(former.ports[name], now, seconds) for name, now in reading.ports.items() if name in former.ports
        }
        self._former, self.seconds = reading, seconds


def compare(before: Mapping[str, int], now: Mapping[str, int], seconds: float) -> TrafficRates:
    """The rates of one port; `UNKNOWN` where a counter began anew."""
    if any(now.get(name, count) < count for name, count in before.items()):
        return UNKNOWN
    found = {}
    for rate, names, factor in _COUNTERS:
        counted = [now[name] - before[name] for name in names if name in now and name in before]
        found[rate] = factor * sum(counted) / seconds if counted else None
    return TrafficRates(**found)


def total(rates: Iterable[TrafficRates]) -> TrafficRates:
    """The sum of each; what no port counts stays None."""
    every = list(rates)
    return TrafficRates(**{each.name: add(*(getattr(one, each.name) for one in every)) for each in fields(TrafficRates)})


def add(*numbers: float | None) -> float | None:
    """Their sum without those that are None; None where all are."""
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None
