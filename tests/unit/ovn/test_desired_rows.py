"""The difference between desired rows and those that are there."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from userspace_cni.ovn.desired_rows import Changes, DesiredRow, FoundRow, Members, RowKey, Within, compare

SWITCH, PORT, BALANCERS = "Logical_Switch", "Logical_Switch_Port", "Load_Balancer_Group"
COLUMNS = {
    SWITCH: {"name", "ports", "other_config", "external_ids", "load_balancer_group"},
    PORT: {"name", "addresses", "options", "external_ids"},
    BALANCERS: {"name", "load_balancer"},
}
EMPTY: dict[str, Any] = {"ports": [], "other_config": {}, "addresses": [], "options": {}, "load_balancer_group": []}
JOIN, PORT_KEY, GROUP = RowKey(SWITCH, "join"), RowKey(PORT, "p"), RowKey(BALANCERS, "g")
DESIRED = [
    DesiredRow(JOIN, {"other_config": {"subnet": "100.64.0.0/16"}, "load_balancer_group": Members((GROUP,))}),
    DesiredRow(PORT_KEY, {"addresses": ["router"], "options": {"router-port": "r"}}, Within(JOIN, "ports")),
    DesiredRow(GROUP, {}),
]


class Database:
    """Rows in memory, written as `Changes` say."""

    def __init__(self) -> None:
        self.rows: dict[uuid.UUID, tuple[RowKey, dict[str, Any]]] = {}

    def has(self, table: str, column: str) -> bool:
        return column in COLUMNS[table]

    def is_named(self, table: str) -> bool:
        return self.has(table, "name")

    def put(self, key: RowKey, columns: dict[str, Any], row_id: uuid.UUID | None = None) -> uuid.UUID:
        """A row of others, unless `row_id` and marks say something else."""
        row_id = row_id or uuid.uuid4()
        self.rows[row_id] = key, {name: EMPTY.get(name, {}) for name in COLUMNS[key.table]} | columns
        return row_id

    def called(self, key: RowKey, columns: Iterable[str]) -> Sequence[FoundRow]:
        asked = list(columns)
        return [
            FoundRow(key, row_id, row.get("external_ids", {}), {name: row[name] for name in asked})
            for row_id, (other, row) in self.rows.items()
            if other == key or row_id == key.row_id
        ]

    def alike(self, desired: DesiredRow, columns: Iterable[str]) -> Sequence[FoundRow]:
        return ()

    def of_scope(self, scope: str) -> Iterable[FoundRow]:
        found = (FoundRow(key, row_id, row.get("external_ids", {}), {}) for row_id, (key, row) in self.rows.items())
        return [each for each in found if each.scope == scope]

    def members(self, row: FoundRow, column: str) -> set[Any]:
        return set(self.rows[row.row_id][1][column])

    def is_held(self, row: FoundRow, within: Within, holder: uuid.UUID) -> bool:
        return holder in self.rows and row.row_id in self.rows[holder][1][within.column]

    def holder(self, row: FoundRow) -> tuple[FoundRow, str] | None:
        for row_id, (key, columns) in self.rows.items():
            if row.row_id in columns.get("ports", ()):
                return FoundRow(key, row_id, {}, {}), "ports"
        return None

    def content(self, row: FoundRow) -> Iterable[FoundRow]:
        found = ((each, self.rows[each]) for each in self.rows[row.row_id][1].get("ports", ()))
        return [FoundRow(key, row_id, columns.get("external_ids", {}), {}) for row_id, (key, columns) in found]

    def write(self, changes: Changes) -> None:
        for each in changes.rows:
            if each.left_by:
                self.rows[each.left_by[0].row_id][1][each.left_by[1]].remove(each.row_id)
            if each.kind == "delete":
                del self.rows[each.row_id]
            elif each.kind == "insert":
                self.put(each.key, dict(each.columns), each.row_id)
            else:
                self.rows[each.row_id][1].update(each.columns)
        for each in changes.rows:
            if each.held_by:
                columns = self.rows[changes.ids[each.held_by.key]][1]
                columns[each.held_by.column] = [*columns[each.held_by.column], each.row_id]


@pytest.fixture
def database() -> Database:
    return Database()


def test_what_was_written_differs_in_nothing(database: Database) -> None:
    """Rows of an empty database are all made, with UUIDs that follow from their names; then nothing is left to write."""
    changes = compare(DESIRED, database, "cluster")
    assert [(each.kind, each.key) for each in changes.rows] == [("insert", each.key) for each in DESIRED]
    database.write(changes)
    assert set(database.rows) == {each.key.row_id for each in DESIRED}
    assert database.rows[JOIN.row_id][1]["external_ids"] == {"owner": "userspace-cni", "scope": "cluster"}
    assert not compare(DESIRED, database, "cluster")


def test_only_the_difference_is_written(database: Database) -> None:
    """What others have written beside ours stays: keys of a map, and members of a set."""
    database.write(compare(DESIRED, database, "cluster"))
    other = uuid.uuid4()
    row = database.rows[JOIN.row_id][1]
    row["other_config"] = {"subnet": "100.65.0.0/16", "mcast_snoop": "true"}
    row["load_balancer_group"] = [other]
    (change,) = compare(DESIRED, database, "cluster").rows
    assert change.columns == {
        "other_config": {"subnet": "100.64.0.0/16", "mcast_snoop": "true"},
        "load_balancer_group": sorted([other, GROUP.row_id]),
    }
    assert change.former["load_balancer_group"] == [other]


def test_what_is_not_desired_any_more(database: Database) -> None:
    """Rows with the mark go; rows of another scope, and those without a mark, stay."""
    database.write(compare(DESIRED, database, "cluster"))
    database.put(RowKey(SWITCH, "theirs"), {})
    node = [DesiredRow(RowKey(SWITCH, "n1"), {})]
    database.write(compare(node, database, "node n1"))
    changes = compare(DESIRED[:1] + DESIRED[2:], database, "cluster")
    assert [(each.kind, each.key) for each in changes.rows] == [("delete", PORT_KEY)]
    assert changes.rows[0].left_by is not None


def test_a_row_with_ports_of_others_is_not_removed(database: Database) -> None:
    """The server would remove them with it."""
    database.write(compare(DESIRED, database, "cluster"))
    database.write(compare([DesiredRow(RowKey(PORT, "pod"), {}, Within(JOIN, "ports"))], database, "pods"))
    (refused,) = compare(DESIRED[2:], database, "cluster").refused
    assert "Logical_Switch join would be removed with pod" in str(refused)
    assert not compare([], database, "pods").refused


def test_a_port_on_another_switch_is_moved(database: Database) -> None:
    """It keeps its row, which one switch loses and the other gets."""
    database.write(compare(DESIRED, database, "cluster"))
    other = RowKey(SWITCH, "other")
    moved = [DESIRED[0], DESIRED[2], DesiredRow(other, {}), DesiredRow(PORT_KEY, DESIRED[1].columns, Within(other, "ports"))]
    database.write(compare(moved, database, "cluster"))
    assert database.rows[other.row_id][1]["ports"] == [PORT_KEY.row_id]
    assert database.rows[JOIN.row_id][1]["ports"] == []
    assert not compare(moved, database, "cluster")


def test_rows_of_others_are_told(database: Database) -> None:
    """A row without our mark, one of another scope, two of one name, one that is needed and absent: nothing may be written."""
    theirs = database.put(JOIN, {"external_ids": {"by": "hand"}})
    (refused,) = compare(DESIRED, database, "cluster").refused
    assert f"Logical_Switch join ({theirs}) is there and is not ours; its external_ids: by=hand" in str(refused)
    database.write(compare(DESIRED, database, "cluster", adopt=True))
    assert database.rows[theirs][1]["external_ids"] == {"by": "hand", "owner": "userspace-cni", "scope": "cluster"}
    assert not compare(DESIRED, database, "cluster")
    (refused,) = compare(DESIRED[:1], database, "node n1").refused
    assert "belongs to 'cluster', not to 'node n1'" in str(refused)
    second = database.put(JOIN, {})
    (refused,) = compare(DESIRED, database, "cluster").refused
    assert str(theirs) in str(refused)
    assert str(second) in str(refused)
    (refused,) = compare([DesiredRow(RowKey(PORT, "q"), {}, Within(RowKey(SWITCH, "absent"), "ports"))], database, "n").refused
    assert "Logical_Switch absent is not there" in str(refused)


def test_a_column_that_the_server_lacks_is_left_out(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the row is written."""
    monkeypatch.setitem(COLUMNS, SWITCH, COLUMNS[SWITCH] - {"load_balancer_group"})
    database.write(compare(DESIRED, database, "cluster"))
    assert "load_balancer_group" not in database.rows[JOIN.row_id][1]
    assert not compare(DESIRED, database, "cluster")
