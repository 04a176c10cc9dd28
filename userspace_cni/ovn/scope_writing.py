"""Writes the rows of many scopes in one transaction: of each the difference alone.

A scope that may not be written, because a row of others has a name of its rows, is left out and told; the others are written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import UUID

from userspace_cni.ovn.desired_rows import Changes, DesiredRow, RowChange, RowKey, compare
from userspace_cni.ovn.northbound import NorthboundSession
from userspace_cni.ovn.row_view import RowView
from userspace_cni.ovn.row_writing import SessionRows, is_raced, write
from userspace_cni.ovsdb.draft import Draft
from userspace_cni.ovsdb.groups import Command, RefusedCommand

DesiredScope = Sequence[DesiredRow]
"""The rows of one scope; `scope` of each is ""."""


class ScopeCommand(Command[NorthboundSession]):
    """Writes the rows of scopes. `refused`: those that were left out, and why. `written`: the kinds of changes."""

    def __init__(self, session: NorthboundSession) -> None:
        super().__init__(session)
        self.refused: dict[str, str] = {}
        self.written: list[str] = []


class WriteScopes(ScopeCommand):
    """Makes the rows of each scope the desired ones. `desired` is called with the session's lock, once for each attempt.

    `may_remove`: whether rows that are not desired are removed.
    """

    def __init__(
        self,
        session: NorthboundSession,
        scopes: Sequence[str],
        desired: Callable[[str], DesiredScope],
        view: RowView,
        *,
        may_remove: bool,
    ) -> None:
        super().__init__(session)
        self.target = "rows of objects"
        self._scopes = scopes
        self._desired = desired
        self._view = view
        self._may_remove = may_remove
        self._raced = False

    def run_idl(self, txn: Draft) -> None:
        """Write the differences between the desired rows and those that are there now."""
        self.refused = {}
        changes: list[RowChange] = []
        ids: dict[RowKey, UUID] = {}
        rows = SessionRows(self.api, self._view)
        for scope in self._scopes:
            found = compare(self._desired(scope), rows, scope)
            if found.refused:
                self.refused[scope] = str(found.refused[0])
                continue
            changes += [each for each in found.rows if each.kind != "delete" or self._may_remove]
            ids.update(found.ids)
        self.written = [each.kind for each in changes]
        write(txn, Changes(tuple(changes), ids), self.api.replica.database.unique)

    def should_retry(self, refused: RefusedCommand) -> bool:
        """Once more where another writer was first."""
        again = not self._raced and is_raced(refused)
        self._raced = True
        return again
