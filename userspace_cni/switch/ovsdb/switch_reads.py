"""What is asked of OVSDB: two commands that only read, and what is made of the rows of a session. Nothing here writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeVar

from userspace_cni.attachment.port_now import PortNow
from userspace_cni.attachment.steps import Internal, Patch, UplinkPort
from userspace_cni.base.port_kinds import Datapath
from userspace_cni.base.vlans import Vlan
from userspace_cni.ovsdb.column_values import columns_of, count, read_references, refers, value_of
from userspace_cni.ovsdb.replica import Replica
from userspace_cni.switch.ovsdb.bridge_mirrors import list_mirrors, read_mirror_rows, takes_sources
from userspace_cni.switch.ovsdb.index import SwitchIndex
from userspace_cni.switch.ovsdb.port_limits import limit_of
from userspace_cni.switch.ovsdb.rows.bridge_row import DATAPATH_TYPE, datapath_of
from userspace_cni.switch.ovsdb.rows.interface_row import DEVARGS, VHOST_USER_TYPES
from userspace_cni.switch.ovsdb.rows.logical_ids import installed_port
from userspace_cni.switch.ovsdb.rows.marks import BridgeMaker, find_maker, is_nodes, is_ours
from userspace_cni.switch.ovsdb.rows.port_row import KnownPort, LimitedPort, PortRow
from userspace_cni.switch.ovsdb.rows.qos_row import read_limits
from userspace_cni.switch.ovsdb.rows.switch_row import Abilities, SwitchSettings
from userspace_cni.switch.ovsdb.rows.uplink_row import UplinkRow
from userspace_cni.switch.ovsdb.switch_database import SwitchSession

T = TypeVar("T")
_NO_DPDK: Final = "none"
"""The version of DPDK that ovs-vswitchd names where it is built without."""
_INWARD: Final = frozenset({*VHOST_USER_TYPES, Internal.type})
"""Types of interfaces behind which is a pod, a VM or the node itself."""


def find_port(session: SwitchSession, name: str) -> PortRow | None:
    """The port of that name; None unless it is on a bridge, has one interface, and is not the bridge's local port."""
    port = session.row("Port", name)
    bridge = None if port is None else bridge_of(session, port)
    return None if bridge is None else _port_row(session, port, value_of(bridge, "name"))


def list_versions(session: SwitchSession) -> Mapping[str, object]:
    """What changes with anything that `find_port` returns, by name of port; without those that have another interface than that
    of their name."""
    return _kept(session, _list_versions)


def _list_versions(session: SwitchSession) -> Mapping[str, object]:
    index, ports, interfaces = session.index, session.tables["Port"].rows, session.replica.names("Interface")
    versions, found = index.versions, dict[str, object]()
    for bridge, row in session.replica.names("Bridge").items():
        shared = bridge, versions.get(bridge), index.shared_version
        for port in (ports[each] for each in read_references(row, "ports") if each in ports):
            name = value_of(port, "name")
            interface = interfaces.get(name)
            if interface is not None and count(port, "interfaces") == 1 and refers(port, "interfaces", interface.uuid):
                found[name] = versions.get(name), shared
    return found


def find_uplink(session: SwitchSession, step: UplinkPort) -> UplinkRow | None:
    port = session.row("Port", step.name)
    if port is None:
        return None
    bridge, rows = bridge_of(session, port, step.bridge), session.tables["Interface"].rows
    members = [rows[each] for each in read_references(port, "interfaces") if each in rows]
    return UplinkRow(
        "" if bridge is None else value_of(bridge, "name"),
        columns_of(port),
        {value_of(row, "name"): columns_of(row) for row in members},
    )


def list_ports(session: SwitchSession) -> list[KnownPort]:
    """The same ports as `list_port_rows`, with the columns that lists and metrics show."""
    return list(_kept(session, _list_ports))


def _kept(session: SwitchSession, read: Callable[[SwitchSession], T]) -> T:
    """What `read` makes of all rows, made again when a row has changed. Callers must not change it."""
    kept = session.index.kept
    if read not in kept:
        kept[read] = read(session)
    found: T = kept[read]
    return found


