"""What a program has to do with one database of OVSDB, as data: all that the rest of this room knows of tables and columns.

Importing it is cheap: it needs nothing of ovs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar

from userspace_cni.base.errors import RowsRefused

_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

Type = str | Mapping[str, object]
"""A column's type, as a schema has it: RFC 7047, 3.2."""
STRING: Final[Type] = {"key": "string"}
STRING_OR_NONE: Final[Type] = {"key": "string", "min": 0}
STRINGS: Final[Type] = {"key": "string", "min": 0, "max": "unlimited"}
INTEGER_OR_NONE: Final[Type] = {"key": "integer", "min": 0}
MAP: Final[Type] = {"key": "string", "value": "string", "min": 0, "max": "unlimited"}
BOOLEAN_OR_NONE: Final[Type] = {"key": "boolean", "min": 0}
# References are declared as plain UUIDs: a referenced row that is not replicated would otherwise be left out of the value.
REFERENCE_OR_NONE: Final[Type] = {"key": "uuid", "min": 0}
REFERENCES: Final[Type] = {"key": "uuid", "min": 0, "max": "unlimited"}

ROW_CREATE: Final = "create"
ROW_UPDATE: Final = "update"
ROW_DELETE: Final = "delete"
"""What happens to a row, by the names of ovs.db.idl."""

Clause = tuple[str, str, str | tuple[tuple[str, str], ...]]
"""Column, function and value by which rows are chosen, in every table of `Database.chosen` that has the column."""


class Index(Protocol):
    """What is kept of the rows of a session beside them. It is told on the session's thread, with its lock: it may not wait."""

    def show(self, table: str, name: str, row: Any) -> None:
        """The row of the table of `Database.named` that has this name by now, None for none; of the root table the name is ""."""

    def lose(self) -> None:
        """The session is lost: nothing will be told any more."""

    def change(self, table: str, event: str, row: Any, former: Any) -> None:
        """A row has come, is another or has gone since all rows were there; in a session that replicates everything.

        `event`: of ovs.db.idl. `former` has the columns that have changed as they were, None unless the event is an update.
        """


I = TypeVar("I", bound=Index)  # noqa: E741 - of Index


@dataclass(frozen=True)
class DatabaseLock:
    """A lock of the server (RFC 7047, 4.1.8): one session at a time has it. Where a program names one, each transaction of it is
    refused unless its session has the lock at the commit: so of several such programs one writes.

    A session asks for it when it begins; `Session.ask_lock` gives it up. `name`: an identifier: of a name with a hyphen the
    server says nothing, and never gives it. `on_change` is told when the session has got or lost it, on its thread and with its
    lock; it may not wait.
    """

    name: str
    on_change: Callable[[bool], None] = lambda _: None

    def __post_init__(self) -> None:
        if not _IDENTIFIER.fullmatch(self.name):
            raise ValueError(f"{self.name!r} cannot be the name of a lock of OVSDB")


@dataclass(frozen=True)
class Database(Generic[I]):
    """The part of one database that a program uses; it is not fetched from the server, as in C clients.

    `tables`: the columns with their types, by table. `root`: the table that has one row. `named`: tables whose rows are found by
    their column `name`. `chosen`: tables of which a session has only the rows that clauses choose, unless it replicates
    everything. `observed`: further columns, of sessions that replicate everything. `optional`: further columns, and tables, of
    those that the server has: it is asked, by each session. `lasting`: tables beside `root` whose rows nothing has to refer to.
    `unique`: tables of `named` that have one row of a name. `index`: makes that of a session, which replicates everything or not.
    `lock`: without which nothing is written. `refused`: the error for what the server rejects. `setting` and `initialise`: for
    messages, what says where it is, and what makes its row.
    """

    name: str
    root: str
    tables: Mapping[str, Mapping[str, Type]]
    index: Callable[[bool], I]
    named: frozenset[str] = frozenset()
    chosen: frozenset[str] = frozenset()
    observed: Mapping[str, Mapping[str, Type]] = field(default_factory=dict)
    optional: Mapping[str, Mapping[str, Type]] = field(default_factory=dict)
    lasting: frozenset[str] = frozenset()
    unique: frozenset[str] = frozenset()
    lock: DatabaseLock | None = None
    refused: type[RowsRefused] = RowsRefused
    setting: str = ""
    initialise: str = ""

    def schema(self, *, everything: bool) -> dict[str, Any]:
        """The schema of the columns that a session replicates, as ovs.db.idl takes it."""
        parts = (self.tables, self.observed if everything else {}, self.optional)
        tables = {
            table: {
                "columns": {column: {"type": kind} for part in parts for column, kind in part.get(table, {}).items()},
                "isRoot": table == self.root or table in self.lasting,
                "indexes": [["name"]] if table in self.unique else [],
            }
            for table in dict.fromkeys(table for part in parts for table in part)
        }
        return {"name": self.name, "version": "0.0.0", "tables": tables | {self.root: {**tables[self.root], "maxRows": 1}}}


@dataclass(frozen=True)
class Tls:
    """The files for a remote `ssl:HOST:PORT`: our private key, our certificate, and the authority that signed the server's."""

    key: str
    certificate: str
    authority: str


def split_remote(remote: str) -> tuple[str, ...]:
    """The addresses of a remote, between which are commas; a path may have commas, too."""
    return tuple(re.split(",(?=(?:unix|tcp|ssl):)", remote))


def named(*names: str) -> frozenset[Clause]:
    return frozenset(("name", "==", name) for name in names)


def every_name() -> frozenset[Clause]:
    """The clause for all rows that have a name: none is empty."""
    return frozenset({("name", "!=", "")})


def of_type(kind: str) -> frozenset[Clause]:
    return frozenset({("type", "==", kind)})


def with_ids(ids: Mapping[str, str]) -> frozenset[Clause]:
    return frozenset({("external_ids", "includes", tuple(sorted(ids.items())))})


def encode_condition(clauses: Iterable[Clause], columns: Mapping[str, Type]) -> list[list[object]]:
    """Those of the clauses whose column a table has, as OVSDB takes them."""
    return [
        [column, function, value if isinstance(value, str) else ["map", [list(pair) for pair in value]]]
        for column, function, value in sorted(clauses, key=repr)
        if column in columns
    ]
