"""The rows of OVSDB that this process replicates, kept up to date over one connection.

ovs.db.idl does the protocol. But it reconnects for ever, where a verb has to know that its session broke; it finds rows in lists
that it sorts in Python, which costs more than all the rest at 400 ports; and it only reports that some row has changed, where two
hundred callers wait for one interface each. So
- a Replica is one connection. When the connection breaks the Replica is lost for good, with the reason;
- rows are found by name in dictionaries that the IDL's own notifications update; STATUS reads its values without a lock;
- a Watch waits for one interface: the connection's thread calls it when the interface's row has changed, and wakes its caller.

It must never connect twice, and never wait by itself: the holder of the lock decides how long to wait.
"""

from __future__ import annotations

import select
import socket
import threading
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

import ovs.db.data
import ovs.db.error
import ovs.json
import ovs.poller
import ovs.reconnect
from ovs.db import idl as ovs_idl
from ovsdbapp.backend.ovs_idl import connection

from userspace_cni.base.errors import Unavailable
from userspace_cni.switch.json_parser import Parser
from userspace_cni.switch.ovsdb.changes import UNTOLD, Listeners, changes
from userspace_cni.switch.ovsdb.rows.marks import ATTACHED_MAC
from userspace_cni.switch.ovsdb.rows.port import KnownPort

T = TypeVar("T")
Clause = tuple[str, str, str | tuple[tuple[str, str], ...]]
"""Column, function and value by which rows are chosen, in every table that has the column: see `_CHOSEN`."""

SLACK_SECONDS = 0.25
"""How much longer than the connection's thread a caller waits, so that the thread's own answer arrives."""
PROBE_SECONDS = 5.0
"""In a session that lives long, a silent server gets an echo request after so long, and is given up after as long again."""

CLOSED = "the OVSDB session was closed"

_BAD_MESSAGE = (ovs.db.error.Error, AssertionError, AttributeError, IndexError, KeyError, TypeError, ValueError)
"""The errors of ovs.db.idl for messages that are JSON but not OVSDB's."""

_STRING = {"key": "string"}
_STRING_OR_NONE = {"key": "string", "min": 0}
_INTEGER_OR_NONE = {"key": "integer", "min": 0}
_MAP = {"key": "string", "value": "string", "min": 0, "max": "unlimited"}
# References are declared as plain UUIDs: a referenced row that is not replicated would otherwise be left out of the value.
_REFERENCES = {"key": "uuid", "min": 0, "max": "unlimited"}
_STRINGS = {"key": "string", "min": 0, "max": "unlimited"}

_TABLES: dict[str, dict[str, object]] = {
    "Open_vSwitch": {
        "bridges": _REFERENCES,
        "other_config": _MAP,
        "dpdk_initialized": "boolean",
        "cur_cfg": "integer",
        "iface_types": _STRINGS,
        "datapath_types": _STRINGS,
    },
    "Bridge": {
        "name": _STRING,
        "ports": _REFERENCES,
        "mirrors": _REFERENCES,
        "datapath_type": _STRING,
        "external_ids": _MAP,
        "other_config": _MAP,
    },
    "Port": {
        "name": _STRING,
        "interfaces": _REFERENCES,
        "tag": _INTEGER_OR_NONE,
        "trunks": {"key": "integer", "min": 0, "max": 4096},
        "vlan_mode": _STRING_OR_NONE,
        "bond_mode": _STRING_OR_NONE,
        "lacp": _STRING_OR_NONE,
        "bond_updelay": "integer",
        "qos": {"key": "uuid", "min": 0},
        "external_ids": _MAP,
    },
    "Interface": {
        "name": _STRING,
        "type": _STRING,
        "options": _MAP,
        "mac": _STRING_OR_NONE,
        "mtu_request": _INTEGER_OR_NONE,
        "ingress_policing_rate": "integer",
        "ingress_policing_burst": "integer",
        "external_ids": _MAP,
        "mtu": _INTEGER_OR_NONE,
        "mac_in_use": _STRING_OR_NONE,
        "admin_state": _STRING_OR_NONE,
        "ofport": _INTEGER_OR_NONE,
        "ifindex": _INTEGER_OR_NONE,
        "error": _STRING_OR_NONE,
    },
    "QoS": {
        "type": _STRING,
        "other_config": _MAP,
        "queues": {"key": "integer", "value": "uuid", "min": 0, "max": "unlimited"},
        "external_ids": _MAP,
    },
    "Queue": {"other_config": _MAP, "external_ids": _MAP},
    "Mirror": {
        "name": _STRING,
        "select_src_port": _REFERENCES,
        "select_dst_port": _REFERENCES,
        "select_all": "boolean",
        "output_port": {"key": "uuid", "min": 0},
        "external_ids": _MAP,
    },
}
"""The part of the Open_vSwitch schema that we use. It is not fetched, as in C clients. OVS 2.10 and later."""
_OBSERVED: dict[str, object] = {"link_state": _STRING_OR_NONE, "status": _MAP}
"""Columns of Interface that only sessions that live long need. Never `statistics`: it changes every 5 s."""

