"""The rows of OVSDB that we know of, kept up to date over one connection.

ovs.db.idl does the protocol. But it reconnects for ever, where a verb wants to know that its session broke; it finds rows in
lists that it sorts in Python, which costs more than all the rest at 400 ports; and it tells that something has changed, where two
hundred callers wait for one interface each. So
- a Replica is one connection. When that breaks it is lost, for good, with the reason;
- rows are found by name in dictionaries that the IDL's own notifications keep, and what STATUS asks is there without a lock;
- who waits for an interface is a Watch: asked by the connection's thread when its row has changed, and woken once.

It must never connect twice, and never wait by itself: who has the lock decides how long.
"""

from __future__ import annotations

import select
import socket
import threading
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import ovs.db.data
import ovs.db.error
import ovs.json
import ovs.poller
import ovs.reconnect
from ovs.db import idl as ovs_idl
from ovsdbapp.backend.ovs_idl import connection

from userspace_cni.base.errors import Unavailable
from userspace_cni.dataplane.json_parser import Parser
from userspace_cni.dataplane.ovsdb.rows.port import KnownPort

T = TypeVar("T")
Clause = tuple[str, str, str | tuple[tuple[str, str], ...]]
"""Column, function and value by which rows of Port and Interface are chosen."""

SLACK_SECONDS = 0.25
"""How much longer than the connection's thread a caller waits, so that the thread's own answer arrives."""
PROBE_SECONDS = 5.0
"""Where a session lives long, a silent server is asked for a sign of life after so long, and given up after as long again."""

CLOSED = "the OVSDB session was closed"

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
_OBSERVED: dict[str, object] = {"link_state": _STRING_OR_NONE, "status": _MAP}
"""Columns of Interface that only somebody who watches for long has a use for. Never `statistics`: it changes every 5 s."""

_CHOSEN = ("Port", "Interface")
_NAMED = ("Bridge", "Port", "Interface")


class SessionLost(Unavailable):
    """The connection broke; what was asked may have happened. A new Session tells."""


class Poll:
    """poll(2) as ovs.poller uses it. Registering twice adds events: select.poll would forget the first, and never send the rest
    of a long request. (The default, select(), adds too, but fails on file descriptors from 1024 on.)"""

    def __init__(self) -> None:
        self._events: dict[int, int] = {}

    def register(self, fd: Any, events: int) -> None:
        """Wait for `events` of `fd`, a number or a socket, too."""
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
    """One wait for one interface: `look` is asked now and whenever a row of that name has changed, until it is not None."""

    def __init__(self, replica: Replica, name: str, look: Callable[[], T | None]) -> None:
        self._replica = replica
        self._name = name
        self._look = look
        self._found: T | None = None
        self._told = threading.Event()
        replica.watches.setdefault(name, []).append(self)
        self.look()

    def look(self) -> None:
        """On the connection's thread, or with its lock: the row may be what is waited for."""
        self._found = self._look()
        if self._found is not None or self._replica.lost:
            self.forget()
            self._told.set()

    def wait(self, seconds: float) -> T | None:
        """What was looked for; None when it is not there after `seconds`. Raises SessionLost."""
        if self._told.wait(seconds) and self._found is None:
            self._replica.require()
        return self._found

    def forget(self) -> None:
        """Nobody waits any more."""
        others = [each for each in self._replica.watches.get(self._name, ()) if each is not self]
        if others:
            self._replica.watches[self._name] = others
        else:
            self._replica.watches.pop(self._name, None)


