"""One connection to OVSDB: a replica of the rows that are needed, and transactions that end when their deadline says.

ovsdbapp's own connection and transaction are made for a service that lives as long as its database: they reconnect for ever, wait
for ovs-vswitchd on the thread that serves everybody, and never notice a hung server on a unix socket. A verb has a deadline
instead. So here
- a Session is one connection. When it breaks it is lost (SessionLost), and the caller opens another one and looks again.
- every transaction asks the server for something, so that its success is the server's word and not a replica's memory;
- a transaction that is out of time leaves its outcome unknown, and takes the Session with it;
- only columns in `_TABLES` are replicated, and of Port and Interface only the rows that somebody asked for.

It must never wait without a deadline, log anything by itself, or let an exception of ovs or ovsdbapp out.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import queue
import select
import socket
import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import ovs.db.error
import ovs.json
import ovs.poller
from ovs.db import idl as ovs_idl
from ovsdbapp.backend import ovs_idl as backend
from ovsdbapp.backend.ovs_idl import command, connection, idlutils, transaction

from userspace_cni.dataplane.json_parser import Parser
from userspace_cni.deadline import Deadline
from userspace_cni.errors import Unavailable, UserspaceError

# Without a handler of its own or of the root, logging would print ovsdbapp's warnings to stderr.
logging.getLogger("ovsdbapp").addHandler(logging.NullHandler())
if ovs.json.PARSER == ovs.json.PARSER_PY:
    ovs.json.Parser = Parser
ovs.poller.SelectPoll = select.poll  # the default, select(), fails on file descriptors from 1024 on

T = TypeVar("T")
Clause = tuple[str, str, str | tuple[tuple[str, str], ...]]
"""Column, function and value by which rows of Port and Interface are chosen."""

SLACK_SECONDS = 0.25
"""How much longer than the connection's thread a caller waits, so that the thread's own answer arrives."""

_CONFUSED = (ovs.db.error.Error, AssertionError, AttributeError, IndexError, KeyError, TypeError, ValueError)
"""What ovs.db.idl raises on messages that are JSON and no OVSDB."""

_STRING = {"key": "string"}
_STRING_OR_NONE = {"key": "string", "min": 0}
_INTEGER_OR_NONE = {"key": "integer", "min": 0}
_MAP = {"key": "string", "value": "string", "min": 0, "max": "unlimited"}
# References are declared as plain UUIDs: a referenced row that is not replicated would otherwise be left out of the value.
_REFERENCES = {"key": "uuid", "min": 0, "max": "unlimited"}

_TABLES: dict[str, dict[str, object]] = {
    "Open_vSwitch": {"bridges": _REFERENCES, "other_config": _MAP, "dpdk_initialized": "boolean"},
    "Bridge": {"name": _STRING, "ports": _REFERENCES, "datapath_type": _STRING, "external_ids": _MAP},
    "Port": {
        "name": _STRING,
        "interfaces": _REFERENCES,
        "tag": _INTEGER_OR_NONE,
        "trunks": {"key": "integer", "min": 0, "max": 4096},
        "vlan_mode": _STRING_OR_NONE,
        "qos": {"key": "uuid", "min": 0},
        "external_ids": _MAP,
    },
    "Interface": {
        "name": _STRING,
        "type": _STRING,
        "options": _MAP,
        "mtu_request": _INTEGER_OR_NONE,
        "external_ids": _MAP,
        "mtu": _INTEGER_OR_NONE,
        "ofport": _INTEGER_OR_NONE,
        "error": _STRING_OR_NONE,
    },
}
"""The part of the Open_vSwitch schema that we use, as C clients compile theirs in: nothing is fetched. OVS 2.10 and later."""

_CHOSEN = ("Port", "Interface")
_STILL_THERE = {"op": "select", "table": "Open_vSwitch", "where": [], "columns": ["_uuid"]}


class SessionLost(Unavailable):
    """The connection broke; what was asked may have happened. A new Session tells."""


class Refused(Exception):
    """ovsdb-server took the transaction and rejected it; `error` and `details` are its own words (RFC 7047, 4.1.3)."""

    def __init__(self, error: str, details: str) -> None:
        super().__init__(f"{error}: {details}")
        self.error = error
        self.details = details


class Command(command.BaseCommand):  # type: ignore[misc]
    """One thing to do or to read in a transaction. `run_idl` runs again when the database changed under it."""

    api: Session

    def needs(self) -> frozenset[Clause]:
        """The rows of Port and Interface that `run_idl` looks at; may depend on what is already replicated."""
        return frozenset()

    def again(self, refused: Refused) -> bool:  # noqa: ARG002 - for those who know better
        """Whether to run once more after the server rejected it."""
        return False


class Session(backend.Backend):  # type: ignore[misc]
    """An open connection with its replica. Safe to use from several threads.

    `everything`: replicate all rows from the start instead of those that commands need; for a process that lives long.
    """

    ovsdb_connection: Any = None  # of this object; the base class has one for the whole process
    schema = "Open_vSwitch"

    def __init__(self, remote: str, needs: frozenset[Clause], deadline: Deadline, *, everything: bool = False) -> None:
        self.remote = remote
        self._link = _Connection(_Replica(remote, everything=everything))
        super().__init__(self._link, start=False)
        try:
            self._link.open(needs, deadline)
        except BaseException:
            self._link.idl.close()
            raise

    @property
    def usable(self) -> bool:
        """Whether the connection still stands."""
        return not self._link.idl.lost

    def transact(self, commands: Iterable[Command], deadline: Deadline) -> None:
        """Run the commands in one transaction.

        Raises SessionLost; Unavailable at the deadline, after which the Session is not usable any more; Refused; and the errors
        that the commands raise.
        """
        pending = _Transaction(self, self._link, deadline)
        for each in commands:
            pending.add(each)
        pending.commit()

    def wait_for(self, look: Callable[[], T | None], deadline: Deadline) -> T | None:
        """The first value other than None that `look` returns, asked again whenever the replica changes; None at the deadline."""
        with self._link.changed:
            while (found := look()) is None and (left := deadline.remaining()) > 0:
                self._link.idl.require()
                self._link.changed.wait(left)
            return found

    def row(self, table: str, name: str) -> Any:
        """The row of that name in the replica, or None. Only within a command or `wait_for`."""
        return idlutils.row_by_value(self.idl, table, "name", name, None)

    def rows(self, table: str) -> list[Any]:
        """All rows of the replica. Only within a command or `wait_for`."""
        return list(self.tables[table].rows.values())

    def root(self) -> Any:
        """The one row of Open_vSwitch."""
        return next(iter(self.rows("Open_vSwitch")))

    def close(self) -> None:
        """End the connection and its thread."""
        self._link.stop(timeout=SLACK_SECONDS)


class _Replica(connection.OvsdbIdl):  # type: ignore[misc]
    """The IDL of one connection: it never connects twice."""

    def __init__(self, remote: str, *, everything: bool) -> None:
        tables = {name: {"columns": {key: {"type": kind} for key, kind in columns.items()}} for name, columns in _TABLES.items()}
        for name in ("Bridge", *_CHOSEN):
            tables[name]["indexes"] = [["name"]]  # type: ignore[assignment]
        schema = {
            "name": "Open_vSwitch",
            "version": "0.0.0",
            "tables": tables | {"Open_vSwitch": tables["Open_vSwitch"] | {"isRoot": True}},
        }
        helper = ovs_idl.SchemaHelper(None, schema)
        helper.register_all()
        super().__init__(remote, helper, leader_only=False)
        self._session.reconnect.set_max_tries(0)  # after the first one
        self._everything = everything
        self._clauses: frozenset[Clause] = frozenset()
        self.lost = ""
        self.changed: threading.Condition | None = None

    def run(self) -> bool:
        """As the base class; a connection that broke or talks nonsense is lost, and whoever waits is told."""
        if self.lost:
            return False
        try:
            news = bool(super().run())
            if not self._session.is_alive():
                self.lose(_why_not(self.session_name()))
        except _CONFUSED as error:
            news = True
            self.lose(f"it does not speak OVSDB: {error!r}")
        if news and self.changed is not None:
            self.changed.notify_all()
        return news

    def lose(self, reason: str) -> None:
        """Give the connection up, for everybody who uses it."""
        self.lost = self.lost or reason
        self.close()
        if self.changed is not None:
            self.changed.notify_all()

    def wait(self, poller: Any) -> None:
        """As the base class; a lost connection has nothing to wait for."""
        if not self.lost:
            super().wait(poller)

    def require(self) -> None:
        """Raise SessionLost if it is."""
        if self.lost:
            raise SessionLost(
                f"OVSDB at {self.session_name()} is not reachable: {self.lost}",
                "is ovsdb-server running? is setting ovsdb right?",
            )

    def choose(self, needs: frozenset[Clause]) -> None:
        """Ask for these rows too; they are there when `chosen`."""
        if self._everything or (needs <= self._clauses and self.state != self.IDL_S_INITIAL):
            return
        self._clauses |= needs
        conditions = [_json_clause(clause) for clause in sorted(self._clauses, key=repr)]
        for table in _CHOSEN:
            self.cond_change(table, conditions)

    @property
    def chosen(self) -> bool:
        """Whether all rows that were asked for are replicated. (The number that cond_change returns is one too high: ovs 4.0.)"""
        states = [table.condition_state for table in self.tables.values()]
        return not any(state.new or state.requested for state in states)


class _Connection(connection.Connection):  # type: ignore[misc]
    """ovsdbapp's thread around an IDL, opened within a deadline and closed without waiting for a free place in the queue."""

    def __init__(self, idl: _Replica) -> None:
        super().__init__(idl, timeout=None)
        self.changed = threading.Condition(self.lock)
        idl.changed = self.changed

    def open(self, needs: frozenset[Clause], deadline: Deadline) -> None:
        """Connect, fetch the rows and start the thread. Unavailable if that can not be done now."""
        with self.lock:
            self.idl.choose(needs)
            while True:
                self.idl.run()
                self.idl.require()
                if self.idl.state == ovs_idl.Idl.IDL_S_MONITORING:
                    break
                self.await_message(deadline)
            self.poller = ovs.poller.Poller()
            self.is_running = True
            self.thread = threading.Thread(target=self.run, daemon=True, name="ovsdb")
            self.thread.start()

    def await_message(self, deadline: Deadline) -> None:
        """Wait until the connection has something to read or write, with the lock set free; Unavailable at the deadline."""
        left = deadline.remaining()
        if left <= 0:
            self.idl.lose("it does not answer")
            raise Unavailable(f"OVSDB at {self.idl.session_name()} does not answer", "is ovsdb-server stopped or overloaded?")
        poller = ovs.poller.Poller()
        self.idl.wait(poller)
        poller.timer_wait(math.ceil(left * 1000))
        self.lock.release()
        try:
            poller.block()
        finally:
            self.lock.acquire()

    def stop(self, timeout: float | None = None) -> bool:
        """End the thread; transactions that were queued are answered with SessionLost."""
        self.is_running = False
        with contextlib.suppress(queue.Full):
            self.txns.put(None, block=False)
        if self.thread is not None:
            self.thread.join(timeout)
        while not self.txns.empty():
            if (waiting := self.txns.get_nowait()) is not None:
                waiting.results.put(idlutils.ExceptionResult(SessionLost("the OVSDB session was closed"), None))
        return True


