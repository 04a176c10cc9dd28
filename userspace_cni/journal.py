"""Records and shared places in the local store, typed, with the locks that guard them.

The only speaker of `localdb` in this package; its errors end here. A record of a shape that this version can not read is put
aside by the store and counts as lost, never as an error: DEL and GC must go on.

That an attachment is being deleted must be known before the first of its things goes, or reconciliation would make them again.
When the state directory takes no writes (full, read-only), it is written in the run directory instead, as a mark that every
reader of the record sees. A mark lasts as long as the boot, and so does an attachment: one of another boot is undone anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, Self

from localdb import Lock, LockTimeout, Store, StoreError
from userspace_cni.deadline import Deadline
from userspace_cni.errors import PASSING, RecordRefused, Unavailable
from userspace_cni.log import say
from userspace_cni.records import (
    MalformedRecord,
    Record,
    record_from_json,
    record_key,
    record_to_json,
    step_from_json,
    step_to_json,
)
from userspace_cni.stages import stage
from userspace_cni.steps import Resource, Step

_ATTACHMENTS: Final = "attachments"
_PLACES: Final = "places"


@dataclass(frozen=True)
class Shared:
    """What attachments share in one place: the things that we made, by key, and the steps of each attachment (by record key)."""

    made: frozenset[str] = frozenset()
    holders: Mapping[str, tuple[Step, ...]] = field(default_factory=dict)

    def with_holder(self, key: str, steps: tuple[Step, ...], made: Iterable[str]) -> Shared:
        """This place, held by the attachment `key` too, and with these things made by us as well."""
        return Shared(self.made.union(made), {**self.holders, key: steps})

    def without_holder(self, key: str) -> Shared:
        """This place, no longer held by the attachment `key`; of what nobody holds any more it does not matter who made it."""
        holders = {other: steps for other, steps in self.holders.items() if other != key}
        return Shared(self.made & _things(holders), holders)

    def needs(self, thing: str) -> str:
        """The first holder of the thing of that key; "" for none."""
        return next((key for key, steps in self.holders.items() if thing in _keys(steps)), "")


def _read_shared(raw: Mapping[str, Any]) -> Shared:
    """The inverse of what `write_shared` stores, which is never a place without holders, nor a holder of nothing."""
    made, holders = raw.get("made"), raw.get("holders")
    if not (isinstance(made, list) and all(isinstance(thing, str) for thing in made)):
        raise MalformedRecord("'made' is no list of names")
    if not (isinstance(holders, dict) and holders and all(isinstance(steps, list) and steps for steps in holders.values())):
        raise MalformedRecord("'holders' are no lists of steps by attachment")
    return Shared(frozenset(made), {key: tuple(map(step_from_json, steps)) for key, steps in holders.items()})


def _things(holders: Mapping[str, tuple[Step, ...]]) -> frozenset[str]:
    return frozenset(thing for steps in holders.values() for thing in _keys(steps))


def _keys(steps: Iterable[Step]) -> set[str]:
    return {step.resource.key for step in steps if step.resource}


class Journal:
    """The store as attachments see it.

    All methods raise RecordRefused when the store cannot be read or written, Unavailable when that will pass by itself.
    """

    def __init__(self, store: Store, marks: Store) -> None:
        self._store = store
        self._marks = marks

    @classmethod
    def at(cls, state_dir: str, run_dir: str, warn: Callable[[str], None]) -> Self:
        """Records below `state_dir`, locks and marks below `run_dir`. `warn` takes one line about what the store repaired."""
        locks = f"{run_dir}/locks"
        return cls(Store(state_dir, locks, warn=warn), Store(f"{run_dir}/deleting", locks, warn=warn))

    @property
    def directory(self) -> str:
        """The state directory, for messages."""
        return str(self._store.root)

    def identity(self) -> str:
        """The random id of the state directory: the owner mark `store`."""
        with _translated("reading the id of the state directory"):
            return self._store.identity()

    def read(self, container_id: str, ifname: str) -> Record | None:
        """The record of an attachment, None when there is none."""
        return self.read_key(record_key(container_id, ifname))

    def read_key(self, key: str) -> Record | None:
        """The record by its store key."""
        with _translated(f"reading the record of {key}"):
            raw = self._store.get(_ATTACHMENTS, key)
            mark = self._marks.get(_ATTACHMENTS, key) if raw is not None else None
        return self._record(key, raw, mark) if raw is not None else None

    def records(self) -> list[Record]:
        """All records that can be read."""
        with _translated("listing the records"):
            items = self._store.items(_ATTACHMENTS)
            marks = dict(self._marks.items(_ATTACHMENTS))
        return [record for key, raw in items if (record := self._record(key, raw, marks.get(key)))]

    def write(self, record: Record) -> None:
        """Make the record durable."""
        with _translated(f"writing the record of {record.key} (state {record.state})"), stage("record"):
            self._store.put(_ATTACHMENTS, record.key, record_to_json(record))

    def mark_deleting(self, record: Record) -> Record:
        """Record that the attachment is being deleted: the record in that state. Its things may be undone from now on.

        Raises RecordRefused when that cannot be written anywhere and what is stored says that the attachment lives.
        """
        marked = record.to("deleting")
        try:
            self.write(marked)
        except (RecordRefused, Unavailable) as error:
            stored = self.read_key(record.key)
            if stored is not None and stored.state == "ready":
                with _translated(f"marking {record.key} as being deleted ({error.message}: {error.details})"):
                    self._marks.identity()  # whatever becomes of its mode, the directory is known as ours
                    self._marks.put(_ATTACHMENTS, record.key, _mark_of(stored))
            say("warning", "the record could not be marked as deleting; a mark in the run directory says so", error=error)
        return marked

    def keep(self, record: Record) -> None:
        """Record that these steps remain to be undone. Where that cannot be written, a record that says so of more is as good.

        Raises RecordRefused when there is neither.
        """
        try:
            self.write(record)
        except (RecordRefused, Unavailable) as error:
            stored = self.read_key(record.key)
            if stored is None or stored.state != "deleting" or any(step not in stored.steps for step in record.steps):
                raise
            say("warning", "the record could not be shortened to what remains", error=error)

    def drop(self, record: Record) -> None:
        """Forget the attachment, durably."""
        with _translated(f"dropping the record of {record.key}"), stage("record"):
            self._store.drop(_ATTACHMENTS, record.key)
        with suppress(StoreError):  # a mark that stays is of no record
            self._marks.drop(_ATTACHMENTS, record.key)

    def shared(self, place: str) -> Shared | None:
        """What is shared in a place (Resource.place), None when nobody of ours holds anything there."""
        with _translated(f"reading the holders of {place}"):
            raw = self._store.get(_PLACES, place)
        return self._shared(place, raw) if raw is not None else None

    def has_made(self, thing: Resource) -> bool:
        """Whether an attachment of ours that still holds it, or another before that, made a shared thing."""
        shared = self.shared(thing.place)
        return shared is not None and thing.key in shared.made

    def write_shared(self, place: str, shared: Shared) -> None:
        """Make the holders durable; without any, forget the place."""
        with _translated(f"writing the holders of {place}"), stage("record"):
            if shared.holders:
                holders = {key: [step_to_json(step) for step in steps] for key, steps in shared.holders.items()}
                self._store.put(_PLACES, place, {"made": sorted(shared.made), "holders": holders})
            else:
                self._store.drop(_PLACES, place)

    def places(self) -> list[tuple[str, Shared]]:
        """All places where something is held."""
        with _translated("listing the shared places"):
            items = self._store.items(_PLACES)
        return [(place, shared) for place, raw in items if (shared := self._shared(place, raw))]

    @contextmanager
    def container_lock(self, container_id: str, deadline: Deadline) -> Iterator[Lock]:
        """One verb at a time per container. Raises Unavailable when it stays taken, or cannot be taken now."""
        with self._locked(f"container:{container_id}", deadline) as lock:
            yield lock

    @contextmanager
    def place_lock(self, place: str, deadline: Deadline) -> Iterator[Lock]:
        """One attachment at a time in a shared place; taken after the container's lock, never before it."""
        with self._locked(f"place:{place}", deadline) as lock:
            yield lock

    def try_container_lock(self, container_id: str) -> Lock | None:
        """The container's lock if nobody works on it."""
        with _translated(f"locking container {container_id}"):
            return self._store.try_lock(f"container:{container_id}")

    @contextmanager
    def _locked(self, name: str, deadline: Deadline) -> Iterator[Lock]:
        try:
            with _translated(f"locking {name}"), stage("lock"):
                lock = self._store.lock(name, deadline.remaining())
        except RecordRefused as error:  # a run directory that takes no writes; nothing was done yet, and a DEL comes again
            raise Unavailable(error.message, error.details) from error
        with lock:
            yield lock

    def _record(self, key: str, raw: Mapping[str, Any], mark: Mapping[str, Any] | None) -> Record | None:
        try:
            record = record_from_json(raw)
            if record.key != key:
                raise MalformedRecord(f"it is the record of {record.key}")
        except MalformedRecord as error:
            self._quarantine(_ATTACHMENTS, key, str(error))
            return None
        # the mark of an earlier attachment of that name says nothing about this one
        return record.to("deleting") if mark == _mark_of(record) else record

    def _shared(self, place: str, raw: Mapping[str, Any]) -> Shared | None:
        try:
            return _read_shared(raw)
        except MalformedRecord as error:
            self._quarantine(_PLACES, place, f"it is no list of holders: {error}")
            return None

    def _quarantine(self, collection: str, key: str, reason: str) -> None:
        with _translated(f"putting aside the unreadable record of {key}"):
            self._store.quarantine(collection, key, reason)


def _mark_of(record: Record) -> dict[str, Any]:
    """Which attachment of the record's name is being deleted."""
    return {"boot_id": record.boot_id, "boottime_ns": record.boottime_ns}


@contextmanager
def _translated(what: str) -> Iterator[None]:
    try:
        yield
    except LockTimeout as error:
        raise Unavailable(f"{what}: another call holds it", str(error)) from error
    except (StoreError, ValueError) as error:
        # ValueError: a value that would not come back from JSON as it went in
        cause = error.__cause__
        passes = isinstance(cause, OSError) and cause.errno in PASSING
        raise (Unavailable if passes else RecordRefused)(what, str(error)) from error
