"""The bridge that OVN's gateway router and the node share: a look at its rows, for the flows that it needs. Only looks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from userspace_cni.base.errors import Unavailable, UnsupportedField
from userspace_cni.pod.mac import six_octets

if TYPE_CHECKING:
    from userspace_cni.switch.ovsdb.switch_database import SwitchSession

_NO_UPLINKS: Final = frozenset({"internal", "patch", "dpdkvhostuser", "dpdkvhostuserclient", "geneve", "vxlan", "gre", "stt"})
"""Types of interfaces that are no NIC."""


@dataclass(frozen=True)
class SharedNumbers:
    """OpenFlow numbers of the NIC and of the patch port of a bridge, and the MAC of its local port."""

    uplink: int
    patch: int
    mac: str


def find_uplink_interface(session: SwitchSession, bridge: str, interface: str = "") -> str:
    """The interface of the bridge's only NIC; `interface` where it is given and there. Raises Unavailable, UnsupportedField."""
    from userspace_cni.ovsdb.column_values import value_of

    found = {
        value_of(each, "name"): port
        for port, members in _ports(session, bridge)
        for each in members
        if value_of(each, "type") not in _NO_UPLINKS and not _is_pods(port)
    }
    names = [interface] if interface in found else [] if interface else sorted(found)
    if not names:
        raise Unavailable(
            f"bridge {bridge} has no NIC {interface}".rstrip(),
            f"ovs-vsctl list-ifaces {bridge}; userspace-cni nic-to-bridge makes a bridge with a NIC",
        )
    if len(names) > 1:
        raise UnsupportedField(
            f"bridge {bridge} has the NICs {', '.join(names)}: it is not known which of them leads outside",
            "the setting ovn_gateway_interface, or the option --interface, names it; a bond cannot be shared",
        )
    return names[0]


def read_numbers(session: SwitchSession, bridge: str, interface: str, patch: str) -> SharedNumbers:
    """What the flows need. Raises Unavailable for what is not there or not open, and as `find_uplink_interface`."""
    from userspace_cni.ovsdb.column_values import value_of

    local = session.row("Interface", bridge)
    mac = six_octets(_first(value_of(local, "mac_in_use"), "")) if local is not None else ""
    if not mac:
        raise Unavailable(f"bridge {bridge} is not there, or has no MAC yet", f"ovs-vsctl list Interface {bridge}")
    uplink = find_uplink_interface(session, bridge, interface)
    numbers = {
        value_of(each, "name"): _first(value_of(each, "ofport"), 0) for _, members in _ports(session, bridge) for each in members
    }
    for name, what in ((uplink, "its NIC"), (patch, "its patch port to OVN's bridge")):
        if numbers.get(name, 0) <= 0:
            raise Unavailable(f"bridge {bridge}: {what}, {name}, is not open", f"ovs-vsctl list Interface {name}")
    return SharedNumbers(numbers[uplink], numbers[patch], mac)


def _ports(session: SwitchSession, bridge: str) -> list[tuple[Any, list[Any]]]:
    """The ports of the bridge, each with its interfaces."""
    from userspace_cni.ovsdb.column_values import read_references

    row = session.row("Bridge", bridge)
    ports, interfaces = session.tables["Port"].rows, session.tables["Interface"].rows
    found = [ports[each] for each in read_references(row, "ports") if each in ports] if row is not None else []
    return [(port, [interfaces[each] for each in read_references(port, "interfaces") if each in interfaces]) for port in found]


def _is_pods(port: Any) -> bool:
    from userspace_cni.attachment.steps import owner_kind
    from userspace_cni.ovsdb.column_values import value_of

    return owner_kind(value_of(port, "external_ids")) in ("pod", "claim", "run")


def _first(values: Any, default: Any) -> Any:
    return values[0] if values else default
