"""A port of the switch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from userspace_cni.attachment.steps.step import Step

OWNER = "userspace-cni"
"""Value of the mark `owner` on every row that we make."""
MARK_SCHEMA = "1"


@dataclass(frozen=True)
class Port(Step):
    """A vhost-user port with its interface, on a bridge made on demand, in one OVSDB transaction.

    ovs-vswitchd.conf.db(5): `interface_type` is Interface.type, `server_path` options:vhost-server-path (client ports only),
    `tag`, `trunks` and `vlan_mode` are Port columns, `mtu` is Interface.mtu_request, `mac` goes to external_ids:attached-mac.
    `marks` are the owner marks of Interface and Port. `foreign_bridge`: the bridge was an administrator's, and is never made
    again. `legacy`: the row was made by the plugin that this one replaces, has no
    marks, and may be deleted if it is a dpdkvhostuser or dpdkvhostuserclient port.
    """

    kind: ClassVar[str] = "port"
    bridge: str
    name: str
    interface_type: Literal["dpdkvhostuserclient", "dpdkvhostuser"]
    server_path: str = ""
    tag: int | None = None
    trunks: tuple[int, ...] = ()
    vlan_mode: str = ""
    mtu: int | None = None
    mac: str = ""
    marks: Mapping[str, str] = field(default_factory=dict)
    foreign_bridge: bool = False
    legacy: bool = False
