"""What the plugin has stored about attachments, read directly from its files: reading repairs nothing and moves nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def live(run: Path, collection: str) -> list[Path]:
    """The files of a collection (`states`, `places`, `built`, `settled`) in a run directory, of any state directory."""
    return sorted(path for path in run.glob(f"live/*/{collection}/*") if not path.name.startswith("."))


def state_file(run: Path, record: Path) -> Path | None:
    """The state file that goes with an undo file, if there is one."""
    return next((path for path in live(run, "states") if path.name == record.name), None)


def stored(state: Path, run: Path) -> list[dict[str, Any]]:
    """Every attachment, sorted by name: its undo file with `state`, `result` and the steps that are left."""
    found = []
    for path in sorted((state / "attachments").glob("*.json")):
        try:
            record = {"state": "ready", "result": None, **_value(path)}
            beside = state_file(run, path)
            told = _value(beside) if beside else None
        except FileNotFoundError:
            continue  # it has just been dropped
        if told:
            steps = [step for number, step in enumerate(record["steps"]) if number not in told["undone"]]
            record |= {"state": told["state"], "result": told["result"], "steps": steps}
        found.append(record)
    return found


def _value(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_text())["value"]
    return value
