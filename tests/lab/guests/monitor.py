"""Commands to a running QEMU, over its monitor."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

MONITOR_SECONDS = 60.0


class MonitorError(Exception):
    """QEMU has refused a command; `kind` is its class, as QMP has it."""

    def __init__(self, command: str, error: dict[str, str]) -> None:
        super().__init__(f"{command}: {error.get('desc')}")
        self.kind = error.get("class", "")


class Monitor:
    """QMP on a unix socket (docs/interop/qmp-spec.rst): commands of one thread, one after another. `events` are those so far."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(MONITOR_SECONDS)
        try:
            self._socket.connect(str(path))
        except OSError:
            self._socket.close()
            raise
        self._lines = self._socket.makefile("rw")
        self.events: list[dict[str, Any]] = []
        self._next("QMP")
        self.run("qmp_capabilities")

    def run(self, command: str, **arguments: Any) -> Any:
        """What the command returns. Raises MonitorError. A `_` in a name of an argument stands for `-`."""
        named = {name.replace("_", "-"): value for name, value in arguments.items()}
        self._lines.write(json.dumps({"execute": command, "arguments": named}) + "\n")
        self._lines.flush()
        answer = self._next("return", "error")
        if "error" in answer:
            raise MonitorError(command, answer["error"])
        return answer["return"]

    def close(self) -> None:
        self._lines.close()
        self._socket.close()

    def _next(self, *keys: str) -> dict[str, Any]:
        while line := self._lines.readline():
            message: dict[str, Any] = json.loads(line)
            if "event" in message:
                self.events.append(message)
            if not message.keys().isdisjoint(keys):
                return message
        raise ConnectionResetError("QEMU has closed its monitor")
