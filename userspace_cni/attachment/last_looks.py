"""What the node was like when a look at an attachment found nothing, so that a pass looks only at what has changed since.

Each driver tells the signs of a step: a value that changes before a look could find something, and costs less than the look. A
look whose sign cannot be had, found something or failed is repeated in the next pass. Signs may leave out a way in which a thing
changes: so each attachment is looked at as a whole once in so many passes, and all of them in a pass that was asked for.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from userspace_cni.attachment.records import Record
from userspace_cni.attachment.steps import SharedReads, Step
from userspace_cni.base.errors import UserspaceError

if TYPE_CHECKING:
    from userspace_cni.attachment.node import DriverOf

EVERY: Final = 20
"""In one of so many passes the whole attachment is looked at; not all of them in the same one."""

_Ask = Callable[[Step, SharedReads, object], object]


@dataclass(slots=True)
class _Look:
    """The last looks at the steps of a record. `signs`: of each step, None where it must be looked at. `left`: see `EVERY`."""

    record: Record
    steps: tuple[tuple[_Ask, Step], ...]
    signs: list[object]
    left: int


class LastLooks:
    """The looks of the last pass, by record. For one thread."""

    def __init__(self) -> None:
        self._before: dict[str, _Look] = {}
        self._now: dict[str, _Look] = {}

    def begin(self, *, whole: bool) -> None:
        """Begin a pass. `whole`: every step is to be looked at."""
        self._before, self._now = {} if whole else self._now, {}

    def list_due(self, record: Record, seen: SharedReads, driver: DriverOf) -> list[Step]:
        """The steps of the record that are to be looked at in this pass. What a look finds has to be told to `forget`."""
        key = record.key
        look = self._before.get(key)
        if look is None or look.record is not record:
            look = _first(record, driver, zlib.crc32(key.encode()) % EVERY + 1)
        elif look.left == 0:
            look = _first(record, driver, EVERY)
        look.left -= 1
        due, signs = [], look.signs
        for number, (ask, step) in enumerate(look.steps):
            before = signs[number]
            try:
                sign = ask(step, seen, before)
            except UserspaceError:  # the look says so
                sign = None
            if sign is None or sign != before:
                due.append(step)
                signs[number] = sign
        self._now[key] = look
        return due

    def forget(self, record: Record) -> None:
        """A look at the record found something, or failed: the next pass looks at all of it."""
        self._now.pop(record.key, None)


def _first(record: Record, driver: DriverOf, left: int) -> _Look:
    """Without a sign yet, of those steps of which something can be found."""
    drivers = ((driver(step), step) for step in record.steps)
    steps = tuple((each.signs, step) for each, step in drivers if each.finds)
    return _Look(record, steps, [None] * len(steps), left)
