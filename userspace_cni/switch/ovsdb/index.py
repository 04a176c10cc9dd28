"""What is kept of a session's rows beside them: what is asked often, or without the session's lock."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import count
from typing import Any, Final, TypeVar

from userspace_cni.ovsdb.column_values import value_of
from userspace_cni.ovsdb.database import ROW_UPDATE
from userspace_cni.switch.ovsdb.changes import Listeners, read_changes
from userspace_cni.switch.ovsdb.rows.marks import ATTACHED_MAC
from userspace_cni.switch.ovsdb.rows.port_row import KnownPort

T = TypeVar("T")
_VERSIONS: Final = count(1)
"""Of all sessions: none has a version of another."""


class SwitchIndex:
    """The switch's index. Use it with the session's lock, but `dpdk`, `datapaths`, `marks` and `bridge_marks`.

    `datapaths`: Bridge.datapath_type by name; `marks` and `bridge_marks`: external_ids of Port and Bridge rows by name.
    `internal`: the names of the interfaces that are links of the node itself; `with_mac`: of those that were given a MAC.
    `shown`: caches the KnownPort by name, until a row of that name changes. `kept` caches what was made of all rows, by the
    function that made it, until any row of a port or bridge changes. `versions`: by name, a number that changes with each row of
    a port or interface of that name; `shared_version` changes with rows that ports share, and with those of limits, in a session
    that replicates everything. `listeners` are told of what happens in such a session.
    """

    def __init__(self, listeners: Listeners, everything: bool) -> None:
        self._listeners = listeners
        self._everything = everything
        self._peer_signs: dict[str, frozenset[str]] = {}
        self.dpdk = False
        self.datapaths: dict[str, str] = {}
        self.bridge_marks: dict[str, Mapping[str, str]] = {}
        self.marks: dict[str, Mapping[str, str]] = {}
        self.internal: set[str] = set()
        self._macs: dict[str, str] = {}
        self._of_mac: dict[str, set[str]] = {}
        self.shown: dict[str, KnownPort] = {}
        self.kept: dict[object, Any] = {}
        self.versions: dict[str, int] = {}
        self.shared_version = next(_VERSIONS)

    def show(self, table: str, name: str, row: Any) -> None:
        """The row that has this name by now, None for none."""
        if table == "Open_vSwitch":
            self.dpdk = value_of(row, "dpdk_initialized")
            return
        self.kept.clear()
        if table == "Bridge":
            _set_or_drop(self.datapaths, name, None if row is None else value_of(row, "datapath_type"))
            _set_or_drop(self.bridge_marks, name, None if row is None else value_of(row, "external_ids"))
            return
        self.shown.pop(name, None)
        _set_or_drop(self.versions, name, None if row is None else next(_VERSIONS))
        if table == "Port":
            _set_or_drop(self.marks, name, None if row is None else value_of(row, "external_ids"))
            return
        if row is not None and value_of(row, "type") == "internal":
            self.internal.add(name)
        else:
            self.internal.discard(name)
        self._index_mac(name, "" if row is None else value_of(row, "external_ids").get(ATTACHED_MAC, ""))
        if self._everything:
            self._check_peer(name, row)

    def _index_mac(self, name: str, mac: str) -> None:
        before = self._macs.pop(name, "")
        if mac != before:
            others = self._of_mac.get(before, set()) - {name}
            _set_or_drop(self._of_mac, before, others or None)
        if mac:
            self._macs[name] = mac
            self._of_mac.setdefault(mac, set()).add(name)

    def find_with_mac(self, mac: str) -> tuple[str, ...]:
        """The names of the interfaces that were given this MAC (external_ids:attached-mac)."""
        return tuple(self._of_mac.get(mac, ()))

    def lose(self) -> None:
        self._listeners.lost()

    def change(self, table: str, event: str, row: Any, former: Any) -> None:
        """Tell of what may be a loss. Rows of limits have no name by which their port could be found here."""
        changed = () if former is None else former._data.keys()  # noqa: SLF001 - ovs.db.idl has no other list
        if table != "Open_vSwitch":
            self.kept.clear()
        if table in ("QoS", "Queue") and event == ROW_UPDATE:
            self.shown.clear()
            self.shared_version = next(_VERSIONS)
        elif table == "Mirror" or (table == "Bridge" and event == ROW_UPDATE and any(each != "ports" for each in changed)):
            self.shared_version = next(_VERSIONS)
        for each in read_changes(table, event, partial(value_of, row), changed, partial(value_of, former)):
            self._listeners.change(*each)

    def _check_peer(self, name: str, row: Any) -> None:
        """Tell when a sign of the peer has gone; ovs-vswitchd 3.1 may change the other one late, or never."""
        shown = set() if row is None else {*value_of(row, "link_state"), value_of(row, "status").get("status", "")}
        signs = frozenset(shown & {"up", "connected"})
        before = self._peer_signs.pop(name, frozenset())
        if signs:
            self._peer_signs[name] = signs
        if before - signs:
            self._listeners.disconnect(name)


def _set_or_drop(of: dict[str, T], name: str, value: T | None) -> None:
    if value is None:
        of.pop(name, None)
    else:
        of[name] = value
