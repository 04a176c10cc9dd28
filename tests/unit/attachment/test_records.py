"""Records and shared resources: what is written is what is read, and what cannot be read stops no call."""

from __future__ import annotations

import json
import os
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localdb import Store
from tests.lab.node.calls import call_plugin
from tests.lab.node.stored import live
from tests.lab.node.world import World
from userspace_cni.attachment.journal import Journal, Shared
from userspace_cni.attachment.records import (
    MalformedRecord,
    Record,
    record_from_json,
    record_key,
    record_to_json,
    step_from_json,
    step_to_json,
)
from userspace_cni.attachment.steps import STORED_TYPES, Directory, OvsPort, PortRef, Step, VhostUserClient, VhostUserServer
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import RecordRefused, UserspaceError
from userspace_cni.base.mirrors import NAME
from userspace_cni.base.vlans import Vlan
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
    """Every value of a dataclass."""
    hints = typing.get_type_hints(kind)
    known = {name: strategy for (of, name), strategy in NARROWER.items() if of is kind}
    names = [item.name for item in fields(kind) if item.name not in known]
    return st.deferred(lambda: st.builds(kind, **known, **{name: values_of(hints[name]) for name in names}))


NARROWER: Mapping[tuple[type[Any], str], st.SearchStrategy[Any]] = {
    (VhostUserClient, "server_path"): st.text(min_size=1, max_size=8),
    (OvsPort, "mirror_outputs"): st.lists(st.from_regex(NAME, fullmatch=True), max_size=3).map(tuple),
}


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


def test_kinds_are_distinct() -> None:
    """No two stored types have the same kind; a port and a reference to one have one stored type."""
    assert OvsPort.stored_as is PortRef.stored_as is STORED_TYPES["port"]
    with pytest.raises(TypeError, match="'directory'"):

        class Another(Step):
            kind = Directory.kind


MARKS = {"owner": "userspace-cni", "container-id": "c", "network": "n", "ifname": "net1", "store": "5707e"}
CLIENT_PORT: dict[str, Any] = {
    "step": "port", "bridge": "br0", "name": "c-net1", "interface_type": "dpdkvhostuserclient", "server_path": "/pods/c/net1",
    "tag": 100, "trunks": [5, 7], "vlan_mode": "native-untagged", "mtu": 9000, "mac": "02:00:00:00:00:01", "marks": MARKS,
    "foreign_bridge": True, "legacy": False,
}  # fmt: skip
SERVER_PORT: dict[str, Any] = {
    "step": "port", "bridge": "br0", "name": "c-net1", "interface_type": "dpdkvhostuser", "server_path": "", "tag": None,
    "trunks": [], "vlan_mode": "", "mtu": None, "mac": "", "marks": MARKS, "foreign_bridge": False, "legacy": False,
}  # fmt: skip
TO_BE_DELETED = {**SERVER_PORT, "bridge": "", "interface_type": "dpdkvhostuserclient"}
AS_WRITTEN: dict[str, tuple[dict[str, Any], Step]] = {
    "client": (
        CLIENT_PORT,
        OvsPort(
            "br0",
            "c-net1",
            VhostUserClient("/pods/c/net1", 9000),
            Vlan(100, (5, 7), "native-untagged"),
            "02:00:00:00:00:01",
            MARKS,
            foreign_bridge=True,
        ),
    ),
    "client whose path was lost": (
        {**CLIENT_PORT, "server_path": ""},
        OvsPort(
            "br0",
            "c-net1",
            VhostUserClient("", 9000),
            Vlan(100, (5, 7), "native-untagged"),
            "02:00:00:00:00:01",
            MARKS,
            foreign_bridge=True,
        ),
    ),
    "server": (SERVER_PORT, OvsPort("br0", "c-net1", VhostUserServer(), marks=MARKS)),
    "to be deleted": (TO_BE_DELETED, PortRef("c-net1", marks=MARKS)),
    "to be deleted from a bridge": ({**TO_BE_DELETED, "bridge": "br7"}, PortRef("c-net1", "br7", MARKS)),
    "of the former plugin": (
        {**TO_BE_DELETED, "bridge": "br7", "marks": {}, "legacy": True},
        PortRef("c-net1", "br7", legacy=True),
    ),
}


@pytest.mark.parametrize("what", AS_WRITTEN)
def test_ports_of_every_release(what: str) -> None:
    """Ports are read and written as in the first releases, so that an earlier release reads them, too."""
    written, step = AS_WRITTEN[what]
    assert step_from_json(written) == step
    assert through_json(step_to_json(step)) == written


def test_a_port_before_some_of_its_fields() -> None:
    """A record of a port without its optional fields is read."""
    step = step_from_json({"step": "port", "bridge": "br0", "name": "n", "interface_type": "dpdkvhostuser"})
    assert step == OvsPort("br0", "n", VhostUserServer())


def test_a_deletion_that_an_earlier_release_began() -> None:
    """A record in `deleting` of an attachment without a record holds the reference to its port."""
    record = record_from_json({**GOOD, "state": "deleting", "steps": [TO_BE_DELETED]})
    assert record.steps == (PortRef("c-net1", marks=MARKS),)


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
        ({"steps": {}}, "'steps' is no list"),
        ({"steps": [1]}, "unknown step 1"),
        ({"steps": [{"step": "teleport"}]}, "unknown step 'teleport'"),
        ({"steps": [{"step": []}]}, "unknown step \\[\\]"),
        ({"steps": [{"step": DEEP}]}, "unknown step"),
        ({"steps": [{"step": "port"}]}, "missing"),
        ({"steps": [{"step": "port", "bridge": "b", "name": "n", "interface_type": "internal"}]}, "Port.interface_type"),
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
    assert journal.shared("a/b") in (None, Shared())
    assert journal.records() == []
    assert all(not shared.holders for _, shared in journal.places())
    good = record_from_json(GOOD)
    journal.write(good)
    assert journal.read("c", "i") == good
    journal.drop(good)


def test_record_in_anothers_place(journal: Journal) -> None:
    """A record whose content is another attachment's is put aside: undoing it would drop the wrong one."""
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
    "shared": lambda journal: journal.shared("/x"),
    "write_shared": lambda journal: journal.write_shared("/x", Shared(frozenset(), {"c@i": (Directory("/x", "/"),)})),
    "drop_shared": lambda journal: journal.write_shared("/x", Shared()),
    "places": lambda journal: journal.places(),
    "try_container_lock": lambda journal: journal.try_container_lock("c"),
    "container_lock": lambda journal: journal.container_lock("c", Deadline.after(0.1)).__enter__(),
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
    """An empty node."""
    return World(tmp_path)


def call(world: World, verb: str, ifname: str) -> int:
    """Exit code of one call for an interface of the one container."""
    environ = {"CNI_COMMAND": verb, "CNI_CONTAINERID": CONTAINER, "CNI_NETNS": "/run/netns/x", "CNI_IFNAME": ifname}
    return call_plugin(environ, lambda: b'{"cniVersion":"1.1.0","name":"n","type":"userspace"}', lambda: world).code


def holders_file(world: World) -> Path:
    """The file of the one place."""
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
    """An attachment that finds the directory without its list of holders takes it for another program's, and leaves it."""
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
