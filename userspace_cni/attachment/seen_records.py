"""What was read of the store's records, kept so that files that have not changed are not read and parsed again.

A pass of reconciliation lists all records several times, and hardly any of them has changed since the last pass: reading them was
more than half of what an agent at rest does. What is kept is never trusted by itself: a file's stamp is compared each time. Where
the directories of the files have not changed, no record was written since, and not even the stamps of the files are compared: but
for once a minute, because what is written into a file in place, as by an editor, changes no directory.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from userspace_cni.attachment.records import Record

RELIST_S: Final = 60.0
"""Seconds after which the files are compared though their directories have not changed."""

Stamp = tuple[int, ...]
"""What the store tells of a file or directory, to be compared with what it tells later; empty where it cannot be compared."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A record as its undo file has it, and the stamp of that file."""

    stamp: Stamp
    record: Record


@dataclass(frozen=True, slots=True)
class SeenState:
    """The stamp of a state file, the record that it was applied to, and the record in that state."""

    stamp: Stamp
    record: Record
    current: Record


@dataclass(frozen=True, slots=True)
class SeenRecords:
    """All records of one kind of owner at the last listing, and their states, each by the name of its file.

    `boot_id`: the boot in which the states were read. `listed`: what the listing returned; `directories`: the stamps of the
    directories of records and states before it; `at`: when that was (monotonic).
    """

    records: Mapping[str, Seen] = field(default_factory=dict)
    states: Mapping[str, SeenState] = field(default_factory=dict)
    boot_id: str = ""
    listed: tuple[Record, ...] = ()
    directories: tuple[Stamp, ...] = ()
    at: float = 0.0

    def are_current(self, directories: tuple[Stamp, ...], boot_id: str, now: float) -> bool:
        """Whether a listing now would return `listed`, as far as the directories tell."""
        same = bool(directories) and all(directories) and directories == self.directories and boot_id == self.boot_id
        return same and now - self.at < RELIST_S

    def record_stamps(self) -> Mapping[str, Stamp]:
        return {name: each.stamp for name, each in self.records.items()}

    def state_stamps(self, records: Mapping[str, Record], boot_id: str) -> Mapping[str, Stamp]:
        """Of the states of those records, by key, that are still what their states were applied to."""
        if boot_id != self.boot_id:
            return {}
        return {name: each.stamp for name, each in self.states.items() if records.get(each.record.key) is each.record}


class Looked(threading.local):
    """What a thread has found in its turn: the id of the state directory with the live part for it, and whether that has its
    lists of holders."""

    within = False
    found: tuple[str, Any] | None = None
    built = False

    @contextmanager
    def once(self) -> Iterator[None]:
        """Within the block this thread looks once: an ADD asks a dozen times. What another program replaces meanwhile is found by
        the next turn."""
        self.within = True
        try:
            yield
        finally:
            self.within, self.found, self.built = False, None, False
