"""What the rows of the node's own say of an attachment whose record is lost: its steps, as far as rows tell."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from userspace_cni.attachment.steps import (
    EVERYTHING,
    HostEnd,
    Internal,
    LogicalPort,
    MirrorOutput,
    NodeBridge,
    OvsPort,
    Patch,
    Step,
    UplinkInterface,
    UplinkPort,
)
from userspace_cni.base.port_kinds import Datapath
from userspace_cni.base.vlans import Vlan
from userspace_cni.ovsdb.column_values import read_references, value_of
from userspace_cni.switch.ovsdb.bridge_mirrors import list_mirrors
from userspace_cni.switch.ovsdb.rows.bridge_row import HWADDR, datapath_of
from userspace_cni.switch.ovsdb.rows.interface_row import DEVARGS, PEER
from userspace_cni.switch.ovsdb.rows.logical_ids import IFACE_ID
from userspace_cni.switch.ovsdb.rows.marks import IFINDEX, MOVES_ADDRESSES, is_nodes
from userspace_cni.switch.ovsdb.rows.uplink_row import RX_QUEUES, former_of
from userspace_cni.switch.ovsdb.switch_database import SwitchSession
from userspace_cni.switch.ovsdb.switch_reads import bridge_of

_NUMBER: Final = re.compile("[0-9]{1,9}")


def list_specs(session: SwitchSession, store: str) -> frozenset[str]:
    """The mark `spec` of every replicated row of the node's own of this store."""
    index = session.index
    rows = (*index.marks.values(), *index.bridge_marks.values(), *map(_marks, session.rows("Mirror")))
    return frozenset(of["spec"] for of in rows if is_nodes(of) and of.get("store") == store and of.get("spec"))


def rebuild_steps(session: SwitchSession, marks: Mapping[str, str], switch_netns: str = "") -> tuple[Step, ...]:
    """The steps that have made the rows with these marks, in the order of a plan. What others have written is in them, too.

    `switch_netns`: where the switch opens its ports, as in steps.
    """
    bridges = [row for row in session.rows("Bridge") if _has(row, marks)]
    ports = [row for row in session.rows("Port") if _has(row, marks)]
    found = [step for port in ports if (step := _port(session, port, marks))]
    return (
        *(_bridge(session, row, marks) for row in bridges),
        *(replace(step, switch_netns=switch_netns) for step in found if isinstance(step, UplinkPort)),
        *(step for step in found if isinstance(step, OvsPort)),
        *_mirrors(session, {step.name for step in found}, marks),
    )


def _marks(row: Any) -> Mapping[str, str]:
    marks: Mapping[str, str] = value_of(row, "external_ids")
    return marks


def _has(row: Any, marks: Mapping[str, str]) -> bool:
    return marks.items() <= _marks(row).items()


def _bridge(session: SwitchSession, row: Any, marks: Mapping[str, str]) -> NodeBridge:
    name, mac = value_of(row, "name"), value_of(row, "other_config").get(HWADDR, "")
    mtu = _first(session.row("Interface", name), "mtu_request") or 0
    return NodeBridge(name, mac, mtu, _datapath(row), marks)


def _datapath(bridge: Any) -> Datapath:
    return "system" if datapath_of(value_of(bridge, "datapath_type")) == "system" else "netdev"


def _port(session: SwitchSession, port: Any, marks: Mapping[str, str]) -> UplinkPort | OvsPort | None:
    """The port, of NICs, or of a link of the node; None for one that is on no bridge.

    What shows nothing and is no link of OVS's own is an uplink, also on a bridge that has lost its marks: else the port would go,
    and addresses stay on a bridge that leads nowhere.
    """
    bridge, rows = bridge_of(session, port), session.tables["Interface"].rows
    members = [rows[each] for each in read_references(port, "interfaces") if each in rows]
    if bridge is None or not members:
        return None
    members.sort(key=lambda row: str(value_of(row, "name")))
    on, name, mtu = value_of(bridge, "name"), value_of(port, "name"), _first(members[0], "mtu_request")
    kind, options = value_of(members[0], "type"), value_of(members[0], "options")
    if kind == Patch.type:
        patch = Patch(options.get(PEER, ""), mtu)
        logical = value_of(members[0], "external_ids").get(IFACE_ID, "")
        port_of_ovn = LogicalPort(logical, waits=False) if logical else None
        return OvsPort(on, name, patch, marks=marks, foreign_bridge=True, datapath=_datapath(bridge), logical=port_of_ovn)
    internal = kind == Internal.type
    shown = [row for row in list_mirrors(session.replica, bridge) if _has(row, marks)]
    if not (internal or shown):
        return UplinkPort(
            on,
            name,
            tuple(map(_interface, members)),
            tuple(value_of(port, "trunks")),
            _first(port, "bond_mode") or "",
            _first(port, "lacp") or "",
            value_of(port, "bond_updelay"),
            mtu or 0,
            _number(options.get(RX_QUEUES, "")) or 0,
            marks=marks,
        )
    interface = Internal(_first(members[0], "mac") or "", mtu) if internal else HostEnd("system", mtu)
    return OvsPort(
        on,
        name,
        interface,
        Vlan(_first(port, "tag")),
        marks=marks,
        foreign_bridge=True,
        datapath=_datapath(bridge),
        mirror_outputs=tuple(sorted(value_of(row, "name") for row in shown)),
        shows=EVERYTHING if any(value_of(row, "select_all") for row in shown) else "",
    )


def _interface(row: Any) -> UplinkInterface:
    marks, devargs = value_of(row, "external_ids"), value_of(row, "options").get(DEVARGS, "")
    index, (mtu, offloads) = _number(marks.get(IFINDEX, "")), former_of(marks)
    return UplinkInterface(
        value_of(row, "name"),
        value_of(row, "type"),
        devargs,
        index=index,
        offloads=offloads,
        mtu=mtu,
        moves=MOVES_ADDRESSES in marks,
    )


def _mirrors(session: SwitchSession, ports: set[str], marks: Mapping[str, str]) -> Iterator[MirrorOutput]:
    """The mirrors whose output is none of these ports: it is another's, or was deleted."""
    rows = session.tables["Port"].rows
    for bridge in session.rows("Bridge"):
        for row in list_mirrors(session.replica, bridge):
            outputs = [value_of(rows[each], "name") for each in read_references(row, "output_port") if each in rows]
            if _has(row, marks) and not ports.intersection(outputs):
                shows = EVERYTHING if value_of(row, "select_all") else ""
                yield MirrorOutput(value_of(bridge, "name"), "".join(outputs), value_of(row, "name"), shows, marks)


def _number(text: str) -> int | None:
    """The number in a map's value, which may be any text; None for none."""
    return int(text) if _NUMBER.fullmatch(text) else None


def _first(row: Any, column: str) -> Any:
    """The value of a column that may have none; None then."""
    found = value_of(row, column) if row is not None else ()
    return found[0] if found else None
