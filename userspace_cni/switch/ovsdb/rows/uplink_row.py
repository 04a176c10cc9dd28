"""The columns of an uplink's port, with one interface or several that are bonded, and their differences from a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from userspace_cni.attachment.drift import Absent, Drift, Value
from userspace_cni.attachment.steps import UplinkInterface, UplinkPort
from userspace_cni.base.errors import SwitchRefused
from userspace_cni.base.provider_networks import VDEV, link_of
from userspace_cni.ovsdb.columns import Columns, find_changed_columns, wrap_optional
from userspace_cni.switch.ovsdb.rows.desired import DesiredBridge, DesiredInterface, DesiredPort, DesiredRows
from userspace_cni.switch.ovsdb.rows.interface_row import AFXDP, DEVARGS
from userspace_cni.switch.ovsdb.rows.marks import FORMER_MTU, FORMER_OFFLOADS, IFINDEX, MOVES_ADDRESSES
from userspace_cni.switch.ovsdb.rows.switch_row import Abilities

DPDK: Final = "dpdk"
SYSTEM: Final = "system"
RX_QUEUES: Final = "n_rxq"
_MTU_DIGITS: Final = 5
_TYPES: Final = (SYSTEM, AFXDP, DPDK)


@dataclass(frozen=True)
class UplinkRow:
    """A port as OVSDB has it: the name of its bridge, "" for none, and the columns of Port and, by name, of its interfaces."""

    bridge: str
    port: Mapping[str, Any]
    interfaces: Mapping[str, Mapping[str, Any]]


def find_kernel_link(interface: UplinkInterface) -> str:
    """The kernel link that ovs-vswitchd opens for an interface of a step; "" for none that the kernel has."""
    return link_of(f"{VDEV}{interface.devargs}" if interface.type == DPDK else interface.name)


def uplink_port_columns(step: UplinkPort, marks: Mapping[str, str]) -> Columns:
    """Columns of the Port row, without `interfaces`. VLAN 0 stands for untagged frames."""
    return {
        "name": step.name,
        "tag": [],
        "trunks": sorted({0, *step.trunks}) if step.trunks else [],
        "vlan_mode": [],
        "bond_mode": wrap_optional(step.bond_mode or None),
        "lacp": wrap_optional(step.lacp or None),
        "bond_updelay": step.updelay_ms,
        "external_ids": dict(marks),
    }


def uplink_interface_columns(
    step: UplinkPort, interface: UplinkInterface, marks: Mapping[str, str], index: int | None = None
) -> Columns:
    """Columns of an Interface row, as `find_changed_columns` takes them. `index`: of its kernel link, None where it has none.

    Raises SwitchRefused for what its type cannot have.
    """
    kind = interface.type
    if kind not in _TYPES:
        raise SwitchRefused(f"uplink {step.name}: an interface of type {kind!r}", f"one of {', '.join(_TYPES)}")
    if step.rx_queues and kind == SYSTEM:
        raise SwitchRefused(
            f"uplink {step.name}: {interface.name} is opened as system, which has one queue to read from",
            "leave out the count of queues, or open it as afxdp",
        )
    return {
        "name": interface.name,
        "type": kind,
        "options": {DEVARGS: interface.devargs or None, RX_QUEUES: str(step.rx_queues) if step.rx_queues else None},
        "mtu_request": wrap_optional(step.mtu or None),
        "external_ids": dict(marks) | {IFINDEX: None if index is None else str(index)} | _former(interface),
    }


def _former(interface: UplinkInterface) -> dict[str, str | None]:
    """The marks of what its NIC was and had; None takes one away. A step that polls the port leaves those that the port's own
    made."""
    if interface.polled == "now":
        return {}
    mtu, offloads = interface.mtu, interface.offloads
    return {
        FORMER_MTU: None if mtu is None else str(mtu),
        FORMER_OFFLOADS: None if offloads is None else ",".join(offloads),
        MOVES_ADDRESSES: "yes" if interface.moves else None,
    }


def former_of(external_ids: Mapping[str, str]) -> tuple[int | None, tuple[str, ...] | None]:
    """MTU and offloads that the NIC had, by the marks of its row; None for what they do not say."""
    mtu, offloads = external_ids.get(FORMER_MTU, ""), external_ids.get(FORMER_OFFLOADS)
    known = None if offloads is None else tuple(each for each in offloads.split(",") if each in ("gro", "lro"))
    return int(mtu) if mtu.isdecimal() and len(mtu) <= _MTU_DIGITS else None, known


def desired_uplink(step: UplinkPort, marks: Mapping[str, str], indexes: Mapping[str, int]) -> DesiredRows:
    """All rows of the uplink's port. `indexes`: as those of `find_uplink_differences`. Raises as `uplink_interface_columns`."""
    return DesiredRows(
        marks,
        DesiredBridge(
            step.bridge,
            own=True,
            missing=(f"uplink {step.name}: there is no bridge {step.bridge}", "another program has deleted it"),
        ),
        DesiredPort(
            uplink_port_columns(step, marks),
            tuple(_desired_interface(step, each, marks, indexes.get(each.name)) for each in step.present),
            takes_over=True,
        ),
        called=f"uplink {step.name}: ",
    )


