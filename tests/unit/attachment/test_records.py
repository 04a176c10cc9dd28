"""Records and shared resources: what is written is what is read, and what cannot be read stops no call."""

from __future__ import annotations

import json
import os
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localdb import Store
from tests.lab.node.calls import call_plugin
from tests.lab.node.stored import live
from tests.lab.node.world import World
from userspace_cni.attachment.journal import Journal
from userspace_cni.attachment.records import (
    Record,
    record_from_json,
    record_key,
    record_to_json,
    step_from_json,
    step_to_json,
)
from userspace_cni.attachment.shared_holders import SharedHolders
from userspace_cni.attachment.steps import STEP_TYPES, Directory, OvsPort, Step, VhostUserClient
from userspace_cni.attachment.stored_form import MalformedRecord, form_of
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import RecordRefused, UserspaceError
from userspace_cni.node.drivers import MAKERS

CONTAINER = "0123456789abcdef"
DIRECTORY = f"directory:/pods/{CONTAINER[:12]}"

TEXT = st.text(max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Everything that an annotation of a step or record allows."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is types.UnionType:
        return st.one_of(*map(values_of, arguments))
    if origin is tuple:
        return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
    if origin is not None and issubclass(origin, Mapping):
        return st.dictionaries(TEXT, values_of(arguments[1]), max_size=3)
    if isinstance(hint, type) and is_dataclass(hint) and hint is not Step:
        return built(hint)
    plain = {
        str: TEXT,
        int: st.integers(),
        float: st.floats(0, 100),
        bool: st.booleans(),
        type(None): st.none(),
        Any: JSON,
        Step: STEPS,
    }
    return plain[hint]


def built(kind: type[Any]) -> st.SearchStrategy[Any]:
    """Every value of a dataclass; a field with a default has it in about half of them."""
    hints = typing.get_type_hints(kind)
    return st.deferred(lambda: st.builds(kind, **{each.name: field_of(each, hints[each.name]) for each in fields(kind)}))


def field_of(item: Field[Any], hint: Any) -> st.SearchStrategy[Any]:
    if item.default is not MISSING:
        return st.just(item.default) | values_of(hint)
    return values_of(hint)


STEPS: st.SearchStrategy[Step] = st.one_of(*map(built, MAKERS))
RECORDS: st.SearchStrategy[Record] = built(Record)


def through_json(value: Any) -> Any:
    """The value as it is read back from a file."""
    return json.loads(json.dumps(value))


@pytest.mark.parametrize("kind", MAKERS, ids=lambda kind: kind.__name__)
def test_step_round_trips(kind: type[Step]) -> None:
    """A step of every type comes back from JSON as it was, with its type."""

    @given(built(kind))
    def round_trips(step: Step) -> None:
        found = step_from_json(through_json(step_to_json(step)))
        assert found == step
        assert type(found) is kind

    round_trips()


@dataclass(frozen=True)
class Coin:
    """A dataclass with a field of each sort that steps have."""

    metal: Literal["gold", "silver"]
    value: int = 1
    weight: float = 0.5
    worn: bool = False
    year: int | None = None
    legend: str = ""


@dataclass(frozen=True)
class Note:
    """A second type beside `Coin`."""

    value: int = 5


@dataclass(frozen=True)
class Purse:
    """A dataclass with these in its fields."""

    first: Coin | Note
    lent: Coin | None = None
    others: tuple[Coin, ...] = ()
    sums: tuple[int, ...] = ()
    by_owner: Mapping[str, Coin] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)
    anything: Mapping[str, Any] = field(default_factory=dict)


@given(built(Purse))
def test_form_of_any_dataclass(purse: Purse) -> None:
    """A dataclass with dataclasses in it is read back as it was written, complete or without fields that have their defaults."""
    for whole in (False, True):
        assert form_of(Purse).read(through_json(form_of(Purse).write(purse, whole=whole))) == purse


def test_what_has_its_default_is_left_out() -> None:
    """A plain port's record is short, and a later field is read with its default."""
    port = OvsPort("br0", "c-net1", VhostUserClient("/pods/c/net1"))
    stored = {
        "step": "port",
        "bridge": "br0",
        "name": "c-net1",
        "interface": {"kind": "VhostUserClient", "server_path": "/pods/c/net1"},
    }
    assert (step_to_json(port), step_from_json(stored)) == (stored, port)
    assert {"step", *(each.name for each in fields(port))} == step_to_json(port, whole=True).keys()


@dataclass(frozen=True)
class Unstorable:
    """A field for which there is no stored form."""

    seen: set[str]


def test_a_type_without_a_stored_form() -> None:
    """Such a type is refused when its form is asked for, before anything is written."""
    with pytest.raises(TypeError, match="set"):
        form_of(Unstorable)


def test_kinds_are_distinct() -> None:
    """No two types of steps have the same kind."""
    assert set(MAKERS) <= set(STEP_TYPES.values())
    with pytest.raises(TypeError, match="'directory'"):

        class Another(Step):
            kind = Directory.kind


