"""What people read in the sidecar's log (`kubectl logs POD -c hook-sidecar-0`): one line per event, as the plugin's own are.

`time=… level=… msg="…"` and the facts that place it, or the same as JSON where the environment asks for it
(USERSPACE_CNI_LOG_FORMAT=json). Never holds a domain definition or a VMI: these carry the guest's secrets.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Literal

Level = Literal["error", "warning", "info"]


def say(level: Level, message: str, **facts: object) -> None:
    """Write one line to stderr. Never fails: a log must not make a VM's start fail. Facts that are "" are left out."""
    known = {"time": _now(), "level": level, "msg": message, **{key: str(value) for key, value in facts.items()}}
    known = {key: value for key, value in known.items() if value}
    if os.environ.get("USERSPACE_CNI_LOG_FORMAT") == "json":
        # other readers of JSON refuse half a surrogate pair
        line = json.dumps({key: value.encode("utf-8", "backslashreplace").decode() for key, value in known.items()})
    else:
        line = " ".join(f"{key}={_quoted(value)}" for key, value in known.items())
    try:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError, RuntimeError):  # the last: in the handler of a signal that came during a line
        return


def _now() -> str:
    """UTC with milliseconds (RFC 3339)."""
    seconds, rest = divmod(time.time_ns(), 10**9)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{rest // 10**6:03d}Z"


def _quoted(value: str) -> str:
    plain = value.isascii() and value.isprintable() and not set(value) & set(' "=\\')
    return value if plain else json.dumps(value)
