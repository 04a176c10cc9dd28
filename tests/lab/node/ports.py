"""Port steps by their columns of OVSDB."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from userspace_cni.attachment.steps import OvsPort, VhostUserClient, VhostUserServer


def port_with(*, bridge: str, name: str, **columns: Any) -> OvsPort:
    """The port that has these columns: `interface_type`, `server_path`, `mtu`, those of its VLAN, and fields of the step."""
    return changed(OvsPort(bridge, name, VhostUserClient("")), **columns)


def changed(port: OvsPort, **columns: Any) -> OvsPort:
    interface, vlan = port.interface, port.vlan
    given = {"interface_type": interface.type, "server_path": port.server_path, "mtu": interface.mtu, **columns}
    kind, path, mtu = (given.pop(name) for name in ("interface_type", "server_path", "mtu"))
    made = VhostUserClient(path, mtu) if kind == VhostUserClient.type else VhostUserServer(mtu)
    tags = {name: given.pop(column) for column, name in _VLAN.items() if column in given}
    return replace(port, interface=made, vlan=replace(vlan, **tags), **given)


_VLAN: Mapping[str, str] = {"tag": "tag", "trunks": "trunks", "vlan_mode": "mode"}
