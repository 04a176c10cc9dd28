"""Rows that one of OVN's databases is to have, and how what it has differs from them. Pure.

The names of switches, routers and load balancers are not unique there, and ovsdbapp's `may_exist` leaves what exists as it is. So
each row has a UUID that follows from its table and name: of two writers at once the server refuses one, who then finds the row. A
row says by its mark who made it (`scope`), and only marked rows are changed or deleted. Only the columns that are desired are
compared, and of a map only its keys: what others have written beside them stays.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from userspace_cni.attachment.steps import OWNER
from userspace_cni.base.errors import NameTaken, RowsRefused, UserspaceError
from userspace_cni.ovsdb.columns import Columns, find_changed_columns, make_columns

SCOPE: Final = "scope"
"""The key of external_ids beside "owner"."""
_SHOWN: Final = 5
_NAMESPACE: Final = uuid.uuid5(uuid.NAMESPACE_DNS, "userspace-cni.io")


@dataclass(frozen=True, order=True)
class RowKey:
    """A row, by what it is called: `name` is its column `name`, or where rows have no names what tells it from others."""

    table: str
    name: str

    @property
    def row_id(self) -> uuid.UUID:
        """The UUID that the row gets when it is made here."""
        return uuid.uuid5(_NAMESPACE, f"{self.table}/{self.name}")

    def __str__(self) -> str:
        return f"{self.table} {self.name}"


@dataclass(frozen=True)
class Members:
    """Rows to which a column is to refer, beside others that it may have."""

    keys: tuple[RowKey, ...]


@dataclass(frozen=True)
class MemberSet:
    """All members of a column that is a set. The difference is written, whatever others write meanwhile: a set may be long."""

    members: AbstractSet[Any]


@dataclass(frozen=True)
class Within:
    """The row that has another one, or lists it, and its column for it. The server removes rows that nothing has."""

    key: RowKey
    column: str


@dataclass(frozen=True)
class DesiredRow:
    """A row as it is to be, without its name and mark. Values of `columns`: as `find_changed_columns` takes them, or Members, or
    a MemberSet.

    `within`: what has it or lists it, None for a row that needs nothing. `scope`: its mark, "" for that of the comparison.
    """

    key: RowKey
    columns: Columns
    within: Within | None = None
    scope: str = ""


@dataclass(frozen=True)
class FoundRow:
    """A row of the database. `row`: as the session has it, to be written. `columns`: only those that were asked for."""

    key: RowKey
    row_id: uuid.UUID
    external_ids: Mapping[str, str]
    columns: Columns
    row: Any = None

    @property
    def scope(self) -> str:
        """Whose row it is: the mark, "" for a row that is not ours."""
        return read_scope(self.external_ids)


def read_scope(external_ids: Mapping[str, str]) -> str:
    """Whose a row with these external_ids is: the mark, "" for one that is not ours."""
    return external_ids.get(SCOPE, "") if external_ids.get("owner") == OWNER else ""


class Rows(Protocol):
    """The rows of a database, as a comparison needs them."""

    def has(self, table: str, column: str) -> bool:
        """Whether rows of the table have the column: servers of other versions may lack it."""

    def is_named(self, table: str) -> bool:
        """Whether rows of the table are known by their column `name`: that of an ACL is only for logs."""

    def called(self, key: RowKey, columns: Iterable[str]) -> Sequence[FoundRow]:
        """The rows that have the key's UUID, or its name where the table has names."""

    def alike(self, desired: DesiredRow, columns: Iterable[str]) -> Sequence[FoundRow]:
        """The rows beside which the desired one would say the same again, where its table has no names."""

    def of_scope(self, scope: str) -> Iterable[FoundRow]:
        """The rows with this mark, without columns."""

    def members(self, row: FoundRow, column: str) -> AbstractSet[Any]:
        """The members of a column that is a set."""

    def is_held(self, row: FoundRow, within: Within, holder: uuid.UUID) -> bool:
        """Whether the row with the UUID `holder` has this one."""

    def holder(self, row: FoundRow) -> tuple[FoundRow, str] | None:
        """What has the row, and the column; None for a row that nothing has."""

    def content(self, row: FoundRow) -> Iterable[FoundRow]:
        """The rows that this one has, and that would be removed with it."""


