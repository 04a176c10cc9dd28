"""The store: records by collection and key under one root directory.

    <root>/identity                        the random id of this directory, 32 hex digits
    <root>/<collection>/<key>.json         one record
    <root>/quarantine/<collection>-<file>.<n>    a file that was in a record's place and is no record

It must never raise for what it finds in a record's place, return half a record, or delete what it did not write. Records are
read without locks, because they change only by rename. A caller that reads, decides and writes takes a named lock around all
three.
"""
# Strings and descriptors rather than paths: pathlib would cost the short-lived process more than a write.
# ruff: noqa: PTH101, PTH116

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import sys
from typing import TYPE_CHECKING, Any

from localdb import quarantine
from localdb.atomic_files import Stamp, StoreDirectory, read_regular, stamp_of
from localdb.locks import Lock, ThreadQueues, take_lock
from localdb.names import encode_name
from localdb.record_format import decode_record, encode_record
from localdb.store_errors import Attempt, Foreign, LockTimeout, Newer, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

IDENTITY = "identity"
SUFFIX = ".json"
RESERVED = frozenset({IDENTITY, quarantine.NAME})
PATIENCE = 10.0  # seconds a writer waits for a process that moves files aside, which takes milliseconds
LISTING_PATIENCE = 0.1  # seconds a listing waits for a pause between writers before it does without


