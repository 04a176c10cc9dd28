"""Writes Services' load balancers, many in one transaction: what differs from the rows as they are.

A row that has a load balancer's UUID and not its Service's mark is left alone, and told. Where it is not certain yet what there
is, no row goes, no VIP, and no VIP's last endpoint.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from userspace_cni.attachment.steps import OWNER
from userspace_cni.ovn.desired_rows import SCOPE, RowKey
from userspace_cni.ovn.northbound import NorthboundSession
from userspace_cni.ovn.northbound_tables import LOAD_BALANCER, LOAD_BALANCER_GROUP, ROUTER, SWITCH
from userspace_cni.ovn.row_view import RowView, scope_of
from userspace_cni.ovn.scope_writing import ScopeCommand
from userspace_cni.ovn.services.balancer_rows import Balancer, Claim, read_claims
from userspace_cni.ovsdb.column_values import columns_of, read_references, value_of
from userspace_cni.ovsdb.columns import Columns, find_changed_columns, make_columns
from userspace_cni.ovsdb.draft import Draft

SERVICE_SCOPE: Final = "service "
"""How the mark of a row begins; the Service follows."""
_COLUMN: Final = "load_balancer"
_HOLDERS: Final = (LOAD_BALANCER_GROUP, SWITCH, ROUTER)


@dataclass(frozen=True)
class BalancerBatch:
    """What is to be written: the load balancers of these Services, and none but these. `certain`: as of the module."""

    balancers: Mapping[str, Sequence[Balancer]]
    certain: bool


class WriteBalancers(ScopeCommand):
    """`there` has the rows that have a mark now."""

    def __init__(self, session: NorthboundSession, batch: BalancerBatch, there: RowView) -> None:
        super().__init__(session)
        self.target = "load balancers of Services"
        self._batch = batch
        self._there = there

    def run_idl(self, txn: Draft) -> None:
        """Write the difference."""
        self.written, self.refused = [], {}
        rows, held = self.api.tables[LOAD_BALANCER].rows, HeldBalancers(self.api)
        for service, balancers in self._batch.balancers.items():
            for each in balancers:
                self._write(txn, each, rows.get(each.key.row_id), held)
            kept = {each.key.row_id for each in balancers}
            for row in self._there.of_scope(mark_of(service)) if self._batch.certain else ():
                if row.uuid not in kept and rows.get(row.uuid) is not None:
                    txn.delete(row)
                    self.written.append("delete")
        held.write(txn)

    def _write(self, txn: Draft, balancer: Balancer, row: Any, held: HeldBalancers) -> None:
        mark, row_id = mark_of(balancer.service), balancer.key.row_id
        if row is None:
            txn.write(LOAD_BALANCER, make_columns(_columns(balancer)), row_id=row_id)
            self.written.append("insert")
        elif scope_of(row) != mark:
            self.refused[mark] = f"{balancer.key} ({row_id}) is there and has the mark {scope_of(row)!r}, not {mark!r}"
            return
        elif changed := find_differences(balancer, row, certain=self._batch.certain):
            txn.verify(row, *changed)
            txn.update(row, changed)
            self.written.append("update")
        held.place(row_id, balancer.holders)


def find_differences(balancer: Balancer, row: Any, *, certain: bool) -> Columns:
    """The columns to write so that the row is the load balancer. `certain`: as of the module."""
    wanted = _columns(balancer)
    found = columns_of(row, *wanted)
    vips: Mapping[str, str | None] = {**dict.fromkeys(found["vips"]), **balancer.vips}
    if not certain:
        vips = {vip: targets or found["vips"].get(vip, "") for vip, targets in balancer.vips.items()}
    return find_changed_columns({**wanted, "vips": vips}, found)


def _columns(balancer: Balancer) -> Columns:
    return {
        "name": balancer.name,
        "protocol": [balancer.protocol],
        "vips": dict(balancer.vips),
        "options": dict(balancer.options),
        "selection_fields": sorted(balancer.fields),
        "external_ids": {
            "owner": OWNER,
            SCOPE: mark_of(balancer.service),
            "k8s.ovn.org/kind": "Service",
            "k8s.ovn.org/owner": balancer.service,
        },
    }


class HeldBalancers:
    """What has which load balancers now, and is to have. Only within the session's lock."""

    def __init__(self, session: NorthboundSession) -> None:
        self._ids: dict[RowKey, uuid.UUID] = {}
        self._held: dict[uuid.UUID, set[RowKey]] = defaultdict(set)
        for table in _HOLDERS:
            for row in session.rows(table) if session.replica.has(table, _COLUMN) else ():
                key = RowKey(table, value_of(row, "name"))
                self._ids[key] = row.uuid
                for each in read_references(row, _COLUMN):
                    self._held[each].add(key)
        self._changes: dict[tuple[RowKey, str], list[uuid.UUID]] = defaultdict(list)

    def list_misplaced(self, balancers: Iterable[Balancer]) -> set[str]:
        """The Services of which a load balancer is not where it is to be."""
        return {
            each.service for each in balancers if set(each.holders) & self._ids.keys() != self._held.get(each.key.row_id, set())
        }

    def place(self, row_id: uuid.UUID, holders: Collection[RowKey]) -> None:
        """Have these hold it, as far as they are there, and no others."""
        wanted, held = set(holders) & self._ids.keys(), self._held.get(row_id, set())
        for key in wanted - held:
            self._changes[key, "insert"].append(row_id)
        for key in held - wanted:
            self._changes[key, "delete"].append(row_id)

    def write(self, txn: Draft) -> None:
        """Write all of it, of each holder in one operation."""
        for (key, mutator), ids in sorted(self._changes.items()):
            txn.mutate_by_id(key.table, self._ids[key], _COLUMN, mutator, ids)


def mark_of(service: str) -> str:
    """The mark of a Service's rows."""
    return f"{SERVICE_SCOPE}{service}"


def service_of_mark(scope: str) -> str:
    """The Service whose rows have this mark."""
    return scope.removeprefix(SERVICE_SCOPE)


def list_claims(there: Mapping[str, Iterable[Any]]) -> dict[Claim, str]:
    """Which Service has which external address by its rows, which are by their marks."""
    found: dict[Claim, str] = {}
    for scope, rows in sorted(there.items()):
        for row in rows:
            protocol = next(iter(value_of(row, "protocol")), "")
            for claim in read_claims(value_of(row, "name"), protocol, value_of(row, "vips")):
                found.setdefault(claim, service_of_mark(scope))
    return found
