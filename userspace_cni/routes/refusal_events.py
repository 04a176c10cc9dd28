"""Events on pods in which an entry of a Route cannot be: told to the pod once, and again when something else cannot be.

The status of the Route has the same of ten pods of each node. A wrong next hop is wrong in all pods of a node at once, so that
not more than some are told: an Event in each says nothing that an Event in ten does not say.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from userspace_cni.base.findings import Finding
from userspace_cni.base.notices import ROUTE_REFUSED, Recipient
from userspace_cni.routes.passes import VisitedSandbox
from userspace_cni.routes.reports import faults

GRACE_S: Final = 5.0
"""Seconds for which a pod that is new may lack what still comes, as the address by which a next hop is reached."""
PODS_MAX: Final = 10
"""Pods that are told at once at most."""
REFILL_S: Final = 6.0
"""Seconds after which one more may be told."""
TEXTS_MAX: Final = 4
_TEXT_MAX: Final = 256


class RefusalEvents:
    """Who was told what. For one thread at a time. `send` must not wait; `clock`: as time.monotonic, as the passes have it."""

    def __init__(self, send: Callable[[Recipient, Sequence[Finding]], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._send = send
        self._clock = clock
        self._told: dict[str, int] = {}
        """Hash of the last report, by sandbox: pods may have many wrong routes, and nodes many pods."""
        self._left = float(PODS_MAX)
        self._at = clock()

    def tell(self, visited: Iterable[VisitedSandbox]) -> None:
        """Report pods whose last check gave another result than before.

        A pod beyond the rate limit gets no later event about the same result: the Route's status counts it.
        """
        now = self._clock()
        self._left = min(self._left + (now - self._at) / REFILL_S, PODS_MAX)
        self._at = now
        told: dict[str, int] = {}
        for each in sorted(visited, key=lambda each: (each.pod.namespace, each.pod.name)):
            texts, sandbox = _texts(each), each.located.place.sandbox
            before, now_told = self._told.get(sandbox, 0), hash(texts) if texts else 0
            if texts and now_told != before and now - each.since < GRACE_S:
                now_told = before  # a later look decides
            elif texts and now_told != before and self._left >= 1:
                self._left -= 1
                self._send(_recipient(each), [ROUTE_REFUSED.finding(text) for text in texts[:TEXTS_MAX]])
            if now_told:
                told[sandbox] = now_told
        self._told = told


def _texts(visited: VisitedSandbox) -> tuple[str, ...]:
    """What of Routes cannot be in the pod; each text once."""
    found = (f"Route '{name}': {text}" if name else text for name, text in faults(visited))
    return tuple(dict.fromkeys(text[:_TEXT_MAX] for text in found))


def _recipient(visited: VisitedSandbox) -> Recipient:
    """The pod, by its UID on the node."""
    return Recipient(visited.pod.namespace, visited.pod.name, visited.located.uid, "")
