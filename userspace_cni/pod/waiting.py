"""Log lines about a wait: when it begins, every ten seconds, and when it ends.

In a log, silence looks like a hang. Every room may use this module, and images get it with the rest of this directory: standard
library only. It keeps the time and words the lines; it must never start a thread or wait itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable

EVERY_S = 10.0
"""Seconds between two equal lines."""
APART_S = 1.0
"""Seconds between two different lines: a text that changes all the time must not fill the log."""


class Waiting:
    """One wait: `say` is called with each line. `first_s`: seconds before the first line; `bound_s`: the longest wait."""

    def __init__(
        self,
        say: Callable[[str], None],
        first_s: float = 0.0,
        bound_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._say = say
        self._bound_s = bound_s
        self._clock = clock
        self._began = clock()
        self._since = time.strftime("%H:%M:%SZ", time.gmtime())
        self._due = self._began + first_s
        self._said: str | None = None
        self._said_at = 0.0

    def still(self, text: str) -> float:
        """Say `text`, what is missing, if a line is due. Returns in how many seconds to call again at the latest."""
        now = self._clock()
        if self._said is not None and text != self._said:
            self._due = min(self._due, self._said_at + APART_S)
        if now >= self._due:
            self._say(f"{text} ({self._lasting(now)})")
            self._said, self._said_at, self._due = text, now, now + EVERY_S
        return self._due - now

    def over(self, text: str) -> None:
        """End the wait: say `text` if a line was said before."""
        if self._said is not None:
            self._say(f"{text} (after {_spelled(self._clock() - self._began)})")

    def _lasting(self, now: float) -> str:
        """Since when the wait lasts, and how long it may go on."""
        lasted = now - self._began
        known = [f"for {_spelled(lasted)}, since {self._since}"] if lasted >= APART_S else [f"since {self._since}"]
        if self._bound_s is not None:
            known.append(f"up to {_spelled(max(0.0, self._bound_s - lasted))}" + (" more" if lasted >= APART_S else ""))
        return ", ".join(known)


def _spelled(seconds: float) -> str:
    """Whole seconds, and tenths of a few."""
    return f"{seconds:.1f} s" if seconds < 10 and round(seconds, 1) % 1 else f"{seconds:.0f} s"
