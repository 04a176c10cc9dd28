"""A VM's memory, vCPUs and annotations, as far as its vhost-user interfaces depend on them. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

from kubevirt.annotation import ANNOTATION, InterfaceAnnotation, read_annotation
from kubevirt.lint.machine import LintedMachine
from kubevirt.lint.network import DEFAULT_MTU
from kubevirt.lint.reading import DocumentValue
from kubevirt.lint.served_sockets import judge_sockets
from kubevirt.lint.sidecars import HOOKS
from kubevirt.sidecar_errors import KubevirtError
from kubevirt.vm_interface import PORT_QUEUES

_MEMFD: Final = "kubevirt.io/memfd"
_GUEST_DPDK: Final = re.compile(r"vfio[-_]pci|intel_iommu=on|enable_unsafe_noiommu_mode")
_DECIMAL_PAGE: Final = re.compile(r"[0-9]+[kMG]", re.ASCII)
_MIB: Final = 1 << 20
_PAGES: Final[Mapping[str, Collection[int]]] = {
    "amd64": (2 * _MIB, 1024 * _MIB),
    "arm64": (64 << 10, 2 * _MIB, 32 * _MIB, 512 * _MIB, 1024 * _MIB, 16384 * _MIB),
    "s390x": (_MIB, 2048 * _MIB),
}
"""Sizes of huge pages that Linux has on a node of each architecture, with whatever size its ordinary pages have."""
_CLOUD_INIT: Final = ("cloudInitNoCloud", "cloudInitConfigDrive")


def judge_guest(machine: LintedMachine) -> None:
    """Everything of a VM that has a vhost-user interface."""
    _judge_annotation_place(machine)
    if not machine.vhost_user:
        return
    _judge_memory(machine)
    specs = _read_specs(machine)
    _judge_mtus(machine, specs)
    _judge_queues(machine, specs)
    judge_sockets(machine, specs)
    _judge_iommu(machine)


def vcpus(machine: LintedMachine) -> int | None:
    """How many the VM has, as KubeVirt counts; None when an instance type says it."""
    domain = machine.instance.child("domain")
    cpu = domain.child("cpu")
    counts = [cpu.number(name) for name in ("sockets", "cores", "threads")]
    if machine.sized_elsewhere and not any(counts):
        return None
    if any(counts):
        sockets, cores, threads = (count or 1 for count in counts)
        return max(1, sockets * cores * threads)
    resources = domain.child("resources")
    return resources.child("limits").amount("cpu") or resources.child("requests").amount("cpu") or 1


def _judge_annotation_place(machine: LintedMachine) -> None:
    """Annotations of a VirtualMachine are not its instance's: KubeVirt takes those of the template."""
    for name in (ANNOTATION, HOOKS, _MEMFD) if machine.own else ():
        if machine.own and machine.own.has(name) and not machine.annotations.has(name):
            DocumentValue(None, machine.own.at(name), machine.spot.report).find(
                "annotation-place",
                "warning",
                f"annotation {name} is of the VirtualMachine, where it has no effect",
                "move it to spec.template.metadata.annotations",
            )


def _judge_memory(machine: LintedMachine) -> None:
    domain = machine.instance.child("domain")
    memory = domain.child("memory")
    page_text = memory.child("hugepages").text("pageSize")
    if not memory.has("hugepages"):
        _judge_ordinary_pages(machine, domain)
        return
    if machine.annotations.text(_MEMFD) == "false":
        DocumentValue(None, machine.annotations.at(_MEMFD), machine.spot.report).find(
            "private-memory",
            "note",
            "without memfd the guest's memory is shared by nothing but what the sidecar writes into the definition",
            "remove the annotation, unless the node's QEMU cannot do memfd with huge pages",
        )
    page, size = memory.child("hugepages").amount("pageSize"), _guest_memory(domain)
    architecture = machine.instance.text("architecture")
    sizes = _PAGES.get(architecture) or {each for known in _PAGES.values() for each in known}
    if _DECIMAL_PAGE.fullmatch(page_text):
        memory.child("hugepages").find(
            "hugepages-short",
            "error",
            f"pageSize {page_text} is {page} bytes, of which no page is: its units are powers of 1000",
            f"write pageSize {page_text}i",
        )
    elif page is not None and page not in sizes:
        memory.child("hugepages").find(
            "hugepages-short",
            "error",
            f"no{f' {architecture}' if architecture in _PAGES else ''} node has pages of {page_text}: the launcher pod asks for "
            f"hugepages-{page_text}, and is never scheduled",
            "write pageSize 2Mi or 1Gi, whichever the nodes have",
        )
    elif page and size is not None and size % page:
        memory.child("hugepages").find(
            "hugepages-short",
            "error",
            f"the guest's memory ({size >> 20} MiB) is no multiple of pageSize {page_text}",
            f"let memory.guest be a multiple of {page_text}",
        )