def _list_ports(session: SwitchSession) -> list[KnownPort]:
    replica, index, rows = session.replica, session.index, session.tables["Port"].rows
    shown, interfaces = index.shown, replica.names("Interface")
    found = []
    for bridge, row in replica.names("Bridge").items():
        for reference in read_references(row, "ports"):
            port = rows.get(reference)
            name = "" if port is None else value_of(port, "name")
            interface = interfaces.get(name)
            if interface is None or name == bridge:
                continue
            known = shown.get(name)
            if known is None or known.bridge != bridge:
                known = shown[name] = _known(bridge, interface, _now(replica, port, interface), ours=is_ours(index.marks[name]))
            found.append(known)
    return found


def list_uplinks(session: SwitchSession) -> dict[str, tuple[str, ...]]:
    """Interface.options:dpdk-devargs of the NICs of type dpdk, those in bonds too, that are not ours, by bridge; "" for none."""
    ports, interfaces = session.tables["Port"].rows, session.tables["Interface"].rows
    found: dict[str, tuple[str, ...]] = {}
    for name, bridge in session.replica.names("Bridge").items():
        rows = (ports[each] for each in sorted(read_references(bridge, "ports")) if each in ports)
        theirs = (row for row in rows if not is_ours(session.index.marks[value_of(row, "name")]))
        members = (
            interfaces[each] for row in theirs for each in sorted(read_references(row, "interfaces")) if each in interfaces
        )
        devices = tuple(value_of(each, "options").get(DEVARGS, "") for each in members if value_of(each, "type") == "dpdk")
        if devices:
            found[name] = devices
    return found


@dataclass(frozen=True)
class BridgeLook:
    """A bridge as the node's own network sees it: who made it, its datapath, and its ports that lead to other machines, or may:
    NICs, tunnels, patches, and whatever else is neither a pod's nor the node's own link. `mtu`: what its local port asks for, 0
    for nothing."""

    maker: BridgeMaker
    datapath: Datapath
    outward: tuple[str, ...]
    mtu: int = 0


def look_at_bridge(session: SwitchSession, name: str) -> BridgeLook:
    """What `BridgeLook` says; of a bridge that is not there, what it would be."""
    bridge = session.row("Bridge", name)
    if bridge is None:
        return BridgeLook("", DATAPATH_TYPE, ())
    ports, interfaces = session.tables["Port"].rows, session.tables["Interface"].rows
    outward = []
    for port in (ports[each] for each in read_references(bridge, "ports") if each in ports):
        types = {value_of(interfaces[each], "type") for each in read_references(port, "interfaces") if each in interfaces}
        called = value_of(port, "name")
        if called != name and not is_ours(session.index.marks.get(called, {})) and types - _INWARD:
            outward.append(called)
    datapath: Datapath = "system" if datapath_of(value_of(bridge, "datapath_type")) == "system" else "netdev"
    local = session.row("Interface", name)
    mtu = value_of(local, "mtu_request") if local is not None else []
    return BridgeLook(find_maker(value_of(bridge, "external_ids")), datapath, tuple(sorted(outward)), mtu[0] if mtu else 0)


def find_local_port_without_mtu(session: SwitchSession, bridge: Any) -> Any:
    """The Interface of the local port of a bridge that was made for pods, if it asks for no MTU; else None.

    Such a port gets the smallest MTU of the bridge's other ports. Releases before made them so.
    """
    if bridge is None or not is_ours(value_of(bridge, "external_ids")):
        return None
    local = session.row("Interface", value_of(bridge, "name"))
    return None if local is None or value_of(local, "mtu_request") else local


def list_counted_ports(session: SwitchSession) -> dict[str, dict[int, tuple[str, Mapping[str, str]]]]:
    """Name and marks of the open ports with our owner mark, by bridge and OpenFlow number."""
    found: dict[str, dict[int, tuple[str, Mapping[str, str]]]] = {}
    for known in list_ports(session):
        if known.ours and known.ofport > 0:
            found.setdefault(known.bridge, {})[known.ofport] = known.name, session.index.marks[known.name]
    return found


