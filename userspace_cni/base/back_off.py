"""How long is rested after failures. It must not wait itself, and does not know what has failed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BackOff:
    """Pauses after failures in a row, in seconds: `first_s`, then twice as long each time, `most_s` at most.

    Of what a thread rests then, a part of up to `spread` is left out at random: so that nodes do not all come back at once.
    """

    first_s: float = 1.0
    most_s: float = 60.0
    spread: float = 0.0

    def after(self, pause_s: float = 0.0) -> float:
        """The pause after another failure; `pause_s`: the one after the failure before it, 0 for none."""
        return min(max(2 * pause_s, self.first_s), self.most_s)
