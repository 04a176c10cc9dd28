"""What is waited for, told in lines to people who read a log: at once, every ten seconds, and when it is there.

Without a terminal silence looks like a hang. Every room may use this, and it is copied into images with the rest of this
directory: standard library only. It keeps the time and words the line; it starts no thread, never waits itself, and decides
about nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable

EVERY_S = 10.0
"""Between two lines that say the same."""
APART_S = 1.0
"""Between two lines of which the second says something else: what changes all the time fills no log."""


class Waiting:
    """One wait: `say` is given each line. `first_s`: how long it may last before the first one; `bound_s`: how long at most."""

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
        """It goes on, and this is what is missing: told if it is time to. In how many seconds to call again at the latest."""
        now = self._clock()
        if self._said is not None and text != self._said:
            self._due = min(self._due, self._said_at + APART_S)
        if now >= self._due:
            self._say(f"{text} ({self._lasting(now)})")
            self._said, self._said_at, self._due = text, now, now + EVERY_S
        return self._due - now

    def over(self, text: str) -> None:
        """It is there: told if anything was told before."""
        if self._said is not None:
            self._say(f"{text} (after {_spelled(self._clock() - self._began)})")

    def _lasting(self, now: float) -> str:
        """Since when, and for how long yet."""
        lasted = now - self._began
        known = [f"for {_spelled(lasted)}, since {self._since}"] if lasted >= APART_S else [f"since {self._since}"]
        if self._bound_s is not None:
            known.append(f"up to {_spelled(max(0.0, self._bound_s - lasted))}" + (" more" if lasted >= APART_S else ""))
        return ", ".join(known)


def _spelled(seconds: float) -> str:
    """Whole seconds, and tenths of a few."""
    return f"{seconds:.1f} s" if seconds < 10 and round(seconds, 1) % 1 else f"{seconds:.0f} s"