class _Transaction(transaction.Transaction):  # type: ignore[misc]
    """Commands that succeed or fail together, within a deadline."""

    def __init__(self, session: Session, link: _Connection, deadline: Deadline) -> None:
        super().__init__(session, link, check_error=True, log_errors=False, timeout=deadline.remaining())
        self._deadline = deadline
        self._link = link

    def commit(self) -> None:
        """Hand it to the connection's thread and wait for the outcome."""
        left = self._deadline.require("a transaction with OVSDB")
        try:
            self._link.txns.put(self, timeout=left)
            result = self.results.get(timeout=self._deadline.remaining() + SLACK_SECONDS)
        except (queue.Full, queue.Empty):
            raise Unavailable(
                "OVSDB is busy with other transactions", f"is ovsdb-server at {self.api.remote} overloaded?"
            ) from None
        if isinstance(result, idlutils.ExceptionResult):
            raise result.ex

    def do_commit(self) -> None:
        """On the connection's thread, which holds the lock: try until the database did not change under us."""
        certain = False
        while True:
            self._deadline.require("a transaction with OVSDB")  # who queued it may have gone: it must not land later
            self._replicate()
            txn = ovs_idl.Transaction(self._link.idl)
            try:
                for each in self.commands:
                    each.run_idl(txn)
            except UserspaceError:
                txn.abort()
                if certain:
                    raise
                # What we saw may be out of date: hear the server, and look again.
                certain = self._settle(ovs_idl.Transaction(self._link.idl)) == txn.SUCCESS
                continue
            except BaseException:
                txn.abort()
                raise
            if self._done(txn):
                return

    def _done(self, txn: Any) -> bool:
        seqno = self._link.idl.change_seqno
        try:
            status = self._settle(txn)
        except Refused as refused:
            if any(each.again(refused) for each in self.commands):
                return False
            raise
        if status == txn.SUCCESS:
            self.post_commit(txn)
            return True
        while self._link.idl.change_seqno == seqno:  # a row that we verified is not what we saw: the news must be on their way
            self._link.idl.require()
            self._link.await_message(self._deadline)
            self._link.idl.run()
        return False

    def _settle(self, txn: Any) -> str:
        """Send it and wait for the outcome: SUCCESS or TRY_AGAIN."""
        txn.add_op(_STILL_THERE)
        idl = self._link.idl
        try:
            while (status := txn.commit()) == txn.INCOMPLETE:
                self._link.await_message(self._deadline)
                idl.run()
                idl.require()
        except SessionLost:
            raise
        except Unavailable as error:
            raise Unavailable(f"{error.message}; whether it did what was asked is unknown", error.details) from None
        idl.require()
        if status == txn.ERROR:
            raise _refused(txn.get_error())
        return str(status)

    def _replicate(self) -> None:
        """Fetch the rows that the commands need; they may need more once these are there."""
        link, idl = self._link, self._link.idl
        while True:
            idl.require()
            idl.choose(frozenset().union(*(each.needs() for each in self.commands)))
            if idl.chosen:
                return
            while not idl.chosen:
                idl.run()
                idl.require()
                if not idl.chosen:
                    link.await_message(self._deadline)


