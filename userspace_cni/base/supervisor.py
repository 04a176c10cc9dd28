"""Which threads of a process live: one object starts them, stops them, and tells which of them no longer work.

It must never start one again: what a thread was doing when it died is not known, and who runs the process decides what follows.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from threading import TIMEOUT_MAX
from typing import Protocol


class StayingThread(Protocol):
    """A thread that stays until it is stopped, or several."""

    def start(self) -> None:
        """Start it; returns at once. Raises UserspaceError."""
        ...

    def stop(self, within_s: float = TIMEOUT_MAX) -> None:
        """End it, and wait so long for that at most. Never fails."""
        ...

    def problems(self) -> list[str]:
        """Why it no longer works, in sentences that do not change while that is so; nothing while it does."""
        ...


class Supervisor:
    """Keeps those that it has begun. Part of a process is one itself, with threads of its own."""

    def __init__(self) -> None:
        self._begun: tuple[StayingThread, ...] = ()

    def begin(self, *threads: StayingThread) -> None:
        """Start them, and watch over them from now on. Raises UserspaceError; those before the failed one go on."""
        for each in threads:
            each.start()
            self._begun = (*self._begun, each)

    def stop(self, within_s: float = TIMEOUT_MAX, *, but: Collection[StayingThread] = ()) -> None:
        """Stop one after the other, the last one first, and wait so long for all together. Those of `but` go on."""
        ends = time.monotonic() + within_s
        for each in reversed(self._begun):
            if each not in but:
                each.stop(max(0.0, ends - time.monotonic()))
        self._begun = tuple(each for each in self._begun if each in but)

    def problems(self) -> list[str]:
        """The reasons why threads no longer work; restarting the process may help."""
        return [problem for each in self._begun for problem in each.problems()]
