"""Records and shared resources in the local store, typed, with the locks that guard them.

The only speaker of `localdb` in this package; its errors end here. A record of a shape that this version can not read is put
aside by the store and counts as lost, never as an error: DEL and GC must go on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from localdb import Lock, LockTimeout, Store, StoreError
from userspace_cni.deadline import Deadline
from userspace_cni.errors import RecordRefused, Unavailable
from userspace_cni.records import (
    MalformedRecord,
    Record,
    record_from_json,
    record_key,
    record_to_json,
    step_from_json,
    step_to_json,
)
from userspace_cni.steps import Step

_ATTACHMENTS: Final = "attachments"
_RESOURCES: Final = "resources"


@dataclass(frozen=True)
class Shared:
    """A shared resource: whether we made it, and the step of each attachment (by record key) that needs it."""

    made: bool
    holders: Mapping[str, Step] = field(default_factory=dict)

    def with_holder(self, key: str, step: Step) -> Shared:
        """This resource, held by the attachment `key` too."""
        return Shared(self.made, {**self.holders, key: step})

    def without_holder(self, key: str) -> Shared:
        """This resource, no longer held by the attachment `key`."""
        return Shared(self.made, {other: step for other, step in self.holders.items() if other != key})


class Journal:
    """The store as attachments see it. All methods raise RecordRefused when the store can not be read or written."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def place(self) -> str:
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
        return self._record(key, raw) if raw is not None else None

    def records(self) -> list[Record]:
        """All records that can be read."""
        with _translated("listing the records"):
            items = self._store.items(_ATTACHMENTS)
        return [record for key, raw in items if (record := self._record(key, raw))]

    def write(self, record: Record) -> None:
        """Make the record durable."""
        with _translated(f"writing the record of {record.key} (state {record.state})"):
            self._store.put(_ATTACHMENTS, record.key, record_to_json(record))

    def drop(self, record: Record) -> None:
        """Forget the attachment, durably."""
        with _translated(f"dropping the record of {record.key}"):
            self._store.drop(_ATTACHMENTS, record.key)

    def shared(self, resource: str) -> Shared | None:
        """A shared resource by its key, None when nobody of ours holds it."""
        with _translated(f"reading the holders of {resource}"):
            raw = self._store.get(_RESOURCES, resource)
        return self._shared(resource, raw) if raw is not None else None

    def write_shared(self, resource: str, shared: Shared) -> None:
        """Make the resource's holders durable; without any, forget it."""
        with _translated(f"writing the holders of {resource}"):
            if shared.holders:
                holders = {key: step_to_json(step) for key, step in shared.holders.items()}
                self._store.put(_RESOURCES, resource, {"made": shared.made, "holders": holders})
            else:
                self._store.drop(_RESOURCES, resource)

    def resources(self) -> list[tuple[str, Shared]]:
        """All shared resources with their keys."""
        with _translated("listing the shared resources"):
            items = self._store.items(_RESOURCES)
        return [(key, shared) for key, raw in items if (shared := self._shared(key, raw))]

    @contextmanager
    def container_lock(self, container_id: str, deadline: Deadline) -> Iterator[Lock]:
        """One verb at a time per container. Raises Unavailable when it stays taken."""
        with self._locked(f"container:{container_id}", deadline) as lock:
            yield lock

    @contextmanager
    def resource_lock(self, resource: str, deadline: Deadline) -> Iterator[Lock]:
        """One attachment at a time at a shared resource; taken after the container's lock, never before it."""
        with self._locked(f"resource:{resource}", deadline) as lock:
            yield lock

    def try_container_lock(self, container_id: str) -> Lock | None:
        """The container's lock if nobody works on it."""
        with _translated(f"locking container {container_id}"):
            return self._store.try_lock(f"container:{container_id}")

    @contextmanager
    def _locked(self, name: str, deadline: Deadline) -> Iterator[Lock]:
        with _translated(f"locking {name}"):
            lock = self._store.lock(name, deadline.remaining())
        with lock:
            yield lock

    def _record(self, key: str, raw: Mapping[str, Any]) -> Record | None:
        try:
            record = record_from_json(raw)
            if record.key != key:
                raise MalformedRecord(f"it is the record of {record.key}")
        except MalformedRecord as error:
            self._quarantine(_ATTACHMENTS, key, str(error))
            return None
        return record

    def _shared(self, key: str, raw: Mapping[str, Any]) -> Shared | None:
        try:
            holders = raw["holders"]
            return Shared(raw["made"] is True, {holder: step_from_json(step) for holder, step in holders.items()})
        except (KeyError, AttributeError, MalformedRecord) as error:
            self._quarantine(_RESOURCES, key, f"it is no list of holders: {error}")
            return None

    def _quarantine(self, collection: str, key: str, reason: str) -> None:
        with _translated(f"putting aside the unreadable record of {key}"):
            self._store.quarantine(collection, key, reason)


@contextmanager
def _translated(what: str) -> Iterator[None]:
    try:
        yield
    except LockTimeout as error:
        raise Unavailable(f"{what}: another call holds it", str(error)) from error
    except (StoreError, ValueError) as error:
        # ValueError: a value that would not come back from JSON as it went in
        raise RecordRefused(what, str(error)) from error
