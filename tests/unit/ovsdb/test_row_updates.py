"""Rows of a replica after the server's messages, beside those that ovs.db.idl itself makes of the same messages."""

from __future__ import annotations

import random
import uuid
from typing import Any

import pytest
from ovs.db import idl as ovs_idl

from userspace_cni.ovsdb.column_values import columns_of, count, read_references, refers, value_of
from userspace_cni.ovsdb.row_updates import UpdatedIdl

_TYPES: dict[str, Any] = {
    "name": "string",
    "number": "integer",
    "real": "real",
    "flag": "boolean",
    "reference": "uuid",
    "bounded": {"key": {"type": "integer", "minInteger": 0, "maxInteger": 100}},
    "word": {"key": {"type": "string", "enum": ["set", ["up", "down"]]}, "min": 0},
    "text_or_none": {"key": "string", "min": 0},
    "number_or_none": {"key": "integer", "min": 0},
    "reference_or_none": {"key": "uuid", "min": 0},
    "texts": {"key": "string", "min": 0, "max": "unlimited"},
    "numbers": {"key": "integer", "min": 0, "max": 5},
    "references": {"key": "uuid", "min": 0, "max": "unlimited"},
    "map": {"key": "string", "value": "string", "min": 0, "max": "unlimited"},
    "pair": {"key": "string", "value": "string", "min": 0},
    "queues": {"key": "integer", "value": "uuid", "min": 0, "max": "unlimited"},
}
_IDS = [str(uuid.UUID(int=number + 1)) for number in range(6)]


def _idl(kind: type[Any]) -> Any:
    """An IDL that is not connected, with the notices that it gives."""
    columns = {name: {"type": each} for name, each in _TYPES.items()}
    schema = {"name": "Some", "version": "0.0.0", "tables": {"Thing": {"columns": columns, "isRoot": True}}}
    helper = ovs_idl.SchemaHelper(None, schema)
    helper.register_all()

    class Told(kind):  # type: ignore[misc]
        notices: list[tuple[str, uuid.UUID, dict[str, Any]]]

        def notify(self, event: str, row: Any, updates: Any = None) -> None:
            read = value_of if kind is UpdatedIdl else getattr
            former = {} if updates is None else {name: read(updates, name) for name in updates._data}
            self.notices.append((event, row.uuid, former))

    found = Told("unix:/nonexistent", helper)
    found.notices = []
    return found


def _tell(idl: Any, rows: dict[str, Any], version: str = "update3") -> None:
    idl._Idl__parse_update({"Thing": rows}, version)


def _members(chance: random.Random, values: list[Any], most: int) -> Any:
    """So many of the values, as the server writes a set."""
    chosen = chance.sample(values, chance.randint(0, min(most, len(values))))
    return chosen[0] if len(chosen) == 1 else ["set", chosen]


def _value(chance: random.Random, column: str) -> Any:
    references = [["uuid", each] for each in _IDS]
    words = ["", "a", "b", "ü", "up"]
    pairs = [[key, chance.choice(words)] for key in words]
    queues = [[number, each] for number, each in enumerate(references)]
    values: dict[str, Any] = {
        "name": chance.choice(words),
        "number": chance.choice([0, -1, 2**40]),
        "real": chance.choice([0, 1, 0.5]),
        "flag": chance.choice([True, False]),
        "reference": chance.choice(references),
        "bounded": chance.choice([0, 100]),
        "word": _members(chance, ["up", "down"], 1),
        "text_or_none": _members(chance, words, 1),
        "number_or_none": _members(chance, [0, 7], 1),
        "reference_or_none": _members(chance, references, 1),
        "texts": _members(chance, words, 5),
        "numbers": _members(chance, [0, 1, 2], 2),
        "references": _members(chance, references, 5),
        "map": ["map", chance.sample(pairs, chance.randint(0, 5))],
        "pair": ["map", chance.sample(pairs, chance.randint(0, 1))],
        "queues": ["map", chance.sample(queues, chance.randint(0, 5))],
    }
    return values[column]


def _columns(chance: random.Random) -> dict[str, Any]:
    return {name: _value(chance, name) for name in _TYPES if chance.random() < 0.4}


def _compare(ours: Any, theirs: Any) -> None:
    rows, expected = ours.tables["Thing"].rows, theirs.tables["Thing"].rows
    assert set(rows) == set(expected)
    for row_id, row in rows.items():
        for name in _TYPES:
            wanted = getattr(expected[row_id], name)
            assert getattr(row, name) == wanted, name  # as ovsdbapp reads it
            assert value_of(row, name) == wanted, name


