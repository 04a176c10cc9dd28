"""What a transaction does to the limits of one port, and the rows to which no port refers any more.

Rows of QoS and Queue are roots of the database: they outlive the port that refers to them. So they are made, changed and deleted
in the transaction of their port, carry its marks, and are never shared between ports. A living port keeps its rows when its
limits change: a new row would be another qdisc, with a gap in the traffic. A QoS row that is not this attachment's is never
changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from userspace_cni.attachment.steps import OWNER, OvsPort, PortRef
from userspace_cni.ovsdb.database import Clause, with_ids
from userspace_cni.ovsdb.groups import Command
from userspace_cni.ovsdb.replica import Replica
from userspace_cni.ovsdb.values import value_of
from userspace_cni.switch.ovsdb.database import SwitchSession
from userspace_cni.switch.ovsdb.index import SwitchIndex
from userspace_cni.switch.ovsdb.rows.marks import IDENTITY, is_nodes, is_ours, owns
from userspace_cni.switch.ovsdb.rows.qos import QosRow, qos_row

if TYPE_CHECKING:
    from userspace_cni.ovsdb.draft import Draft
    from userspace_cni.ovsdb.values import Json


def clauses_of(step: OvsPort | PortRef) -> frozenset[Clause]:
    return with_ids(_identity(step))


def make(txn: Draft, step: OvsPort, marks: Mapping[str, str]) -> list[Json]:
    """Write the rows of a new port's limit; its column `qos`. Raises SwitchRefused for a limit that the port cannot have."""
    wanted = qos_row(step)
    return [_insert(txn, wanted, marks)] if wanted else []


def converge(txn: Draft, replica: Replica[SwitchIndex], step: OvsPort, port: Any, marks: Mapping[str, str]) -> bool:
    """Make the limit of a living port what the step says, or remove it; whether anything was written.

    `port`: its row, whose external_ids and qos have been verified.
    """
    wanted, row = qos_row(step), _own_row(replica, step, port)
    if wanted is None and row is None:
        return False
    if wanted is None:
        txn.update(port, {"qos": []})
        _discard(txn, step)
        return True
    if row is None:
        txn.update(port, {"qos": [_insert(txn, wanted, marks)]})
        return True
    return _update(txn, replica, row, wanted, marks)


def drop(txn: Draft, step: OvsPort | PortRef, port: Any) -> None:
    """Delete the limit with the port, whose row is None when it is gone already, and a foreign QoS row that it has."""
    qos = value_of(port, "qos") if port is not None else []
    if qos:
        # The server checks references before it removes unreferenced rows: so the reference must go first.
        txn.update(port, {"qos": []})
        txn.add_op({"op": "delete", "table": "QoS", "where": [["_uuid", "==", ["uuid", str(qos[0])]]]})
    _discard(txn, step)


def limit_of(replica: Replica[SwitchIndex], port: Any) -> QosRow | None:
    references = value_of(port, "qos")
    row = replica.tables["QoS"].rows.get(references[0]) if references else None
    if row is None:
        return None
    queue = replica.tables["Queue"].rows.get(value_of(row, "queues").get(0))
    of_queue = {} if queue is None else value_of(queue, "other_config")
    return QosRow(value_of(row, "type"), value_of(row, "other_config"), of_queue)


class SweepLimits(Command[SwitchSession]):
    """Deletes the rows of QoS and Queue with our owner mark and this store's, to which no port, or no QoS row, refers.

    A port that was deleted by another program leaves them. `swept`: how many there were. Needs a session that replicates
    everything.
    """

    def __init__(self, session: SwitchSession, store: str) -> None:
        super().__init__(session)
        self._store = store
        self.swept = 0

    def run_idl(self, txn: Draft) -> None:
        """Delete what no row refers to; the server refuses it if one does by now."""
        rows = orphans(self.api.replica, self._store)
        for row in rows:
            txn.delete(row)
        self.swept = len(rows)


def orphans(replica: Replica[SwitchIndex], store: str) -> list[Any]:
    """The rows of QoS, and then of Queue, that are of this store and to which no row refers."""
    tables = replica.tables
    limited = {each for port in tables["Port"].rows.values() for each in value_of(port, "qos")}
    unused = {number: row for number, row in tables["QoS"].rows.items() if number not in limited and _is_of(store, row)}
    kept = (row for number, row in tables["QoS"].rows.items() if number not in unused)
    used = {queue for row in kept for queue in value_of(row, "queues").values()}
    queues = [row for number, row in tables["Queue"].rows.items() if number not in used and _is_of(store, row)]
    return [*unused.values(), *queues]


def _is_of(store: str, row: Any) -> bool:
    marks = value_of(row, "external_ids")
    return (is_ours(marks) or is_nodes(marks)) and marks.get("store") == store


def _own_row(replica: Replica[SwitchIndex], step: OvsPort, port: Any) -> Any:
    references = value_of(port, "qos")
    row = replica.tables["QoS"].rows.get(references[0]) if references else None
    return row if row is not None and owns(step, value_of(row, "external_ids")) else None


def _insert(txn: Draft, wanted: QosRow, marks: Mapping[str, str]) -> Json:
    queues = {"queues": _queues(txn, wanted, marks)} if wanted.queue else {}
    columns = {"type": wanted.type, "other_config": dict(wanted.other_config), "external_ids": dict(marks)}
    return txn.write("QoS", columns | queues)


def _queues(txn: Draft, wanted: QosRow, marks: Mapping[str, str]) -> Json:
    queue = txn.write("Queue", {"other_config": dict(wanted.queue), "external_ids": dict(marks)})
    return ("map", [(0, queue)])


def _update(txn: Draft, replica: Replica[SwitchIndex], row: Any, wanted: QosRow, marks: Mapping[str, str]) -> bool:
    """Change the rows that differ; whether there are any."""
    txn.verify(row, "external_ids")
    queue = replica.tables["Queue"].rows.get(value_of(row, "queues").get(0))
    columns: dict[str, Any] = {"type": wanted.type, "other_config": dict(wanted.other_config), "external_ids": dict(marks)}
    changes = {column: value for column, value in columns.items() if value_of(row, column) != value}
    changed = False
    if wanted.queue and queue is None:
        changes["queues"] = _queues(txn, wanted, marks)
    elif wanted.queue and value_of(queue, "other_config") != wanted.queue:
        txn.update(queue, {"other_config": dict(wanted.queue)})
        changed = True
    elif not wanted.queue and value_of(row, "queues"):
        changes["queues"] = ("map", [])
        if queue is not None:
            txn.delete(queue)
    if changes:
        txn.update(row, changes)
    return changed or bool(changes)


def _discard(txn: Draft, step: OvsPort | PortRef) -> None:
    """Delete the rows with the step's marks, if these name one attachment."""
    marks = _identity(step)
    if {"container-id", "ifname"} <= marks.keys() or "spec" in marks:
        for table in ("QoS", "Queue"):
            txn.add_op({"op": "delete", "table": table, "where": [["external_ids", "includes", ("map", list(marks.items()))]]})


def _identity(step: OvsPort | PortRef) -> dict[str, str]:
    return {key: value for key, value in ({"owner": OWNER} | dict(step.marks)).items() if key in IDENTITY}
