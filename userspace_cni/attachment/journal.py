"""Keeps records and shared places in the local store, typed, with the locks that guard them.

No other module of this package uses `localdb`; its errors are translated here. An attachment has two files. The **undo file**, in
the state directory, says what the attachment is and what undoes it. It is flushed before the first of its things exists, because
things outlive a boot, and is never rewritten without a flush. The **state file**, in the run directory, says how far the
attachment has come in this boot. It is written atomically and not flushed, because an attachment of another boot is undone
whatever its state was. An undo file without a state file counts as `ready`: in doubt the attachment is kept. Lists of holders are
built from the undo files once a boot, and kept in the run directory.

The store puts a record aside that this version cannot read. Such a record counts as lost, never as an error: DEL and GC must go
on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Final, get_args

from localdb import Lock, LockTimeout, Store, StoreError
from userspace_cni.attachment.records import (
    Record,
    State,
    owner_of,
    record_from_json,
    record_key,
    record_to_json,
    step_to_json,
)
from userspace_cni.attachment.seen_records import Looked, Seen, SeenRecords, SeenState
from userspace_cni.attachment.shared_holders import SharedHolders, keys_of, read_made, read_shared, things_of
from userspace_cni.attachment.steps import OwnerKind, SharedResource, Step
from userspace_cni.attachment.stored_form import MalformedRecord
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import PASSING, RecordRefused, Unavailable
from userspace_cni.base.log import say
from userspace_cni.base.stages import stage

_ATTACHMENTS: Final = "attachments"
_OF_NODE: Final = "node"
"""The node's own attachments: what finishes, sweeps or lists those of containers never sees them."""
_COLLECTIONS: Final[Mapping[OwnerKind, str]] = {"pod": _ATTACHMENTS, "claim": _ATTACHMENTS, "node": _OF_NODE, "run": "runs"}
_ALL: Final = frozenset(_COLLECTIONS.values())
_ADOPTED: Final = "places"
"""In the state directory: what another program made in a place and left to its holders."""
_STATES: Final = "states"
_PLACES: Final = "places"
_BUILT: Final = "built"
_SETTLED: Final = "settled"
_BUILD_S: Final = 10.0
"""Seconds for reading all undo files, which takes milliseconds."""


