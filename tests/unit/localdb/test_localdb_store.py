"""What the store promises about records: whole or old, on disk when it says so, and unharmed by foreign files."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from localdb import Store, StoreError
from localdb.atomic_files import Stamp, StoreDirectory
from tests.lab.switch.switch import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

CONTAINER = "0123456789abcdef" * 4
RECORD = {"container": CONTAINER, "ports": [{"name": "vhu0", "mtu": 1500}], "netns": None}


class Bench:
    """A store in its own directory, and what it warned about."""

    def __init__(self, base: Path) -> None:
        """Make nothing on disk yet."""
        self.warnings: list[str] = []
        self.base = base
        self.store = Store(base / "root", base / "locks", warn=self.warnings.append)

    def file(self, key: str = "k", collection: str = "c") -> Path:
        """Return where the record of an ordinary key lies."""
        return self.store.root / collection / f"{key}.json"

    def quarantined(self) -> list[str]:
        """Return the names in the quarantine."""
        place = self.store.root / "quarantine"
        return sorted(path.name for path in place.iterdir()) if place.exists() else []

    def leftovers(self) -> list[str]:
        """Return the temporary files anywhere."""
        return [str(path) for path in self.base.rglob(".*")]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Return a bench in the test's own directory."""
    return Bench(tmp_path)


def mode_of(path: Path) -> int:
    """Return the permission bits."""
    return stat.S_IMODE(path.stat().st_mode)


# Round trips


def test_a_record_comes_back_as_it_was_put(bench: Bench) -> None:
    """A value put under a key is what get and items return, also to another Store on the same directory."""
    bench.store.put("attachments", f"{CONTAINER}-net1", RECORD)
    other = Store(bench.store.root, bench.base / "locks")
    assert other.get("attachments", f"{CONTAINER}-net1") == RECORD
    assert other.items("attachments") == [(f"{CONTAINER}-net1", RECORD)]


def test_absent_is_none_and_makes_nothing(bench: Bench) -> None:
    """Reading and dropping what is not there answers quietly and leaves no directory behind."""
    assert bench.store.get("c", "k") is None
    assert bench.store.items("c") == []
    bench.store.drop("c", "k")
    assert list(bench.base.iterdir()) == []


def test_constructing_touches_nothing(tmp_path: Path) -> None:
    """A Store can be made for a directory that cannot exist; only its use fails."""
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "root", tmp_path / "locks")
    for use in (lambda: store.get("c", "k"), lambda: store.put("c", "k", {}), store.identity):
        with pytest.raises(StoreError, match="not a directory"):
            use()


def test_a_dangling_root_is_an_error(tmp_path: Path) -> None:
    """A root that is a symbolic link to nowhere is reported, not made and not followed for ever."""
    (tmp_path / "root").symlink_to("nowhere")
    store = Store(tmp_path / "root", tmp_path / "locks")
    assert store.get("c", "k") is None
    with pytest.raises(StoreError, match="No such file"):
        store.put("c", "k", {})


def test_put_replaces_and_drop_removes(bench: Bench) -> None:
    """The last put wins, and after drop the key is absent while its neighbours stay."""
    bench.store.put("c", "k", {"n": 1})
    bench.store.put("c", "k", {"n": 2})
    bench.store.put("c", "l", {"n": 3})
    assert bench.store.get("c", "k") == {"n": 2}
    bench.store.drop("c", "k")
    assert bench.store.items("c") == [("l", {"n": 3})]


def test_each_record_is_read_when_it_is_asked_for(bench: Bench) -> None:
    """A long list of records is never in memory at once: one that is dropped before its turn does not come."""
    keys = {"a", "b", "c"}
    for key in keys:
        bench.store.put("c", key, {})
    listed = bench.store.each("c")
    first, _ = next(listed)
    for key in keys - {first}:
        bench.store.drop("c", key)
    assert list(listed) == []


