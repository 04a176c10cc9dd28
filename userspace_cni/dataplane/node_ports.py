"""The links of the node itself on a bridge: what a pod's port must leave as it is. Only looks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from userspace_cni.attachment.facts import NodePort
from userspace_cni.attachment.steps import NODE_OWNER, OWNER
from userspace_cni.base.deadline import Deadline
from userspace_cni.dataplane.ovsdb.client import Client
from userspace_cni.dataplane.ovsdb.rows.marks import is_ours

if TYPE_CHECKING:
    from userspace_cni.dataplane.ovsdb.session import Session


def node_ports(client: Client, bridge: str, deadline: Deadline) -> tuple[NodePort, ...]:
    """Those that are up, without addresses. A client of one call replicates the fewest rows that tell. Raises Unavailable."""
    from userspace_cni.dataplane.ovsdb.replica import every_port, named, of_type

    what = f"bridge {bridge}: looking at the node's own ports"
    names = client.read(_links_in_use, of_type("internal") | named(bridge), what, deadline)
    if not names:
        return ()
    found = client.read(partial(_ports, bridge, names), named(*names), what, deadline)
    if not any(each.mtu for each in found):
        return found
    least = client.read(partial(_least_mtu, bridge), every_port(), what, deadline)
    return tuple(replace(each, least=least) for each in found)


def _links_in_use(session: Session) -> tuple[str, ...]:
    """Internal ports that are up, of all bridges."""
    from userspace_cni.dataplane.ovsdb.replica import value_of

    rows = ((name, session.row("Interface", name)) for name in sorted(session.replica.internal))
    return tuple(name for name, row in rows if row is not None and value_of(row, "admin_state") == ["up"])


def _ports(bridge: str, names: Iterable[str], session: Session) -> tuple[NodePort, ...]:
    return tuple(_found(bridge, names, session))


def _found(bridge: str, names: Iterable[str], session: Session) -> Iterator[NodePort]:
    """Those of the names that are on the bridge; an internal port has one interface, which has its name."""
    from userspace_cni.dataplane.ovsdb.reads import local_port_without_mtu
    from userspace_cni.dataplane.ovsdb.replica import refers, value_of

    row = session.row("Bridge", bridge)
    unheld = local_port_without_mtu(session, row)
    for name in names:
        port, interface = session.row("Port", name), session.row("Interface", name)
        if row is None or port is None or interface is None or not refers(row, "ports", port.uuid):
            continue
        marks = value_of(port, "external_ids")
        # of our own ports the MTU is asked for by who has made them, and by the next port
        keeps = value_of(interface, "mtu_request") or marks.get("owner") in (OWNER, NODE_OWNER) or interface is unheld
        yield NodePort(
            name,
            _one(value_of(interface, "mac_in_use"), ""),
            _one(value_of(port, "tag"), 0),
            mtu=0 if keeps else _one(value_of(interface, "mtu"), 0),
        )


def _least_mtu(bridge: str, session: Session) -> int:
    """The smallest MTU of the bridge's ports that are neither pods' nor links of the node, 0 for none."""
    from userspace_cni.dataplane.ovsdb.replica import references, value_of

    ports, interfaces = session.tables["Port"].rows, session.tables["Interface"].rows
    row = session.row("Bridge", bridge)
    mtus = []
    for port in (ports[each] for each in references(row, "ports") if each in ports) if row is not None else ():
        if is_ours(value_of(port, "external_ids")):
            continue
        for interface in (interfaces[each] for each in references(port, "interfaces") if each in interfaces):
            if value_of(interface, "type") not in ("internal", "patch"):
                mtus += [mtu for mtu in value_of(interface, "mtu") if mtu]
    return min(mtus, default=0)


def _one(values: list[Any], default: Any) -> Any:
    return values[0] if values else default
