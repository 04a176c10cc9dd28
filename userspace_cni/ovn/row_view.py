"""Whose the rows of the northbound database are, by their marks, kept from the notices of a session.

So the rows of one scope are found without a look at all rows, and a scope whose rows others have changed is known.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

from userspace_cni.ovn.desired_rows import read_scope
from userspace_cni.ovn.northbound import NorthboundSession
from userspace_cni.ovsdb.column_values import value_of
from userspace_cni.ovsdb.database import ROW_DELETE

_IDS: Final = "external_ids"


class RowView:
    """Of the scopes that begin with `prefix`. `told` is for the session's notices, on its thread; all is called with its lock.

    `on_change` is called when one of their rows has changed; it must not wait.
    """

    def __init__(self, prefix: str, on_change: Callable[[], None] = lambda: None) -> None:
        self._prefix = prefix
        self._on_change = on_change
        self._session: NorthboundSession | None = None
        self._rows: dict[str, dict[Any, Any]] = {}
        self._scopes: dict[Any, str] = {}
        self._changed: set[str] = set()

    def told(self, table: str, event: str, row: Any, former: Any) -> None:  # noqa: ARG002
        """A row has changed: as `Index.change`."""
        known = self._scopes.get(row.uuid, "")
        now = "" if event == ROW_DELETE else self._scope_of(row)
        if not known and not now:
            return
        self._keep(row, known, now)
        self._changed |= {known, now} - {""}
        self._on_change()

    def forget(self) -> None:
        """Keep nothing, until `take` reads all of it."""
        self._session = None
        self._rows, self._scopes, self._changed = {}, {}, set()

    def take(self, session: NorthboundSession) -> tuple[bool, set[str]]:
        """Whether all is new, and the scopes whose rows may be others than at the last call."""
        is_new = session is not self._session
        if is_new:
            self.forget()
            self._session = session
            for table in session.replica.tables:
                for row in session.rows(table):
                    if scope := self._scope_of(row):
                        self._keep(row, "", scope)
            self._changed = set(self._rows)
        changed, self._changed = self._changed, set()
        return is_new, changed

    @property
    def scopes(self) -> Collection[str]:
        """Those that have rows."""
        return self._rows.keys()

    def of_scope(self, scope: str) -> Iterable[Any]:
        return tuple(self._rows.get(scope, {}).values())

    def _keep(self, row: Any, known: str, now: str) -> None:
        if known and known != now:
            rows = self._rows[known]
            del rows[row.uuid]
            del self._scopes[row.uuid]
            if not rows:
                del self._rows[known]
        if now:
            self._rows.setdefault(now, {})[row.uuid] = row
            self._scopes[row.uuid] = now

    def _scope_of(self, row: Any) -> str:
        scope = scope_of(row)
        return scope if scope.startswith(self._prefix) else ""


def scope_of(row: Any) -> str:
    """Whose a row is: the mark, "" for one that is not ours, and for one of a table that has no marks."""
    return read_scope(value_of(row, _IDS)) if _IDS in row._table.columns else ""  # noqa: SLF001 - ovs.db.idl has no other list