def _desired_interface(
    step: UplinkPort, interface: UplinkInterface, marks: Mapping[str, str], index: int | None
) -> DesiredInterface:
    opened: Columns = {
        "type": interface.type,
        "options": {DEVARGS: interface.devargs or None},
        "external_ids": {IFINDEX: None if index is None else str(index)},
    }
    if interface.polled:
        del opened["type"]  # it changes in place
    columns = uplink_interface_columns(step, interface, marks, index)
    return DesiredInterface(columns, opened, later_type=AFXDP if interface.polled == "later" else "")


def why_unable(step: UplinkPort, switch: Abilities) -> tuple[str, str] | None:
    """What of the uplink this ovs-vswitchd cannot open, and what to look at."""
    for each in step.present:
        name, kind = each.name, each.type
        if kind in (AFXDP, DPDK) and switch.interface_types and kind not in switch.interface_types:
            why = f"uplink {step.name}: {name} cannot be opened as {kind}: ovs-vswitchd is built without it"
            return why, f"Open_vSwitch.iface_types has no {kind}; open a kernel NIC as system"
        if kind == DPDK and not switch.dpdk:
            hint = "ovs-vsctl get Open_vSwitch . dpdk_initialized other_config, and the log of ovs-vswitchd"
            return f"uplink {step.name}: {name} cannot be opened: ovs-vswitchd runs without DPDK", hint
    return None


def why_closed(found: Mapping[str, Any]) -> str:
    """Why ovs-vswitchd has not opened the interface of this row; "" if it has."""
    if found["error"]:
        return str(found["error"][0])
    return "" if found["ofport"] and found["ofport"][0] > 0 else "not opened by ovs-vswitchd"


def why_other_mtu(step: UplinkPort, name: str, found: Mapping[str, Any]) -> str:
    """The MTU that the open interface has in the place of the step's; "" if it has that one."""
    mtu = found["mtu"][0] if found["mtu"] else 0
    return "" if not step.mtu or mtu == step.mtu else f"{name} has MTU {mtu or 'unknown'}, not {step.mtu}"


def find_uplink_differences(step: UplinkPort, row: UplinkRow | None, indexes: Mapping[str, int]) -> list[Drift]:
    """Every difference between the step and the rows. `indexes`: of the kernel links that its interfaces have, 0 for a missing
    one, by interface; those without a link are not in it."""
    subject, look = f"uplink {step.name}", _look(step)
    if row is None:
        return [Drift(subject, "", f"a port on bridge {step.bridge}", Absent("none"), look)]
    names = sorted(each.name for each in step.present)
    places = (("bridge", step.bridge, row.bridge), ("interfaces", ", ".join(names), ", ".join(sorted(row.interfaces))))
    drifts = [Drift(subject, column, wanted, found, look, ", ") for column, wanted, found in places if wanted != found]
    drifts += find_written_differences(step, row)
    for name in (each.name for each in step.present if each.name in row.interfaces):
        found, index = row.interfaces[name], indexes.get(name)
        if index is not None and found["external_ids"].get(IFINDEX) != str(index):
            opened = f"the NIC with ifindex {found['external_ids'].get(IFINDEX, '(unknown)')}, which ovs-vswitchd opened"
            now = f"one that was made since, with ifindex {index}" if index else Absent("no NIC of that name")
            drifts.append(Drift(subject, name, opened, now, "it carries nothing until it is added again, which the agent does"))
        if why := why_closed(found):
            drifts.append(Drift(subject, name, "an open interface", why, look))
        elif why_other_mtu(step, name, found):
            drifts.append(Drift(subject, f"{name} MTU", step.mtu, found["mtu"][0] if found["mtu"] else 0, look))
    return drifts


def find_written_differences(step: UplinkPort, row: UplinkRow) -> list[Drift]:
    """The differences in what a program writes into the rows, and the switch does not."""
    changes = find_changed_columns(uplink_port_columns(step, step.marks), row.port)
    compared = [(column, value, row.port[column]) for column, value in changes.items()]
    for each in step.present:
        name = each.name
        if found := row.interfaces.get(name):
            wanted = _desired_interface(step, each, step.marks, None).choose_columns(found) | {"external_ids": dict(step.marks)}
            changes = find_changed_columns(wanted, found)
            compared += [(f"{name} {column}", value, found[column]) for column, value in changes.items()]
    shown = [(column, _shown(wanted), _shown(found)) for column, wanted, found in compared]
    subject, look = f"uplink {step.name}", _look(step)
    return [Drift(subject, column, wanted, found, look, ", ") for column, wanted, found in shown if wanted != found]


def _look(step: UplinkPort) -> str:
    return f"ovs-vsctl list Port {step.name}; ovs-vsctl list Interface"


def _shown(value: Any) -> Value:
    if isinstance(value, dict):
        return " ".join(f"{key}={each}" for key, each in sorted(value.items()))
    if isinstance(value, list):
        return ", ".join(map(str, value)) or Absent("none")
    return str(value)
