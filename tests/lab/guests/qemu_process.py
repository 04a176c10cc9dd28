"""A running QEMU: its process, its monitor, its output and its end."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests.lab.guests.monitor import MONITOR_SECONDS, Monitor
from tests.lab.switch.switch import wait_until

_END_SECONDS: Final = 60.0


class QemuProcess:
    """Runs the command. Its monitor, a socket of that name, is in `directory`; its output is in `words`.

    The process ends with the `with`. When it has ended by itself, any use of it fails with its last output.
    """

    def __init__(self, argv: Sequence[str], directory: Path) -> None:
        self.directory = directory
        self._monitor: Monitor | None = None
        with (directory / "words").open("wb") as words:
            self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=words, stderr=words)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end()

    def end(self) -> None:
        """Kill it. May be called again."""
        if self._monitor:
            self._monitor.close()
        self._process.kill()
        self._process.wait(_END_SECONDS)

    @property
    def pid(self) -> int:
        """Its process: whatever wraps it becomes it."""
        return self._process.pid

    @property
    def monitor(self) -> Monitor:
        """Connected when it is first asked for."""
        if self._monitor is None:
            self._monitor = wait_until(self._connected, MONITOR_SECONDS, f"the monitor of {self.directory}")
        return self._monitor

    @property
    def words(self) -> str:
        return (self.directory / "words").read_text(errors="replace")

    def status(self) -> str:
        """Its run state: running, inmigrate, postmigrate, …"""
        return str(self.monitor.run("query-status")["status"])

    def migration(self) -> dict[str, Any] | None:
        """The result of `query-migrate` once a migration that was begun has ended, None before that."""
        told: dict[str, Any] = self.monitor.run("query-migrate")
        assert told.get("status") not in {"failed", "cancelled"}, told
        return told if told.get("status") == "completed" else None

    def require_alive(self) -> None:
        """Raise AssertionError with its output when it has ended."""
        code = self._process.poll()
        assert code is None, f"QEMU has ended with {code}: {self.words}"

    def _connected(self) -> Monitor | None:
        self.require_alive()
        with suppress(FileNotFoundError, ConnectionRefusedError):
            return Monitor(self.directory / "monitor")
        return None
