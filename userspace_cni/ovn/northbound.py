"""The part of OVN's northbound database that this program replicates, and its client.

Only what is read or written here is described: what OVN has beside it (ACLs, meters, BFD …) is neither fetched nor touched. What
a server of another version may lack is optional, and the server is asked for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeAlias

from userspace_cni.ovn.northbound_tables import (
    CONNECTION,
    GLOBAL,
    LOAD_BALANCER,
    LOAD_BALANCER_GROUP,
    NAT,
    ROUTER,
    ROUTER_PORT,
    STATIC_ROUTE,
    SWITCH,
    SWITCH_PORT,
)
from userspace_cni.ovsdb.client import Client, Session
from userspace_cni.ovsdb.database import (
    BOOLEAN_OR_NONE,
    INTEGER_OR_NONE,
    MAP,
    REFERENCE_OR_NONE,
    REFERENCES,
    STRING,
    STRING_OR_NONE,
    STRINGS,
    Database,
    DatabaseLock,
    Tls,
    Type,
)

OnChange = Callable[[str, str, Any, Any], None]
"""Takes table, event, row and former columns, as `Index.change`: on the session's thread, with its lock. It may not wait."""


def _to(table: str, strength: str = "strong") -> Type:
    """The type of a set of references. The rows of the table are replicated, so each is found."""
    return {"key": {"type": "uuid", "refTable": table, "refType": strength}, "min": 0, "max": "unlimited"}


_TABLES: Final[Mapping[str, Mapping[str, Type]]] = {
    GLOBAL: {"nb_cfg": "integer", "sb_cfg": "integer", "hv_cfg": "integer", "connections": _to(CONNECTION), "options": MAP},
    CONNECTION: {"target": STRING, "inactivity_probe": INTEGER_OR_NONE, "external_ids": MAP},
    SWITCH: {
        "name": STRING,
        "ports": _to(SWITCH_PORT),
        "load_balancer": _to(LOAD_BALANCER, "weak"),
        "other_config": MAP,
        "external_ids": MAP,
    },
    SWITCH_PORT: {
        "name": STRING,
        "type": STRING,
        "options": MAP,
        "addresses": STRINGS,
        "dynamic_addresses": STRING_OR_NONE,
        "port_security": STRINGS,
        "enabled": BOOLEAN_OR_NONE,
        "up": BOOLEAN_OR_NONE,
        "external_ids": MAP,
    },
    ROUTER: {
        "name": STRING,
        "ports": _to(ROUTER_PORT),
        "static_routes": _to(STATIC_ROUTE),
        "nat": _to(NAT),
        "load_balancer": _to(LOAD_BALANCER, "weak"),
        "options": MAP,
        "external_ids": MAP,
    },
    ROUTER_PORT: {"name": STRING, "mac": STRING, "networks": STRINGS, "options": MAP, "external_ids": MAP},
    STATIC_ROUTE: {
        "ip_prefix": STRING,
        "nexthop": STRING,
        "output_port": STRING_OR_NONE,
        "policy": STRING_OR_NONE,
        "external_ids": MAP,
    },
    NAT: {
        "type": STRING,
        "external_ip": STRING,
        "external_mac": STRING_OR_NONE,
        "logical_ip": STRING,
        "logical_port": STRING_OR_NONE,
        "external_ids": MAP,
    },
    LOAD_BALANCER: {"name": STRING, "vips": MAP, "protocol": STRING_OR_NONE, "external_ids": MAP},
}
_OPTIONAL: Final[Mapping[str, Mapping[str, Type]]] = {
    SWITCH: {"load_balancer_group": _to(LOAD_BALANCER_GROUP), "copp": REFERENCE_OR_NONE, "dns_records": REFERENCES},
    SWITCH_PORT: {"parent_name": STRING_OR_NONE, "tag_request": INTEGER_OR_NONE, "tag": INTEGER_OR_NONE},
    ROUTER: {"load_balancer_group": _to(LOAD_BALANCER_GROUP), "enabled": BOOLEAN_OR_NONE},
    STATIC_ROUTE: {"route_table": STRING, "options": MAP},
    NAT: {"options": MAP, "external_port_range": STRING},
    LOAD_BALANCER: {"options": MAP, "selection_fields": STRINGS},
    LOAD_BALANCER_GROUP: {"name": STRING, "load_balancer": _to(LOAD_BALANCER, "weak")},
}


class NorthboundIndex:
    """Keeps nothing beside the rows; tells of changes."""

    def __init__(self, on_change: OnChange, everything: bool) -> None:
        self._on_change = on_change
        self.everything = everything

    def show(self, table: str, name: str, row: Any) -> None:
        """Nothing: rows are found in the session."""

    def change(self, table: str, event: str, row: Any, former: Any) -> None:
        """Tell it."""
        self._on_change(table, event, row, former)


NorthboundSession: TypeAlias = Session[NorthboundIndex]
NorthboundClient: TypeAlias = Client[NorthboundIndex]


def northbound(on_change: OnChange = lambda *_: None) -> Database[NorthboundIndex]:
    """What a session with the northbound database replicates."""
    return Database(
        name="OVN_Northbound",
        root=GLOBAL,
        tables=_TABLES,
        index=partial(NorthboundIndex, on_change),
        named=frozenset({SWITCH, SWITCH_PORT, ROUTER, ROUTER_PORT, LOAD_BALANCER, LOAD_BALANCER_GROUP}),
        optional=_OPTIONAL,
        lasting=frozenset({SWITCH, ROUTER, LOAD_BALANCER, LOAD_BALANCER_GROUP}),
        unique=frozenset({SWITCH_PORT, ROUTER_PORT, LOAD_BALANCER_GROUP}),
        setting="ovn_nb",
        initialise="ovn-nbctl init",
    )


_OF_PORTS: Final[Mapping[str, tuple[str, ...]]] = {
    GLOBAL: ("nb_cfg", "sb_cfg", "options"),
    SWITCH: ("name", "other_config", "external_ids"),
    SWITCH_PORT: ("name", "options", "addresses", "dynamic_addresses", "port_security", "external_ids"),
    ROUTER_PORT: ("name", "mac", "networks"),
}


def ports_of_northbound(on_change: OnChange, lock: DatabaseLock) -> Database[NorthboundIndex]:
    """The part that logical ports of pods follow from, for who keeps those of a whole cluster: each column costs a row's memory.

    The ports of a switch are not part of it. Each port that comes or goes changes them.
    """
    return Database(
        name="OVN_Northbound",
        root=GLOBAL,
        tables={table: {column: _TABLES[table][column] for column in columns} for table, columns in _OF_PORTS.items()},
        index=partial(NorthboundIndex, on_change),
        named=frozenset({SWITCH, SWITCH_PORT, ROUTER_PORT}),
        lasting=frozenset({SWITCH}),
        unique=frozenset({SWITCH_PORT, ROUTER_PORT}),
        lock=lock,
        setting="ovn_nb",
        initialise="ovn-nbctl init",
    )


def northbound_client(
    remote: str,
    *,
    tls: Tls | None = None,
    on_change: OnChange = lambda *_: None,
    on_group: Callable[[int], None] = lambda _: None,
) -> NorthboundClient:
    """The client of the northbound database at `remote`, with all rows: a writer has to see each name that its own may equal."""
    return Client(remote, northbound(on_change), resident=True, on_group=on_group, tls=tls)
