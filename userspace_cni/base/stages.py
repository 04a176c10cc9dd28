"""The seconds that each stage of a verb takes, for metrics, and when it took them, for traces.

A collector is bound per call (a context variable). Without one, as in a process that serves one verb, nothing is measured.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Literal, NamedTuple

Stage = Literal["address", "lock", "ipam", "plan", "link", "ovs", "pod", "record"]
STAGES: Final[tuple[Stage, ...]] = ("address", "lock", "ipam", "plan", "link", "ovs", "pod", "record")
"""Waiting for annotations that have the addresses; for a lock; the IPAM plugin; facts and plan; a pod's kernel link; the switch;
directories, sockets, files and notes; the store."""

PERIODS_MAX: Final = 64
"""How many periods are kept of one call: a GC has those of all attachments that it undoes."""


class StagePeriod(NamedTuple):
    """When a block of a stage ran, by time.perf_counter."""

    stage: Stage
    began: float
    ended: float


class _Collector(NamedTuple):
    seconds: dict[Stage, float]
    periods: list[StagePeriod] | None


_collector: ContextVar[_Collector | None] = ContextVar("stages", default=None)


@contextmanager
def collect(periods: list[StagePeriod] | None = None) -> Iterator[dict[Stage, float]]:
    """Within this block, stages add their seconds to the dictionary that it yields, and what they took to `periods`.

    Those get PERIODS_MAX at most.
    """
    seconds: dict[Stage, float] = {}
    token = _collector.set(_Collector(seconds, periods))
    try:
        yield seconds
    finally:
        _collector.reset(token)


class stage:  # noqa: N801 -- used as a function
    """The block is part of stage `name`: its seconds are added to that stage."""

    __slots__ = ("_began", "_collector", "_name")

    def __init__(self, name: Stage) -> None:
        self._name = name

    def __enter__(self) -> None:
        self._collector = _collector.get()
        if self._collector is not None:
            self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        if self._collector is None:
            return
        seconds, periods = self._collector
        ended = time.perf_counter()
        seconds[self._name] = seconds.get(self._name, 0.0) + ended - self._began
        if periods is not None and len(periods) < PERIODS_MAX:
            periods.append(StagePeriod(self._name, self._began, ended))
