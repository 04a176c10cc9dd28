"""Every bridge with all that its rows say, for a picture of the node: read once, by a command. Nothing here writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from userspace_cni.attachment.steps import owner_kind
from userspace_cni.base.switch_bridges import SwitchBridge, SwitchBridgePort, SwitchInterface, SwitchMirror
from userspace_cni.base.vlans import Vlan
from userspace_cni.ovsdb.column_values import read_references, value_of
from userspace_cni.switch.ovsdb.bridge_mirrors import list_mirrors, takes_sources
from userspace_cni.switch.ovsdb.rows.bridge_row import datapath_of
from userspace_cni.switch.ovsdb.rows.interface_row import DEVARGS, PEER
from userspace_cni.switch.ovsdb.rows.logical_ids import IFACE_ID, installed_port
from userspace_cni.switch.ovsdb.rows.marks import find_maker
from userspace_cni.switch.ovsdb.switch_database import SwitchSession

_TOLD: Final = (PEER, "remote_ip", DEVARGS)
"""Keys of Interface.options."""


def list_bridges(session: SwitchSession) -> tuple[SwitchBridge, ...]:
    """All bridges and their ports, by name, the bridges' own ports too. Of a session that replicates everything."""
    ports = session.tables["Port"].rows
    found = []
    for name, row in sorted(session.replica.names("Bridge").items()):
        own = [ports[each] for each in read_references(row, "ports") if each in ports]
        named = sorted((value_of(each, "name"), each.uuid, each) for each in own)
        datapath, maker = datapath_of(value_of(row, "datapath_type")), find_maker(value_of(row, "external_ids"))
        mirrors = sorted((_mirror(session, each) for each in list_mirrors(session.replica, row)), key=lambda each: each.name)
        found.append(SwitchBridge(name, datapath, maker, tuple(_port(session, each) for *_, each in named), tuple(mirrors)))
    return tuple(found)


def list_numbers(session: SwitchSession) -> dict[str, dict[int, str]]:
    """The names of the open interfaces of each bridge, those of other programs too, by OpenFlow number."""
    ports, interfaces = session.tables["Port"].rows, session.tables["Interface"].rows
    found: dict[str, dict[int, str]] = {}
    for name, row in session.replica.names("Bridge").items():
        own = (ports[each] for each in read_references(row, "ports") if each in ports)
        members = (interfaces[each] for port in own for each in read_references(port, "interfaces") if each in interfaces)
        numbered = {_one(each, "ofport", 0): value_of(each, "name") for each in members}
        found[name] = {number: each for number, each in numbered.items() if number > 0}
    return found


def list_numbered(session: SwitchSession) -> dict[str, dict[int, tuple[str, Mapping[str, str]]]]:
    """The same with our marks of the port of that name, {} where there are none."""
    marks = session.index.marks
    return {
        bridge: {number: (name, marks.get(name, {})) for number, name in names.items()}
        for bridge, names in list_numbers(session).items()
    }


def _port(session: SwitchSession, row: Any) -> SwitchBridgePort:
    interfaces, marks = session.tables["Interface"].rows, value_of(row, "external_ids")
    members = [interfaces[each] for each in read_references(row, "interfaces") if each in interfaces]
    members.sort(key=lambda each: str(value_of(each, "name")))
    ids = value_of(members[0], "external_ids") if members else {}
    vlan = Vlan(_one(row, "tag", None), tuple(value_of(row, "trunks")), _one(row, "vlan_mode", ""))
    return SwitchBridgePort(
        value_of(row, "name"),
        vlan,
        tuple(map(_interface, members)),
        owner=owner_kind(marks),
        spec=marks.get("spec", ""),
        bond=_one(row, "bond_mode", "bond") if len(members) > 1 else "",
        logical=ids.get(IFACE_ID, ""),
        installed=bool(installed_port(ids)),
    )


def _interface(row: Any) -> SwitchInterface:
    options, status = value_of(row, "options"), value_of(row, "status")
    return SwitchInterface(
        value_of(row, "name"),
        value_of(row, "type") or "system",
        _one(row, "link_state", ""),
        _one(row, "error", ""),
        _one(row, "mtu", 0),
        _one(row, "mac_in_use", ""),
        status.get("link_speed", ""),
        status.get("driver_name", ""),
        {key: options[key] for key in _TOLD if key in options},
    )


def _mirror(session: SwitchSession, row: Any) -> SwitchMirror:
    ports = session.tables["Port"].rows
    chosen = read_references(row, "select_src_port") | read_references(row, "select_dst_port")
    sources = sorted(value_of(ports[each], "name") for each in chosen if each in ports)
    outputs = [value_of(ports[each], "name") for each in read_references(row, "output_port") if each in ports]
    ours = takes_sources(value_of(row, "external_ids"))
    return SwitchMirror(value_of(row, "name"), next(iter(outputs), ""), tuple(sources), value_of(row, "select_all"), ours)


def _one(row: Any, column: str, missing: Any) -> Any:
    """The value of an optional column."""
    return next(iter(value_of(row, column)), missing)