def test_items_are_sorted_by_key_not_by_file_name(bench: Bench) -> None:
    """Keys sort as strings although their escaped file names would sort otherwise."""
    keys = ["b", "a/b", "a", "é", "a-"]
    for key in keys:
        bench.store.put("c", key, {})
    assert [key for key, _ in bench.store.items("c")] == sorted(keys)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("plain-1.2_3@x", "plain-1.2_3@x.json"),
        ("a/b", "a%2Fb.json"),
        ("..", "%2E..json"),
        (".hidden", "%2Ehidden.json"),
        ("", "%.json"),
        ("%", "%25.json"),
        ("a%2Fb", "a%252Fb.json"),
        ("\0\n", "%00%0A.json"),
        ("é", "%C3%A9.json"),
        ("\udc80", "%ED%B2%80.json"),
    ],
)
def test_file_names_are_safe_and_readable(bench: Bench, key: str, name: str) -> None:
    """A key becomes its own name with everything outside the safe set percent-encoded."""
    bench.store.put("c", key, {"key": key})
    assert [path.name for path in (bench.store.root / "c").iterdir()] == [name]
    assert bench.store.items("c") == [(key, {"key": key})]


def test_long_keys_get_short_distinct_names(bench: Bench) -> None:
    """Keys too long for a file name keep a readable beginning and never share a file."""
    keys = sorted(["x" * 5000, "x" * 4999 + "y", "x" * 195, "x" * 196, "/" * 66])
    for key in keys:
        bench.store.put("c", key, {"size": len(key)})
    names = [path.name for path in (bench.store.root / "c").iterdir()]
    assert len(names) == len(keys)
    assert max(len(name) for name in names) <= 200
    assert [key for key, _ in bench.store.items("c")] == keys


def test_collections_are_as_safe_as_keys(bench: Bench) -> None:
    """A collection name cannot leave the root, and the root's own names are refused."""
    for collection in ("../c", "..", "", "c" * 300):
        bench.store.put(collection, "k", {"in": collection})
        assert bench.store.get(collection, "k") == {"in": collection}
    assert [path.name for path in bench.base.iterdir()] == ["root"]
    for collection in ("quarantine", "identity"):
        with pytest.raises(ValueError, match="collection"):
            bench.store.put(collection, "k", {})


def test_undecodable_bytes_survive(bench: Bench) -> None:
    """Lone surrogates, as Python gives for undecodable file names, come back in keys and values; the file stays ASCII."""
    text = os.fsdecode(b"/run/\xff\xfe-\xc3\xa9")
    bench.store.put("c", text, {text: [text, "\ud800x"]})
    assert bench.store.items("c") == [(text, {text: [text, "\ud800x"]})]
    (path,) = (bench.store.root / "c").iterdir()
    assert path.read_bytes().isascii()


def test_the_file_is_the_documented_envelope(bench: Bench) -> None:
    """The file holds schema, key and value, sorted, in one line that people can read with any JSON tool."""
    bench.store.put("c", "k", {"b": 1, "a": "é"})
    assert bench.file().read_bytes() == b'{"key": "k", "schema": 1, "value": {"a": "\\u00e9", "b": 1}}\n'


NESTED: dict[str, Any] = {}
_inner = NESTED
for _ in range(200):
    _inner["in"] = {}
    _inner = _inner["in"]


@pytest.mark.parametrize(
    "value",
    [
        {"x": float("nan")},
        {"x": [float("inf")]},
        {"x": b"bytes"},
        {"x": {1: "number as a key"}},
        {"x": {2, 3}},
        {"x": "\ud800\udc00"},
        {"x" * 2: {"\ud800\udc00": 1}},
        {"x": "y" * (17 << 20)},
        NESTED,
    ],
    ids=["nan", "infinity", "bytes", "number key", "set", "split pair", "split pair key", "huge", "deep"],
)
def test_what_json_cannot_carry_is_refused(bench: Bench, value: dict[str, Any]) -> None:
    """A value that would not come back as it went in is the caller's error, and the old value stays."""
    bench.store.put("c", "k", RECORD)
    with pytest.raises(ValueError, match=r"."):
        bench.store.put("c", "k", value)
    assert bench.store.get("c", "k") == RECORD
    with pytest.raises(ValueError, match="surrogate"):
        bench.store.put("c", "\ud800\udc00", {})


