"""The links of the node itself on a bridge, and ports of other pods: what a pod's port must leave as it is. Only looks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from userspace_cni.attachment.facts import NodePort, PodPort
from userspace_cni.attachment.steps import OWNER, owner_kind
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.vlans import Vlan
from userspace_cni.switch.ovsdb.rows.marks import ATTACHED_MAC, is_ours
from userspace_cni.switch.ovsdb.switch_database import SwitchClient

if TYPE_CHECKING:
    from userspace_cni.switch.ovsdb.switch_database import SwitchSession


def list_node_ports(client: SwitchClient, bridge: str, deadline: Deadline) -> tuple[NodePort, ...]:
    """The links of the node, without addresses. A client of one call replicates the fewest rows that tell. Raises Unavailable."""
    from userspace_cni.ovsdb.database import every_name, named, of_type

    what = f"bridge {bridge}: looking at the node's own ports"
    if client.resident:  # it has all rows: one look tells
        found = client.read(partial(_kept_ports, bridge), frozenset(), what, deadline)
    else:
        names = client.read(_internal, of_type("internal") | named(bridge), what, deadline)
        found = client.read(partial(_ports, bridge, names), named(*names), what, deadline) if names else ()
    if not any(each.mtu for each in found):
        return found
    least = client.read(partial(_least_mtu, bridge), every_name(), what, deadline)
    return tuple(replace(each, least=least) for each in found)


def find_ports_with_mac(client: SwitchClient, bridge: str, mac: str, deadline: Deadline) -> tuple[PodPort, ...]:
    """The ports of pods on the bridge that have this MAC, which is in small letters. Raises Unavailable.

    A resident client finds them by the MAC; one of a call has the server choose the rows.
    """
    from userspace_cni.ovsdb.database import named, with_ids

    what, marks = f"bridge {bridge}: looking for ports with MAC {mac}", {"owner": OWNER, ATTACHED_MAC: mac}
    names = client.read(lambda session: session.index.find_with_mac(mac), with_ids(marks), what, deadline)
    if not names:
        return ()
    return client.read(partial(_pod_ports, bridge, names), named(*names), what, deadline)


def _pod_ports(bridge: str, names: Iterable[str], session: SwitchSession) -> tuple[PodPort, ...]:
    """Those of the names that are on the bridge and have our mark."""
    from userspace_cni.ovsdb.column_values import value_of

    marks = ((port, value_of(port, "external_ids")) for port in _on_bridge(bridge, names, session))
    return tuple(PodPort(ids.get("pod-namespace", ""), _vlan(port)) for port, ids in marks if is_ours(ids))


def _on_bridge(bridge: str, names: Iterable[str], session: SwitchSession) -> Iterator[Any]:
    """The rows of the ports of these names that are on the bridge."""
    from userspace_cni.ovsdb.column_values import refers

    row = session.row("Bridge", bridge)
    ports = (session.row("Port", name) for name in names)
    return (port for port in ports if row is not None and port is not None and refers(row, "ports", port.uuid))


def _vlan(port: Any) -> Vlan:
    from userspace_cni.ovsdb.column_values import value_of

    return Vlan(_one(value_of(port, "tag"), None), tuple(value_of(port, "trunks")), _one(value_of(port, "vlan_mode"), ""))


def _internal(session: SwitchSession) -> tuple[str, ...]:
    return tuple(sorted(session.index.internal))


def _kept_ports(bridge: str, session: SwitchSession) -> tuple[NodePort, ...]:
    """As `_ports`, of all internal ports; kept until a row of a port or bridge changes: the ADDs of a burst ask the same."""
    if session.row("Bridge", bridge) is None:
        return ()
    kept = session.index.kept
    if (_kept_ports, bridge) not in kept:
        kept[_kept_ports, bridge] = _ports(bridge, _internal(session), session)
    found: tuple[NodePort, ...] = kept[_kept_ports, bridge]
    return found


def _ports(bridge: str, names: Iterable[str], session: SwitchSession) -> tuple[NodePort, ...]:
    return tuple(_found(bridge, names, session))


def _found(bridge: str, names: Iterable[str], session: SwitchSession) -> Iterator[NodePort]:
    """Those of the names that are on the bridge; an internal port has one interface, which has its name."""
    from userspace_cni.ovsdb.column_values import value_of
    from userspace_cni.switch.ovsdb.switch_reads import find_local_port_without_mtu

    unheld = find_local_port_without_mtu(session, session.row("Bridge", bridge))
    for port in _on_bridge(bridge, names, session):
        name = value_of(port, "name")
        interface = session.row("Interface", name)
        if interface is None:
            continue
        marks = value_of(port, "external_ids")
        # of our own ports the MTU is asked for by who has made them, and by the next port
        keeps = value_of(interface, "mtu_request") or owner_kind(marks) in ("pod", "claim", "node") or interface is unheld
        yield NodePort(
            name,
            _one(value_of(interface, "mac_in_use"), ""),
            _vlan(port),
            mtu=_one(value_of(interface, "mtu"), 0) if not keeps and _counts(name, bridge, interface) else 0,
        )


def _counts(name: str, bridge: str, interface: Any) -> bool:
    """Whether the MTU of a link matters to its owner: that of a bridge's own link does while it is up, as few are ever used.

    Any other was made to be used, and comes up with the MTU that it was given while it was down.
    """
    from userspace_cni.ovsdb.column_values import value_of

    return name != bridge or value_of(interface, "admin_state") == ["up"]


def _least_mtu(bridge: str, session: SwitchSession) -> int:
    """The smallest MTU of the bridge's ports that are neither pods' nor links of the node, 0 for none."""
    from userspace_cni.ovsdb.column_values import read_references, value_of

    ports, interfaces = session.tables["Port"].rows, session.tables["Interface"].rows
    row = session.row("Bridge", bridge)
    mtus = []
    for port in (ports[each] for each in read_references(row, "ports") if each in ports) if row is not None else ():
        if is_ours(value_of(port, "external_ids")):
            continue
        for interface in (interfaces[each] for each in read_references(port, "interfaces") if each in interfaces):
            if value_of(interface, "type") not in ("internal", "patch"):
                mtus += [mtu for mtu in value_of(interface, "mtu") if mtu]
    return min(mtus, default=0)


def _one(values: list[Any], default: Any) -> Any:
    return values[0] if values else default
