"""Puts the scripted delegate into a CNI_PATH of its own, sets its behaviour and reads its calls."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

_SCRIPTED = Path(__file__).parent / "scripted"


class Scripted:
    """A scripted delegate under `name` in `directory`, which is made and is to be put on CNI_PATH.

    It runs with the interpreter of the tests, whatever PATH the caller has, and its script can change at any time: `verb` is a
    CNI verb or `*`, `behaviour` has the keys that the delegate's own docstring lists.
    """

    def __init__(self, directory: Path, name: str = "scripted") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.name = name
        self._script = directory / f"{name}.json"
        self._log = directory / f"{name}.log"
        self._behaviours: dict[str, Any] = {"log": str(self._log)}
        program = directory / name
        body = _SCRIPTED.read_text().partition("\n")[2]
        program.write_text(f"#!{sys.executable} -IS\n{body}")
        program.chmod(0o755)
        self._write()

    def tell(self, verb: str, **behaviour: Any) -> Scripted:
        self._behaviours[verb] = behaviour
        self._write()
        return self

    def calls(self) -> list[dict[str, Any]]:
        """Every call so far, oldest first: command, env, stdin, pid, sid, fds, and grandchild where one was left."""
        if not self._log.exists():
            return []
        return [json.loads(line) for line in self._log.read_text().splitlines()]

    def commands(self) -> list[str]:
        """The verbs it was called with, in order."""
        return [call["command"] for call in self.calls()]

    def _write(self) -> None:
        self._script.write_text(json.dumps(self._behaviours))
