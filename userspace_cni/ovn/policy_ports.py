"""The logical ports of the northbound database as far as policies follow from them, kept from the notices of a session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from userspace_cni.ovn.northbound import NorthboundSession
from userspace_cni.ovn.northbound_tables import SWITCH, SWITCH_PORT
from userspace_cni.ovn.policy.policy_members import PolicyPort
from userspace_cni.ovn.port_rows import NETWORK, PODS, read_addresses
from userspace_cni.ovn.row_view import scope_of
from userspace_cni.ovn.topology import management_port
from userspace_cni.ovsdb.column_values import value_of
from userspace_cni.ovsdb.database import ROW_UPDATE

_COLUMNS = {SWITCH: {"name"}, SWITCH_PORT: {"name", "addresses", "external_ids"}}


class PolicyPortView:
    """`told` is for the session's notices, on its thread; `take` is called with the session's lock."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self._on_change = on_change
        self._session: NorthboundSession | None = None
        self._names: set[str] = set()
        self._known: set[str] = set()

    def told(self, table: str, event: str, row: Any, former: Any) -> None:
        """A row has changed: as `Index.change`."""
        if table not in _COLUMNS:
            return
        changed = former._data.keys() if event == ROW_UPDATE else _COLUMNS[table]  # noqa: SLF001 - ovs.db.idl has no other list
        if _COLUMNS[table].isdisjoint(changed):
            return
        if table == SWITCH:
            self._names.add(management_port(value_of(row, "name")))
        else:
            self._names.add(value_of(row, "name"))
            if event == ROW_UPDATE and "name" in changed:
                self._names.add(value_of(former, "name"))
        self._on_change()

    def forget(self) -> None:
        """Have all ports read anew."""
        self._session = None

    def take(self, session: NorthboundSession) -> tuple[dict[str, PolicyPort | None], dict[str, bool]]:
        """The ports of pods that may be others than at the last call, None for none; and which ones are a node's own."""
        if session is not self._session:
            self._session = session
            self._names = {*self._known, *(value_of(row, "name") for row in session.rows(SWITCH_PORT))}
            self._known = set()
        names, self._names = self._names, set()
        owned = {management_port(value_of(row, "name")) for row in session.rows(SWITCH)} if names else set()
        ports: dict[str, PolicyPort | None] = {}
        nodes: dict[str, bool] = {}
        for name in names:
            row = session.row(SWITCH_PORT, name)
            (self._known.discard if row is None else self._known.add)(name)
            is_pods = row is not None and scope_of(row) == PODS
            ports[name] = _read_port(name, row) if is_pods else None
            nodes[name] = row is not None and not is_pods and name in owned
        return ports, nodes


def _read_port(name: str, row: Any) -> PolicyPort:
    ids = value_of(row, "external_ids")
    found = [(each.version, str(each)) for text in value_of(row, "addresses") for each in read_addresses(text)]
    return PolicyPort(name, ids.get("namespace", ""), ids.get("pod-name", ""), ids.get(NETWORK, ""), str(row.uuid), tuple(found))
