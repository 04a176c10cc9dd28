"""What the northbound database has of logical ports, and what all of them depend on, kept from the notices of a session.

A row is read when it has changed, and once when the session is new. So a look at a cluster in which nothing has changed reads
nothing, and one of a single port reads one row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import ip_interface
from sys import intern
from typing import Any, Final

from userspace_cni.base.subnets import Address
from userspace_cni.ovn.address_book import SwitchSubnet
from userspace_cni.ovn.fragment_judging import read_version
from userspace_cni.ovn.limit_rows import DIRECTIONS, PORT, FoundLimit, FoundLimits, limit_id, read_switch
from userspace_cni.ovn.logical_switches import FoundSwitch, read_subnets
from userspace_cni.ovn.northbound import NorthboundSession
from userspace_cni.ovn.northbound_tables import GLOBAL, QOS, ROUTER_PORT, SWITCH, SWITCH_PORT
from userspace_cni.ovn.port_rows import FoundLogicalPort
from userspace_cni.ovsdb.column_values import columns_of, value_of
from userspace_cni.ovsdb.database import ROW_UPDATE
from userspace_cni.pod.mac import six_octets

_COLUMNS: Final = {
    SWITCH: {"name", "other_config", "external_ids"},
    ROUTER_PORT: {"name", "mac", "networks"},
    GLOBAL: {"options"},
}
"""Of what ports depend on, the columns that count. A switch changes with each of its ports, too."""


@dataclass(frozen=True)
class NorthboundFacts:
    """The switches, addresses and MACs of routers' ports, and the version of OVN that serves the database, () where none does."""

    switches: Mapping[str, tuple[SwitchSubnet, ...]]
    routers: Mapping[str, tuple[Address, ...]]
    version: tuple[int, ...]
    macs: Mapping[str, str]


class PortView:
    """`told` is for the session's notices, on its thread; the rest is called with the session's lock."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self._on_change = on_change
        self._session: NorthboundSession | None = None
        self._names: set[str] = set()
        self._facts: NorthboundFacts | None = None
        self.ports: dict[str, FoundLogicalPort] = {}
        self.limits: dict[str, FoundLimits] = {}
        """Those that are rows of ours, by port, there or not."""

    def told(self, table: str, event: str, row: Any, former: Any) -> None:
        """A row has changed: as `Index.change`."""
        changed = former._data.keys() if event == ROW_UPDATE else ()  # noqa: SLF001 - ovs.db.idl has no other list
        if table == SWITCH_PORT:
            self._names.add(value_of(row, "name"))
            if "name" in changed:
                self._names.add(value_of(former, "name"))
            self._on_change()
        elif table == QOS:
            named = {_limited(row), _limited(former) if "external_ids" in changed else ""} - {""}
            self._names |= named
            if named:
                self._on_change()
        elif table in _COLUMNS and (event != ROW_UPDATE or not _COLUMNS[table].isdisjoint(changed)):
            self._facts = None
            self._on_change()

    def forget(self) -> None:
        """Keep nothing, until `take` reads all of it."""
        self._session, self._facts, self.ports, self.limits = None, None, {}, {}
        self._names.clear()

    def take(self, session: NorthboundSession) -> tuple[bool, set[str], NorthboundFacts]:
        """Read what has changed: whether all is new, the names of the ports that may be others, and the facts."""
        is_new = session is not self._session
        if is_new:
            self._session, self._facts = session, None
            former, self.ports, self.limits = {*self.ports, *self.limits}, {}, {}
            limited = filter(None, map(_limited, session.rows(QOS)))
            self._names = {*former, *limited, *(value_of(row, "name") for row in session.rows(SWITCH_PORT))}
        names, self._names = self._names, set()
        for name in names:
            row = session.row(SWITCH_PORT, name)
            if row is None:
                self.ports.pop(name, None)
            else:
                self.ports[name] = _found(name, row)
            if limits := _found_limits(name, session):
                self.limits[name] = limits
            else:
                self.limits.pop(name, None)
        if self._facts is None:
            self._facts = _read_facts(session)
        return is_new, names, self._facts


def count_ports(session: NorthboundSession) -> float:
    """How many logical ports the database has."""
    return float(len(session.tables[SWITCH_PORT].rows))


def _shared(words: dict[str, str]) -> dict[str, str]:
    """The map with keys and values that rows have in common kept once."""
    return {intern(key): intern(value) for key, value in words.items()}


def _found(name: str, row: Any) -> FoundLogicalPort:
    return FoundLogicalPort(
        name=name,
        addresses=tuple(value_of(row, "addresses")),
        port_security=tuple(value_of(row, "port_security")),
        options=_shared(value_of(row, "options")),
        external_ids=_shared(value_of(row, "external_ids")),
        dynamic=" ".join(value_of(row, "dynamic_addresses")),
    )


def _limited(row: Any) -> str:
    """The port that a row of QoS says it limits, "" for none: it is ours if its UUID is, too."""
    return str(value_of(row, "external_ids").get(PORT, ""))


def _found_limits(name: str, session: NorthboundSession) -> FoundLimits:
    rows = session.tables[QOS].rows
    found = {each: rows.get(limit_id(name, each)) for each in DIRECTIONS} if rows else {}
    columns = {each: columns_of(row) for each, row in found.items() if row is not None}
    return {each: FoundLimit(read_switch(has["external_ids"]), has) for each, has in columns.items()}


def _read_facts(session: NorthboundSession) -> NorthboundFacts:
    switches = {}
    for row in session.rows(SWITCH):
        name = value_of(row, "name")
        switches[name] = read_subnets(FoundSwitch(name, value_of(row, "other_config"), value_of(row, "external_ids")))
    routers = {value_of(row, "name"): _addresses(value_of(row, "networks")) for row in session.rows(ROUTER_PORT)}
    macs = {value_of(row, "name"): six_octets(value_of(row, "mac")) for row in session.rows(ROUTER_PORT)}
    return NorthboundFacts(switches, routers, read_version(session), macs)


def _addresses(networks: list[str]) -> tuple[Address, ...]:
    found = []
    for text in networks:
        try:
            found.append(ip_interface(text).ip)
        except ValueError:
            continue
    return tuple(found)
