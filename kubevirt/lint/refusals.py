"""Finds what the sidecar would refuse of a VM, with the sidecar's own readers, so that the two cannot differ. Pure.

The socket, the MAC and the model have findings of their own, and are not checked again.
"""

from __future__ import annotations

from dataclasses import replace

from kubevirt.lint.machine import LintedMachine
from kubevirt.lint.reading import DocumentValue
from kubevirt.sidecar_errors import BadInput, KubevirtError
from kubevirt.vm_interface import MachineSetting, facts
from kubevirt.vm_socket_source import VmSocketSource
from kubevirt.vmi import VmInterface, read_vmi

_SOURCE = VmSocketSource("/var/run/kubevirt/vhostuser/any.sock", "02:00:00:00:00:01")
"""One that is always good."""
_REMEDY = "correct it: `kubectl explain` of the object's kind tells what each field takes"


def judge_refusals(machine: LintedMachine) -> None:
    """Report what the sidecar would refuse and no other check has reported."""
    wanted = {nic.name: nic for nic in machine.vhost_user}
    spec = machine.instance.value or {}
    annotations = machine.annotations.value or {}
    metadata = {"namespace": machine.namespace or "default", "name": machine.name or "unnamed", "annotations": annotations}
    try:
        found = read_vmi({"metadata": metadata, "spec": spec})
    except BadInput as error:
        if not any(each.name == "bad-input" for each in machine.spot.report.found):
            machine.spot.find(error.name, "error", error.message, _REMEDY)
        return
    for interface in found.interfaces:
        if interface.network in wanted:
            _judge_interface(wanted[interface.network].spot, interface)


def _judge_interface(spot: DocumentValue, interface: VmInterface) -> None:
    """Each part by itself, for the mutator ends at the first that is wrong."""
    bare = VmInterface(interface.network)
    parts = (
        bare,
        replace(bare, state=interface.state),
        replace(bare, boot_order=interface.boot_order),
        replace(bare, acpi_index=interface.acpi_index),
        replace(bare, pci_address=interface.pci_address),
    )
    for part in parts:
        try:
            facts(part, _SOURCE, MachineSetting())
        except KubevirtError as error:
            spot.find(error.name, "error", error.message, error.remedy)
