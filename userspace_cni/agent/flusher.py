"""Makes the removals of DELs durable within a second, so that a DEL's answer does not wait for the disk.

Correctness does not depend on it: a record that a power cut brings back is of another boot, and is undone before the first ADD.
The flusher keeps such records few. It must never fail the agent: a failed flush is counted, logged once, and tried again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from userspace_cni.base.back_off import BackOff
from userspace_cni.base.loops import Loop

BEAT_S: Final = 0.5
"""Seconds from a removal to its flush, which takes milliseconds, on a busy disk a part of a second; and to another try."""


class Flushed(Protocol):
    """The records."""

    @property
    def unflushed(self) -> bool: ...

    def flush(self) -> None:
        """Make removals durable. Raises UserspaceError."""
        ...


class Flusher(Loop):
    """The thread, which sleeps until it is asked. `failed` is called for each flush that failed, and must not wait."""

    failing = "records that were dropped are not flushed; a power cut would bring them back: "
    end_s = BEAT_S
    back_off = BackOff(BEAT_S, BEAT_S)

    def __init__(self, records: Callable[[], Flushed], failed: Callable[[], None]) -> None:
        super().__init__("flusher", "flushes records")
        self.settle_s = BEAT_S
        self._records = records
        self._failed = failed

    def _round(self) -> None:
        try:
            if self._records().unflushed:
                self._records().flush()
        except Exception:
            self._failed()
            raise

    def _end(self) -> None:
        self._round()
