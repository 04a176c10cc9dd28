"""Tells what is wrong with single logical ports: by an Event on the pod, and in the log.

A pod's author can ask for a port that cannot be, for any number of them, and for another one at any time. So that is no reason
for which the controller could not work, of each port only what was said last is kept, and the log gets a line in a while.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from userspace_cni.base.findings import Finding
from userspace_cni.base.log import say
from userspace_cni.base.notices import NoticeReason, Recipient

LINE_S: Final = 5.0
"""Seconds between two lines of one reason at least."""
_SHOWN: Final = 3


class PortNews:
    """What is told for one reason. `tell` makes Events and never waits; `said` is how a line begins. Safe to use from threads."""

    def __init__(self, reason: NoticeReason, said: str, tell: Callable[[Recipient, Sequence[Finding]], None]) -> None:
        self._reason = reason
        self._said = said
        self._tell = tell
        self._lock = threading.Lock()
        self._shown: list[str] = []
        self._more = 0
        self._line_due = 0.0

    def tell(self, told: Iterable[tuple[str, Iterable[Recipient]]]) -> None:
        """Tell each text to these, and write the line."""
        for why, recipients in told:
            finding = [self._reason.finding(why)]
            for each in recipients:
                self._tell(each, finding)
            with self._lock:
                if len(self._shown) < _SHOWN:
                    self._shown.append(why)
                else:
                    self._more += 1
        self.write()

    def write(self) -> float:
        """Write what no line has said yet, unless the last was just now; in how many seconds it is due, infinity for never."""
        with self._lock:
            if not self._shown:
                return math.inf
            now = time.monotonic()
            if now < self._line_due:
                return self._line_due - now
            more = f"; and {self._more} more" if self._more else ""
            text = f"{self._said}{'; '.join(self._shown)}{more}"
            self._shown, self._more, self._line_due = [], 0, now + LINE_S
        say("warning", text)
        return math.inf


class ToldPorts:
    """What is wrong with ports now, by name: each is told when it begins, and when its reason is another one. For one thread."""

    def __init__(self, news: PortNews) -> None:
        self._news = news
        self.reasons: Mapping[str, str] = {}

    def take(self, reasons: Mapping[str, str], recipients: Callable[[str], Sequence[Recipient]]) -> None:
        """This is wrong from now on."""
        former, self.reasons = self.reasons, reasons
        self._news.tell((why, recipients(name)) for name, why in reasons.items() if former.get(name) != why)

    def write(self) -> float:
        """As of PortNews."""
        return self._news.write()
