"""What a transaction does to the limits of one port, and the rows to which no port refers any more.

Rows of QoS and Queue are roots of the database: they outlive the port that refers to them. So they are made, changed and deleted
in the transaction of their port, carry its marks, and are never shared between ports. A living port keeps its rows when its
limits change: a new row would be another qdisc, with a gap in the traffic. A QoS row that is not this attachment's is never
changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from userspace_cni.ovsdb.column_values import value_of
from userspace_cni.ovsdb.replica import Replica
from userspace_cni.switch.ovsdb.index import SwitchIndex
from userspace_cni.switch.ovsdb.rows.marks import is_nodes, is_ours, owns, select_identity
from userspace_cni.switch.ovsdb.rows.qos_row import QosRow

if TYPE_CHECKING:
    from userspace_cni.ovsdb.column_values import Json
    from userspace_cni.ovsdb.draft import Draft


def make(txn: Draft, wanted: QosRow | None, marks: Mapping[str, str]) -> list[Json]:
    """Write the rows of a new port's limit; its column `qos`."""
    return [_insert(txn, wanted, marks)] if wanted else []


def converge(txn: Draft, replica: Replica[SwitchIndex], wanted: QosRow | None, port: Any, marks: Mapping[str, str]) -> bool:
    """Make the limit of a living port the wanted one, or remove it; whether anything was written.

    `port`: its row, whose external_ids and qos have been verified.
    """
    row = _own_row(replica, port, marks)
    if wanted is None and row is None:
        return False
    if wanted is None:
        drop(txn, marks, port)
        return True
    if row is None:
        txn.update(port, {"qos": [_insert(txn, wanted, marks)]})
        return True
    return _update(txn, replica, row, wanted, marks)


def drop(txn: Draft, marks: Mapping[str, str], port: Any, *, foreign: bool = False) -> None:
    """Delete the limit of the port, whose row is None when it is gone already; a `foreign` QoS row that it has, too."""
    qos = value_of(port, "qos") if port is not None else []
    if qos:
        # The server checks references before it removes unreferenced rows: so the reference must go first.
        txn.update(port, {"qos": []})
    if qos and foreign:
        txn.add_op({"op": "delete", "table": "QoS", "where": [["_uuid", "==", ["uuid", str(qos[0])]]]})
    named = select_identity(marks)
    if {"container-id", "ifname"} <= named.keys() or "spec" in named:  # they name one attachment
        named |= {"store": marks["store"]} if marks.get("store") else {}  # another state directory may have a spec of that name
        for table in ("QoS", "Queue"):
            txn.add_op({"op": "delete", "table": table, "where": [["external_ids", "includes", ("map", list(named.items()))]]})


def limit_of(replica: Replica[SwitchIndex], port: Any) -> QosRow | None:
    references = value_of(port, "qos")
    row = replica.tables["QoS"].rows.get(references[0]) if references else None
    if row is None:
        return None
    queue = replica.tables["Queue"].rows.get(value_of(row, "queues").get(0))
    of_queue = {} if queue is None else value_of(queue, "other_config")
    return QosRow(value_of(row, "type"), value_of(row, "other_config"), of_queue)


def find_orphans(replica: Replica[SwitchIndex], store: str) -> list[Any]:
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


def _own_row(replica: Replica[SwitchIndex], port: Any, marks: Mapping[str, str]) -> Any:
    references = value_of(port, "qos")
    row = replica.tables["QoS"].rows.get(references[0]) if references else None
    return row if row is not None and owns(marks, value_of(row, "external_ids")) else None


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