@pytest.mark.parametrize("seed", range(20))
def test_rows_and_notices_are_those_of_the_idl(seed: int) -> None:
    """After any inserts, differences and deletions, rows have the same values, and the same former ones were told."""
    chance, ours, theirs = random.Random(seed), _idl(UpdatedIdl), _idl(ovs_idl.Idl)
    there: set[str] = set()
    for turn in range(40):
        rows: dict[str, Any] = {}
        for row in _IDS:
            if row not in there:
                rows[row] = {"initial" if turn == 0 else "insert": {"name": row} | _columns(chance)}
                there.add(row)
            elif chance.random() < 0.2:
                rows[row] = {"delete": None}
                there.discard(row)
            elif columns := _columns(chance):
                rows[row] = {"modify": columns}
        _tell(theirs, {row: {event: dict(told or {}) for event, told in update.items()} for row, update in rows.items()})
        _tell(ours, rows, "update2" if turn % 2 else "update3")
        _compare(ours, theirs)
        assert ours.notices == theirs.notices


def test_references_are_found() -> None:
    """What asks for members of a set finds them, with one, several and none."""
    idl = _idl(UpdatedIdl)
    first, second, none = _IDS[:3]
    _tell(
        idl,
        {
            first: {"insert": {"references": ["uuid", first]}},
            second: {"insert": {"references": ["set", [["uuid", first], ["uuid", second]]]}},
            none: {"insert": {}},
        },
    )
    rows = idl.tables["Thing"].rows
    found = {each: rows[uuid.UUID(each)] for each in (first, second, none)}
    assert [count(row, "references") for row in found.values()] == [1, 2, 0]
    assert [refers(row, "references", uuid.UUID(second)) for row in found.values()] == [False, True, False]
    assert read_references(found[second], "references") == {uuid.UUID(first), uuid.UUID(second)}


def test_what_is_read_may_be_changed() -> None:
    """A change of a value that was read changes no row."""
    idl = _idl(UpdatedIdl)
    _tell(idl, {_IDS[0]: {"insert": {"map": ["map", [["a", "b"]]], "texts": "a"}}})
    row = idl.tables["Thing"].rows[uuid.UUID(_IDS[0])]
    before = columns_of(row)
    value_of(row, "map").clear()
    value_of(row, "texts").append("b")
    value_of(row, "queues")[1] = "of a default"
    assert columns_of(row) == before


def test_a_value_of_another_type_is_left_out() -> None:
    """A column whose value is not of its type stays as it is, and so does one that is unknown; the others are taken."""
    idl = _idl(UpdatedIdl)
    odd: dict[str, list[Any]] = {
        "number": ["1", ["set", [1, 2]], None],
        "name": [1, ["map", []], ["named-uuid", "x"]],
        "bounded": [101],
        "word": ["sideways"],
        "texts": [["set", "ab"], ["set", ["a", "a"]], ["set", ["a", 1]], ["set", [["a"]]], 5],
        "numbers": [["set", [1, 2, 3, 4, 5, 6]]],
        "reference": ["x", ["uuid", "x"], ["uuid", 5], ["set", []]],
        "references": [["set", [["uuid", "x"]]], ["set", ["x"]], ["uuid", 5], ["set", [["uuid", _IDS[0]], ["uuid", _IDS[0]]]]],
        "map": [["map", [["a"]]], ["map", [["a", 1]]], ["map", [["a", "b"], ["a", "c"]]], ["set", [["a", "b"]]], "a"],
        "unknown": [1],
    }
    for column, values in odd.items():
        for value in values:
            _tell(idl, {_IDS[0]: {"insert": {"flag": True, column: value}}})
            row = idl.tables["Thing"].rows[uuid.UUID(_IDS[0])]
            assert value_of(row, "flag") is True
            if column in _TYPES:
                assert column not in set(dict.keys(row._data)), (column, value)


@pytest.mark.parametrize(
    ("told", "version"),
    [({_IDS[0]: {"modify": {}}}, "update3"), ({"x": {"delete": None}}, "update3"), ({_IDS[0]: None}, "update3"), ({}, "update")],
)
def test_what_cannot_be_applied_is_told(told: dict[str, Any], version: str) -> None:
    """A message about a row that is not there, or in another form, is no message of OVSDB's: the session is given up."""
    with pytest.raises((ValueError, TypeError, AttributeError)):
        _tell(_idl(UpdatedIdl), told, version)
