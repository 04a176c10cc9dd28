"""What a Port step looks like in OVSDB, and what a row says as a Port step. Pure: no session, no files, no clock.

Column values are in the Python form of ovs.db.idl: a map is a dict, a set or an optional value is a list. Tables and columns are
those of ovs-vswitchd.conf.db(5).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from userspace_cni.attachment.drift import Absent, Drift, Value
from userspace_cni.attachment.steps import MARK_SCHEMA, OWNER, Port

IDENTITY = ("owner", "container-id", "network", "ifname")
"""The marks that say whose port it is."""

MARKS = (*IDENTITY, "schema", "boot-id", "netns", "netns-inode", "store", "pod-namespace", "pod-name", "pod-uid", "vm-name")
"""Every mark that we write; other keys of external_ids are somebody else's and stay as they are."""

ATTACHED_MAC = "attached-mac"
SERVER_PATH = "vhost-server-path"
DATAPATH_TYPE = "netdev"
LEGACY_TYPES = ("dpdkvhostuser", "dpdkvhostuserclient")

Columns = dict[str, Any]


@dataclass(frozen=True)
class PortRow:
    """One port as OVSDB has it: the name of its bridge, and the columns of its Port and Interface rows."""

    bridge: str
    port: Mapping[str, Any]
    interface: Mapping[str, Any]

    @property
    def marks(self) -> dict[str, str]:
        """The marks of ours among the external_ids."""
        return {key: value for key, value in self.port.get("external_ids", {}).items() if key in MARKS}


@dataclass(frozen=True)
class KnownPort:
    """A port as the replica shows it. `ours`: it has our owner mark. `link_state`: "up", "down" or "" while unknown.

    `status` is Interface.status, of vhost-user ports: mode (client, server), status (connected, disconnected), num_of_vrings,
    features and more. `error` is Interface.error, "" if the interface is open; `ofport` its number then, 0 before.
    """

    name: str
    bridge: str
    interface_type: str
    ours: bool
    link_state: str
    status: Mapping[str, str]
    error: str
    ofport: int = 0


@dataclass(frozen=True)
class SwitchFacts:
    """What the switch is set to, and what it made of it: Open_vSwitch.other_config, and Interface.mtu by name of the port."""

    other_config: Mapping[str, str]
    mtus: Mapping[str, int]


def marks_of(step: Port, store: str) -> dict[str, str]:
    """The marks to write: the step's own, completed by owner, schema and the id of our state directory."""
    return {"owner": OWNER, "schema": MARK_SCHEMA, "store": store} | dict(step.marks)


def bridge_columns(name: str) -> Columns:
    """Columns of a Bridge that we make."""
    return {"name": name, "datapath_type": DATAPATH_TYPE, "external_ids": {"owner": OWNER}}


def local_port_columns(bridge: str) -> tuple[Columns, Columns]:
    """Columns of the Port and the Interface that stand for the bridge itself, as ovs-vsctl add-br makes them."""
    return {"name": bridge}, {"name": bridge, "type": "internal"}


def port_columns(step: Port, marks: Mapping[str, str]) -> Columns:
    """Columns of the Port row, without `interfaces`."""
    return {
        "name": step.name,
        "tag": _optional(step.tag),
        "trunks": sorted(step.trunks),
        "vlan_mode": _optional(step.vlan_mode or None),
        "external_ids": dict(marks),
    }


def interface_columns(step: Port, marks: Mapping[str, str]) -> Columns:
    """Columns of the Interface row. No n_rxq: OVS takes the count of queues from the peer."""
    return {
        "name": step.name,
        "type": step.interface_type,
        "options": {SERVER_PATH: step.server_path} if step.server_path else {},
        "mtu_request": _optional(step.mtu),
        "external_ids": dict(marks) | ({ATTACHED_MAC: step.mac} if step.mac else {}),
    }


def changed_columns(wanted: Columns, found: Mapping[str, Any]) -> Columns:
    """What must be written to `found` so that it shows `wanted`; keys of maps that we do not know are kept."""
    changes: Columns = {}
    for column, value in wanted.items():
        new = {**found[column], **value} if isinstance(value, dict) else value
        old = sorted(found[column]) if isinstance(value, list) else found[column]
        if new != old:
            changes[column] = new
    return changes


def is_ours(marks: Mapping[str, str]) -> bool:
    """Whether the row carries our owner mark, whichever installation made it."""
    return marks.get("owner") == OWNER


