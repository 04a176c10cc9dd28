"""The rows of OVSDB that this process replicates, kept up to date over one connection.

ovs.db.idl does the protocol. But it reconnects for ever, where a verb has to know that its session broke; it finds rows in lists
that it sorts in Python, which costs more than all the rest at 400 ports; and it only reports that some row has changed, where two
hundred callers wait for one row each. So
- a Replica is one connection. When the connection breaks the Replica is lost for good, with the reason;
- rows are found by name in dictionaries that the IDL's own notifications update, and so is what the Index keeps;
- a Watch waits for one row: the connection's thread calls it when the row has changed, and wakes its caller.

It must never connect twice, and never wait by itself: the holder of the lock decides how long to wait.
"""

from __future__ import annotations

import json
import select
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

import ovs.db.error
import ovs.json
import ovs.poller
import ovs.reconnect
from ovs.db import idl as ovs_idl

from userspace_cni.base.back_off import BackOff
from userspace_cni.base.errors import Unavailable
from userspace_cni.ovsdb.column_values import table_of, value_of
from userspace_cni.ovsdb.database import Clause, Database, I, encode_condition
from userspace_cni.ovsdb.json_parser import Parser
from userspace_cni.ovsdb.row_updates import UpdatedIdl
from userspace_cni.ovsdb.streams import why_refused

T = TypeVar("T")

SLACK_SECONDS = 0.25
"""How much longer than the connection's thread a caller waits, so that the thread's own answer arrives."""
PROBE_SECONDS = 5.0
"""In a session that lives long, a silent server gets an echo request after so long, and is given up after as long again."""

PATIENCE: Final = BackOff(2.5, 10.0)
"""How long a server that is one of several may say nothing while something is asked of it, in seconds: then another one is asked,
for its machine may have died, and the others have a leader within two seconds by default. A longer time after each vain attempt,
because a busy server, or one with a large database, may need it."""

CLOSED = "the OVSDB session was closed"
SILENT: Final = "it does not answer"
_FOLLOWS: Final = "it does not lead its cluster"
_CUT_OFF: Final = "it does not serve the database now"

_BAD_MESSAGE: Final = (ovs.db.error.Error, AssertionError, AttributeError, IndexError, KeyError, TypeError, ValueError)
"""The errors of ovs.db.idl for messages that are JSON but not OVSDB's."""


class SessionLost(Unavailable):
    """The connection broke; its transactions may have been done. A new Session shows it."""


class NoLeader(SessionLost):
    """The server does not lead the cluster to which the database belongs, or is cut off from it, as while the cluster elects."""


class LockNotHeld(Unavailable):
    """The session has not, or no longer, the lock without which its database is not to be written: nothing was done."""


class Poll:
    """poll(2) for ovs.poller. A second `register` adds events, where select.poll replaces them: then the rest of a long request
    would never be sent. (The default, select(), adds too, but fails on file descriptors from 1024 on.)"""

    def __init__(self) -> None:
        self._events: dict[int, int] = {}

    def register(self, fd: Any, events: int) -> None:
        """Wait also for `events` of `fd`, a number or a socket."""
        number = fd if isinstance(fd, int) else fd.fileno()
        self._events[number] = self._events.get(number, 0) | events

    def poll(self, timeout: float) -> list[tuple[int, int]]:
        """As select.poll."""
        poll = select.poll()
        for fd, events in self._events.items():
            poll.register(fd, events)
        return poll.poll(timeout)


if ovs.json.PARSER == ovs.json.PARSER_PY:
    ovs.json.Parser = Parser
ovs.poller.SelectPoll = Poll


class Watch(Generic[T]):
    """One wait for one row: `look` is called now and when that row has changed, until it returns a value.

    `place`: its table and name, of the root table "".
    """

    def __init__(self, replica: Replica[Any], place: tuple[str, str], look: Callable[[], T | None]) -> None:
        self._replica = replica
        self._place = place
        self._look = look
        self._found: T | None = None
        self._ended = threading.Event()
        replica.watches.setdefault(place, []).append(self)
        self.look()

    def look(self) -> None:
        """Call `look` once more. On the connection's thread, or with its lock."""
        self._found = self._look()
        if self._found is not None or self._replica.lost:
            self.forget()
            self._ended.set()

    def wait(self, seconds: float) -> T | None:
        """Wait for the value of `look`; None when there is none after `seconds`. Raises SessionLost."""
        if self._ended.wait(seconds) and self._found is None:
            self._replica.require()
        return self._found

    def forget(self) -> None:
        others = [each for each in self._replica.watches.get(self._place, ()) if each is not self]
        if others:
            self._replica.watches[self._place] = others
        else:
            self._replica.watches.pop(self._place, None)


