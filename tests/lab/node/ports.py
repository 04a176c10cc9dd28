"""Port steps by their columns of OVSDB."""

from __future__ import annotations

from dataclasses import replace

from userspace_cni.attachment.steps import OvsPort
from userspace_cni.attachment.steps.port import StoredPort


def port_with(**columns: object) -> OvsPort:
    """The port that has these columns: `interface_type`, `server_path`, `tag`, `trunks`, `vlan_mode`, `mtu` and more."""
    port = StoredPort(**columns).restored()  # type: ignore[arg-type]
    assert isinstance(port, OvsPort)
    return port


def changed(port: OvsPort, **columns: object) -> OvsPort:
    """The port with other columns."""
    stored = port.stored()
    assert isinstance(stored, StoredPort)
    made = replace(stored, **columns).restored()  # type: ignore[arg-type]
    assert isinstance(made, OvsPort)
    return made
