"""Which bridge has an interface, which are open, and by which number: asked by what the node itself is to have. Only looks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from userspace_cni.base.deadline import Deadline
from userspace_cni.switch.ovsdb.switch_database import SwitchClient

if TYPE_CHECKING:
    from userspace_cni.switch.ovsdb.switch_database import SwitchSession


def map_interfaces_to_bridges(client: SwitchClient, deadline: Deadline) -> Mapping[str, str]:
    """The bridge of every interface of the switch by the interface's name; of a bond's members, and of bridges' local ones, too.

    Raises Unavailable.
    """
    from userspace_cni.ovsdb.column_values import read_references, value_of
    from userspace_cni.ovsdb.database import every_name

    def look(session: SwitchSession) -> dict[str, str]:
        ports, interfaces = session.tables["Port"].rows, session.tables["Interface"].rows
        found: dict[str, str] = {}
        for name, bridge in session.replica.names("Bridge").items():
            of_ports = (read_references(ports[each], "interfaces") for each in read_references(bridge, "ports") if each in ports)
            members = (interfaces[each] for of_port in of_ports for each in of_port if each in interfaces)
            found |= {value_of(each, "name"): name for each in members}
        return found

    return client.read(look, every_name(), "looking at the switch's interfaces", deadline)


def read_port_number(client: SwitchClient, name: str, deadline: Deadline) -> int:
    """The OpenFlow number of the port of that name, 0 while the switch has not opened it. Raises Unavailable."""
    from userspace_cni.ovsdb.column_values import value_of
    from userspace_cni.ovsdb.database import named

    def look(session: SwitchSession) -> int:
        row = session.row("Interface", name)
        return max(0, *value_of(row, "ofport")) if row is not None and value_of(row, "ofport") else 0

    return client.read(look, named(name), f"port {name}: looking at its interface", deadline)


def list_open_interfaces(client: SwitchClient, deadline: Deadline) -> frozenset[str]:
    """The names of the interfaces that ovs-vswitchd has open, as it said last. Raises Unavailable."""
    from userspace_cni.ovsdb.column_values import value_of
    from userspace_cni.ovsdb.database import every_name
    from userspace_cni.switch.ovsdb.rows.uplink_row import why_closed

    def look(session: SwitchSession) -> frozenset[str]:
        rows = session.tables["Interface"].rows.values()
        found = ({column: value_of(row, column) for column in ("name", "error", "ofport")} for row in rows)
        return frozenset(str(each["name"]) for each in found if not why_closed(each))

    return client.read(look, every_name(), "looking at the switch's interfaces", deadline)