class Journal:
    """The store as attachments see it. Records are below `state_dir`; their states, holders and locks below `run_dir`.

    `warn` takes one line about what the store repaired; `boot_id` gives the kernel's random id of this boot. `on_state` is called
    with each record whose state was written; it must not wait. All methods raise RecordRefused when a store
    cannot be read or written, Unavailable when that will pass by itself.
    """

    def __init__(
        self,
        state_dir: str,
        run_dir: str,
        warn: Callable[[str], object],
        boot_id: Callable[[], str],
        on_state: Callable[[Record], None] = lambda _: None,
    ) -> None:
        self._on_state = on_state
        self._run_dir = run_dir
        self._warn = warn
        self._boot_id = boot_id
        self._store = Store(state_dir, f"{run_dir}/locks", warn=warn)
        self._found: tuple[str, Store] | None = None
        self._looked = Looked()
        self._seen: dict[str, SeenRecords] = {}
        self._settled = ""
        self.unflushed = False
        """Whether something was removed that would be back after a power cut; see `flush`."""
        self.on_unflushed: Callable[[], None] = lambda: None
        """Called when that becomes so; it must not wait."""

    @property
    def directory(self) -> str:
        """The state directory, for messages."""
        return str(self._store.root)

    def identity(self) -> str:
        """The random id of the state directory: the owner mark `store`."""
        with _translated("reading the id of the state directory"):
            return self._find()[0]

    # -- attachments ------------------------------------------------------------------------------------------------------

    def read(self, container_id: str, ifname: str) -> Record | None:
        return self.read_key(record_key(container_id, ifname))

    def read_some(self, container_id: str, ifnames: Iterable[str]) -> list[Record]:
        """The records of a container's attachments of these names, in their order: for many names, of which few have one."""
        keys = [record_key(container_id, ifname) for ifname in ifnames]
        with _translated(f"looking for the records of {container_id}"):
            found = self._store.find(_collection(container_id), keys)
        return [record for key in found if (record := self.read_key(key))]

    def read_key(self, key: str) -> Record | None:
        with _translated(f"reading the record of {key}"):
            raw = self._store.get(_collection(key), key)
            state = self._live.get(_STATES, key) if raw is not None else None
        record = self._record(key, raw) if raw is not None else None
        return record and self._in_state(record, state)

    def records(self) -> list[Record]:
        """All records of containers' attachments, and of claims' devices, that can be read."""
        return self._records(_ATTACHMENTS)

    def node_records(self) -> list[Record]:
        """All records of the node's own attachments that can be read."""
        return self._records(_OF_NODE)

    def run_records(self) -> list[Record]:
        """All records of runs of commands that can be read."""
        return self._records(_COLLECTIONS["run"])

    def _records(self, collection: str) -> list[Record]:
        """In order of their keys. A document takes several times the memory of its record: no two are there at once."""
        seen, now = self._seen.get(collection) or SeenRecords(), time.monotonic()
        records: dict[str, Seen] = {}
        states: dict[str, SeenState] = {}
        with _translated("listing the records"):
            # without records the states are not asked for: that makes the id of the directory, which may be read-only
            directories = (self._store.stamp(collection), self._live.stamp(_STATES)) if seen.records else ()
            if seen.are_current(directories, self._boot_id(), now):
                return list(seen.listed)
            for name, stamp, found in self._store.each_changed(collection, seen.record_stamps()):
                if record := self._record(*found) if found else seen.records[name].record:
                    records[name] = Seen(stamp, record)
            current = {each.record.key: each.record for each in records.values()}
            stamps = seen.state_stamps(current, self._boot_id())
            for name, stamp, found in self._live.each_changed(_STATES, stamps, current) if records else ():
                if found:
                    record = current[found[0]]
                    states[name] = SeenState(stamp, record, self._in_state(record, found[1]))
                else:
                    states[name] = SeenState(stamp, seen.states[name].record, seen.states[name].current)
                current[states[name].record.key] = states[name].current
        listed = tuple(current[key] for key in sorted(current))
        self._seen[collection] = SeenRecords(records, states, self._boot_id(), listed, directories, now)
        return list(listed)

    def write(self, record: Record) -> None:
        """Record the attachment: its state, then durably what undoes it."""
        with _translated(f"writing the record of {record.key} (state {record.state})"), stage("record"):
            self._put_state(record)
            self._store.put(_collection(record.key), record.key, _undo_file(record))

    def advance(self, record: Record) -> None:
        """Record the state, and with it the result, of an attachment whose steps are recorded."""
        with _translated(f"writing the state of {record.key} ({record.state})"), stage("record"):
            self._put_state(record)

    def mark_deleting(self, record: Record) -> Record:
        """Record that the attachment is being deleted; returns the record in that state. Its things may be undone from now on.

        Raises RecordRefused when that cannot be written anywhere and the store says that the attachment is in use.
        """
        marked = record.to("deleting")
        try:
            self.advance(marked)
        except (RecordRefused, Unavailable) as error:
            stored = self.read_key(record.key)
            if stored is not None and stored.state == "ready":
                with _translated(f"marking {record.key} as being deleted ({error.message}: {error.details})"):
                    self._store.put(_collection(record.key), record.key, {**_undo_file(stored), "state": "deleting"})
            say("warning", "the run directory cannot record that an attachment is being deleted", error=error)
        return marked

    def keep(self, record: Record) -> None:
        """Record durably that these steps remain to be undone: the caller of the DEL may not call again.

        Where that cannot be written, a stored record that lists these steps and more suffices, also one in the run directory.
        Raises RecordRefused when there is none.
        """
        try:
            with _translated(f"writing what is left of {record.key}"), stage("record"):
                raw = self._store.get(_collection(record.key), record.key)
                known = raw.get("steps") if raw else None
                left = [step_to_json(step) for step in record.steps]
                if raw is None or not isinstance(known, list) or any(step not in known for step in left):
                    raw, known = _undo_file(record), left  # the stored record does not list them
                self._put_state(record, [number for number, step in enumerate(known) if step not in left])
                if raw.get("state") != "deleting":
                    self._store.put(_collection(record.key), record.key, {**raw, "state": "deleting"})
        except (RecordRefused, Unavailable) as error:
            stored = self.read_key(record.key)
            if stored is None or stored.state != "deleting" or any(step not in stored.steps for step in record.steps):
                raise
            say("warning", "the remaining steps could not be recorded", error=error)

    def drop(self, record: Record) -> None:
        """Forget the attachment. A power cut before `flush` may bring it back, as one of another boot."""
        with _translated(f"dropping the record of {record.key}"), stage("record"):
            self._store.drop(_collection(record.key), record.key, durable=False)
            if not self.unflushed:
                self.unflushed = True
                self.on_unflushed()
            with suppress(StoreError):  # a state without a record is ignored
                self._live.drop(_STATES, record.key, durable=False)

    def flush(self) -> None:
        """Make durable what was dropped before this call; see `unflushed`."""
        self.unflushed = False
        try:
            with _translated("flushing the records"):
                for collection in _ALL:
                    self._store.flush(collection)
        except BaseException:
            self.unflushed = True
            raise

    # -- what attachments share -------------------------------------------------------------------------------------------

    def read_shared(self, place: str) -> SharedHolders | None:
        """What is shared in a place (Resource.place), None when no attachment holds anything there."""
        with _translated(f"reading the holders of {place}"):
            raw = self._built().get(_PLACES, place)
        return self._shared(place, raw) if raw is not None else None

    def has_made(self, thing: SharedResource) -> bool:
        """Whether attachments of ours hold a shared thing and one of them, or an earlier one, made it."""
        shared = self.read_shared(thing.place)
        return shared is not None and thing.key in shared.made

    def write_shared(self, place: str, shared: SharedHolders) -> None:
        """Record the holders; without any, forget the place."""
        with _translated(f"writing the holders of {place}"), stage("record"):
            live = self._built()
            if shared.holders:
                _put_shared(live, place, shared)
                return
            if self._store.has(_ADOPTED, place):  # first: if this process dies in between, a holder still leads here
                self._store.drop(_ADOPTED, place)
            live.drop(_PLACES, place, durable=False)

    def adopt(self, thing: SharedResource) -> None:
        """Record durably that we remove a shared thing with its last holder. The caller holds the place's lock."""
        shared = self.read_shared(thing.place)
        if shared:
            made = shared.made | {thing.key}
            with _translated(f"writing which things in {thing.place} are ours"):
                self._store.put(_ADOPTED, thing.place, {"made": sorted(made)})
            self.write_shared(thing.place, SharedHolders(made, shared.holders))

    def places(self) -> list[tuple[str, SharedHolders]]:
        """All places that have holders."""
        with _translated("listing the shared places"):
            found = {place: shared for place, raw in self._built().each(_PLACES) if (shared := self._shared(place, raw))}
        return [(place, found[place]) for place in sorted(found)]

    def held_by(self, key: str) -> tuple[Step, ...]:
        """The shared steps of an attachment by the places' own lists: what is known when its record is lost."""
        return tuple(step for _, shared in self.places() for step in shared.holders.get(key, ()))

    # -- locks ------------------------------------------------------------------------------------------------------------

    @contextmanager
    def turn_lock(self, key: str, deadline: Deadline) -> Iterator[Lock]:
        """Lock the attachment of that record: one call at a time. Raises Unavailable if it stays taken or cannot be."""
        with self._locked(_turn_name(key), deadline) as lock, self._looked.once():
            yield lock

    def try_turn_lock(self, key: str) -> Lock | None:
        """Take the attachment's lock; None while another call has it."""
        name = _turn_name(key)
        with _translated(f"locking {name}"):
            return self._store.try_lock(name)

    @contextmanager
    def choice_lock(self, container_id: str, deadline: Deadline) -> Iterator[Lock]:
        """Lock what interfaces of a container choose by what its others have: one ADD chooses at a time. It is taken after the
        attachment's lock, never before it."""
        with self._locked(f"choice:{container_id}", deadline) as lock:
            yield lock

    @contextmanager
    def place_lock(self, place: str, deadline: Deadline) -> Iterator[Lock]:
        """Lock a shared place: one attachment at a time. It is taken after the two locks above, never before them."""
        with self._locked(f"place:{place}", deadline) as lock:
            yield lock

    @contextmanager
    def boot_lock(self, deadline: Deadline) -> Iterator[None]:
        """Lock the undoing of another boot's attachments: one process at a time. It is taken before any attachment's lock."""
        with self._locked("boot", deadline):
            yield

    # -- this boot --------------------------------------------------------------------------------------------------------

    @property
    def is_settled(self) -> bool:
        """Whether the attachments of another boot were undone in this one, as far as that was possible."""
        with _translated("checking whether the attachments of another boot were undone"):
            boot_id = self._boot_id()
            if self._settled != boot_id and self._live.has(_SETTLED, boot_id):
                self._settled = boot_id
        return self._settled == boot_id

    def settle(self) -> None:
        """Record that they were; see `is_settled`."""
        with _translated("recording that the attachments of another boot were undone"):
            self._built().put(_SETTLED, self._boot_id(), {}, durable=False)

    def was_tried(self, record: Record) -> bool:
        """Whether the undoing of an attachment of another boot was begun in this one."""
        with _translated(f"looking for the state of {record.key}"):
            state = self._live.get(_STATES, record.key)
        return state is not None and self._name_of(record).items() <= state.items()

    def sweep(self) -> None:
        """Remove half-written files of dead writers, and states without a record."""
        self.places()  # listing a collection removes its half-written files
        with _translated("sweeping the states"):
            if frozenset[str]().union(*map(self._store.names, _ALL)) >= self._live.names(_STATES):
                return
            recorded = {key for collection in _ALL for key, _ in self._store.each(collection)}
            stray = [key for key, _ in self._live.each(_STATES) if key not in recorded]
        for key in stray:
            lock = self.try_turn_lock(key)
            if lock is None:
                continue
            with lock, _translated(f"sweeping the state of {key}"):
                if not self._store.has(_collection(key), key):
                    self._live.drop(_STATES, key, durable=False)

    def _find(self) -> tuple[str, Store]:
        """The id of the state directory, and the part of the run directory for it, which is found by the id, not by the path."""
        looked = self._looked
        if looked.found is not None:
            return looked.found
        identity, found = self._store.identity(), self._found
        if found is None or found[0] != identity:
            found = identity, Store(f"{self._run_dir}/live/{identity}", f"{self._run_dir}/locks", warn=self._warn)
            self._found = found
        if looked.within:
            looked.found = found
        return found

    @property
    def _live(self) -> Store:
        return self._find()[1]

    def _built(self) -> Store:
        """`_live`, with the lists of holders built."""
        live, looked = self._live, self._looked
        if not (looked.built or live.has(_BUILT, self._boot_id())):
            with self._store.lock("holders", _BUILD_S):
                if not live.has(_BUILT, self._boot_id()):
                    self._build(live)
        looked.built = looked.within
        return live

    def _build(self, live: Store) -> None:
        live.identity()  # the directory is recognised as ours even if its mode changes
        for collection in (_PLACES, _SETTLED, _BUILT):  # of another boot, or of an interrupted build
            live.clear(collection)
        places: dict[str, SharedHolders] = {}
        for record in self.records():
            for place in {step.resource.place for step in record.steps if step.resource}:
                steps = tuple(step for step in record.steps if step.resource and step.resource.place == place)
                shared = places.get(place, SharedHolders())
                places[place] = shared.with_holder(record.key, steps, keys_of(steps).intersection(record.made))
        for place, raw in self._store.each(_ADOPTED):
            if place in places:
                with suppress(MalformedRecord):
                    made = places[place].made | (read_made(raw) & things_of(places[place].holders))
                    places[place] = SharedHolders(made, places[place].holders)
            else:
                with suppress(StoreError):  # the entry stays until the next boot
                    self._store.drop(_ADOPTED, place)
        for place, shared in places.items():
            _put_shared(live, place, shared)
        live.put(_BUILT, self._boot_id(), {}, durable=False)

    def _put_state(self, record: Record, undone: Iterable[int] = ()) -> None:
        """Write the state file. `undone`: the numbers of those steps in the undo file that are undone."""
        state = {**self._name_of(record), "state": record.state, "result": record.result, "undone": list(undone)}
        self._live.put(_STATES, record.key, state, durable=False)
        self._on_state(record)

    @contextmanager
    def _locked(self, name: str, deadline: Deadline) -> Iterator[Lock]:
        try:
            with _translated(f"locking {name}"), stage("lock"):
                lock = self._store.lock(name, deadline.remaining())
        except RecordRefused as error:  # the run directory takes no writes: nothing was done yet, and a DEL is repeated
            raise Unavailable(error.message, error.details) from error
        with lock:
            yield lock

    def _record(self, key: str, raw: Mapping[str, Any]) -> Record | None:
        """The record of a document, `ready` as long as no state says otherwise."""
        try:
            record = record_from_json({"state": "ready", **raw})
            if record.key != key:
                raise MalformedRecord(f"it is the record of {record.key}")
        except MalformedRecord as error:
            self._quarantine(self._store, _collection(key), key, str(error))
            return None
        return record

    def _in_state(self, record: Record, state: Mapping[str, Any] | None) -> Record:
        if state is None or not self._name_of(record).items() <= state.items():
            return record
        try:
            current = _with_state(record, state)
        except MalformedRecord as error:
            self._quarantine(self._live, _STATES, record.key, f"it is not a state of an attachment: {error}")
            return record
        return current.to("deleting") if record.state == "deleting" else current

    def _name_of(self, record: Record) -> dict[str, Any]:
        """The fields that distinguish its state file from one of an earlier attachment of that name, or of an earlier boot."""
        return {"boot_id": record.boot_id, "boottime_ns": record.boottime_ns, "told_in": self._boot_id()}

    def _shared(self, place: str, raw: Mapping[str, Any]) -> SharedHolders | None:
        try:
            return read_shared(raw)
        except MalformedRecord as error:
            self._quarantine(self._live, _PLACES, place, f"it is not a list of holders: {error}")
            return None

    def _quarantine(self, store: Store, collection: str, key: str, reason: str) -> None:
        with _translated(f"putting aside the unreadable record of {key}"):
            store.quarantine(collection, key, reason)


