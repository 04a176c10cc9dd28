"""What people read in the sidecar's log (`kubectl logs POD -c hook-sidecar-0`): one line per event, as the plugin's own are.

`level=… msg="…"` and the facts that place it. Never holds a domain definition or a VMI: these carry the guest's secrets.
"""

from __future__ import annotations

import json
import sys
from typing import Literal

Level = Literal["error", "warning", "info"]


def say(level: Level, message: str, **facts: object) -> None:
    """Write one line to stderr. Never fails: a log must not decide about a VM. Facts that are "" are left out."""
    known = {key: str(value) for key, value in {"msg": message, **facts}.items()}
    text = " ".join(f"{key}={_quoted(value)}" for key, value in known.items() if value)
    try:
        sys.stderr.write(f"level={level} {text}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        return


def _quoted(value: str) -> str:
    plain = value.isascii() and value.isprintable() and not set(value) & set(' "=\\')
    return value if plain else json.dumps(value)
