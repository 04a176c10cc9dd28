"""The columns of each kind of interface in the Interface table. A new kind of port needs a case here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, assert_never

from userspace_cni.attachment.steps import HostEnd, Internal, OvsPort, Patch, VhostUserClient, VhostUserServer

SERVER_PATH: Final = "vhost-server-path"
DEVARGS: Final = "dpdk-devargs"
VHOST_USER_TYPES: Final = (VhostUserServer.type, VhostUserClient.type)
PEER: Final = "peer"
AFXDP: Final = "afxdp"
_FOUND_BY: Final = "; it looks for the link in its own network namespace: setting switch_netns, where that is another one"
Enforcer = Literal["policers", "qdisc", "both qdiscs", ""]
"""What OVS limits a port by: policers of DPDK ports, which drop; a qdisc of the kernel, which shapes; "": nothing that works.

A link of the node's own has both qdiscs, and they work the other way round: what OVS sends to it, the kernel receives. So QoS of
its Port shapes what comes from the node, "to the pod", and policing of its Interface drops of what goes to the node."""


@dataclass(frozen=True)
class InterfaceRow:
    """The columns of an interface that are written and compared. An option "" must be absent; other options are ignored.

    `mac` "" is not asked for. `called` is its kind in words, `enforcer` what limits it. `needs_dpdk`: it is a port of DPDK's.
    `can_reopen`: ovs-vswitchd may be asked again when it could not open the interface. `opened_by`: the end of an error's text,
    saying what makes it open the interface then; "" where it tries by itself.
    """

    type: str
    options: Mapping[str, str]
    mtu: int | None
    called: str
    mac: str = ""
    enforcer: Enforcer = "policers"
    needs_dpdk: bool = True
    can_reopen: bool = True
    opened_by: str = ""


def interface_row(step: OvsPort) -> InterfaceRow:
    """The row of a port's interface. No n_rxq: OVS takes the count of queues from the peer of a vhost-user port, else one."""
    match step.interface:
        case VhostUserClient() as client:
            return InterfaceRow(client.type, {SERVER_PATH: client.server_path}, client.mtu, "a vhost-user port")
        case VhostUserServer() as server:
            # After a failed bind of a socket, the next attempt of DPDK (22.11) binds and closes a descriptor number that may by
            # then be another object's, and ovs-vswitchd may hang.
            return InterfaceRow(
                server.type,
                {SERVER_PATH: ""},
                server.mtu,
                "a vhost-user port",
                can_reopen=False,
                opened_by="; a socket that it failed to make, it makes after a restart, which interrupts every port of the node",
            )
        case HostEnd(opened_as=("af_packet" | "af_xdp") as driver) as end:
            called = f"a kernel port opened as {driver}"
            return InterfaceRow(end.type, {DEVARGS: format_devargs(driver, step.name)}, end.mtu, called, opened_by=_FOUND_BY)
        case HostEnd() as end:
            enforcer: Enforcer = "" if end.type == AFXDP else "qdisc"
            called = f"a kernel port opened as {end.opened_as}"
            return InterfaceRow(end.type, {}, end.mtu, called, enforcer=enforcer, needs_dpdk=False, opened_by=_FOUND_BY)
        case Internal() as internal:
            return InterfaceRow(
                internal.type, {}, internal.mtu, "an internal port", internal.mac, "both qdiscs", needs_dpdk=False
            )
        case Patch() as patch:
            return InterfaceRow(patch.type, {PEER: patch.peer}, patch.mtu, "a patch port", enforcer="", needs_dpdk=False)
        case _:
            assert_never(step.interface)


def format_devargs(driver: str, link: str) -> str:
    """options:dpdk-devargs of the vdev for a link of that name: DPDK takes any end of its name."""
    return f"net_{driver}_{link},iface={link}"
