"""The part of the Open_vSwitch database that this program replicates, and its one client in a process.

Importing it is cheap: ovs is loaded when the client is made.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from userspace_cni.base.errors import SwitchRefused
from userspace_cni.ovsdb.database import (
    INTEGER_OR_NONE,
    MAP,
    REFERENCE_OR_NONE,
    REFERENCES,
    STRING,
    STRING_OR_NONE,
    STRINGS,
    Database,
    Type,
)
from userspace_cni.switch.ovsdb.changes import UNTOLD, Listeners

if TYPE_CHECKING:
    from userspace_cni.ovsdb.client import Client, Session
    from userspace_cni.switch.ovsdb.index import SwitchIndex

SwitchSession: TypeAlias = "Session[SwitchIndex]"
SwitchClient: TypeAlias = "Client[SwitchIndex]"

_TABLES: Final[dict[str, dict[str, Type]]] = {
    "Open_vSwitch": {
        "bridges": REFERENCES,
        "other_config": MAP,
        "dpdk_initialized": "boolean",
        "dpdk_version": STRING_OR_NONE,
        "cur_cfg": "integer",
        "iface_types": STRINGS,
        "datapath_types": STRINGS,
    },
    "Bridge": {
        "name": STRING,
        "ports": REFERENCES,
        "mirrors": REFERENCES,
        "datapath_type": STRING,
        "external_ids": MAP,
        "other_config": MAP,
    },
    "Port": {
        "name": STRING,
        "interfaces": REFERENCES,
        "tag": INTEGER_OR_NONE,
        "trunks": {"key": "integer", "min": 0, "max": 4096},
        "vlan_mode": STRING_OR_NONE,
        "bond_mode": STRING_OR_NONE,
        "lacp": STRING_OR_NONE,
        "bond_updelay": "integer",
        "qos": REFERENCE_OR_NONE,
        "external_ids": MAP,
    },
    "Interface": {
        "name": STRING,
        "type": STRING,
        "options": MAP,
        "mac": STRING_OR_NONE,
        "mtu_request": INTEGER_OR_NONE,
        "ingress_policing_rate": "integer",
        "ingress_policing_burst": "integer",
        "external_ids": MAP,
        "mtu": INTEGER_OR_NONE,
        "mac_in_use": STRING_OR_NONE,
        "admin_state": STRING_OR_NONE,
        "ofport": INTEGER_OR_NONE,
        "ifindex": INTEGER_OR_NONE,
        "error": STRING_OR_NONE,
    },
    "QoS": {
        "type": STRING,
        "other_config": MAP,
        "queues": {"key": "integer", "value": "uuid", "min": 0, "max": "unlimited"},
        "external_ids": MAP,
    },
    "Queue": {"other_config": MAP, "external_ids": MAP},
    "Mirror": {
        "name": STRING,
        "select_src_port": REFERENCES,
        "select_dst_port": REFERENCES,
        "select_all": "boolean",
        "output_port": REFERENCE_OR_NONE,
        "external_ids": MAP,
    },
}
"""OVS 2.10 and later."""
_OBSERVED: Final[dict[str, dict[str, Type]]] = {"Interface": {"link_state": STRING_OR_NONE, "status": MAP}}
"""What only sessions that live long need. Never `statistics`: it changes every 5 s."""


def switch_client(
    remote: str,
    *,
    resident: bool = False,
    on_group: Callable[[int], None] = lambda _: None,
    listeners: Listeners = UNTOLD,
) -> SwitchClient:
    """The client of the switch at `remote`, as `Client` takes it; `listeners` are told by a resident one."""
    from userspace_cni.ovsdb.client import Client

    return Client(remote, open_vswitch(listeners), resident=resident, on_group=on_group)


def open_vswitch(listeners: Listeners = UNTOLD) -> Database[SwitchIndex]:
    """What a session with the switch replicates."""
    return Database(
        name="Open_vSwitch",
        root="Open_vSwitch",
        tables=_TABLES,
        index=partial(_index, listeners),
        named=frozenset({"Bridge", "Port", "Interface"}),
        chosen=frozenset({"Port", "Interface", "QoS", "Queue", "Mirror"}),
        observed=_OBSERVED,
        refused=SwitchRefused,
        setting="ovsdb",
        initialise="ovs-vsctl init",
    )


def _index(listeners: Listeners, everything: bool) -> SwitchIndex:
    from userspace_cni.switch.ovsdb.index import SwitchIndex

    return SwitchIndex(listeners, everything)