class Replica(UpdatedIdl, Generic[I]):
    """The IDL of one connection. Use it with the connection's lock, but `lost` and what the Index allows.

    `everything`: replicate all rows from the start and probe the server, instead of only the chosen rows; then the Index is told
    of changes.
    """

    def __init__(self, remote: str, database: Database[I], *, everything: bool) -> None:
        helper = ovs_idl.SchemaHelper(None, database.schema(everything=everything))
        helper.register_all()
        super().__init__(remote, helper, leader_only=False)
        reconnect = self._session.reconnect
        reconnect.set_max_tries(0)  # after the first one
        if everything:
            reconnect.set_probe_interval(int(PROBE_SECONDS * 1000))  # ovs.jsonrpc sets none on a unix socket
        self.database = database
        self.everything = everything
        self.index = database.index(everything)
        self.lost = ""
        self._heard_bytes = 0
        self._heard = time.monotonic()
        self.watches: dict[tuple[str, str], list[Watch[Any]]] = {}
        self._loaded = False
        self._clauses: frozenset[Clause] = frozenset()
        self._names: dict[str, dict[str, Any]] = {table: {} for table in database.named}
        self._root: Any = None
        self._told_lock = False
        if database.lock is not None:
            self.set_lock(database.lock.name)

    def run(self) -> bool:
        """As the base class. When the connection broke, hangs or does not speak OVSDB it is lost, and all waits end."""
        if self.lost:
            return False
        probing = self._session.reconnect.state is ovs.reconnect.Reconnect.Idle
        try:
            changed = bool(super().run())
            self._listen()
            if self._follows():
                self.lose(_FOLLOWS)
            elif not self.lost and not self._session.is_alive():
                self.lose(SILENT if probing else why_refused(self.session_name()))
        except _BAD_MESSAGE as error:
            changed = True
            self.lose(f"it does not speak OVSDB: {error!r}")
        self._loaded = self.state == self.IDL_S_MONITORING
        self._tell_lock()
        return changed

    def _listen(self) -> None:
        """Note whether the server has said anything, be it a part of a message."""
        received = self._session.rpc.get_received_bytes() if self._session.rpc is not None else 0
        if received != self._heard_bytes:
            self._heard_bytes, self._heard = received, time.monotonic()

    def is_silent(self, since: float, seconds: float) -> bool:
        """Whether the server has said nothing for so long, while something was asked of it `since` then (time.monotonic)."""
        return time.monotonic() - max(self._heard, since) >= seconds

    @property
    def holds_lock(self) -> bool:
        """Whether the database's lock is ours, as far as is known; where there is none to hold, that is always so."""
        return self.database.lock is None or (bool(self.has_lock) and not self.lost)

    def ask_lock(self, *, wanted: bool) -> bool:
        """Ask for the database's lock, or give it up; whether that is so now: not while a transaction is under way."""
        lock = self.database.lock
        if lock is None or wanted == (self.lock_name is not None):
            return True
        if self._outstanding_txns:
            return False
        self.set_lock(lock.name if wanted else None)
        return True

    def _tell_lock(self) -> None:
        if self.database.lock is not None and self.holds_lock != self._told_lock:
            self._told_lock = self.holds_lock
            self.database.lock.on_change(self._told_lock)

    def _follows(self) -> bool:
        """Whether the server says, in its database _Server, that another one leads the cluster to which the database belongs."""
        rows = self.server_tables["Database"].rows.values() if self.server_tables else ()
        mine = (row for row in rows if value_of(row, "name") == self.database.name)
        return any(value_of(row, "model") == "clustered" and not value_of(row, "leader") for row in mine)

    def send_request(self, request: Any) -> Any:
        """As the base class. Of what the database describes as optional, only what the server has is asked for."""
        if request.method.startswith("monitor") and request.params[0] == self.database.name and self.database.optional:
            request.params[2] = self._without_lacking(request.params[2])
            if self.lost:
                return None
        return super().send_request(request)

    def _without_lacking(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The tables and columns of a request without those that the server lacks, which the replica then lacks, too."""
        served, optional = self._served(), self.database.optional
        for table in list(asked):
            columns = served.get(table, {})
            lacking = [column for column in asked[table][0]["columns"] if column not in columns]
            for column in lacking:
                if column not in optional.get(table, {}):
                    self.lose(f"its schema lacks column {column} of table {table}")
                del self.tables[table].columns[column]
            asked[table][0]["columns"] = [column for column in asked[table][0]["columns"] if column not in lacking]
            if not self.tables[table].columns:
                del self.tables[table], asked[table]
        return asked

    def _served(self) -> dict[str, Any]:
        """The columns of the server's tables, by its database _Server. ovs.db.idl has fetched that before it asks for rows."""
        rows = self.server_tables["Database"].rows.values() if self.server_tables else ()
        texts = [text for row in rows if value_of(row, "name") == self.database.name for text in value_of(row, "schema")]
        return {name: table["columns"] for text in texts for name, table in json.loads(text)["tables"].items()}

    def force_reconnect(self) -> None:
        """The server says that it has no such database, or is cut off from its cluster: the connection is lost."""
        self.lose(_CUT_OFF)

    def lose(self, reason: str) -> None:
        """Give the connection up, for all callers, with the reason."""
        was_lost, self.lost = bool(self.lost), self.lost or reason
        self.close()
        if not was_lost and self._loaded:
            self.index.lose()
        self._tell_lock()
        for watch in [each for group in self.watches.values() for each in group]:
            watch.look()

    def restart_fsm(self) -> None:
        """As the base class at first. A later call means that the database was replaced: then the connection is lost."""
        if self.state == self.IDL_S_MONITORING:
            self.lose("its database was replaced")
        else:
            super().restart_fsm()

    def wait(self, poller: Any) -> None:
        """As the base class; a lost connection has nothing to wait for."""
        if not self.lost:
            super().wait(poller)

    def require(self) -> None:
        """Raise SessionLost if the connection is lost."""
        if self.lost:
            kind = NoLeader if self.lost in (_FOLLOWS, _CUT_OFF) else SessionLost
            raise kind(
                f"OVSDB at {self.session_name()} is not reachable: {self.lost}",
                f"is ovsdb-server running? is setting {self.database.setting} right?",
            )

    def notify(self, event: str, row: Any, updates: Any = None) -> None:
        """Update the dictionaries. The IDL calls it for each changed row, after it has applied the server's whole message."""
        table = table_of(row)
        if self.everything and self._loaded:
            self.index.change(table, event, row, updates)
        if table == self.database.root:
            self._root = row
            self._show(table, "", row)
        elif table in self._names:
            name, rows = value_of(row, "name"), self._names[table]
            if event != ovs_idl.ROW_DELETE:
                rows[name] = row
            elif rows.get(name) is row:
                del rows[name]
            self._show(table, name, rows.get(name))

    def _show(self, table: str, name: str, row: Any) -> None:
        self.index.show(table, name, row)
        for watch in tuple(self.watches.get((table, name), ())):
            watch.look()

    def has(self, table: str, column: str) -> bool:
        """Whether rows of the table have the column here; those that the server lacks they have not."""
        return table in self.tables and column in self.tables[table].columns

    def names(self, table: str) -> Mapping[str, Any]:
        """The replicated rows of a table of `Database.named` by name."""
        return self._names[table]

    def root(self) -> Any:
        if self._root is None:
            raise Unavailable(f"OVSDB at {self.session_name()} is empty", f"was it initialised? {self.database.initialise}")
        return self._root

    def choose(self, needs: frozenset[Clause]) -> None:
        """Ask for these rows too; they are replicated when `chosen` is true."""
        if self.everything or (needs <= self._clauses and self.state != self.IDL_S_INITIAL):
            return
        self._clauses |= needs
        for table in self.database.chosen & self.tables.keys():
            self.cond_change(table, encode_condition(self._clauses, self.database.tables[table]))

    @property
    def chosen(self) -> bool:
        """Whether all chosen rows are replicated. (The number that cond_change returns is one too high: ovs 4.0.)"""
        states = [table.condition_state for table in self.tables.values()]
        return not any(state.new or state.requested for state in states)
