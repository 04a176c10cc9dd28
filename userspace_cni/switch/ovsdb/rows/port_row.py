"""A port's rows of Port and Interface, and their differences from a step."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from userspace_cni.attachment.column_commands import TABLES, command_for
from userspace_cni.attachment.drift import Absent, Drift, Value
from userspace_cni.attachment.port_now import NOTHING, PortNow
from userspace_cni.attachment.steps import EVERYTHING, OWNER, OvsPort, PortRef
from userspace_cni.ovsdb.columns import Columns, wrap_optional
from userspace_cni.switch.ovsdb.rows.bridge_row import (
    DATAPATH_TYPE,
    LOCAL_MTU,
    bridge_columns,
    local_columns,
    missing_bridge_of_ovn,
)
from userspace_cni.switch.ovsdb.rows.desired import (
    DesiredBridge,
    DesiredInterface,
    DesiredPort,
    DesiredRows,
    MarkedRows,
    MirrorPart,
)
from userspace_cni.switch.ovsdb.rows.interface_row import interface_row
from userspace_cni.switch.ovsdb.rows.logical_ids import INSTALLED, is_installed, logical_ids
from userspace_cni.switch.ovsdb.rows.marks import ATTACHED_MAC, IFINDEX, select_marks
from userspace_cni.switch.ovsdb.rows.mirror_row import FROM_POD, TO_POD, MirrorRow, encode_specs, read_desired_names
from userspace_cni.switch.ovsdb.rows.qos_row import QosRow, describe_limit, policing_columns, qos_row


@dataclass(frozen=True)
class PortRow:
    """One port as OVSDB has it: the name of its bridge, the columns of its Port and Interface rows, the bridge's mirrors, and its
    limit to the pod. `local_mtu_is_kept`: False for a bridge that was made for pods and whose own MTU is what they ask for."""

    bridge: str
    port: Mapping[str, Any]
    interface: Mapping[str, Any]
    mirrors: tuple[MirrorRow, ...] = ()
    limit: QosRow | None = None
    local_mtu_is_kept: bool = True

    @property
    def marks(self) -> dict[str, str]:
        return select_marks(self.port.get("external_ids", {}))


@dataclass(frozen=True)
class KnownPort:
    """A port as the replica shows it. `ours`: it has our owner mark. `link_state`: "up", "down" or "" while unknown.

    `status` is Interface.status, of vhost-user ports: mode (client, server), status (connected, disconnected), num_of_vrings,
    features and more. `error` is Interface.error, "" if the interface is open; `ofport` its number then, 0 before. `installed`:
    the logical port that OVN has installed there, "" for none. `now`: its VLANs, MTU and limits.
    """

    name: str
    bridge: str
    interface_type: str
    ours: bool
    link_state: str
    status: Mapping[str, str]
    error: str
    ofport: int = 0
    installed: str = ""
    now: PortNow = NOTHING


@dataclass(frozen=True)
class LimitedPort:
    """A port of ours that the switch limits: its marks and the `_uuid` of its Interface; `to_pod` is the type of its QoS, "" for
    none, `from_pod` whether what comes from the pod is policed."""

    name: str
    marks: Mapping[str, str]
    interface: str
    to_pod: str
    from_pod: bool


def port_columns(step: OvsPort, marks: Mapping[str, str]) -> Columns:
    """Columns of the Port row, without `interfaces`."""
    return {
        "name": step.name,
        "tag": wrap_optional(step.vlan.tag),
        "trunks": sorted(step.vlan.trunks),
        "vlan_mode": wrap_optional(step.vlan.mode or None),
        "external_ids": dict(marks) | encode_specs(step.mirrors),
    }


def interface_columns(step: OvsPort, marks: Mapping[str, str]) -> Columns:
    row = interface_row(step)
    return {
        "name": step.name,
        "type": row.type,
        "options": {key: value or None for key, value in row.options.items()},
        "mtu_request": wrap_optional(row.mtu),
        **({"mac": wrap_optional(row.mac or None)} if step.interface.link_by == "switch" else {}),
        **policing_columns(step),
        "external_ids": dict(marks) | {ATTACHED_MAC: step.mac or None} | logical_ids(step.logical),
    }


def desired_port(step: OvsPort, marks: Mapping[str, str], *, anew: bool = False) -> DesiredRows:
    """All rows of the port. `marks`: those of its owner, and IFINDEX of the link that it has. `anew`: as of DesiredPort.

    Raises SwitchRefused for a limit that this kind of port cannot have.
    """
    row, name, bridge, taps = interface_row(step), step.name, step.bridge, step.datapath == DATAPATH_TYPE
    own_link = step.interface.link_by == "switch"
    hint = f"ovs-vsctl add-br {bridge} -- set Bridge {bridge} datapath_type={step.datapath}"
    made = f"bridge {bridge} is missing: it was an administrator's, so it is not made here", hint
    if step.logical:
        made = missing_bridge_of_ovn(bridge)
    opened = {"external_ids": {IFINDEX: marks.get(IFINDEX)}}
    interface = DesiredInterface(interface_columns(step, marks), opened, can_reopen=row.can_reopen, logical=step.logical)
    return DesiredRows(
        marks,
        DesiredBridge(
            bridge,
            bridge_columns(bridge, step.datapath),
            local_columns(bridge),
            missing=made if step.foreign_bridge or step.logical else None,
            datapath=step.datapath,
            because=f"{row.called} of this network needs {step.datapath}",
        ),
        DesiredPort(port_columns(step, marks), (interface,), qos_row(step), anew),
        mirrors=MirrorPart(step.mirrors, step.mirror_outputs, step.shows),
        # a host end's link is there, and is known by its index
        new_names=({} if step.foreign_bridge or step.logical else {bridge: taps})
        | ({} if step.interface.link_by == "us" else {name: taps and own_link}),
        # of a bridge that it cannot make ovs-vswitchd says nothing; of a tap it shows in the kernel whether it is open
        awaited="new" if own_link or not taps else "",
    )


def marked_port(step: PortRef) -> MarkedRows:
    return MarkedRows(step.marks, step.name, step.bridge, with_foreign_qos=True, unmarked=step.legacy)


def ref_of(row: PortRow) -> PortRef:
    """The reference by which a port without a record is deleted."""
    return PortRef(row.port["name"], row.bridge, row.marks)


def find_differences(step: OvsPort, row: PortRow | None, ifindex: int | None = None) -> list[Drift]:
    """Every difference between the step and OVSDB's row; a missing peer is not one.

    `ifindex`: of the kernel link that has the port's name now, 0 for none; None for a port that has no link.
    """
    if row is None:
        look = f"ovs-vsctl list-ports {step.bridge}"
        return [Drift(f"port {step.name}", "", f"a port on bridge {step.bridge}", Absent("none"), look)]
    drifts = find_written_differences(step, row)
    if ifindex is not None and row.marks.get(IFINDEX) != str(ifindex):
        opened = f"the link with ifindex {row.marks.get(IFINDEX, '(unknown)')}, which ovs-vswitchd opened"
        now = f"one that was made or renamed since, with ifindex {ifindex}" if ifindex else Absent("no link of that name")
        remedy = "the port carries nothing until it is deleted and added, which the agent does"
        drifts.append(Drift(f"port {step.name}", "link", opened, now, remedy))
    return drifts + _state_differences(step, row)


def find_written_differences(step: OvsPort, row: PortRow) -> list[Drift]:
    """The differences in what a program writes into the rows, and the switch does not."""
    interface, port, found = interface_row(step), row.port, row.interface
    compared: list[tuple[str, Value | None, Value | None]] = [
        ("bridge", step.bridge, row.bridge),
        ("Interface.type", interface.type, found["type"]),
        *((f"options:{key}", value, found["options"].get(key, "")) for key, value in interface.options.items()),
        ("tag", step.vlan.tag, _one(port["tag"])),
        ("trunks", tuple(sorted(step.vlan.trunks)), tuple(sorted(port["trunks"]))),
        ("vlan_mode", step.vlan.mode, _one(port["vlan_mode"]) or ""),
        ("mtu_request", interface.mtu, _one(found["mtu_request"])),
        (f"external_ids:{ATTACHED_MAC}", step.mac, found["external_ids"].get(ATTACHED_MAC, "")),
    ]
    for key, value in logical_ids(step.logical).items():
        compared.append((f"external_ids:{key}", value, found["external_ids"].get(key)))
    if step.interface.link_by == "switch":
        compared.append(("mac", interface.mac.lower(), (_one(found["mac"]) or "").lower()))
    if step.limits.from_pod:
        compared += [(column, value, found[column]) for column, value in policing_columns(step).items()]
    if wanted_limit := qos_row(step):
        compared.append(("qos", describe_limit(wanted_limit), describe_limit(row.limit)))
    wanted = {"owner": OWNER} | dict(step.marks)
    for table, row_marks in (("Port", port["external_ids"]), ("Interface", found["external_ids"])):
        compared += [(f"{table} external_ids:{key}", wanted[key], row_marks.get(key)) for key in sorted(wanted)]
    compared += _mirrors_compared(step, row)
    drifts = [_drift(step, column, expected, actual) for column, expected, actual in compared if expected != actual]
    if not row.local_mtu_is_kept:
        look = f"the ports on it change its MTU: ovs-vsctl get Interface {row.bridge} mtu_request"
        drifts.append(Drift(f"bridge {row.bridge}", "mtu_request", LOCAL_MTU, Absent(), look))
    return drifts


def _mirrors_compared(step: OvsPort, row: PortRow) -> list[tuple[str, Value | None, Value | None]]:
    """The port's part in mirrors: what, expected and found. Where a mirror has no output yet, only the spec is there."""
    wanted, ids = {each.name: each for each in step.mirrors}, row.port["external_ids"]
    compared: list[tuple[str, Value | None, Value | None]] = []
    for name in sorted(wanted.keys() | read_desired_names(ids) | {each.name for each in row.mirrors if each.ours}):
        expected = _frames(wanted[name].from_pod, wanted[name].to_pod) if name in wanted else ""
        compared.append((f"frames for mirror {name}", expected, _frames(f"{FROM_POD}{name}" in ids, f"{TO_POD}{name}" in ids)))
        found = [_frames(mirror.from_pod, mirror.to_pod) for mirror in row.mirrors if mirror.name == name]
        compared += [(f"source of mirror {name}", expected, each) for each in found]
    outputs = sorted(each.name for each in row.mirrors if each.is_output)
    compared.append(("output of mirror", ", ".join(sorted(step.mirror_outputs)), ", ".join(outputs)))
    for mirror in (each for each in row.mirrors if each.is_output and each.name in step.mirror_outputs):
        compared.append((f"output of mirror {mirror.name}", _shown(step.shows == EVERYTHING), _shown(mirror.everything)))
    return compared


