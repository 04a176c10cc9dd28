"""Makes the removals of DELs durable within a second, so that a DEL's answer does not wait for the disk.

Correctness does not depend on it: a record that a power cut brings back is of another boot, and is undone before the first ADD.
The flusher keeps such records few. It must never fail the agent: a failed flush is counted, logged once, and tried again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from userspace_cni.base.errors import UserspaceError
from userspace_cni.base.log import say
from userspace_cni.base.loops import Loop

BEAT_S: Final = 0.5
"""Seconds between two looks; a flush takes milliseconds, on a busy disk a part of a second."""


class Flushed(Protocol):
    """The records."""

    @property
    def unflushed(self) -> bool:
        """Whether there is something to be flushed."""
        ...

    def flush(self) -> None:
        """Make removals durable. Raises UserspaceError."""
        ...


class Flusher(Loop):
    """The thread. `failed` is called for each flush that failed, and must not wait."""

    def __init__(self, records: Callable[[], Flushed], failed: Callable[[], None]) -> None:
        super().__init__("flusher", "the flusher", BEAT_S)
        self._records = records
        self._failed = failed

    def _run(self) -> None:
        goes_on = True
        while goes_on:
            goes_on = self._rest(BEAT_S)  # once more after the end is asked for
            try:
                self._flush()
            except Exception as error:  # noqa: BLE001 -- whatever it was, the next flush may do better
                self._tell(repr(error))

    def _flush(self) -> None:
        if not self._records().unflushed:
            return
        try:
            self._records().flush()
        except UserspaceError as error:
            self._tell(str(error))
        else:
            self.problem = ""

    def _tell(self, problem: str) -> None:
        self._failed()
        text = "records that were dropped are not flushed; a power cut would bring them back"
        if problem != self.problem and say("warning", text, error=problem):
            self.problem = problem