class Replica(connection.OvsdbIdl):  # type: ignore[misc]
    """The IDL of one connection. All needs the connection's lock, but `lost`, `dpdk`, `datapaths`, `marks` and `bridge_marks`.

    `everything`: replicate all rows from the start and watch over the server, instead of only the rows that were chosen; then
    `parted` is told the name of each vhost-user interface whose peer has gone. It has the lock, and must not wait.
    `datapaths`: Bridge.datapath_type by name; `marks` and `bridge_marks`: external_ids of Port and Bridge rows by name.
    `shown`: what was made of the port of that name for others to see; it is gone when a row of that name changes. `listed`: of
    all ports; it is gone when any row changes.
    """

    def __init__(self, remote: str, *, everything: bool, parted: Callable[[str], None] = lambda _: None) -> None:
        super().__init__(remote, _schema(everything), leader_only=False)
        reconnect = self._session.reconnect
        reconnect.set_max_tries(0)  # after the first one
        if everything:
            reconnect.set_probe_interval(int(PROBE_SECONDS * 1000))  # which ovs.jsonrpc does not do on a unix socket
        self.everything = everything
        self._parted = parted
        self._joined: dict[str, frozenset[str]] = {}
        self.lost = ""
        self.dpdk = False
        self.datapaths: dict[str, str] = {}
        self.bridge_marks: dict[str, Mapping[str, str]] = {}
        self.marks: dict[str, Mapping[str, str]] = {}
        self.shown: dict[str, KnownPort] = {}
        self.listed: list[KnownPort] | None = None
        self.watches: dict[str, list[Watch[Any]]] = {}
        self._clauses: frozenset[Clause] = frozenset()
        self._names: dict[str, dict[str, Any]] = {table: {} for table in _NAMED}
        self._root: Any = None

    def run(self) -> bool:
        """As the base class; a connection that broke, hangs or talks nonsense is lost, and whoever waits is told."""
        if self.lost:
            return False
        asked = self._session.reconnect.state is ovs.reconnect.Reconnect.Idle
        try:
            news = bool(super().run())
            if not self._session.is_alive():
                self.lose("it does not answer" if asked else _why_not(self.session_name()))
        except _CONFUSED as error:
            news = True
            self.lose(f"it does not speak OVSDB: {error!r}")
        return news

    def lose(self, reason: str) -> None:
        """Give the connection up, for everybody who uses it."""
        self.lost = self.lost or reason
        self.close()
        for watch in [each for group in self.watches.values() for each in group]:
            watch.look()

    def restart_fsm(self) -> None:
        """As the base class, for the first time. Afterwards the database has been replaced under a connection that stands."""
        if self.state == self.IDL_S_MONITORING:
            self.lose("its database was replaced")
        else:
            super().restart_fsm()

    def cooperative_yield(self) -> None:
        """Between two rows of one message: nothing. ovsdbapp gives the processor away, which costs more than the row."""

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

    def notify(self, event: str, row: Any, updates: Any = None) -> None:  # noqa: ARG002 - the interface
        """Called by the IDL for each row that has changed, when all of the server's message is in."""
        table = row._table.name  # noqa: SLF001
        if table == "Open_vSwitch":
            self._root = row
            self.dpdk = value_of(row, "dpdk_initialized")
            return
        name, rows = value_of(row, "name"), self._names[table]
        if event != ovs_idl.ROW_DELETE:
            rows[name] = row
        elif rows.get(name) is row:
            del rows[name]
        self._note(table, name, rows.get(name))

    def _note(self, table: str, name: str, row: Any) -> None:
        self.listed = None
        if table == "Bridge":
            _set_or_drop(self.datapaths, name, None if row is None else value_of(row, "datapath_type"))
            _set_or_drop(self.bridge_marks, name, None if row is None else value_of(row, "external_ids"))
            return
        self.shown.pop(name, None)
        if table == "Port":
            _set_or_drop(self.marks, name, None if row is None else value_of(row, "external_ids"))
            return
        if self.everything:
            self._notice(name, row)
        for watch in self.watches.get(name, ()):
            watch.look()

    def _notice(self, name: str, row: Any) -> None:
        """Whether the interface has lost a sign of its peer: ovs-vswitchd 3.1 may give one of the two late, or never."""
        shown = set() if row is None else {*value_of(row, "link_state"), value_of(row, "status").get("status", "")}
        signs = frozenset(shown & {"up", "connected"})
        before = self._joined.pop(name, frozenset())
        if signs:
            self._joined[name] = signs
        if before - signs:
            self._parted(name)

    def names(self, table: str) -> Mapping[str, Any]:
        """The replicated rows of Bridge, Port or Interface by name."""
        return self._names[table]

    def root(self) -> Any:
        """The one row of Open_vSwitch."""
        if self._root is None:
            raise Unavailable(f"OVSDB at {self.session_name()} is empty", "was it initialised? ovs-vsctl init")
        return self._root

    def choose(self, needs: frozenset[Clause]) -> None:
        """Ask for these rows too; they are there when `chosen`."""
        if self.everything or (needs <= self._clauses and self.state != self.IDL_S_INITIAL):
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


def value_of(row: Any, column: str) -> Any:
    """The column as `row.column` has it in a row that no transaction has changed, at a fraction of the cost."""
    datum = row._data[column]  # noqa: SLF001
    kind = datum.type
    if kind.is_map():
        return {key.value: value.value for key, value in datum.values.items()}
    if kind.is_scalar():
        return next(iter(datum.values)).value
    return sorted(key.value for key in datum.values)


def refers(row: Any, column: str, target: uuid.UUID) -> bool:
    """Whether the set of UUIDs has this one, without reading the others."""
    return ovs.db.data.Atom(ovs.db.types.UuidType, target) in row._data[column].values  # noqa: SLF001


def references(row: Any, column: str) -> set[uuid.UUID]:
    """The set of UUIDs."""
    return {key.value for key in row._data[column].values}  # noqa: SLF001


def count(row: Any, column: str) -> int:
    """How many members the set has."""
    return len(row._data[column].values)  # noqa: SLF001


def named(*names: str) -> frozenset[Clause]:
    """Rows of Port and Interface by name."""
    return frozenset(("name", "==", name) for name in names)


def with_marks(marks: dict[str, str]) -> frozenset[Clause]:
    """Rows of Port and Interface that have all these external_ids."""
    return frozenset({("external_ids", "includes", tuple(sorted(marks.items())))})


def _schema(everything: bool) -> ovs_idl.SchemaHelper:
    columns = _TABLES | ({"Interface": _TABLES["Interface"] | _OBSERVED} if everything else {})
    tables = {name: {"columns": {key: {"type": kind} for key, kind in of.items()}} for name, of in columns.items()}
    root = tables["Open_vSwitch"] | {"isRoot": True}
    schema = {"name": "Open_vSwitch", "version": "0.0.0", "tables": tables | {"Open_vSwitch": root}}
    helper = ovs_idl.SchemaHelper(None, schema)
    helper.register_all()
    return helper


def _set_or_drop(of: dict[str, T], name: str, value: T | None) -> None:
    if value is None:
        of.pop(name, None)
    else:
        of[name] = value


def _json_clause(clause: Clause) -> list[object]:
    column, function, value = clause
    return [column, function, value if isinstance(value, str) else ["map", [list(pair) for pair in value]]]


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