_CHOSEN = ("Port", "Interface", "QoS", "Queue", "Mirror")
"""Tables with rows of ports. Without `everything` only the rows that a clause chooses are replicated."""
_NAMED = ("Bridge", "Port", "Interface")
SWITCH = ""
"""The name under which a Watch waits for the row of Open_vSwitch; no interface is called so."""


class SessionLost(Unavailable):
    """The connection broke; its transactions may have been done. A new Session shows it."""


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
    """One wait for one interface, or for SWITCH: `look` is called now and when that row has changed, until it returns a value."""

    def __init__(self, replica: Replica, name: str, look: Callable[[], T | None]) -> None:
        self._replica = replica
        self._name = name
        self._look = look
        self._found: T | None = None
        self._ended = threading.Event()
        replica.watches.setdefault(name, []).append(self)
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
        """Stop watching."""
        others = [each for each in self._replica.watches.get(self._name, ()) if each is not self]
        if others:
            self._replica.watches[self._name] = others
        else:
            self._replica.watches.pop(self._name, None)


class Replica(connection.OvsdbIdl):  # type: ignore[misc]
    """The IDL of one connection. Use it with the connection's lock, but `lost`, `dpdk`, `datapaths`, `marks` and `bridge_marks`.

    `everything`: replicate all rows from the start and probe the server, instead of only the chosen rows; then `listeners` are
    told.
    `datapaths`: Bridge.datapath_type by name; `marks` and `bridge_marks`: external_ids of Port and Bridge rows by name.
    `internal`: the names of the interfaces that are links of the node itself; `with_mac`: of those that were given a MAC.
    `shown`: caches the KnownPort by name, until a row of that name changes. `listed`: caches the list of all, until any row
    changes.
    """

    def __init__(self, remote: str, *, everything: bool, listeners: Listeners = UNTOLD) -> None:
        super().__init__(remote, _schema(everything), leader_only=False)
        reconnect = self._session.reconnect
        reconnect.set_max_tries(0)  # after the first one
        if everything:
            reconnect.set_probe_interval(int(PROBE_SECONDS * 1000))  # ovs.jsonrpc sets none on a unix socket
        self.everything = everything
        self._listeners = listeners
        self._loaded = False
        self._peer_signs: dict[str, frozenset[str]] = {}
        self.lost = ""
        self.dpdk = False
        self.datapaths: dict[str, str] = {}
        self.bridge_marks: dict[str, Mapping[str, str]] = {}
        self.marks: dict[str, Mapping[str, str]] = {}
        self.internal: set[str] = set()
        self._macs: dict[str, str] = {}
        self._of_mac: dict[str, set[str]] = {}
        self.shown: dict[str, KnownPort] = {}
        self.listed: list[KnownPort] | None = None
        self.watches: dict[str, list[Watch[Any]]] = {}
        self._clauses: frozenset[Clause] = frozenset()
        self._names: dict[str, dict[str, Any]] = {table: {} for table in _NAMED}
        self._root: Any = None

    def run(self) -> bool:
        """As the base class. When the connection broke, hangs or does not speak OVSDB it is lost, and all waits end."""
        if self.lost:
            return False
        probing = self._session.reconnect.state is ovs.reconnect.Reconnect.Idle
        try:
            changed = bool(super().run())
            if not self._session.is_alive():
                self.lose("it does not answer" if probing else _connect_error(self.session_name()))
        except _BAD_MESSAGE as error:
            changed = True
            self.lose(f"it does not speak OVSDB: {error!r}")
        self._loaded = self.state == self.IDL_S_MONITORING
        return changed

    def lose(self, reason: str) -> None:
        """Give the connection up, for all callers, with the reason."""
        self.lost = self.lost or reason
        self.close()
        for watch in [each for group in self.watches.values() for each in group]:
            watch.look()

    def restart_fsm(self) -> None:
        """As the base class at first. A later call means that the database was replaced: then the connection is lost."""
        if self.state == self.IDL_S_MONITORING:
            self.lose("its database was replaced")
        else:
            super().restart_fsm()

    def cooperative_yield(self) -> None:
        """Do nothing between two rows of one message. ovsdbapp yields the processor here, which costs more than the row."""

    def wait(self, poller: Any) -> None:
        """As the base class; a lost connection has nothing to wait for."""
        if not self.lost:
            super().wait(poller)

    def require(self) -> None:
        """Raise SessionLost if the connection is lost."""
        if self.lost:
            raise SessionLost(
                f"OVSDB at {self.session_name()} is not reachable: {self.lost}",
                "is ovsdb-server running? is setting ovsdb right?",
            )

    def notify(self, event: str, row: Any, updates: Any = None) -> None:
        """Update the dictionaries. The IDL calls it for each changed row, after it has applied the server's whole message."""
        table = row._table.name  # noqa: SLF001
        if self.everything and self._loaded:
            changed = () if updates is None else updates._data.keys()  # noqa: SLF001
            for change in changes(table, event, partial(value_of, row), changed, partial(value_of, updates)):
                self._listeners.change(*change)
        if table == "Open_vSwitch":
            self._root = row
            self.dpdk = value_of(row, "dpdk_initialized")
            self._look_again(SWITCH)
            return
        if table not in _NAMED:
            return
        name, rows = value_of(row, "name"), self._names[table]
        if event != ovs_idl.ROW_DELETE:
            rows[name] = row
        elif rows.get(name) is row:
            del rows[name]
        self._index(table, name, rows.get(name))

    def _index(self, table: str, name: str, row: Any) -> None:
        self.listed = None
        if table == "Bridge":
            _set_or_drop(self.datapaths, name, None if row is None else value_of(row, "datapath_type"))
            _set_or_drop(self.bridge_marks, name, None if row is None else value_of(row, "external_ids"))
            return
        self.shown.pop(name, None)
        if table == "Port":
            _set_or_drop(self.marks, name, None if row is None else value_of(row, "external_ids"))
            return
        if row is not None and value_of(row, "type") == "internal":
            self.internal.add(name)
        else:
            self.internal.discard(name)
        self._index_mac(name, "" if row is None else value_of(row, "external_ids").get(ATTACHED_MAC, ""))
        if self.everything:
            self._check_peer(name, row)
        self._look_again(name)

    def _index_mac(self, name: str, mac: str) -> None:
        before = self._macs.pop(name, "")
        if mac != before:
            others = self._of_mac.get(before, set()) - {name}
            _set_or_drop(self._of_mac, before, others or None)
        if mac:
            self._macs[name] = mac
            self._of_mac.setdefault(mac, set()).add(name)

    def with_mac(self, mac: str) -> tuple[str, ...]:
        """The names of the interfaces that were given this MAC (external_ids:attached-mac)."""
        return tuple(self._of_mac.get(mac, ()))

    def _look_again(self, name: str) -> None:
        for watch in tuple(self.watches.get(name, ())):
            watch.look()

    def _check_peer(self, name: str, row: Any) -> None:
        """Tell when a sign of the peer has gone; ovs-vswitchd 3.1 may change the other one late, or never."""
        shown = set() if row is None else {*value_of(row, "link_state"), value_of(row, "status").get("status", "")}
        signs = frozenset(shown & {"up", "connected"})
        before = self._peer_signs.pop(name, frozenset())
        if signs:
            self._peer_signs[name] = signs
        if before - signs:
            self._listeners.disconnect(name)

    def names(self, table: str) -> Mapping[str, Any]:
        """The replicated rows of Bridge, Port or Interface by name."""
        return self._names[table]

    def root(self) -> Any:
        """The one row of Open_vSwitch."""
        if self._root is None:
            raise Unavailable(f"OVSDB at {self.session_name()} is empty", "was it initialised? ovs-vsctl init")
        return self._root

    def choose(self, needs: frozenset[Clause]) -> None:
        """Ask for these rows too; they are replicated when `chosen` is true."""
        if self.everything or (needs <= self._clauses and self.state != self.IDL_S_INITIAL):
            return
        self._clauses |= needs
        clauses = sorted(self._clauses, key=repr)
        for table in _CHOSEN:
            self.cond_change(table, [_json_clause(clause) for clause in clauses if clause[0] in _TABLES[table]])

    @property
    def chosen(self) -> bool:
        """Whether all chosen rows are replicated. (The number that cond_change returns is one too high: ovs 4.0.)"""
        states = [table.condition_state for table in self.tables.values()]
        return not any(state.new or state.requested for state in states)


