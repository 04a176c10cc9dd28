"""What each member of the union of interfaces is in the Interface table. To add a kind of port: its case here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, assert_never

from userspace_cni.attachment.steps import PortInterface, VhostUserClient, VhostUserServer
from userspace_cni.dataplane.ovsdb.rows.bridge import DATAPATH_TYPE

SERVER_PATH: Final = "vhost-server-path"
VHOST_USER_TYPES: Final = (VhostUserServer.type, VhostUserClient.type)


@dataclass(frozen=True)
class InterfaceRow:
    """What is written of an interface, and compared. An option that is "" is to be absent; others are not looked at.

    `called` is its kind in words, `datapath_type` that of the bridges on which it can be. `can_reopen`: ovs-vswitchd may be made
    to try again when it could not open it. `opened_by`: what makes it open such a one: words after others, "" where it tries by
    itself.
    """

    type: str
    options: Mapping[str, str]
    mtu: int | None
    called: str
    datapath_type: str
    can_reopen: bool = True
    opened_by: str = ""


def interface_row(interface: PortInterface) -> InterfaceRow:
    """The row of an interface. No n_rxq: OVS takes the count of queues from the peer."""
    match interface:
        case VhostUserClient():
            options = {SERVER_PATH: interface.server_path}
            return InterfaceRow(interface.type, options, interface.mtu, "a vhost-user port", DATAPATH_TYPE)
        case VhostUserServer():
            # Having failed to bind a socket, DPDK (22.11) binds and then closes a descriptor at the next attempt that is by then
            # another object's in the same process, and ovs-vswitchd may hang.
            return InterfaceRow(
                interface.type,
                {SERVER_PATH: ""},
                interface.mtu,
                "a vhost-user port",
                DATAPATH_TYPE,
                can_reopen=False,
                opened_by="; a socket that it failed to make, it makes after a restart",
            )
        case _:
            assert_never(interface)
