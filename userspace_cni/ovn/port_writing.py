"""Writes changes of pods' logical ports and of their limits, many in one transaction.

What a change follows from is verified by the server, so a row that another one has changed since fails the transaction, which is
then composed anew from the row as it is. The caller compares again afterwards.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from userspace_cni.ovn.limit_rows import LimitChange
from userspace_cni.ovn.northbound import NorthboundSession
from userspace_cni.ovn.northbound_tables import QOS, SWITCH, SWITCH_PORT
from userspace_cni.ovn.port_rows import PortChange
from userspace_cni.ovsdb.column_values import Json, as_json
from userspace_cni.ovsdb.draft import Draft
from userspace_cni.ovsdb.groups import Command

BATCH: Final = 500
"""Changes in one transaction: the server checks all rows of a table at each commit, and others wait for a long one."""


class WritePorts(Command[NorthboundSession]):
    """Does these changes, as far as their rows are still there. `count`: how many were done."""

    count = 0

    def __init__(self, session: NorthboundSession, changes: Sequence[PortChange | LimitChange]) -> None:
        super().__init__(session)
        self.target = "logical ports of pods"
        self._changes = changes

    def run_idl(self, txn: Draft) -> None:
        """Write them: of each switch that gets or loses rows all of a kind in one operation."""
        got: Mapping[tuple[str, str], list[Json]] = defaultdict(list)
        lost: Mapping[tuple[str, str], list[Json]] = defaultdict(list)
        self.count = 0
        for change in self._changes:
            if self.api.row(SWITCH, change.switch) is None and change.kind != "delete":
                continue  # a row that nothing has is no row
            column = "ports" if isinstance(change, PortChange) else "qos_rules"
            self.count += self._write(txn, change, got[change.switch, column], lost[change.left or change.switch, column])
        for members, mutator in ((lost, "delete"), (got, "insert")):
            for (switch, column), refs in members.items():
                row = self.api.row(SWITCH, switch)
                if refs and row is not None:
                    txn.mutate(row, column, mutator, refs)

    def _write(self, txn: Draft, change: PortChange | LimitChange, got: list[Json], lost: list[Json]) -> bool:
        if isinstance(change, PortChange):
            table, row_id, row = SWITCH_PORT, None, self.api.row(SWITCH_PORT, change.name)
        else:
            table, row_id = QOS, change.row_id
            row = self.api.tables[QOS].rows.get(row_id)
        if change.kind == "insert":
            if row is None:
                got.append(txn.write(table, change.columns, row_id=row_id))
            return row is None
        if row is None:
            return False
        reference = as_json(row.uuid)
        if change.kind == "delete" or change.left:
            lost.append(reference)
        if change.kind == "update":
            txn.verify(row, *change.columns)
            txn.update(row, change.columns)
            if change.left:
                got.append(reference)
        return True