def _collection(key: str) -> str:
    return _COLLECTIONS[owner_of(key)]


def _turn_name(key: str) -> str:
    """The name of the lock of an attachment. The node's own of one kind have one for all: they may be about the same NIC."""
    return f"container:{key.partition('@')[0]}" if owner_of(key) == "node" else f"attachment:{key}"


def _undo_file(record: Record) -> dict[str, Any]:
    """What the state directory holds of an attachment: everything except state and result."""
    return {name: value for name, value in record_to_json(record).items() if name not in ("state", "result")}


def _with_state(record: Record, raw: Mapping[str, Any]) -> Record:
    """The record as its state file has it. Raises MalformedRecord."""
    undone = raw.get("undone")
    if not (isinstance(undone, list) and all(type(number) is int for number in undone)):
        raise MalformedRecord("'undone' is not a list of numbers")
    state, result = raw.get("state"), raw.get("result")
    if state is None or state not in get_args(State) or not (result is None or isinstance(result, dict)):
        raise MalformedRecord("'state' is not a state, or 'result' is not an object")
    steps = tuple(step for number, step in enumerate(record.steps) if number not in undone)
    return record.to(state, steps=steps, result=result)


def _put_shared(live: Store, place: str, shared: SharedHolders) -> None:
    holders = {key: [step_to_json(step) for step in steps] for key, steps in shared.holders.items()}
    live.put(_PLACES, place, {"made": sorted(shared.made), "holders": holders}, durable=False)


class _translated:  # noqa: N801 -- used as a function
    """Translate the store's errors; `what` was tried."""

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, LockTimeout):
            raise Unavailable(f"{self._what}: another call holds the lock", str(error)) from error
        if isinstance(error, (StoreError, ValueError)):
            # ValueError: a value that JSON would not give back unchanged
            passes = getattr(error.__cause__, "errno", None) in PASSING
            raise (Unavailable if passes else RecordRefused)(self._what, str(error)) from error