def _shown(everything: bool) -> str:
    return "every frame" if everything else "frames of ports that ask for it"


def _frames(from_pod: bool, to_pod: bool) -> str:
    return " and ".join(words for words, there in (("from the pod", from_pod), ("to the pod", to_pod)) if there)


def _state_differences(step: OvsPort, row: PortRow) -> list[Drift]:
    """The differences in what ovs-vswitchd wrote. It writes MTU 0 until the peer of a vhost-user port has connected."""
    drifts, interface = [], interface_row(step)
    error, ofport, mtu = row.interface["error"], row.interface["ofport"], row.interface["mtu"]
    if error or not ofport or ofport[0] <= 0:
        drift = _drift(step, "state", "an open interface", error[0] if error else "not opened by ovs-vswitchd")
        drifts.append(replace(drift, details=drift.details + interface.opened_by))
    logical, ids = step.logical, row.interface["external_ids"]
    if logical and logical.waits and not is_installed(logical, ids):
        drift = _drift(step, f"external_ids:{INSTALLED}", "true", ids.get(INSTALLED))
        drifts.append(replace(drift, details=f"{drift.details}; ovn-controller writes it when the logical port is this node's"))
    if interface.mtu is not None and mtu and mtu[0] > 0 and mtu[0] != interface.mtu:
        drifts.append(_drift(step, "MTU", interface.mtu, mtu[0]))
    return drifts