def verify(txn: Any, row: Any, *columns: str) -> None:
    """Commit only if these columns of the row are still what the replica shows, and the row is still there.

    Row.verify of ovs.db.idl alone does nothing for a row that the transaction does not change (measured with ovs 4.0).
    """
    for column in columns:
        row.verify(column)
    txn._txn_rows[row.uuid] = row  # noqa: SLF001


def named(*names: str) -> frozenset[Clause]:
    """Rows of Port and Interface by name."""
    return frozenset(("name", "==", name) for name in names)


def with_marks(marks: dict[str, str]) -> frozenset[Clause]:
    """Rows of Port and Interface that have all these external_ids."""
    return frozenset({("external_ids", "includes", tuple(sorted(marks.items())))})


def _json_clause(clause: Clause) -> list[object]:
    column, function, value = clause
    return [column, function, value if isinstance(value, str) else ["map", [list(pair) for pair in value]]]


def _refused(error: str) -> Refused:
    try:
        answer = json.loads(error)
        return Refused(str(answer.get("error", "error")), str(answer.get("details", "")))
    except (ValueError, AttributeError):
        return Refused("error", error)


def _why_not(remote: str) -> str:
    """What connecting says now; ovs.reconnect keeps the reason to itself."""
    kind, _, address = remote.partition(":")
    try:
        if kind == "unix":
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(SLACK_SECONDS)
                probe.connect(address)
        else:
            host, _, port = address.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), timeout=SLACK_SECONDS).close()
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    return "it closed the connection, or does not speak OVSDB"