def list_closed_ports(session: SwitchSession, *, unseen: bool) -> frozenset[str]:
    """The ports of attachments and of the node that ovs-vswitchd could not open; `unseen`: also those without its answer yet."""
    return frozenset(name for name, answered in _kept(session, _list_closed).items() if unseen or answered)


def _list_closed(session: SwitchSession) -> Mapping[str, bool]:
    """The same ports, each with whether ovs-vswitchd has answered."""
    ours = (name for name, marks in session.index.marks.items() if is_ours(marks) or is_nodes(marks))
    found = ((name, session.row("Interface", name)) for name in ours)
    return {
        name: bool(value_of(row, "ofport") or value_of(row, "error"))
        for name, row in found
        if row is not None and not is_open(row)
    }


def list_unconnected_ports(session: SwitchSession) -> frozenset[str]:
    """The open ports of attachments whose application makes the socket, and to which it is not connected, by ovs-vswitchd."""
    return frozenset(
        each.name
        for each in list_ports(session)
        if each.ours
        and each.interface_type == "dpdkvhostuserclient"
        and each.ofport > 0
        and (each.link_state, each.status.get("status")) == ("down", "disconnected")
    )


def list_mirror_outputs(session: SwitchSession) -> frozenset[tuple[str, str]]:
    """The mirrors of attachments and of the node that have an output: their names, each with the name of its output's port."""
    ports = session.tables["Port"].rows
    rows = (row for bridge in session.rows("Bridge") for row in list_mirrors(session.replica, bridge))
    ours = (row for row in rows if takes_sources(value_of(row, "external_ids")))
    outputs = ((value_of(row, "name"), each) for row in ours for each in read_references(row, "output_port"))
    return frozenset((name, value_of(ports[each], "name")) for name, each in outputs if each in ports)


def is_closed(session: SwitchSession, name: str) -> bool:
    """Whether ovs-vswitchd has said that it could not open the interface."""
    row = session.row("Interface", name)
    return row is not None and not is_open(row) and bool(value_of(row, "ofport") or value_of(row, "error"))


def is_open(interface: Any) -> bool:
    """Whether ovs-vswitchd has opened the interface of this row."""
    ofport = value_of(interface, "ofport")
    return bool(ofport) and ofport[0] > 0 and not _open_error(interface)


def _open_error(interface: Any) -> str:
    """Why ovs-vswitchd could not open it; of an end of a patch it says so, too, while the other end is not there yet."""
    error = value_of(interface, "error")
    return str(error[0]) if error and value_of(interface, "type") != Patch.type else ""


def read_open_state(session: SwitchSession, name: str) -> tuple[bool, str] | None:
    """What ovs-vswitchd says of the interface of that name: (True, "") for open, (False, why not), or nothing yet."""
    row = session.row("Interface", name)
    if row is None:
        return False, "another process deleted its rows"
    if error := _open_error(row):
        return False, error
    return (True, "") if is_open(row) else None


def read_link_index(session: SwitchSession, name: str) -> int:
    """The index of the link that ovs-vswitchd has opened for the interface of that name; 0 if there is none, or it is unknown.

    ovs-vswitchd says it, and it stays in the row when ovs-vswitchd dies.
    """
    row = session.row("Interface", name)
    found = [] if row is None else value_of(row, "ifindex")
    return int(found[0]) if found else 0


def list_port_rows(session: SwitchSession, marks: Mapping[str, str] = MappingProxyType({})) -> list[PortRow]:
    """All replicated ports that have these marks, as `find_port` returns them."""
    replica, wanted = session.replica, marks.items()
    bridges = {port: name for name, bridge in replica.names("Bridge").items() for port in read_references(bridge, "ports")}
    rows = [
        _port_row(session, port, bridges.get(port.uuid, ""))
        for name, port in replica.names("Port").items()
        if wanted <= session.index.marks[name].items()
    ]
    return [row for row in rows if row is not None]