def same_attachment(step: Port, marks: Mapping[str, str]) -> bool:
    """Whether a row with these marks was made for the step's container, network and interface name."""
    wanted = {"owner": OWNER} | dict(step.marks)
    return all(marks.get(key) == wanted.get(key) for key in IDENTITY)


def other_store(step: Port, marks: Mapping[str, str]) -> bool:
    """Whether row and step both name a state directory, and not the same one."""
    return bool(marks.get("store")) and bool(step.marks.get("store")) and marks["store"] != step.marks["store"]


def whose(marks: Mapping[str, str]) -> str:
    """The owner of a row, for messages."""
    if not is_ours(marks):
        return f"owner {marks['owner']!r}" if marks.get("owner") else "nobody that marks its rows"
    names = ", ".join(f"{key} {marks[key]}" for key in ("container-id", "network", "ifname", "store") if marks.get(key))
    return f"{OWNER}: {names or 'unnamed'}"


def port_from_row(row: PortRow) -> Port:
    """The step that makes this row; for a record that was lost."""
    tag, mode, mtu = row.port["tag"], row.port["vlan_mode"], row.interface["mtu_request"]
    return Port(
        bridge=row.bridge,
        name=row.port["name"],
        interface_type=cast(Literal["dpdkvhostuserclient", "dpdkvhostuser"], row.interface["type"]),
        server_path=row.interface["options"].get(SERVER_PATH, ""),
        tag=tag[0] if tag else None,
        trunks=tuple(sorted(row.port["trunks"])),
        vlan_mode=mode[0] if mode else "",
        mtu=mtu[0] if mtu else None,
        mac=row.interface["external_ids"].get(ATTACHED_MAC, ""),
        marks=row.marks,
    )


def differences(step: Port, row: PortRow | None) -> list[Drift]:
    """Every difference between the step and what OVSDB has; a peer that is not connected is none."""
    if row is None:
        return [_drift(step, "", f"a port on bridge {step.bridge}", Absent("none"))]
    found = port_from_row(row)
    compared = [
        ("bridge", step.bridge, found.bridge),
        ("Interface.type", step.interface_type, found.interface_type),
        (f"options:{SERVER_PATH}", step.server_path, found.server_path),
        ("tag", step.tag, found.tag),
        ("trunks", tuple(sorted(step.trunks)), found.trunks),
        ("vlan_mode", step.vlan_mode, found.vlan_mode),
        ("mtu_request", step.mtu, found.mtu),
        (f"external_ids:{ATTACHED_MAC}", step.mac, found.mac),
    ]
    if not step.legacy:
        wanted = {"owner": OWNER} | dict(step.marks)
        for table, row_marks in (("Port", row.port["external_ids"]), ("Interface", row.interface["external_ids"])):
            compared += [(f"{table} external_ids:{key}", wanted[key], row_marks.get(key)) for key in sorted(wanted)]
    drifts = [_drift(step, column, expected, actual) for column, expected, actual in compared if expected != actual]
    return drifts + _state_differences(step, row)


def _state_differences(step: Port, row: PortRow) -> list[Drift]:
    """What ovs-vswitchd says of it. It writes MTU 0 until the peer of a vhost-user port has connected."""
    drifts = []
    error, ofport, mtu = row.interface["error"], row.interface["ofport"], row.interface["mtu"]
    if error or not ofport or ofport[0] <= 0:
        drift = _drift(step, "state", "an open interface", error[0] if error else "not opened by ovs-vswitchd")
        drifts.append(replace(drift, details=drift.details + when_opened(step)))
    if step.mtu is not None and mtu and mtu[0] > 0 and mtu[0] != step.mtu:
        drifts.append(_drift(step, "MTU", step.mtu, mtu[0]))
    return drifts


def when_opened(step: Port) -> str:
    """What makes ovs-vswitchd open an interface that it could not: words after others, "" where it tries by itself."""
    return "; a socket that it failed to make, it makes after a restart" if step.interface_type == "dpdkvhostuser" else ""


def _drift(step: Port, column: str, expected: Value | None, found: Value | None) -> Drift:
    look = f"ovs-vsctl list Interface {step.name}"
    return Drift(f"port {step.name}", column, _value(expected), _value(found), look, joint=", ")


def _value(value: Value | None) -> Value:
    return Absent() if value in (None, "", ()) else value


def _optional(value: object) -> list[Any]:
    return [] if value is None else [value]