Kind = Literal["insert", "update", "delete"]


@dataclass(frozen=True)
class RowChange:
    """One row that is to be made, changed or removed.

    `columns`: what is written. `former`: those columns as they are. `row_id`: the row's UUID. `held_by`, `left_by`: what gets it
    into a column, and what loses it. `found`: the row, unless it is new. `members`: of columns that are sets, what comes and what
    goes.
    """

    kind: Kind
    key: RowKey
    row_id: uuid.UUID
    columns: Columns = field(default_factory=dict)
    former: Columns = field(default_factory=dict)
    held_by: Within | None = None
    left_by: tuple[FoundRow, str] | None = None
    found: FoundRow | None = None
    members: Mapping[str, tuple[Sequence[Any], Sequence[Any]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Changes:
    """What is to be written, in order, and the UUIDs of the rows that are desired. `refused`: why some of it may not be."""

    rows: tuple[RowChange, ...]
    ids: Mapping[RowKey, uuid.UUID]
    refused: tuple[UserspaceError, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.rows or self.refused)


def compare(
    desired: Sequence[DesiredRow], rows: Rows, scope: str, further: Sequence[str | RowKey] = (), *, adopt: bool = False
) -> Changes:
    """What has to be written so that the database has the desired rows, and no others with the marks `scope` and `further` or one
    of theirs. `further` has rows of tables without marks by their keys.

    `adopt`: a row of a desired name that is not marked becomes ours; else it is refused, as are two rows of one name.
    """
    comparison = _Comparison(desired, rows, (scope, *further), adopt)
    for each in desired:
        comparison.add(each)
    comparison.remove_others()
    return Changes(tuple(comparison.changes), comparison.ids, tuple(comparison.refused))


class _Comparison:
    def __init__(self, desired: Sequence[DesiredRow], rows: Rows, marks: Sequence[str | RowKey], adopt: bool) -> None:
        self.changes: list[RowChange] = []
        self.refused: list[UserspaceError] = []
        self.ids: dict[RowKey, uuid.UUID] = {}
        self._rows = rows
        scopes = [each for each in marks if isinstance(each, str)]
        self._unmarked = [each for each in marks if isinstance(each, RowKey)]
        self._scope = scopes[0]
        self._adopt = adopt
        self._found: dict[RowKey, FoundRow] = {}
        self._scopes = dict.fromkeys([*scopes, *map(self._scope_of, desired)])
        for each in desired:
            self._look_for(each)

    def _look_for(self, desired: DesiredRow) -> None:
        key = desired.key
        written = self._written(desired)
        found = self._rows.called(key, written) or self._rows.alike(desired, written)
        if len(found) > 1:
            ids = " and ".join(sorted(str(each.row_id) for each in found))
            self.refused.append(NameTaken(f"there are two rows {key}: {ids}", "delete the one that is not in use"))
        elif found and not found[0].scope and not self._is_ours(found[0]) and not self._adopt:
            marks = ", ".join(f"{name}={value}" for name, value in sorted(found[0].external_ids.items())) or "none"
            said = f"{key} ({found[0].row_id}) is there and is not ours; its external_ids: {marks}"
            self.refused.append(NameTaken(said, "give another name, or --adopt to have it ours"))
        elif found and found[0].scope not in ("", self._scope_of(desired)):
            said = f"{key} ({found[0].row_id}) is there and belongs to {found[0].scope!r}, not to {self._scope_of(desired)!r}"
            self.refused.append(NameTaken(said, "give another name"))
        if found:
            self._found[key] = found[0]
        self.ids[key] = found[0].row_id if found else key.row_id

    def _scope_of(self, desired: DesiredRow) -> str:
        return desired.scope or self._scope

    def _is_ours(self, found: FoundRow) -> bool:
        """Whether a row of a table without external_ids is: by its UUID, which no one else gives."""
        return not self._rows.has(found.key.table, "external_ids") and found.row_id == found.key.row_id

    def add(self, desired: DesiredRow) -> None:
        """Compare one row."""
        key, found = desired.key, self._found.get(desired.key)
        wanted = self._columns(desired)
        if found is None:
            if desired.within is not None:
                self._id_of(desired.within.key)
            self.changes.append(RowChange("insert", key, self.ids[key], make_columns(wanted), held_by=desired.within))
            return
        changed, members, within = find_changed_columns(wanted, found.columns), self._find_members(desired, found), desired.within
        moved = within is not None and not self._rows.is_held(found, within, self._id_of(within.key))
        if changed or moved or members:
            former = {column: found.columns[column] for column in changed}
            held_by, left_by = (within, self._rows.holder(found)) if moved else (None, None)
            self.changes.append(RowChange("update", key, found.row_id, changed, former, held_by, left_by, found, members))

    def _find_members(self, desired: DesiredRow, found: FoundRow) -> Mapping[str, tuple[Sequence[Any], Sequence[Any]]]:
        """What comes into columns that are sets, and what goes."""
        changed = {}
        for column, value in desired.columns.items():
            if isinstance(value, MemberSet) and (there := self._rows.members(found, column)) != value.members:
                changed[column] = (sorted(value.members - there), sorted(there - value.members))
        return changed

    def remove_others(self) -> None:
        """Remove what has the mark and is not desired."""
        kept = set(self.ids.values())
        marked = [each for scope in self._scopes for each in self._rows.of_scope(scope)]
        marked += [each for key in self._unmarked for each in self._rows.called(key, ()) if self._is_ours(each)]
        gone = [each for each in sorted(marked, key=lambda found: found.key) if each.row_id not in kept]
        moved = {each.row_id for each in self.changes if each.held_by is not None}
        safe = moved | {each.row_id for each in gone}
        for each in gone:
            self.changes.append(RowChange("delete", each.key, each.row_id, left_by=self._rows.holder(each), found=each))
            if lost := sorted(inner.key.name for inner in self._rows.content(each) if inner.row_id not in safe):
                said = f"{each.key} would be removed with {', '.join(lost[:_SHOWN])}{' and others' if lost[_SHOWN:] else ''}"
                self.refused.append(NameTaken(said, "remove these first, or keep its name"))

    def _written(self, desired: DesiredRow) -> list[str]:
        plain = [name for name, value in desired.columns.items() if not isinstance(value, MemberSet)]
        names = [*plain, *(("external_ids",) if self._rows.has(desired.key.table, "external_ids") else ())]
        return [name for name in dict.fromkeys(names) if self._rows.has(desired.key.table, name)]

    def _columns(self, desired: DesiredRow) -> Columns:
        """The columns to compare: with mark and name, references as UUIDs, and without those that the server lacks."""
        table, found = desired.key.table, self._found.get(desired.key)
        columns: Columns = {}
        if found is None and self._rows.is_named(table):
            columns["name"] = desired.key.name
        for name, value in desired.columns.items():
            if isinstance(value, MemberSet):
                if found is None:
                    columns[name] = sorted(value.members)
            elif self._rows.has(table, name):
                columns[name] = self._value(value, found.columns[name] if found is not None else [])
        if self._rows.has(table, "external_ids"):
            columns["external_ids"] = {**columns.get("external_ids", {}), "owner": OWNER, SCOPE: self._scope_of(desired)}
        return columns

    def _value(self, value: Any, found: Any) -> Any:
        if isinstance(value, Members):
            return sorted({*found, *(self._id_of(key) for key in value.keys)})
        return sorted(value) if isinstance(value, list) else value

    def _id_of(self, key: RowKey) -> uuid.UUID:
        """The UUID of a row that is desired, too, or is there."""
        if key not in self.ids:
            there = self._rows.called(key, ())
            if len(there) != 1:
                said = "is not there" if not there else f"is there {len(there)} times"
                self.refused.append(RowsRefused(f"{key} {said}", "it is needed by rows that are to be made"))
            self.ids[key] = there[0].row_id if there else key.row_id
        return self.ids[key]