def _judge_ordinary_pages(machine: LintedMachine, domain: DocumentValue) -> None:
    if domain.child("cpu", "numa").has("guestMappingPassthrough"):
        domain.child("cpu", "numa").find(
            "no-hugepages",
            "error",
            "guestMappingPassthrough without huge pages: KubeVirt refuses it",
            "add memory.hugepages.pageSize, or remove guestMappingPassthrough",
        )
    elif not machine.sized_elsewhere:
        domain.find(
            "no-hugepages",
            "note",
            "no huge pages: the sidecar shares the guest's memory by memfd, which works and is slower",
            "add `memory: {hugepages: {pageSize: 2Mi}}` (or 1Gi) where the nodes have free ones",
        )


def _guest_memory(domain: DocumentValue) -> int | None:
    """Bytes; the guest's own figure, else what its pod asks for."""
    found = domain.child("memory").amount("guest")
    resources = domain.child("resources")
    for part in ("requests", "limits"):
        found = resources.child(part).amount("memory") if found is None else found
    return found


def _read_specs(machine: LintedMachine) -> Mapping[str, InterfaceAnnotation]:
    try:
        return read_annotation(machine.annotations.text(ANNOTATION), [nic.name for nic in machine.nics])
    except KubevirtError as error:
        _annotation(machine).find(error.name, "error", error.message, error.remedy)
        return {}


def _annotation(machine: LintedMachine) -> DocumentValue:
    return DocumentValue(None, machine.annotations.at(ANNOTATION), machine.spot.report)


def _judge_mtus(machine: LintedMachine, specs: Mapping[str, InterfaceAnnotation]) -> None:
    for nic in machine.vhost_user:
        spec = specs.get(nic.name, InterfaceAnnotation())
        if not spec.mtu or not nic.definition or nic.definition.is_ours is not True:
            continue
        if nic.definition.has_odd_mtu:
            continue
        given = nic.definition.mtu
        port = given or DEFAULT_MTU
        if spec.mtu == port:
            continue
        said = f"host.mtu {given}" if given else f"no host.mtu, so {DEFAULT_MTU}"
        _annotation(machine).find(
            "mtu-mismatch",
            "error" if spec.mtu > port else "warning",
            f"interface '{nic.name}' is to have MTU {spec.mtu}, and network {nic.definition} has {said}: "
            + (
                "larger frames are dropped by the switch" if spec.mtu > port else "the guest drops larger frames that others send"
            ),
            f'write "mtu": {spec.mtu} in the host block of network {nic.definition}, or {port} in the annotation',
        )


def _judge_queues(machine: LintedMachine, specs: Mapping[str, InterfaceAnnotation]) -> None:
    for nic in machine.vhost_user:
        queues = specs.get(nic.name, InterfaceAnnotation()).queues or 0
        if queues > PORT_QUEUES:
            _annotation(machine).find(
                "queues-over-port",
                "error",
                f"interface '{nic.name}' is to have {queues} queues, and a DPDK vhost-user port takes {PORT_QUEUES}",
                f"ask for {PORT_QUEUES} at most",
            )
    count = vcpus(machine)
    if count is not None:
        _judge_vcpus(machine, specs, count)


def _judge_vcpus(machine: LintedMachine, specs: Mapping[str, InterfaceAnnotation], count: int) -> None:
    cpu, devices = (machine.instance.child("domain", name) for name in ("cpu", "devices"))
    most = count // (cpu.number("sockets") or 1) * (cpu.number("maxSockets") or cpu.number("sockets") or 1)
    for nic in machine.vhost_user:
        queues = specs.get(nic.name, InterfaceAnnotation()).queues or 0
        if queues > max(count, most):
            _annotation(machine).find(
                "queues-over-vcpus",
                "error",
                f"interface '{nic.name}' is to have {queues} queues, and the VM has {max(count, most)} vCPUs: it is refused",
                f"ask for {max(count, most)} queues at most, or give the VM more vCPUs",
            )
    if devices.flag("networkInterfaceMultiqueue") and count == 1:
        DocumentValue(True, devices.at("networkInterfaceMultiqueue"), machine.spot.report).find(
            "queues-over-vcpus",
            "note",
            "networkInterfaceMultiqueue with one vCPU is one queue",
            "give the VM more vCPUs (domain.cpu.cores), or remove networkInterfaceMultiqueue",
        )


def _judge_iommu(machine: LintedMachine) -> None:
    """DPDK in the guest, as far as what cloud-init is given shows it."""
    for volume in machine.instance.items("volumes"):
        for kind in _CLOUD_INIT:
            data = volume.child(kind)
            text = data.text("userData") if data.has("userData") else ""
            if match := _GUEST_DPDK.search(text):
                volume.find(
                    "iommu",
                    "note",
                    f"the guest is to use {match[0]}: vfio-pci needs an IOMMU in the VM, which KubeVirt does not give it",
                    "load vfio with enable_unsafe_noiommu_mode=1 in the guest; an IOMMU of the VM would need "
                    "other_config:vhost-iommu-support=true of Open vSwitch too",
                )