_OF_PORT: Final = ("tag", "trunks", "vlan_mode", "Port ", "frames for mirror ")
"""How the fields begin that are in a port's row of table Port."""


def _look(step: OvsPort, column: str) -> str:
    name = shlex.quote(step.name)
    if column == "bridge":
        return f"ovs-vsctl port-to-br {name}"
    if column == "qos":
        return f"ovs-vsctl list Port {name}; ovs-vsctl list QoS"
    if column.startswith(("source of mirror", "output of mirror")):
        return f"ovs-vsctl list Mirror; ovs-vsctl get Port {name} _uuid"
    return f"ovs-vsctl list {'Port' if column.startswith(_OF_PORT) else 'Interface'} {name}"


def _drift(step: OvsPort, column: str, expected: Value | None, found: Value | None) -> Drift:
    drift = Drift(f"port {step.name}", column, _value(expected), _value(found), _look(step, column), joint=", ")
    if column in TABLES and column != "Interface.type":
        return replace(drift, details=f"{drift.details}; a running agent puts it back, as ovs-vsctl {command_for(drift)} does")
    return drift


def _value(value: Value | None) -> Value:
    return Absent() if value in (None, "", ()) else value


def _one(values: list[Any]) -> Any:
    """The value of an optional column, None for none."""
    return values[0] if values else None
