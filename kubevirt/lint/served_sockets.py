"""Checks that a switch will be at the socket of each interface, by the VM's annotation and the network's plugin. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kubevirt.annotation import ANNOTATION, InterfaceAnnotation
from kubevirt.lint.machine import LintedInterface, LintedMachine
from kubevirt.lint.network import OUR_TYPE, Definition
from kubevirt.lint.reading import DocumentValue
from kubevirt.sidecar_errors import KubevirtError
from kubevirt.taken_sockets import OWNER_ROOTS, TakenSockets, canonical, check_owners, check_path
from userspace_cni.pod import launcher

_KERNEL_TYPES: Final = (
    *("bridge", "cnv-bridge", "host-device", "ipvlan", "loopback", "macvlan", "ovn-k8s-cni-overlay", "ovs", "ptp"),
    *("sriov", "tap", "tuning", "vlan"),
)
"""CNI plugins that make interfaces of the kernel."""


def judge_sockets(machine: LintedMachine, specs: Mapping[str, InterfaceAnnotation]) -> None:
    """Everything about the sockets of a VM's vhost-user interfaces. `specs`: what its annotation says, by network."""
    spot = DocumentValue(None, machine.annotations.at(ANNOTATION), machine.spot.report)
    taken: TakenSockets[LintedInterface] = TakenSockets()
    for nic in machine.vhost_user:
        spec = specs.get(nic.name, InterfaceAnnotation())
        if nic.definition:
            _judge_owner(nic, nic.definition, spec)
        path = canonical(spec.path or _derived(nic))
        if other := taken.take(path, nic):
            spot.find(
                "socket-name-collision",
                "error",
                f"interfaces '{other.name}' and '{nic.name}' have one socket, or one in the other's place: {path}",
                "give each a path of its own, or none: each then has one that is derived from its name",
            )
        if spec.mode == "client":
            spot.find(
                "server-mode",
                "error",
                f"interface '{nic.name}' is to be a client: its socket would be the switch's, without which QEMU does not start",
                "remove mode, or let it be server: the switch then connects, and again after it was restarted",
            )
        if spec.path:
            _judge_path(nic, spec.path, spot)


def _judge_path(nic: LintedInterface, path: str, spot: DocumentValue) -> None:
    try:
        check_path(path, OWNER_ROOTS, f"annotation {ANNOTATION}")
        derived = _derived(nic)
        if nic.definition and nic.definition.for_kubevirt and canonical(path) != derived:
            spot.find(
                "no-listener",
                "error",
                f"interface '{nic.name}' is to have its socket at {path}, and network {nic.definition} makes its port for "
                f"{derived}: QEMU and the switch would not meet",
                "remove path: both sides derive it; it is for networks of other plugins",
            )
        else:
            check_owners(path, derived, f"annotation {ANNOTATION}")
    except KubevirtError as error:
        spot.find(error.name, "error", error.message, error.remedy)


def _judge_owner(nic: LintedInterface, definition: Definition, spec: InterfaceAnnotation) -> None:
    """A network of which it is known that it is not of this plugin."""
    if definition.is_ours is not False:
        return
    types = ", ".join(definition.types) or "none"
    kernel = not definition.types or definition.is_misspelt or any(each in _KERNEL_TYPES for each in definition.types)
    if definition.tells_device or (spec.path and not kernel):
        nic.network.find(
            "foreign-network",
            "note",
            f"network {definition} is another plugin's (CNI type {types}): the socket is where its device-info, or the path of "
            f"annotation {ANNOTATION}, says",
            "see that its port connects to a socket which QEMU makes, as Open vSwitch's dpdkvhostuserclient does",
        )
        return
    instead = "a network of type userspace with consumer kubevirt, or one of KubeVirt's own bindings, as bridge"
    nic.network.find(
        "foreign-network",
        "error",
        f"network {definition} is of CNI type {types}, which makes no vhost-user port: no switch would be at the socket of "
        f"interface '{nic.name}'",
        f'write `"type": "{OUR_TYPE}"`' if definition.is_misspelt else f"use {instead}",
    )


def _derived(nic: LintedInterface) -> str:
    """The socket's path without an annotation. A name that is no text is reported elsewhere."""
    return launcher.socket_path(launcher.interface_name(nic.name.encode(errors="replace").decode()))