def warn_on_stderr(message: str) -> None:
    """Write one line to stderr, where the runtime and the journal look."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):  # a closed stderr must not fail the store
            sys.stderr.write(f"localdb: {message}\n")


class Store:
    """JSON records. Safe between processes and threads; every method but the constructor may raise `StoreError`."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        lock_dir: str | os.PathLike[str],
        *,
        warn: Callable[[str], object] = warn_on_stderr,
    ) -> None:
        """Set the directories; neither is touched before the first use. `warn` takes one line about each repair."""
        self._root = os.fspath(root)
        self._lock_dir = os.fspath(lock_dir)
        self._gates = ThreadQueues()
        self._warn = warn
        self._mode_checked = False
        self._identity: tuple[str, tuple[int, ...]] = ("", ())

    @property
    def root(self) -> Path:
        from pathlib import Path  # the import takes milliseconds, and no other method needs it

        return Path(self._root)

    def identity(self) -> str:
        """Return the random id of this directory, 32 hex digits, made durably at the first use and stable from then on."""
        known, of = self._identity
        facts = self._identity_facts()
        if known and facts and facts == of:
            return known
        found = self._find_identity()
        self._identity = found, facts
        return found

    def _identity_facts(self) -> tuple[int, ...]:
        """Return facts that change when the file is changed or replaced; empty when there is no file."""
        try:
            facts = os.stat(f"{self._root}/{IDENTITY}", follow_symlinks=False)
        except OSError:
            return ()
        return facts.st_dev, facts.st_ino, facts.st_ctime_ns, facts.st_nlink

    def _find_identity(self) -> str:
        with (
            Attempt("read or make the identity of the store in", self._root),
            self._open(self._root, create=True) as root,
        ):
            found = self._read_identity(root)
            # With two names, its maker has not flushed the directory yet, or died before it could.
            if found and root.links(IDENTITY) == 1:
                return found
            root.lock(fcntl.LOCK_EX, PATIENCE)
            return self._make_identity(root)

    def put(self, collection: str, key: str, value: Mapping[str, Any], *, durable: bool = True) -> None:
        """Store `value` under `key`; when this returns it survives the death of every process, and a power cut if `durable`.

        After a power cut a record that is not durable may have its old value, be torn, or be absent. On failure the old value is
        intact; only when the very last flush fails, the record may have the new one, whole.
        Raises `ValueError` for a value that JSON cannot carry, such as NaN.
        """
        data = encode_record(key, value)
        path, name = self._locate(collection, key)
        with Attempt(
            f"store the record of {key!r} as", f"{path}/{name}", "the stored value is the old one, or the new one whole"
        ):
            try:
                self._replace(path, name, data, durable=durable)
            except IsADirectoryError:  # the one kind of thing a rename does not replace
                with contextlib.suppress(Newer):
                    self._load_from(path, collection, name)
                self._replace(path, name, data, durable=durable)

    def get(self, collection: str, key: str) -> dict[str, Any] | None:
        """Return the value of `key`, or None. A file that is not its record is moved aside with a warning, and gives None too.

        Raises `StoreError` for the record of a newer version.
        """
        path, name = self._locate(collection, key)
        with Attempt(f"read the record of {key!r} from", f"{path}/{name}"):
            try:
                found = self._get(path, collection, name)
            except Newer as schema:
                raise StoreError(
                    f"read the record of {key!r} from {path}/{name}: a newer version wrote it (schema {schema}): upgrade this one"
                ) from schema
        return found[1] if found else None

    def items(self, collection: str) -> list[tuple[str, dict[str, Any]]]:
        """Return keys and values, sorted by key. Foreign files are moved aside, a newer version's are left out: both warn."""
        return sorted(self.each(collection), key=lambda item: item[0])

    def each(self, collection: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """As `items`, in no order; a record is read when it is asked for, so that no two need be in memory."""
        for _, _, record in self.each_changed(collection, {}):
            if record:
                yield record

    def each_changed(
        self, collection: str, read: Mapping[str, Stamp], keys: Iterable[str] | None = None
    ) -> Iterator[tuple[str, Stamp, tuple[str, dict[str, Any]] | None]]:
        """As `each`, for a caller that keeps what it has read: of each record its file's name, the file's stamp, key and value.

        Instead of key and value there is None where `read` has this stamp for the name: the file is the one that was read then.
        Only these `keys`, if they are given, in their order.
        """
        path = self._collection_path(collection)
        with Attempt(f"list the records of {collection!r} in", path):
            try:
                directory = self._open(path)
            except FileNotFoundError:
                return
            with directory:
                names = self._list(directory) if keys is None else (encode_name(key, SUFFIX) for key in keys)
                for name in names:
                    stamp = directory.stamp(name)  # before it is read: a file that is replaced in between is read again
                    if stamp and read.get(name) == stamp:
                        yield name, stamp, None
                    elif record := self._load_known(directory, collection, name):
                        yield name, stamp, record

    def names(self, collection: str) -> frozenset[str]:
        """Return the names of the files of all records, which are not read: equal keys have equal names in every collection."""
        path = self._collection_path(collection)
        with Attempt(f"list the names of the records of {collection!r} in", path):
            try:
                directory = self._open(path)
            except FileNotFoundError:
                return frozenset()
            with directory:
                return frozenset(self._list(directory))

    def stamp(self, collection: str) -> Stamp:
        """Return a stamp that changes whenever a record of the collection is stored, replaced or removed; empty where that cannot
        be told. It does not change when a file is written in place, which no store does.
        """
        path = self._collection_path(collection)
        with Attempt(f"look at the records of {collection!r} in", path):
            return stamp_of(path)

    def has(self, collection: str, key: str) -> bool:
        """Whether a file is in the place of that record; its content is not read."""
        path, name = self._locate(collection, key)
        with Attempt(f"look for the record of {key!r} in", f"{path}/{name}"):
            try:
                os.stat(f"{path}/{name}", follow_symlinks=False)
            except FileNotFoundError:
                return False
        return True

    def find(self, collection: str, keys: Iterable[str]) -> list[str]:
        """Those of the keys for which a file is in the place of their record, in their order; no content is read."""
        path = self._collection_path(collection)
        with Attempt("look for records in", path):
            try:
                directory = self._open(path)
            except FileNotFoundError:
                return []
            with directory:
                return [key for key in keys if directory.has(encode_name(key, SUFFIX))]

    def drop(self, collection: str, key: str, *, durable: bool = True) -> None:
        """Remove the record of `key`; after a power cut it may be back unless `durable`. An absent record is no error."""
        path, name = self._locate(collection, key)
        with Attempt(f"remove the record of {key!r} in", f"{path}/{name}", "it may still be there"):
            try:
                directory = self._open(path)
            except FileNotFoundError:
                return
            with directory:
                try:
                    directory.remove(name, durable=durable)
                except IsADirectoryError:
                    with contextlib.suppress(Newer):
                        self._load(directory, collection, name)

    def clear(self, collection: str) -> None:
        """Remove all files of the collection without reading them; not durably."""
        path = self._collection_path(collection)
        with Attempt(f"clear the records of {collection!r} in", path):
            try:
                directory = self._open(path)
            except FileNotFoundError:
                return
            with directory:
                directory.lock(fcntl.LOCK_EX, PATIENCE)
                for name in directory.names():
                    with contextlib.suppress(IsADirectoryError):  # it is foreign; the next listing moves it aside
                        directory.remove(name, durable=False)

    def flush(self, collection: str) -> None:
        """Make earlier drops durable: records dropped before this call stay removed after a power cut."""
        path = self._collection_path(collection)
        with Attempt(f"flush the records of {collection!r} in", path):
            try:
                directory = self._open(path)
            except FileNotFoundError:
                return
            with directory:
                directory.flush()

    def quarantine(self, collection: str, key: str, reason: str) -> None:
        """Move the record of `key` aside because its reader cannot use it. `reason` goes into the warning."""
        path, name = self._locate(collection, key)
        with Attempt(f"move aside the record of {key!r} in", f"{path}/{name}"):
            try:
                directory = self._open(path)
            except FileNotFoundError:
                return
            with directory:
                directory.lock(fcntl.LOCK_EX, quarantine.PATIENCE)
                label = f"{encode_name(collection)}-{name}"
                quarantine.move_aside(self._root, directory, name, label, lambda text: self._warn(f"{text}: {reason}"))

    def lock(self, name: str, timeout: float) -> Lock:
        """Take the lock `name`, waiting up to `timeout` seconds. Raises `LockTimeout` naming the lock and its holder."""
        return take_lock(self._lock_dir, name, timeout, self._gates)

    def try_lock(self, name: str) -> Lock | None:
        try:
            return take_lock(self._lock_dir, name, 0.0, self._gates)
        except LockTimeout:
            return None

    def _collection_path(self, collection: str) -> str:
        """Return the directory of the collection. Raises `ValueError` for a name that means something else in the root."""
        if collection in RESERVED:
            raise ValueError(f"{collection!r} cannot be the name of a collection")
        return f"{self._root}/{encode_name(collection)}"

    def _locate(self, collection: str, key: str) -> tuple[str, str]:
        """Return the directory and the file name of a record."""
        return self._collection_path(collection), encode_name(key, SUFFIX)

    def _open(self, path: str, *, create: bool = False) -> StoreDirectory:
        """Open a directory of the store; the first call closes the root to other users."""
        self._check_mode()
        return StoreDirectory(path, create=create)

    def _check_mode(self) -> None:
        if not self._mode_checked:
            self._close_root()

    def _close_root(self) -> None:
        """Close the root to other users: records can hold what pods must not see.

        A directory that holds other files than ours is refused: a typo must not change the mode of /tmp.
        """
        try:
            facts = os.stat(self._root)
        except FileNotFoundError:
            return
        mode = stat.S_IMODE(facts.st_mode)
        if not mode & 0o077 or not stat.S_ISDIR(facts.st_mode):
            self._mode_checked = True
            return
        names = os.listdir(self._root)  # noqa: PTH208
        if names and IDENTITY not in names:
            raise StoreError(
                f"{self._root} is open to others (mode {mode:04o}) and holds what is not of this store: name another"
            )
        self._mode_checked = True
        try:
            os.chmod(self._root, 0o700)
        except OSError as error:
            self._report(f"{self._root} is open to others (mode {mode:04o}) and could not be closed: {error.strerror}")
        else:
            self._report(f"{self._root} was open to others (mode {mode:04o}) and is 0700 now")

    def _report(self, message: str) -> None:
        """Warn in one line, even when a foreign file's name holds line breaks."""
        self._warn("".join(char if char.isprintable() else ascii(char)[1:-1] for char in message))

    def _replace(self, path: str, name: str, data: bytes, *, durable: bool) -> None:
        with self._open(path, create=True) as directory:
            directory.lock(fcntl.LOCK_SH, PATIENCE)
            directory.replace(name, data, durable=durable)

    def _list(self, directory: StoreDirectory) -> list[str]:
        """Return the names of all files that should be records, and sweep the temporary files of dead processes."""
        try:
            directory.lock(fcntl.LOCK_EX, LISTING_PATIENCE)
        except OSError:
            names = {*directory.names(), *directory.names()}  # writers do not pause: the second listing has what the first missed
        else:
            directory.sweep()
            names = set(directory.names())
            directory.unlock()
        return sorted(name for name in names if not name.startswith("."))  # editors and NFS leave hidden files too

    def _get(self, path: str, collection: str, name: str) -> tuple[str, dict[str, Any]] | None:
        """As `_load_from`, which opens the directory first, only where the file is no record: an ADD asks for files that are not
        there, and in a process of many threads a system call costs more than its own time."""
        self._check_mode()
        try:
            return _decoded(name, read_regular(f"{path}/{name}"))
        except FileNotFoundError:
            return None
        except Foreign:
            return self._load_from(path, collection, name)

    def _load_from(self, path: str, collection: str, name: str) -> tuple[str, dict[str, Any]] | None:
        """Call `_load` on a directory that may be missing."""
        try:
            directory = self._open(path)
        except FileNotFoundError:
            return None
        with directory:
            return self._load(directory, collection, name)

    def _load_known(self, directory: StoreDirectory, collection: str, name: str) -> tuple[str, dict[str, Any]] | None:
        """Call `_load`; None, and a warning, for the record of a newer version."""
        try:
            return self._load(directory, collection, name)
        except Newer as schema:
            self._report(f"{directory.path}/{name} is left out: a newer version wrote it (schema {schema}): upgrade this one")
            return None

    def _load(self, directory: StoreDirectory, collection: str, name: str) -> tuple[str, dict[str, Any]] | None:
        """Return key and value of the file `name`; None when it is absent, or is no record and therefore moved aside."""
        try:
            return self._read(directory, name)
        except FileNotFoundError:
            return None
        except Foreign as reason:
            finding = str(reason)
        try:
            directory.lock(fcntl.LOCK_EX, quarantine.PATIENCE)
        except OSError as error:
            self._report(f"{directory.path}/{name} {finding}; it is ignored and left in place: {error.strerror}")
            return None
        try:
            # Read again, now that no process can write: a good record may have replaced the file and must not be moved.
            return self._read(directory, name)
        except FileNotFoundError:
            return None
        except Foreign as reason:
            finding = str(reason)
            label = f"{encode_name(collection)}-{name}"
            quarantine.move_aside(self._root, directory, name, label, lambda text: self._report(f"{text}: the file {finding}"))
            return None
        finally:
            directory.unlock()

    def _read(self, directory: StoreDirectory, name: str) -> tuple[str, dict[str, Any]]:
        """Return key and value of a record. Raises `Foreign` when the file is no record, or the record of another name."""
        if not name.endswith(SUFFIX):
            raise Foreign("has not the name of a record")
        return _decoded(name, directory.read(name))

    def _read_identity(self, root: StoreDirectory) -> str:
        """Return the identity on disk, or "" when there is none or it is torn."""
        try:
            return parse_identity(root.read(IDENTITY))
        except (FileNotFoundError, Foreign):
            return ""

    def _make_identity(self, root: StoreDirectory) -> str:
        """Return the identity, made or flushed as needed. The caller holds the root exclusively, so there is one maker."""
        try:
            found = parse_identity(root.read(IDENTITY))
            os.fsync(root.fd)  # before the sweep, which removes the second name: with one name readers take it for flushed
            root.sweep()
            return found
        except FileNotFoundError:
            root.sweep()
        except Foreign as reason:
            finding = str(reason)
            quarantine.move_aside(
                self._root, root, IDENTITY, IDENTITY, lambda text: self._report(f"{text}: the file {finding}: a new one is made")
            )
        made = os.urandom(16).hex()
        root.create(IDENTITY, f"{made}\n".encode("ascii"))
        return made


def parse_identity(raw: bytes) -> str:
    """Return the identity that a file's content `raw` holds. Raises `Foreign`."""
    text = raw.removesuffix(b"\n")
    if len(text) != 32 or text.strip(b"0123456789abcdef"):
        raise Foreign("does not hold 32 hex digits")
    return text.decode("ascii")


def _decoded(name: str, data: bytes) -> tuple[str, dict[str, Any]]:
    """Return key and value of the record in the file of this name. Raises `Foreign` for that of another name, or none."""
    key, value = decode_record(data)
    if encode_name(key, SUFFIX) != name:
        raise Foreign(f"holds the record of {key!r}")
    return key, value