def value_of(row: Any, column: str) -> Any:
    """The value of `row.column`, at a fraction of its cost; only for a row that no transaction has changed."""
    datum = row._data[column]  # noqa: SLF001
    kind = datum.type
    if kind.is_map():
        return {key.value: value.value for key, value in datum.values.items()}
    if kind.is_scalar():
        return next(iter(datum.values)).value
    return sorted(key.value for key in datum.values)


def refers(row: Any, column: str, target: uuid.UUID) -> bool:
    """Whether the column's set of UUIDs contains `target`, without reading the others."""
    return ovs.db.data.Atom(ovs.db.types.UuidType, target) in row._data[column].values  # noqa: SLF001


def references(row: Any, column: str) -> set[uuid.UUID]:
    """The column's set of UUIDs."""
    return {key.value for key in row._data[column].values}  # noqa: SLF001


def count(row: Any, column: str) -> int:
    """The size of the column's set."""
    return len(row._data[column].values)  # noqa: SLF001


def named(*names: str) -> frozenset[Clause]:
    """The clauses for rows of Port and Interface with these names."""
    return frozenset(("name", "==", name) for name in names)


def every_port() -> frozenset[Clause]:
    """The clause for all rows of Port and Interface: no name is empty."""
    return frozenset({("name", "!=", "")})


def of_type(kind: str) -> frozenset[Clause]:
    """The clause for interfaces of this type."""
    return frozenset({("type", "==", kind)})


def with_marks(marks: dict[str, str]) -> frozenset[Clause]:
    """The clause for rows of a port's tables that have all these external_ids."""
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


def _connect_error(remote: str) -> str:
    """The error of a new connection; ovs.reconnect does not return its own."""
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
