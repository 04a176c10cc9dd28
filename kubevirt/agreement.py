"""Combines the values of one interface from the VM's owner with those from the network's attachment. Pure.

Where they differ no choice works. A guest with another MAC than the switch has learnt, or with a larger MTU than its port, starts
and cannot be reached, so its definition is refused with both values named.
"""

from __future__ import annotations

from kubevirt.annotation import ANNOTATION
from kubevirt.interface_mac import read_mac
from kubevirt.sidecar_errors import DefinitionRefused
from kubevirt.vm_socket_source import Role
from kubevirt.vmi import VirtualMachine, VmInterface
from userspace_cni.pod import launcher


def settle_mac(machine: VirtualMachine, interface: VmInterface, ifname: str, told: str, *, of_claim: bool) -> tuple[str, str]:
    """The MAC and, for the log, its source: the VM's, else the attachment's (`told`), else the one that both sides derive.

    KubeVirt tells a CNI plugin the VM's MAC, and no driver of claims: one that is told of a claim's port is the driver's own
    choice, and a vhost-user port takes frames with any. Raises Refused (mac-mismatch), BadInput for a macAddress that is none.
    """
    where = f"macAddress of interface {interface.network!r}"
    asked = read_mac(interface.mac, where, "correct it in the VM's template")
    if asked and told and asked != told and of_claim:
        return asked, f"of the VM, in place of the claim's, {told}"
    if asked and told and asked != told:
        raise DefinitionRefused(
            "mac-mismatch",
            f"{where} is {asked}, and the network was attached with {told}: the switch would not deliver to the guest",
            "leave macAddress to the VM alone: remove a MAC from the network's configuration, and see that its CNI takes the one "
            "that Multus passes on",
        )
    if asked or told:
        return asked or told, "of the VM" if asked else "of the attachment"
    return launcher.derive_mac(machine.namespace, launcher.machine_part(machine.name), ifname), "derived from the VM's name"


def settle_mode(network: str, asked: Role | None, made_for: Role | None, where: str) -> Role:
    """QEMU's role: as asked, as the port is made for (`where` tells it), else server. Raises Refused (server-mode)."""
    if asked and made_for and asked != made_for:
        raise DefinitionRefused(
            "server-mode",
            f"network {network!r}: annotation {ANNOTATION} wants QEMU as {asked}, its port has QEMU as {made_for} ({where})",
            "remove 'mode' from the annotation: it is for sockets whose 'path' the annotation gives, too",
        )
    return asked or made_for or "server"


def settle_mtu(network: str, asked: int | None, port: int | None) -> int | None:
    """The guest's MTU: as asked for, else the port's; None when neither is known. Raises Refused (mtu-mismatch)."""
    if asked and port and asked > port:
        raise DefinitionRefused(
            "mtu-mismatch",
            f"network {network!r}: annotation {ANNOTATION} wants MTU {asked}, its port has {port}: larger frames would be lost",
            f"set host.mtu of the network to {asked} or more, or ask for at most {port}",
        )
    return asked or port
