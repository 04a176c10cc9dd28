"""Which lines of the log are repeats: of each, the first is written at once, later ones once in a while with how many there were.

What a pod's author writes, and what fails in every round of a thread, must fill neither the log nor the memory. So a line is
known by the facts that are bound (the attachment that it is about) and by its reason: its message and its own facts. What is
about an attachment quotes in errors and problems what tenants wrote: of them only the class of an error is part of the reason.
No text is kept. For each attachment only so many reasons are told apart, and all entries together are bounded. For one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

PAUSE_MIN_S: Final = 10.0
"""Seconds between the first line and the next one with the same reason; the pause doubles with each that is written."""
PAUSE_MAX_S: Final = 3600.0
"""Seconds between two lines with the same reason at most. What did not occur for so long is forgotten."""
REASONS_MAX: Final = 32
"""Reasons told apart for one attachment; all others are one."""
SUBJECTS_MAX: Final = 1024
"""Attachments of which something is kept; the one without a line for the longest time goes first."""

Subject = tuple[tuple[str, str], ...]
_OTHERS: Final = 0
_QUOTING: Final = frozenset({"error", "problem"})


@dataclass(slots=True)
class _Said:
    """When a line was written, how long the next one waits, and how many were not written since. `last`: when it occurred."""

    written: float
    last: float
    pause_s: float
    left_out: int = 0


class Repeats:
    """The lines that one thread wrote, or left out. `clock`: as time.monotonic."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._said: dict[Subject, dict[int, _Said]] = {}

    def count_left_out(self, bound: Mapping[str, str], message: str, facts: Mapping[str, object]) -> int | None:
        """How many such lines were left out before this one, which is to be written; None for one that is left out, too.

        `bound`: the facts that are bound where the line is written, `facts`: the line's own.
        """
        now = self._clock()
        known = self._known(tuple(bound.items()), now)
        reason = hash((message, *(_ours(key, value) if bound else str(value) for key, value in facts.items())))
        if reason not in known and len(known) >= REASONS_MAX:
            reason = _OTHERS
        said = known.get(reason)
        if said is None or now - said.last >= PAUSE_MAX_S:
            known[reason] = _Said(now, now, PAUSE_MIN_S)
            return said.left_out if said else 0
        said.last = now
        if now - said.written < said.pause_s:
            said.left_out += 1
            return None
        left_out, said.left_out = said.left_out, 0
        said.written, said.pause_s = now, min(2 * said.pause_s, PAUSE_MAX_S)
        return left_out

    def keep(self, subjects: Iterable[Mapping[str, str]]) -> None:
        """Forget all but what is about these, or about nothing."""
        if not any(self._said):
            return
        kept = {(), *(subject_of(each) for each in subjects)}
        self._said = {subject: known for subject, known in self._said.items() if subject in kept}

    def __len__(self) -> int:
        return sum(len(known) for known in self._said.values())

    def _known(self, subject: Subject, now: float) -> dict[int, _Said]:
        """The entries of a subject, which becomes the last to be dropped."""
        known = self._said.pop(subject, {})
        if len(known) >= REASONS_MAX:
            known = {reason: said for reason, said in known.items() if now - said.last < PAUSE_MAX_S}
        while len(self._said) >= SUBJECTS_MAX:
            del self._said[next(iter(self._said))]
        self._said[subject] = known
        return known


def _ours(key: str, value: object) -> str:
    """Of a fact what cannot be a tenant's."""
    return type(value).__name__ if key in _QUOTING else str(value)


def subject_of(bound: Mapping[str, str]) -> Subject:
    """The facts as they are bound: those that are "" are none."""
    return tuple((key, value) for key, value in bound.items() if value)