def read_switch_settings(session: SwitchSession) -> SwitchSettings:
    """The settings of the switch, and the MTUs of the replicated ports that are open."""
    interfaces = session.replica.names("Interface").items()
    mtus = {name: mtu[0] for name, interface in interfaces if (mtu := value_of(interface, "mtu"))}
    return SwitchSettings(read_other_config(session), mtus)


def read_abilities(session: SwitchSession) -> Abilities:
    root = session.root()
    types, datapaths = (frozenset(value_of(root, column)) for column in ("iface_types", "datapath_types"))
    version = next(iter(value_of(root, "dpdk_version")), _NO_DPDK)
    return Abilities(types, datapaths, value_of(root, "dpdk_initialized"), "" if version == _NO_DPDK else version)


def list_limited_ports(session: SwitchSession) -> list[LimitedPort]:
    replica, found = session.replica, []
    for known in list_ports(session):
        if known.ours:
            port, interface = session.row("Port", known.name), session.row("Interface", known.name)
            limit, policed = limit_of(replica, port), value_of(interface, "ingress_policing_rate") > 0
            if limit or policed:
                kind = limit.type if limit else ""
                found.append(LimitedPort(known.name, session.index.marks[known.name], str(interface.uuid), kind, policed))
    return found


def read_other_config(session: SwitchSession) -> dict[str, str]:
    return dict(value_of(session.root(), "other_config"))


def _known(bridge: str, interface: Any, now: PortNow, *, ours: bool) -> KnownPort:
    link, error = value_of(interface, "link_state"), value_of(interface, "error")
    kind, status = value_of(interface, "type"), value_of(interface, "status")
    ofport = value_of(interface, "ofport")
    number = ofport[0] if ofport else 0
    installed = installed_port(value_of(interface, "external_ids"))
    name, up = value_of(interface, "name"), link[0] if link else ""
    return KnownPort(name, bridge, kind, ours, up, status, error[0] if error else "", number, installed, now)


def _now(replica: Replica[SwitchIndex], port: Any, interface: Any) -> PortNow:
    tag, mode, asked, mtu = (
        value_of(row, column)
        for row, column in ((port, "tag"), (port, "vlan_mode"), (interface, "mtu_request"), (interface, "mtu"))
    )
    vlan = Vlan(tag[0] if tag else None, tuple(sorted(value_of(port, "trunks"))), mode[0] if mode else "")
    policing = (value_of(interface, f"ingress_policing_{what}") for what in ("rate", "burst"))
    limit = limit_of(replica, port)
    limits = read_limits(limit, *policing)
    return PortNow(vlan, asked[0] if asked else None, mtu[0] if mtu else 0, limits, limit.type if limit else "")


def bridge_of(session: SwitchSession, port: Any, likely: str = "") -> Any:
    """The row of the bridge that has the port; `likely`: where to look first."""
    first = session.row("Bridge", likely)
    bridges = session.rows("Bridge") if first is None else [first, *session.rows("Bridge")]
    return next((bridge for bridge in bridges if refers(bridge, "ports", port.uuid)), None)


def _port_row(session: SwitchSession, port: Any, bridge: str) -> PortRow | None:
    interfaces = value_of(port, "interfaces")
    interface = session.tables["Interface"].rows.get(interfaces[0]) if len(interfaces) == 1 else None
    if interface is None or not bridge or bridge == value_of(port, "name"):
        return None
    bridge_row = session.row("Bridge", bridge)
    mirrors, limit = read_mirror_rows(session.replica, bridge_row, port), limit_of(session.replica, port)
    local_mtu_is_kept = find_local_port_without_mtu(session, bridge_row) is None
    return PortRow(bridge, columns_of(port), columns_of(interface), mirrors, limit, local_mtu_is_kept)


def find_missing(session: SwitchSession, names: Iterable[str]) -> frozenset[str]:
    """Those of the names that no replicated bridge or port has. Needs no lock: a transaction may be under way."""
    index = session.index
    return frozenset(name for name in names if name not in index.bridge_marks and name not in index.marks)
