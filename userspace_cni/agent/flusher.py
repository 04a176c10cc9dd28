"""Makes the removals of DELs durable within a second, so that a DEL's answer does not wait for the disk.

Correctness does not depend on it: a record that a power cut brings back is of another boot, and is undone before the first ADD.
The flusher keeps such records few. It must never fail the agent: a failed flush is counted, logged once, and tried again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Protocol

from userspace_cni.base.errors import UserspaceError
from userspace_cni.base.log import say
from userspace_cni.base.threads import start

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


class Flusher:
    """The thread. `failed` is called for each flush that failed, and must not wait."""

    def __init__(self, records: Callable[[], Flushed], failed: Callable[[], None]) -> None:
        self._records = records
        self._failed = failed
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="flusher", daemon=True)
        self._problem = ""

    def start(self) -> None:
        """Start the thread. Raises Unavailable."""
        start(self._thread, "the flusher")

    def stop(self) -> None:
        """Flush once more, and end. Never fails."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(BEAT_S)

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def _run(self) -> None:
        stopping = False
        while not stopping:
            stopping = self._stopping.wait(BEAT_S)
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
            self._problem = ""

    def _tell(self, problem: str) -> None:
        self._failed()
        if problem != self._problem:
            self._problem = problem
            say("warning", "records that were dropped are not flushed; a power cut would bring them back", error=problem)
