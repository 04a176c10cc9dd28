"""The ADDs that this agent has refused last, for people who ask why a pod has no interface.

A runtime repeats a refused ADD with another container each time, so that one is kept for each pod and interface, with a count; it
goes when an ADD of the same succeeds. In memory alone: after a restart the next try tells it again. Bounded, because tenants
choose the names and what is refused; the oldest is forgotten first.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from userspace_cni.base.errors import shorten
from userspace_cni.cni.request import recipient_of

KEPT: Final = 256
_TEXT_MAX: Final = 1024
_NAME_MAX: Final = 253


@dataclass(frozen=True)
class RefusedCall:
    """The last refusal of a pod's interface. `code`, `msg` and `details` are the answer's; `at`: seconds since the epoch;
    `count`: how often in a row."""

    namespace: str
    pod: str
    container: str
    ifname: str
    code: int
    msg: str
    details: str
    at: float
    count: int = 1


class RefusedCalls:
    """Safe to use from several threads."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._lock = threading.Lock()
        self._calls: dict[tuple[str, ...], RefusedCall] = {}

    def note(self, environ: Mapping[str, str], output: bytes, *, refused: bool) -> None:
        """Note the answer to an ADD."""
        whose, container = recipient_of(environ), environ.get("CNI_CONTAINERID", "")
        named = (whose.namespace, whose.name) if whose.name else (container,)
        key = tuple(each[:_NAME_MAX] for each in (*named, whose.interface))
        with self._lock:
            former = self._calls.pop(key, None)
            if not refused:
                return
            said = _error(output)
            self._calls[key] = RefusedCall(
                whose.namespace[:_NAME_MAX],
                whose.name[:_NAME_MAX],
                container[:_NAME_MAX],
                whose.interface[:_NAME_MAX],
                said.get("code", 0) if isinstance(said.get("code"), int) else 0,
                shorten(str(said.get("msg", "")), _TEXT_MAX),
                shorten(str(said.get("details", "")), _TEXT_MAX),
                time.time(),
                former.count + 1 if former else 1,
            )
            while len(self._calls) > self._kept:
                del self._calls[next(iter(self._calls))]

    def describe(self) -> list[dict[str, Any]]:
        """All of them as JSON values, the latest last."""
        with self._lock:
            calls = list(self._calls.values())
        return list(map(asdict, calls))


def _error(output: bytes) -> Mapping[str, Any]:
    try:
        decoded = json.loads(output)
    except ValueError:
        return {}
    return decoded if isinstance(decoded, dict) else {}
