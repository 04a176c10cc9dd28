"""The part of OVN's northbound database that this program replicates, and its client.

Only what is read or written here is described: what OVN has beside it (DHCP, DNS, BFD …) is neither fetched nor touched. What
a server of another version may lack is optional, and the server is asked for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeAlias

from userspace_cni.ovn.northbound_tables import (
    ACL,
    ADDRESS_SET,
    CONNECTION,
    GLOBAL,
    HA_CHASSIS,
    HA_GROUP,
    LOAD_BALANCER,
    LOAD_BALANCER_GROUP,
    METER,
    METER_BAND,
    NAT,
    PORT_GROUP,
    QOS,
    ROUTER,
    ROUTER_POLICY,
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


_INTEGERS: Final = {"key": "string", "value": "integer", "min": 0, "max": "unlimited"}

_TABLES: Final[Mapping[str, Mapping[str, Type]]] = {
    GLOBAL: {"nb_cfg": "integer", "sb_cfg": "integer", "hv_cfg": "integer", "connections": _to(CONNECTION), "options": MAP},
    CONNECTION: {"target": STRING, "inactivity_probe": INTEGER_OR_NONE, "external_ids": MAP},
    SWITCH: {
        "name": STRING,
        "ports": _to(SWITCH_PORT),
        "load_balancer": _to(LOAD_BALANCER, "weak"),
        "qos_rules": _to(QOS),
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
        "policies": _to(ROUTER_POLICY),
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
    ACL: {
        "name": STRING_OR_NONE,
        "priority": "integer",
        "direction": STRING,
        "match": STRING,
        "action": STRING,
        "log": "boolean",
        "severity": STRING_OR_NONE,
        "external_ids": MAP,
    },
    PORT_GROUP: {"name": STRING, "ports": _to(SWITCH_PORT, "weak"), "acls": _to(ACL), "external_ids": MAP},
    ADDRESS_SET: {"name": STRING, "addresses": STRINGS, "external_ids": MAP},
    QOS: {"priority": "integer", "direction": STRING, "match": STRING, "bandwidth": _INTEGERS, "external_ids": MAP},
    ROUTER_POLICY: {
        "priority": "integer",
        "match": STRING,
        "action": STRING,
        "nexthops": STRINGS,
        "external_ids": MAP,
    },
    HA_GROUP: {"name": STRING, "ha_chassis": _to(HA_CHASSIS), "external_ids": MAP},
    HA_CHASSIS: {"chassis_name": STRING, "priority": "integer", "external_ids": MAP},
    METER: {"name": STRING, "unit": STRING, "bands": _to(METER_BAND), "external_ids": MAP},
    METER_BAND: {"action": STRING, "rate": "integer", "burst_size": "integer", "external_ids": MAP},
}
_OPTIONAL: Final[Mapping[str, Mapping[str, Type]]] = {
    SWITCH: {"load_balancer_group": _to(LOAD_BALANCER_GROUP), "copp": REFERENCE_OR_NONE, "dns_records": REFERENCES},
    ACL: {"meter": STRING_OR_NONE, "label": "integer", "options": MAP, "tier": "integer"},
    METER: {"fair": BOOLEAN_OR_NONE},
    ROUTER_PORT: {"ha_chassis_group": _to(HA_GROUP)},
    SWITCH_PORT: {"parent_name": STRING_OR_NONE, "tag_request": INTEGER_OR_NONE, "tag": INTEGER_OR_NONE},
    ROUTER: {"load_balancer_group": _to(LOAD_BALANCER_GROUP), "enabled": BOOLEAN_OR_NONE},
    STATIC_ROUTE: {"route_table": STRING, "options": MAP},
    NAT: {"options": MAP, "external_port_range": STRING},
    LOAD_BALANCER: {"options": MAP, "selection_fields": STRINGS},
    LOAD_BALANCER_GROUP: {"name": STRING, "load_balancer": _to(LOAD_BALANCER, "weak")},
}


_UNIQUE: Final = frozenset({SWITCH_PORT, ROUTER_PORT, LOAD_BALANCER_GROUP, PORT_GROUP, ADDRESS_SET, HA_GROUP, METER})
_NAMED: Final = _UNIQUE | {SWITCH, ROUTER, LOAD_BALANCER}
ROOTS: Final = frozenset({SWITCH, ROUTER, LOAD_BALANCER, LOAD_BALANCER_GROUP, PORT_GROUP, ADDRESS_SET, HA_GROUP, METER})
"""Tables whose rows stay until they are deleted. A row of another one goes with the last that refers to it."""


class NorthboundIndex:
    """Keeps nothing beside the rows; tells of changes."""

    def __init__(self, on_change: OnChange, everything: bool) -> None:
        self._on_change = on_change
        self.everything = everything

    def show(self, table: str, name: str, row: Any) -> None:
        """Nothing: rows are found in the session."""

    def lose(self) -> None:
        """Nothing: the next round finds it."""

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
        named=_NAMED,
        optional=_OPTIONAL,
        lasting=ROOTS,
        unique=_UNIQUE,
        setting="ovn_nb",
        initialise="ovn-nbctl init",
    )


_OF_LEADER: Final[Mapping[str, tuple[str, ...]]] = {
    GLOBAL: ("nb_cfg", "sb_cfg", "options"),
    SWITCH: ("name", "load_balancer", "qos_rules", "other_config", "external_ids"),
    SWITCH_PORT: ("name", "type", "options", "addresses", "dynamic_addresses", "port_security", "external_ids"),
    ROUTER: ("name", "load_balancer", "options", "external_ids"),
    ROUTER_PORT: ("name", "mac", "networks"),
    **{table: tuple(_TABLES[table]) for table in (LOAD_BALANCER, ACL, PORT_GROUP, ADDRESS_SET, QOS, METER, METER_BAND)},
}
_OPTIONAL_OF_LEADER: Final = (LOAD_BALANCER, LOAD_BALANCER_GROUP, ACL, METER)


def northbound_of_leader(on_change: OnChange, lock: DatabaseLock) -> Database[NorthboundIndex]:
    """The part that a controller needs, for the ports of all pods, Services and policies: each column costs a row's memory.

    The ports of a switch are not part of it. Each port that comes or goes changes them.
    """
    return Database(
        name="OVN_Northbound",
        root=GLOBAL,
        tables={table: {column: _TABLES[table][column] for column in columns} for table, columns in _OF_LEADER.items()},
        index=partial(NorthboundIndex, on_change),
        named=_NAMED & {*_OF_LEADER, LOAD_BALANCER_GROUP},
        optional={table: _OPTIONAL[table] for table in _OPTIONAL_OF_LEADER},
        lasting=ROOTS & {*_OF_LEADER, LOAD_BALANCER_GROUP},
        unique=_UNIQUE & {*_OF_LEADER, LOAD_BALANCER_GROUP},
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