@given(RECORDS)
def test_record_round_trips(record: Record) -> None:
    """A record comes back from JSON as it was."""
    assert record_from_json(through_json(record_to_json(record))) == record


@given(RECORDS, st.data())
def test_record_with_one_wrong_value(record: Record, data: st.DataObject) -> None:
    """A record with any JSON as one of its values is either read or MalformedRecord."""
    raw = through_json(record_to_json(record))
    holder = data.draw(st.sampled_from([raw, *raw["steps"]]))
    holder[data.draw(st.sampled_from([*holder, "other"]))] = data.draw(JSON)
    try:
        found = record_from_json(raw)
    except MalformedRecord:
        return
    assert record_from_json(through_json(record_to_json(found))) == found


@given(st.dictionaries(TEXT | st.sampled_from(["schema", "state", "steps"]), JSON))
def test_any_object_is_a_record_or_malformed(raw: dict[str, Any]) -> None:
    """Any JSON object is either a record or MalformedRecord."""
    with pytest.raises(MalformedRecord):
        record_from_json(raw)


PORT = {"step": "port", "bridge": "b", "name": "n"}
DEEP: Any = []
for _ in range(900):
    DEEP = [DEEP]

GOOD: dict[str, Any] = {"schema": 1, "state": "ready", "network": "n", "container_id": "c", "ifname": "i", "steps": []}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"schema": 2}, "schema is 2"),
        ({"schema": True}, "schema is True"),
        ({"schema": 1.0}, "schema is 1.0"),
        ({"schema": []}, "schema is \\[\\]"),
        ({"state": "done"}, "Record.state is 'done'"),
        ({"state": []}, "Record.state"),
        ({"netns_inode": True}, "Record.netns_inode is True"),
        ({"netns_inode": 1.5}, "Record.netns_inode is 1.5"),
        ({"network": None}, "Record.network is None"),
        ({"network": DEEP}, "Record.network"),
        ({"colour": "red"}, "no field 'colour'"),
        ({"steps": {}}, "'steps' is not a list"),
        ({"steps": [1]}, "unknown step 1"),
        ({"steps": [{"step": "teleport"}]}, "unknown step 'teleport'"),
        ({"steps": [{"step": []}]}, "unknown step \\[\\]"),
        ({"steps": [{"step": DEEP}]}, "unknown step"),
        ({"steps": [{"step": "port"}]}, "missing"),
        ({"steps": [{"step": "port", "bridge": "b", "name": "n", "interface": {}}]}, "OvsPort.interface is {}"),
        ({"steps": [{**PORT, "interface": {"kind": "Modem"}}]}, "OvsPort.interface is {'kind': 'Modem'}"),
        ({"steps": [{**PORT, "interface": {"kind": "VhostUserClient", "server_path": 1}}]}, "VhostUserClient.server_path is 1"),
        ({"steps": [{**PORT, "interface": {"kind": "VhostUserClient"}}]}, "missing"),
        ({"steps": [{**PORT, "mirrors": [{"name": "m", "sideways": True}]}]}, "MirrorSource has no field 'sideways'"),
        ({"steps": [{"step": "lease", "plugin": "p", "stdin": "", "variables": {"A": 1}}]}, "Lease.variables"),
        ({"result": []}, "Record.result"),
    ],
)
def test_malformed_record(change: dict[str, Any], named: str) -> None:
    """The error names the field that is wrong."""
    with pytest.raises(MalformedRecord, match=named):
        record_from_json({**GOOD, **change})


@pytest.mark.parametrize("field", ["state", "network", "container_id", "ifname"])
def test_incomplete_record(field: str) -> None:
    """A record without a field that has no default is malformed."""
    with pytest.raises(MalformedRecord, match=field):
        record_from_json({key: value for key, value in GOOD.items() if key != field})


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Journal:
    """An empty journal that does not flush: nothing here is about power cuts."""
    monkeypatch.setattr(os, "fsync", lambda _fd: None)
    return Journal(f"{tmp_path}/state", str(tmp_path), lambda _text: None, lambda: "boot-1")


ENVELOPES = st.one_of(
    st.binary(max_size=40),
    JSON.map(json.dumps).map(str.encode),
    st.builds(
        lambda key, value: json.dumps({"schema": 1, "key": key, "value": value}).encode(),
        st.sampled_from(["c@i", "x@y", "a/b"]),
        st.dictionaries(st.sampled_from(["schema", "state", "steps", "made", "holders"]), JSON),
    ),
)


@given(ENVELOPES, ENVELOPES)
def test_journal_over_any_files(journal: Journal, record: bytes, resource: bytes) -> None:
    """Unreadable files in the places of records and resources read as none, without an error, and are replaced by writing."""
    state = Path(journal.directory)
    state.mkdir(mode=0o700, exist_ok=True)
    for collection, content in (("attachments", record), ("places", resource)):
        (state / collection).mkdir(parents=True, exist_ok=True)
        for name in ("c@i", "a%2Fb"):
            (state / collection / f"{name}.json").write_bytes(content)
    assert journal.read("c", "i") is None
    assert journal.read_shared("a/b") in (None, SharedHolders())
    assert journal.records() == []
    assert all(not shared.holders for _, shared in journal.places())
    good = record_from_json(GOOD)
    journal.write(good)
    assert journal.read("c", "i") == good
    journal.drop(good)


