"""The lines about a wait: when, how often, and in which words. The clock is the test's."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from userspace_cni.pod.waiting import APART_S, EVERY_S, Waiting


@dataclass
class Told:
    """A clock that a test moves, and the lines with their times."""

    now: float = 1000.0
    lines: list[tuple[float, str]] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    def say(self, line: str) -> None:
        self.lines.append((self.now - 1000, line))

    def waiting(self, first_s: float = 0.0, bound_s: float | None = None) -> Waiting:
        return Waiting(self.say, first_s, bound_s, self.clock)


def test_at_once_and_every_ten_seconds() -> None:
    """The first look tells, and then one in ten seconds; each line says since when it is waited, and for how long yet."""
    told = Told()
    waiting = told.waiting(bound_s=120)
    for _ in range(126):
        waiting.still("no file")
        told.now += 0.2
    assert [when for when, _ in told.lines] == pytest.approx([0, 10, 20], abs=0.3)
    first, second, third = (line for _, line in told.lines)
    assert first.startswith("no file (since ")
    assert first.endswith("Z, up to 120 s)")
    assert second.startswith("no file (for 10 s, since ")
    assert second.endswith("Z, up to 110 s more)")
    assert third.endswith("Z, up to 100 s more)")


def test_something_else_is_missing() -> None:
    """A change has a line without the wait of ten seconds, but no two lines come within one second."""
    told = Told()
    waiting = told.waiting()
    assert waiting.still("no file") == EVERY_S
    told.now += 0.25
    assert waiting.still("no annotation") == APART_S - 0.25
    told.now += 0.75
    waiting.still("no annotation")
    assert [line.partition(" (")[0] for _, line in told.lines] == ["no file", "no annotation"]
    for number in range(100):  # what changes at each look
        told.now += 0.1
        waiting.still(f"try {number}")
    assert 8 <= len(told.lines) - 2 <= 10


def test_patience() -> None:
    """A wait that is over before its first line was due causes no line, then or at its end."""
    told = Told()
    waiting = told.waiting(first_s=1.0)
    assert waiting.still("looking") == 1.0
    told.now += 0.5
    assert waiting.still("still looking") == 0.5
    waiting.over("there")
    assert told.lines == []


def test_it_is_there() -> None:
    """The end of a wait that had a line has a line, too, with its duration."""
    told = Told()
    waiting = told.waiting()
    waiting.still("no file")
    told.now += 12
    waiting.over("found net1")
    assert told.lines[-1][1] == "found net1 (after 12 s)"
