"""The columns of each kind of interface in the Interface table. A new kind of port needs a case here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, assert_never

from userspace_cni.attachment.steps import HostEnd, PortInterface, VhostUserClient, VhostUserServer
from userspace_cni.dataplane.ovsdb.rows.bridge import DATAPATH_TYPE

SERVER_PATH: Final = "vhost-server-path"
VHOST_USER_TYPES: Final = (VhostUserServer.type, VhostUserClient.type)


@dataclass(frozen=True)
class InterfaceRow:
    """The columns of an interface that are written and compared. An option "" must be absent; other options are ignored.

    `called` is its kind in words, `datapath_type` that of the bridges on which it can be. `can_reopen`: ovs-vswitchd may be asked
    again when it could not open the interface. `opened_by`: the end of an error's text, saying what makes it open the interface
    then; "" where it tries by itself.
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
            # After a failed bind of a socket, the next attempt of DPDK (22.11) binds and closes a descriptor number that may by
            # then be another object's, and ovs-vswitchd may hang.
            return InterfaceRow(
                interface.type,
                {SERVER_PATH: ""},
                interface.mtu,
                "a vhost-user port",
                DATAPATH_TYPE,
                can_reopen=False,
                opened_by="; a socket that it failed to make, it makes after a restart",
            )
        case HostEnd():
            return InterfaceRow(interface.type, {}, interface.mtu, "a kernel port", DATAPATH_TYPE)
        case _:
            assert_never(interface)