def test_record_in_anothers_place(journal: Journal) -> None:
    """A file with another attachment's record is moved aside: undoing it would remove the wrong attachment."""
    other = record_from_json({**GOOD, "container_id": "other"})
    Store(journal.directory, f"{journal.directory}-locks").put("attachments", record_key("c", "i"), record_to_json(other))
    assert journal.read("c", "i") is None
    assert journal.records() == []
    assert len(list((Path(journal.directory) / "quarantine").iterdir())) == 1


@pytest.mark.parametrize("text", ["\ud800\udc00", "x\ud83d\ude00"])
def test_record_that_json_cannot_hold(journal: Journal, text: str) -> None:
    """The journal refuses a value that would come back changed, with its own error."""
    with pytest.raises(RecordRefused):
        journal.write(Record("pending", "n", "c", "i", netns=text))


CALLS: dict[str, Callable[[Journal], object]] = {
    "identity": lambda journal: journal.identity(),
    "read": lambda journal: journal.read("c", "i"),
    "records": lambda journal: journal.records(),
    "write": lambda journal: journal.write(record_from_json(GOOD)),
    "drop": lambda journal: journal.drop(record_from_json(GOOD)),
    "shared": lambda journal: journal.read_shared("/x"),
    "write_shared": lambda journal: journal.write_shared("/x", SharedHolders(frozenset(), {"c@i": (Directory("/x", "/"),)})),
    "drop_shared": lambda journal: journal.write_shared("/x", SharedHolders()),
    "places": lambda journal: journal.places(),
    "try_turn_lock": lambda journal: journal.try_turn_lock("c@i"),
    "turn_lock": lambda journal: journal.turn_lock("c@i", Deadline.after(0.1)).__enter__(),
    "choice_lock": lambda journal: journal.choice_lock("c", Deadline.after(0.1)).__enter__(),
    "place_lock": lambda journal: journal.place_lock("/x", Deadline.after(0.1)).__enter__(),
}


@pytest.mark.parametrize("call", CALLS)
def test_directories_that_are_none(tmp_path: Path, call: str) -> None:
    """When files are in the place of the store's directories, every method fails with the package's own error."""
    for name in ("state", "locks"):
        (tmp_path / name).write_text("")
    with pytest.raises(UserspaceError):
        CALLS[call](Journal(f"{tmp_path}/state", str(tmp_path), print, lambda: "boot-1"))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def call(world: World, verb: str, ifname: str) -> int:
    """Exit code of one call for an interface of the one container."""
    environ = {"CNI_COMMAND": verb, "CNI_CONTAINERID": CONTAINER, "CNI_NETNS": "/run/netns/x", "CNI_IFNAME": ifname}
    return call_plugin(environ, lambda: b'{"cniVersion":"1.1.0","name":"n","type":"userspace"}', lambda: world).code


def holders_file(world: World) -> Path:
    [path] = live(world.directory, "places")
    return path


DAMAGE: dict[str, Callable[[Path], object]] = {
    "lost": Path.unlink,
    "torn": lambda path: path.write_bytes(path.read_bytes()[:40]),
    "empty": lambda path: path.write_bytes(b""),
    "foreign": lambda path: path.write_bytes(json.dumps({**json.loads(path.read_bytes()), "value": {"made": 1}}).encode()),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_holders_of_two(world: World, damage: str) -> None:
    """When a place's list of holders is damaged, no DEL fails, and none removes what others may still use."""
    assert call(world, "ADD", "net1") == 0
    assert call(world, "ADD", "net2") == 0
    shared = {name for name in world.true if name.startswith(("directory", "mount"))}
    DAMAGE[damage](holders_file(world))
    for ifname in ("net1", "net2"):
        assert call(world, "DEL", ifname) == 0
        assert shared <= world.true
    assert {name.partition(":")[0] for name in world.true} <= {"directory", "mount", "socket-file", "file"}
    assert (world.journal.records(), world.journal.places()) == ([], [])


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_holders_are_no_longer_ours(world: World, damage: str) -> None:
    """An attachment that finds the directory without its list of holders counts it as another program's, and leaves it."""
    assert call(world, "ADD", "net1") == 0
    DAMAGE[damage](holders_file(world))
    assert call(world, "ADD", "net2") == 0
    assert call(world, "DEL", "net2") == 0
    assert DIRECTORY in world.true
    assert call(world, "DEL", "net1") == 0
    assert DIRECTORY in world.true


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_socket_name(world: World, damage: str) -> None:
    """A damaged owner of a socket's name keeps neither DEL from succeeding nor the next ADD from having the name."""
    assert call(world, "ADD", "net1") == 0
    DAMAGE[damage](holders_file(world))
    assert call(world, "DEL", "net1") == 0
    assert call(world, "ADD", "net1") == 0
    assert call(world, "DEL", "net1") == 0
    assert (world.journal.records(), world.journal.places()) == ([], [])
