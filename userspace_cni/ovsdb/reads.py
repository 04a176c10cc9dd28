"""Two commands that only read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from userspace_cni.ovsdb.database import Clause
from userspace_cni.ovsdb.draft import Draft
from userspace_cni.ovsdb.groups import Command

S = TypeVar("S")


class Read(Command[S]):
    """Calls `look` when the server has answered; `result` is what it returned from the rows of `needs`."""

    def __init__(self, session: S, needs: frozenset[Clause], look: Callable[[S], Any]) -> None:
        super().__init__(session)
        self._needs = needs
        self._look = look

    def needs(self) -> frozenset[Clause]:
        """The rows that the caller needs."""
        return self._needs

    def run_idl(self, txn: Any) -> None:
        """Write nothing."""

    def post_commit(self, txn: Any) -> None:  # noqa: ARG002 - the interface
        """Look now: all that was committed before the answer has arrived."""
        self.result = self._look(self.api)


class Select(Command[S]):
    """Reads columns that no replica has, of the rows that `where` chooses; `rows` are as OVSDB writes them."""

    rows: list[dict[str, Any]]

    def __init__(self, session: S, table: str, where: list[Any], columns: list[str]) -> None:
        super().__init__(session)
        self._asked = table, where, columns
        self._number = 0

    def run_idl(self, txn: Draft) -> None:
        """Ask; nothing is written."""
        self._number = txn.select(*self._asked)

    def post_commit(self, txn: Draft) -> None:
        """Keep the answer."""
        self.rows = txn.read_selected(self._number)
