"""What OVN's databases have of one logical port, when a person asks why its pod's network does not work. Only within `look`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from userspace_cni.ovn.northbound import NorthboundSession
from userspace_cni.ovn.northbound_tables import SWITCH, SWITCH_PORT
from userspace_cni.ovn.policy_traces import list_isolating, look_groups
from userspace_cni.ovn.port_rows import CHASSIS as REQUESTED
from userspace_cni.ovn.port_rows import VERSION
from userspace_cni.ovn.southbound import CHASSIS, PORT_BINDING, SouthboundSession
from userspace_cni.ovsdb.column_values import read_references, value_of


@dataclass(frozen=True)
class NorthboundPort:
    """The logical port's row. `is_there`: there is one; `switch`: its logical switch; `requested`: options:requested-chassis;
    `version`: options:iface-id-ver; `isolating`: by direction the policies that alone let packets through to it or from it."""

    is_there: bool
    switch: str = ""
    enabled: bool = True
    addresses: tuple[str, ...] = ()
    requested: str = ""
    version: str = ""
    isolating: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class PortBinding:
    """Which chassis has the logical port, "" for none. `is_there`: ovn-northd has made its row."""

    is_there: bool
    chassis: str = ""
    hostname: str = ""


def look_at_row(session: NorthboundSession, name: str) -> NorthboundPort:
    row = session.row(SWITCH_PORT, name)
    if row is None:
        return NorthboundPort(is_there=False)
    switch = next((value_of(each, "name") for each in session.rows(SWITCH) if row.uuid in read_references(each, "ports")), "")
    options = value_of(row, "options")
    return NorthboundPort(
        is_there=True,
        switch=switch,
        enabled=next(iter(value_of(row, "enabled")), True),
        addresses=tuple(value_of(row, "dynamic_addresses") or value_of(row, "addresses")),
        requested=options.get(REQUESTED, ""),
        version=options.get(VERSION, ""),
        isolating=list_isolating(look_groups(session), name),
    )


def look_at_binding(session: SouthboundSession, name: str) -> PortBinding:
    row = next((each for each in session.rows(PORT_BINDING) if value_of(each, "logical_port") == name), None)
    if row is None:
        return PortBinding(is_there=False)
    chassis = {each.uuid: each for each in session.rows(CHASSIS)}
    found = next((chassis[each] for each in value_of(row, "chassis") if each in chassis), None)
    return PortBinding(
        is_there=True, chassis=value_of(found, "name") if found else "", hostname=value_of(found, "hostname") if found else ""
    )