def test_tuples_come_back_as_lists(bench: Bench) -> None:
    """A tuple is taken for the list it becomes in JSON."""
    bench.store.put("c", "k", {"steps": ({"a": 1},)})
    assert bench.store.get("c", "k") == {"steps": [{"a": 1}]}


# Durability and permissions


class Recorder:
    """Notes the system calls that make a change durable, by the path each descriptor stood for, and still makes them."""

    def __init__(self, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self._base = base
        for name in ("fsync", "replace", "mkdir", "unlink", "link"):
            monkeypatch.setattr(os, name, self._wrap(name, getattr(os, name)))

    def _wrap(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(target: int | str, *args: object, **kwargs: object) -> object:
            self.calls.append(f"{name} {self._describe(target)}")
            return real(target, *args, **kwargs)

        return call

    def _describe(self, target: int | str) -> str:
        path = Path(f"/proc/self/fd/{target}").readlink() if isinstance(target, int) else Path(target)
        if path.name.startswith(".localdb-"):
            return "temporary"
        return str(path.relative_to(self._base)) if path.is_absolute() else str(path)


def test_put_flushes_file_then_renames_then_flushes_directory(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each new directory is flushed into its parent, the content before the rename, and the rename itself after it."""
    recorder = Recorder(bench.base, monkeypatch)
    bench.store.put("c", "k", {})
    write = ["fsync temporary", "replace temporary", "fsync root/c"]
    assert recorder.calls == ["mkdir root/c", "mkdir root", "fsync .", "mkdir root/c", "fsync root", *write]
    recorder.calls.clear()
    bench.store.put("c", "k", {"n": 1})
    assert recorder.calls == write


def test_drop_flushes_even_when_another_removed_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory is flushed after a removal, also when the file was gone: its remover may have died before its flush."""
    bench.store.put("c", "k", {})
    recorder = Recorder(bench.base, monkeypatch)
    bench.store.drop("c", "k")
    bench.store.drop("c", "k")
    assert recorder.calls == ["unlink k.json", "fsync root/c"] * 2


def test_a_file_that_moves_aside_has_two_names_before_it_has_one(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The quarantine is flushed before the directory that the file leaves: a power cut between the two loses no file."""
    bench.store.put("c", "k", {})
    recorder = Recorder(bench.base, monkeypatch)
    bench.store.quarantine("c", "k", "unreadable")
    assert recorder.calls[-2:] == ["fsync root/quarantine", "fsync root/c"]


def test_identity_is_flushed_before_it_has_one_name(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The identity keeps its second name until the directory is flushed, so no reader takes one that may be lost."""
    bench.store.root.mkdir(0o700)
    recorder = Recorder(bench.base, monkeypatch)
    bench.store.identity()
    assert recorder.calls == ["fsync temporary", "link temporary", "fsync root", "unlink temporary"]


def test_everything_is_closed_to_others(bench: Bench) -> None:
    """Directories are 0700 and files 0600, whatever the umask allows."""
    old = os.umask(0)
    try:
        bench.store.put("c", "k", {})
        bench.store.identity()
        bench.file("bad").write_text("{")
        bench.store.get("c", "bad")
        with bench.store.lock("l", 0):
            modes = {str(path.relative_to(bench.base)): mode_of(path) for path in bench.base.rglob("*")}
    finally:
        os.umask(old)
    modes.pop("root/quarantine/c-bad.json.1")  # ours only by rename
    directories = {"root", "root/c", "root/quarantine", "locks"}
    assert {path for path, mode in modes.items() if mode == 0o700} == directories
    assert {path for path, mode in modes.items() if mode == 0o600} == {"root/c/k.json", "root/identity", "locks/bytes"}
    assert len(modes) == 7


def test_a_root_open_to_others_is_closed(bench: Bench) -> None:
    """A root that others may enter is tightened to 0700 at first use, with one warning."""
    bench.store.root.mkdir()
    bench.store.root.chmod(0o755)
    bench.store.get("c", "k")
    bench.store.get("c", "k")
    assert mode_of(bench.store.root) == 0o700
    assert len(bench.warnings) == 1
    assert "0755" in bench.warnings[0]


def test_a_root_that_cannot_be_closed_is_only_warned_about(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the mode cannot be changed, the store warns and goes on."""
    bench.store.root.mkdir()
    bench.store.root.chmod(0o750)
    monkeypatch.setattr(os, "chmod", refuse(errno.EROFS))
    assert bench.store.get("c", "k") is None
    assert "could not be closed" in bench.warnings[0]


def refuse(number: int) -> Callable[..., Any]:
    """Make a system call that fails with the given errno."""

    def call(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return call


@pytest.mark.parametrize(
    ("call", "number"),
    [
        ("write", errno.ENOSPC),
        ("fsync", errno.EIO),
        ("replace", errno.EROFS),
        ("open", errno.EACCES),
    ],
)
def test_a_failed_put_leaves_the_old_value_and_no_temporary_file(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    """When the disk is full, broken, read-only or closed, put says which path and why, and nothing has changed."""
    bench.store.put("c", "k", RECORD)
    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse(number))
        with pytest.raises(StoreError, match=os.strerror(number)) as caught:
            bench.store.put("c", "k", {"n": 2})
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == number
    assert str(bench.file()) in str(caught.value)
    assert bench.store.get("c", "k") == RECORD
    assert bench.leftovers() == []


def test_a_half_written_file_is_continued(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the kernel takes only part of the bytes at a time, the record is still whole."""
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:7]))
    bench.store.put("c", "k", RECORD)
    assert bench.store.get("c", "k") == RECORD


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
def test_an_unreadable_disk_is_an_error_not_an_absence(bench: Bench, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """A record that cannot be read must not look absent: callers would undo what it stands for."""
    bench.store.put("c", "k", RECORD)
    with monkeypatch.context() as patch:
        patch.setattr(os, "read", refuse(number))
        for use in (lambda: bench.store.get("c", "k"), lambda: bench.store.items("c")):
            with pytest.raises(StoreError, match=os.strerror(number)):
                use()
    assert bench.quarantined() == []


# Quarantine

TORN = {
    "empty": b"",
    "half": b'{"key": "k", "schema": 1, "val',
    "zeros": bytes(64),
    "binary": bytes(range(256)),
    "not an object": b"[1]",
    "no schema": b'{"key": "k", "value": {}}',
    "true schema": b'{"key": "k", "schema": true, "value": {}}',
    "zero schema": b'{"key": "k", "schema": 0, "value": {}}',
    "text schema": b'{"key": "k", "schema": "2", "value": {}}',
    "no key": b'{"schema": 1, "value": {}}',
    "other key": b'{"key": "other", "schema": 1, "value": {}}',
    "no value": b'{"key": "k", "schema": 1}',
    "list value": b'{"key": "k", "schema": 1, "value": []}',
    "nan": b'{"key": "k", "schema": 1, "value": {"x": NaN}}',
    "deep": b"[" * 100_000,
    "long number": b"1" * 10_000,
    "utf-16": '{"key": "k", "schema": 1, "value": {}}'.encode("utf-16"),
}


@pytest.mark.parametrize("content", TORN.values(), ids=TORN.keys())
@pytest.mark.parametrize("reader", ["get", "items"])
def test_a_torn_file_is_moved_aside_once(bench: Bench, content: bytes, reader: str) -> None:
    """What is not the whole record of its name is moved to the quarantine unchanged, warned about, and absent from then on."""
    bench.store.put("c", "neighbour", RECORD)
    bench.file().write_bytes(content)
    if reader == "get":
        assert bench.store.get("c", "k") is None
    assert bench.store.items("c") == [("neighbour", RECORD)]
    assert bench.quarantined() == ["c-k.json.1"]
    assert (bench.store.root / "quarantine" / "c-k.json.1").read_bytes() == content
    assert len(bench.warnings) == 1
    assert str(bench.file()) in bench.warnings[0]
    assert "c-k.json.1" in bench.warnings[0]
    bench.store.put("c", "k", {"n": 1})
    assert bench.store.get("c", "k") == {"n": 1}


def test_quarantine_never_overwrites(bench: Bench) -> None:
    """Files of the same label get the next free number, also when two collections share a label."""
    for content in ("one", "two"):
        bench.store.put("a", "b-c", {})
        bench.file("b-c", "a").write_text(content)
        assert bench.store.get("a", "b-c") is None
    bench.store.put("a-b", "c", {})
    bench.file("c", "a-b").write_text("three")
    assert bench.store.get("a-b", "c") is None
    place = bench.store.root / "quarantine"
    assert [(place / f"a-b-c.json.{n}").read_text() for n in (1, 2, 3)] == ["one", "two", "three"]


def make_directory(path: Path) -> None:
    path.mkdir()
    (path / "inside").write_text("kept")


def make_giant(path: Path) -> None:
    """Make a file larger than any record, without using its space."""
    path.touch()
    os.truncate(path, 1 << 34)


def make_socket(path: Path) -> None:
    """Bind a socket and leave it behind. By a relative path, for socket paths are short."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(path))


ODD: dict[str, Callable[[Path], Any]] = {
    "directory": make_directory,
    "fifo": os.mkfifo,
    "socket": make_socket,
    "symlink to a record": lambda path: path.symlink_to(path.parent / "real.json"),
    "dangling symlink": lambda path: path.symlink_to("nowhere"),
    "symlink loop": lambda path: path.symlink_to(path.name),
    "sparse giant": make_giant,
}


@pytest.mark.parametrize("make", ODD.values(), ids=ODD.keys())
@pytest.mark.parametrize("use", ["get", "items", "put", "drop"])
def test_what_is_not_a_file_is_moved_aside(bench: Bench, make: Callable[[Path], Any], use: str) -> None:
    """Links, directories, FIFOs, sockets and giants in a record's place are neither followed nor read, and stop nothing."""
    bench.store.put("c", "real", RECORD)
    make(bench.file())
    found = os.lstat(bench.file())
    match use:
        case "get":
            assert bench.store.get("c", "k") is None
        case "items":
            assert bench.store.items("c") == [("real", RECORD)]
        case "put":
            bench.store.put("c", "k", {"n": 1})
            assert bench.store.get("c", "k") == {"n": 1}
        case "drop":
            bench.store.drop("c", "k")
            assert not os.path.lexists(bench.file())
    if use in ("get", "items") or stat.S_ISDIR(found.st_mode):
        moved = os.lstat(bench.store.root / "quarantine" / "c-k.json.1")
        assert (moved.st_ino, moved.st_mode) == (found.st_ino, found.st_mode)
        assert len(bench.warnings) == 1
    assert bench.store.get("c", "real") == RECORD


@pytest.mark.parametrize("name", ["README", "k.json.bak", "K%2f.json", "n" * 255, os.fsdecode(b"\xff\xfe"), "new\nline"])
def test_foreign_names_are_moved_aside_by_items(bench: Bench, name: str) -> None:
    """A file whose name no key has is moved aside whole, however long or odd the name, and the warning is one line."""
    bench.store.put("c", "k", RECORD)
    (bench.store.root / "c" / name).write_text("mine")
    assert bench.store.items("c") == [("k", RECORD)]
    (moved,) = bench.quarantined()
    assert moved.startswith(f"c-{name[:50]}")
    assert (bench.store.root / "quarantine" / moved).read_text() == "mine"
    assert "\n" not in bench.warnings[0]
    assert bench.store.items("c") == [("k", RECORD)]
    assert len(bench.warnings) == 1


def test_a_record_under_another_name_is_moved_aside(bench: Bench) -> None:
    """A copy of a record under a second name is not taken for a second record."""
    bench.store.put("c", "k", RECORD)
    bench.file("copy").write_bytes(bench.file().read_bytes())
    assert bench.store.items("c") == [("k", RECORD)]
    assert bench.quarantined() == ["c-copy.json.1"]


def test_a_file_that_cannot_be_moved_is_ignored_in_place(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a read-only filesystem each read warns about a torn file, and the store goes on."""
    bench.store.put("c", "k", RECORD)
    bench.file("torn").write_text("{")
    monkeypatch.setattr(os, "rename", refuse(errno.EROFS))
    assert bench.store.get("c", "torn") is None
    assert bench.store.items("c") == [("k", RECORD)]
    assert bench.file("torn").read_text() == "{"
    assert len(bench.warnings) == 2
    assert "could not be moved" in bench.warnings[0]


def test_a_good_record_that_came_in_place_of_a_torn_one_is_not_moved(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between finding a torn file and moving it a writer may replace it: the new record is returned, not quarantined."""
    bench.store.put("c", "k", {})
    bench.file().write_text("{")
    real = fcntl.flock

    def flock(fd: int, operation: int) -> None:
        if operation & fcntl.LOCK_EX and bench.file().read_text() == "{":
            bench.store.put("c", "k", RECORD)
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    assert bench.store.get("c", "k") == RECORD
    assert bench.quarantined() == []


def test_a_newer_record_is_neither_read_nor_moved(bench: Bench) -> None:
    """A record of a newer version stays where it is: get says to upgrade, items leaves it out with a warning."""
    bench.store.put("c", "k", RECORD)
    content = json.dumps({"schema": 2, "shape": "unknown here"})
    bench.file("new").write_text(content)
    with pytest.raises(StoreError, match=r"newer version wrote it \(schema 2\): upgrade"):
        bench.store.get("c", "new")
    assert bench.store.items("c") == [("k", RECORD)]
    assert len(bench.warnings) == 1
    assert "upgrade" in bench.warnings[0]
    assert bench.file("new").read_text() == content
    assert bench.quarantined() == []


# What has been read before


def stamps_of(bench: Bench) -> dict[str, Stamp]:
    """The stamps of all files of the collection `c`, once they are settled."""

    def settled() -> dict[str, Stamp]:
        found = {name: stamp for name, stamp, _ in bench.store.each_changed("c", {})}
        return found if all(found.values()) else {}

    stamps: dict[str, Stamp] = wait_until(settled, what="stamps of files that are old enough")
    return stamps


def test_which_of_many_keys_have_a_record(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that have one are told in the order in which they are asked for, and none is read."""
    assert bench.store.find("c", ["a"]) == []
    for key in ("b", "d/e", "a"):
        bench.store.put("c", key, RECORD)
    monkeypatch.setattr(StoreDirectory, "read", _unexpected)
    assert bench.store.find("c", iter(["a", "x", "d/e", "b"])) == ["a", "d/e", "b"]


def test_what_has_not_changed_is_not_read_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of files with the stamps of an earlier listing none is opened; those that were replaced, removed or are new are told."""
    for key in "abc":
        bench.store.put("c", key, {"n": 1})
    read = stamps_of(bench)
    with monkeypatch.context() as patch:
        patch.setattr(StoreDirectory, "read", _unexpected)
        assert [(name, found) for name, _, found in bench.store.each_changed("c", read)] == [
            (f"{key}.json", None) for key in "abc"
        ]
        assert [name for name, _, _ in bench.store.each_changed("c", read, ["c", "a"])] == ["c.json", "a.json"]
    Store(bench.store.root, bench.base / "locks").put("c", "b", {"n": 2}, durable=False)
    bench.store.drop("c", "c")
    bench.store.put("c", "d", {"n": 3})
    assert [found for _, _, found in bench.store.each_changed("c", read)] == [None, ("b", {"n": 2}), ("d", {"n": 3})]
    assert [found for _, _, found in bench.store.each_changed("c", read, ["c", "b"])] == [("b", {"n": 2})]


def test_a_file_of_this_moment_has_no_stamp(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It could be replaced twice within one tick of the clock and look the same: it is read again until it is older."""
    monkeypatch.setattr("localdb.atomic_files.SETTLED_NS", 3600 * 10**9)
    bench.store.put("c", "k", RECORD)
    read = {name: stamp for name, stamp, _ in bench.store.each_changed("c", {})}
    assert read == {"k.json": ()}
    assert [found for _, _, found in bench.store.each_changed("c", read)] == [("k", RECORD)]


def test_what_is_no_record_is_moved_aside_whoever_lists(bench: Bench) -> None:
    """A file that was a record at the last listing and is torn now is moved aside, and no record of the name is told."""
    bench.store.put("c", "k", RECORD)
    read = stamps_of(bench)
    bench.file("k").write_text("{")
    assert list(bench.store.each_changed("c", read)) == []
    assert len(bench.quarantined()) == 1


def _unexpected(*_arguments: object) -> bytes:
    raise AssertionError("a file was read")


# Temporary files


def test_temporary_files_of_the_dead_are_swept(bench: Bench) -> None:
    """A dead writer's temporary file is never read as a record, and the next listing removes it; other hidden files stay."""
    bench.store.put("c", "k", RECORD)
    place = bench.store.root / "c"
    (place / ".localdb-1-dead").write_text('{"half')
    (place / ".nfs0001").write_text("")
    assert bench.store.items("c") == [("k", RECORD)]
    assert sorted(path.name for path in place.iterdir()) == [".nfs0001", "k.json"]
    assert bench.warnings == []


def test_the_temporary_file_of_a_living_writer_is_left_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing in the middle of another process's put returns the old value and does not sweep the file being written."""
    bench.store.put("c", "k", {"n": 1})
    monkeypatch.setattr("localdb.store.LISTING_PATIENCE", 0.01)
    seen: list[object] = []
    real = os.replace

    def replace(source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        seen.append(Store(bench.store.root, bench.base / "locks").items("c"))
        real(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    monkeypatch.setattr(os, "replace", replace)
    bench.store.put("c", "k", {"n": 2})
    assert seen == [[("k", {"n": 1})]]
    assert bench.store.get("c", "k") == {"n": 2}


def test_a_listing_never_misses_a_record_being_replaced(bench: Bench) -> None:
    """While other threads replace and drop records without pause, every listing has all the keys that stay."""
    keys = [f"key{n}" for n in range(5)]
    for key in keys:
        bench.store.put("c", key, {"n": 0})
    stop = threading.Event()
    failures: list[BaseException] = []

    def write(mine: list[str], own: str) -> None:
        try:
            while not stop.is_set():
                for key in mine:
                    bench.store.put("c", key, {"n": 1})
                bench.store.put("c", own, {})
                bench.store.drop("c", own)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(keys[:2], "x")), threading.Thread(target=write, args=(keys[2:], "y"))]
    for thread in threads:
        thread.start()
    try:
        for _ in range(15):
            assert {key for key, _ in bench.store.items("c")} >= set(keys)
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert failures == []
    assert bench.warnings == []


def test_put_does_not_wait_for_ever(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """When another process keeps the directory locked, put gives up with an error that says so."""
    bench.store.put("c", "k", RECORD)
    monkeypatch.setattr("localdb.store.PATIENCE", 0.01)
    fd = os.open(bench.store.root / "c", os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        with pytest.raises(StoreError, match="busy in this directory"):
            bench.store.put("c", "k", {})
        assert bench.store.get("c", "k") == RECORD
    finally:
        os.close(fd)


# Identity


def test_identity_is_stable_and_differs_between_directories(bench: Bench, tmp_path: Path) -> None:
    """A directory has one identity of 32 hex digits, the same for every later Store, and another directory has another."""
    first = bench.store.identity()
    assert len(first) == 32
    assert int(first, 16) >= 0
    assert Store(bench.store.root, tmp_path / "other-locks").identity() == first == bench.store.identity()
    assert Store(tmp_path / "second", tmp_path / "locks").identity() != first
    assert bench.leftovers() == []


@pytest.mark.parametrize("content", [b"", b"0123", b"g" * 32, b"A" * 32, b"0" * 33, bytes(32), b"\xff" * 32])
def test_a_torn_identity_is_replaced(bench: Bench, content: bytes) -> None:
    """An identity file without 32 hex digits is moved aside with a warning, and a new identity is made once."""
    bench.store.root.mkdir(0o700)
    (bench.store.root / "identity").write_bytes(content)
    made = bench.store.identity()
    assert bench.store.identity() == made
    assert (bench.store.root / "quarantine" / "identity.1").read_bytes() == content
    assert len(bench.warnings) == 1


def test_an_identity_whose_maker_died_is_kept(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """An identity that still has its temporary name is flushed, rid of it and used as it is."""
    made = bench.store.identity()
    root = bench.store.root
    (root / ".localdb-1-dead").hardlink_to(root / "identity")
    recorder = Recorder(bench.base, monkeypatch)
    assert bench.store.identity() == made
    assert recorder.calls == ["fsync root", "unlink temporary"]
    assert [path.name for path in root.iterdir()] == ["identity"]


def test_two_first_users_get_the_same_identity(bench: Bench) -> None:
    """Processes that ask at the same time for the first time all get one answer."""
    script = "import sys; from localdb import Store; sys.stdin.read(1); print(Store(sys.argv[1], sys.argv[2]).identity())"
    command = [sys.executable, "-c", script, str(bench.store.root), str(bench.base / "locks")]
    racers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("x")
        racer.stdin.flush()
    answers = {racer.communicate(timeout=60)[0].strip() for racer in racers}
    assert answers == {bench.store.identity()}


# Cost and defaults


def test_importing_stays_cheap(tmp_path: Path) -> None:
    """Importing the store and using it with ordinary keys brings in nothing a short-lived process should pay for."""
    script = (
        "import sys; before = set(sys.modules)\n"
        "import localdb; store = localdb.Store(sys.argv[1] + '/root', sys.argv[1] + '/locks')\n"
        "store.identity(); store.put('c', 'k' * 80, {}); store.get('c', 'k' * 80); store.items('c')\n"
        "store.lock('l', 0).release()\n"
        "print(*set(sys.modules) - before)"
    )
    answer = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(answer.stdout.split())
    assert "localdb.store" in loaded
    heavy = {"asyncio", "dataclasses", "hashlib", "inspect", "logging", "pathlib", "random", "socket", "subprocess", "tempfile"}
    assert loaded & heavy == set()


def test_warnings_go_to_stderr_by_default(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a `warn` of its own the store writes one line to stderr."""
    store = Store(tmp_path / "root", tmp_path / "locks")
    store.put("c", "k", {})
    (tmp_path / "root" / "c" / "k.json").write_text("{")
    assert store.get("c", "k") is None
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("localdb: ")
    assert captured.err.count("\n") == 1


def test_relative_directories_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store can be named relative to the working directory."""
    monkeypatch.chdir(tmp_path)
    store = Store("root", "locks")
    store.put("c", "k", RECORD)
    assert store.items("c") == [("k", RECORD)]
    assert store.root == Path("root")


def test_reader_may_quarantine(tmp_path: Path) -> None:
    """A record that is whole but makes no sense to its reader is moved aside, with the reason in the warning; absent is fine."""
    warnings: list[str] = []
    store = Store(tmp_path / "root", tmp_path / "locks", warn=warnings.append)
    store.put("things", "a", {"x": 1})
    store.quarantine("things", "a", "it has no wheels")
    store.quarantine("things", "never", "nothing there")
    assert store.get("things", "a") is None
    assert [path.name for path in (tmp_path / "root" / "quarantine").iterdir()] == ["things-a.json.1"]
    assert ["no wheels" in warning for warning in warnings] == [True]


def test_directory_of_others_is_refused(tmp_path: Path) -> None:
    """A root that is open to others and holds what is not of a store is refused, and keeps its mode."""
    root = tmp_path / "var"
    root.mkdir()
    root.chmod(0o755)
    (root / "foreign").touch()
    with pytest.raises(StoreError, match="name another"):
        Store(root, tmp_path / "locks").put("things", "a", {})
    assert root.stat().st_mode & 0o777 == 0o755
