"""What a change of the node's network would do, in words: for commands that print it and do nothing.

A step says what it is, its driver what making and undoing it does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from userspace_cni.attachment.steps import Driver, Step

Drivers = Callable[[Step], Driver[Any]]


def would_do(former: Sequence[Step], steps: Sequence[Step], driver: Drivers) -> Iterable[tuple[str, Sequence[str]]]:
    """Headings with lines: what is undone and made on the way from the former steps to these, and the way back."""
    gone, made = [each for each in former if each not in steps], [each for each in steps if each not in former]
    there = [*_undone(gone, driver), *_made(made, driver)]
    yield "what would be done:" if there else "nothing would be done", there
    if there:
        yield "the way back:", [*_undone(made, driver), *_made(gone, driver)]


def _made(steps: Sequence[Step], driver: Drivers) -> Iterable[str]:
    for step in steps:
        yield f"make {step.summary}"
        yield from (f"  {line}" for line in driver(step).describe_effects(step)[0])


def _undone(steps: Sequence[Step], driver: Drivers) -> Iterable[str]:
    for step in reversed(steps):
        yield f"undo {step.summary}"
        yield from (f"  {line}" for line in driver(step).describe_effects(step)[1])
