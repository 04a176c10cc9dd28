"""The seconds that each stage of a verb takes, for metrics.

A collector is bound per call (a context variable). Without one, as in a process that serves one verb, nothing is measured.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Literal

Stage = Literal["address", "lock", "ipam", "plan", "link", "ovs", "pod", "record"]
STAGES: Final[tuple[Stage, ...]] = ("address", "lock", "ipam", "plan", "link", "ovs", "pod", "record")
"""Waiting for annotations that have the addresses; for a lock; the IPAM plugin; facts and plan; a pod's kernel link; the switch;
directories, sockets, files and notes; the store."""

_collector: ContextVar[dict[Stage, float] | None] = ContextVar("stages", default=None)


@contextmanager
def collect() -> Iterator[dict[Stage, float]]:
    """Within this block, stages add their seconds to the dictionary that it yields."""
    seconds: dict[Stage, float] = {}
    token = _collector.set(seconds)
    try:
        yield seconds
    finally:
        _collector.reset(token)


class stage:  # noqa: N801 -- used as a function
    """The block is part of stage `name`: its seconds are added to that stage."""

    __slots__ = ("_began", "_name", "_seconds")

    def __init__(self, name: Stage) -> None:
        self._name = name

    def __enter__(self) -> None:
        self._seconds = _collector.get()
        if self._seconds is not None:
            self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        if self._seconds is not None:
            self._seconds[self._name] = self._seconds.get(self._name, 0.0) + time.perf_counter() - self._began
