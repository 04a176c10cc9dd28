"""A libvirt domain as it is defined, or would be: its vhost-user interfaces, and the memory that they need. Pure.

A definition from before the sidecar has no such interface, and nothing is found in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from kubevirt.annotation import RING_SIZES
from kubevirt.interface_mac import read_mac
from kubevirt.kubevirt_traps import Severity
from kubevirt.lint.machine import LintedMachine
from kubevirt.lint.reading import DocumentReport
from kubevirt.sidecar_errors import KubevirtError
from kubevirt.taken_sockets import CLUSTER_ROOTS, check_path
from kubevirt.xml_document import Element, XmlDocument, read_document

_ALIAS: Final = "ua-"
"""How KubeVirt names its devices: with the name of the network behind it."""


@dataclass(frozen=True)
class Domain:
    """A definition. `name`: as libvirt calls it, which for KubeVirt is namespace_name."""

    document: XmlDocument
    report: DocumentReport
    name: str

    @property
    def root(self) -> Element:
        return self.document.root

    @property
    def interfaces(self) -> list[tuple[str, Element]]:
        found = [interface for devices in self.root.find_all("devices") for interface in devices.find_all("interface")]
        return [(f"devices/interface[{number}]", interface) for number, interface in enumerate(found, 1)]

    def text(self, name: str) -> str:
        """What is in a child of the root; "" without one."""
        child = _first(self.root, name)
        return self.document.text(child).strip() if child else ""

    def add(self, name: str, severity: Severity, path: str, message: str, remedy: str) -> None:
        self.report.add(name, severity, message, remedy, path)


def read_domain(text: str, report: DocumentReport) -> Domain | None:
    """The definition; None, with a finding, for what is none."""
    try:
        document = read_document(text)
        if document.root.name != "domain":
            report.add(
                "bad-input", "error", f"it is XML of <{document.root.name}>, and must be of <domain>", "give a libvirt domain"
            )
            return None
        domain = Domain(document, report, "")
        return Domain(document, report, domain.text("name"))
    except KubevirtError as error:
        report.add(error.name, "error", error.message, error.remedy)
        return None


def judge_domain(domain: Domain, machines: Sequence[LintedMachine] = ()) -> None:
    """Everything of a definition; `machines`: the VMs of which it is, as `machines_by_domain` has them."""
    ours = [(path, each) for path, each in domain.interfaces if each.get("type") == "vhostuser"]
    for path, interface in ours:
        _judge_source(domain, path, interface)
        _judge_device(domain, path, interface)
        _judge_driver(domain, path, interface)
    _judge_pairs(domain, ours)
    if ours:
        _judge_memory(domain)
    for machine in machines:
        _judge_foreign(domain, machine)


def machines_by_domain(machines: Iterable[LintedMachine]) -> dict[str, list[LintedMachine]]:
    found: dict[str, list[LintedMachine]] = {}
    for each in machines:
        found.setdefault(f"{each.namespace or 'default'}_{each.name}", []).append(each)
    return found


def _judge_source(domain: Domain, path: str, interface: Element) -> None:
    source = _first(interface, "source")
    if source is None or not source.get("path"):
        message = "the vhost-user interface has no socket: something rewrote the definition from a model that has none"
        domain.add("no-source", "error", path, message, "look for other sidecars and for feature gate Plugins")
        return
    if source.get("mode") != "server":
        domain.add(
            "server-mode",
            "error",
            f"{path}/source",
            f"QEMU is to connect (mode='{source.get('mode')}'): with no listener at the socket, libvirt hangs for good",
            "write mode='server', and let the switch's port be a dpdkvhostuserclient one",
        )
    elif source.find_all("reconnect"):
        domain.add(
            "reconnect",
            "error",
            f"{path}/source",
            "reconnect in server mode: libvirt refuses it",
            "remove <reconnect>: the switch does it",
        )
    try:
        check_path(source.get("path"), CLUSTER_ROOTS, "the definition")
    except KubevirtError as error:
        domain.add(
            error.name, "error" if error.name == "path-too-long" else "warning", f"{path}/source", error.message, error.remedy
        )


def _judge_device(domain: Domain, path: str, interface: Element) -> None:
    model = _first(interface, "model")
    kind = model.get("type") if model else ""
    if not kind.startswith("virtio"):
        domain.add(
            "wrong-model",
            "error",
            f"{path}/model",
            f"the model is {kind!r}: a vhost-user interface needs a virtio one"
            if kind
            else "there is no model, and libvirt's is not virtio",
            "write <model type='virtio-non-transitional'/>",
        )
    if interface.find_all("mtu"):
        domain.add(
            "mtu-element",
            "warning",
            f"{path}/mtu",
            "libvirt up to 11.3 at least cannot start a VM with an MTU on a vhost-user interface; 12.8 can",
            "remove <mtu>, unless virt-launcher's libvirt is known to take it, and set the MTU in the guest",
        )
    if any(target.get("managed") == "no" for target in interface.find_all("target")):
        domain.add("target-managed", "error", f"{path}/target", "libvirt refuses managed='no' here", "remove <target>")
    mac = _first(interface, "mac")
    try:
        read_mac(mac.get("address") if mac else "", "the MAC", "correct it")
    except KubevirtError as error:
        domain.add("mac-mismatch", "error", f"{path}/mac", error.message, error.remedy)


def _judge_driver(domain: Domain, path: str, interface: Element) -> None:
    driver = _first(interface, "driver")
    if driver is None:
        return
    vcpus, queues = domain.text("vcpu"), driver.get("queues")
    if vcpus.isdecimal() and queues.isdecimal() and int(queues) > int(vcpus):
        domain.add(
            "queues-over-vcpus",
            "warning",
            f"{path}/driver",
            f"{queues} queues, and the VM has {vcpus} vCPUs: a guest uses one for each",
            f"write queues='{vcpus}' at most",
        )
    for name in ("rx_queue_size", "tx_queue_size"):
        size = driver.get(name)
        if size and not (size.isdecimal() and int(size) in RING_SIZES):
            sizes = ", ".join(map(str, RING_SIZES))
            domain.add("ring-size", "error", f"{path}/driver", f"{name} is {size!r}: QEMU takes {sizes}", "write one of these")
    if driver.get("iommu") == "on":
        there = any(devices.find_all("iommu") for devices in domain.root.find_all("devices"))
        domain.add(
            "iommu",
            "note" if there else "error",
            f"{path}/driver",
            "the interface is behind the VM's IOMMU, of which the switch has to know"
            if there
            else "the interface is to be behind an IOMMU, and the VM has none",
            "set other_config:vhost-iommu-support=true of Open vSwitch and restart it"
            if there
            else "add <iommu model='intel'> to the devices, or remove iommu='on'",
        )


def _judge_pairs(domain: Domain, ours: Sequence[tuple[str, Element]]) -> None:
    sockets: dict[str, str] = {}
    macs: dict[str, str] = {}
    for path, interface in ours:
        source = _first(interface, "source")
        socket = source.get("path") if source else ""
        other = sockets.setdefault(socket, path) if socket else path
        if other != path:
            message = f"{other} has the same socket, {socket}"
            domain.add("socket-name-collision", "error", f"{path}/source", message, "give each interface its own")
    for path, interface in domain.interfaces:
        element = _first(interface, "mac")
        mac = element.get("address").lower() if element else ""
        other = macs.setdefault(mac, path) if mac else path
        if other != path and path in dict(ours):
            domain.add("mac-conflict", "error", f"{path}/mac", f"{other} has the same MAC, {mac}", "give each interface its own")


def _judge_memory(domain: Domain) -> None:
    """Shared memory is said of all of it, or of each NUMA cell; a cell's own word counts more."""
    backing = _first(domain.root, "memoryBacking")
    access = _first(backing, "access") if backing else None
    mode = access.get("mode") if access else ""
    cpu = _first(domain.root, "cpu")
    numa = _first(cpu, "numa") if cpu else None
    cells = numa.find_all("cell") if numa else []
    private = [cell.get("id") for cell in cells if cell.get("memAccess") == "private"]
    if private:
        domain.add(
            "private-memory",
            "error",
            "cpu/numa",
            f"cells {', '.join(private)} have memAccess='private': the switch cannot see the guest's rings there",
            "remove memAccess from the cells, and write <access mode='shared'/> in memoryBacking",
        )
    elif mode == "private":
        message = "memoryBacking has access mode='private': the switch cannot see the guest's rings"
        domain.add("private-memory", "error", "memoryBacking/access", message, "write <access mode='shared'/>")
    elif mode != "shared" and not (cells and all(cell.get("memAccess") == "shared" for cell in cells)):
        domain.add(
            "no-shared-memory",
            "error",
            "memoryBacking",
            "nothing says that the guest's memory is shared: libvirt from 11.2 on refuses it, and older ones start a VM "
            "whose network has no packets",
            "let memoryBacking have <source type='memfd'/> and <access mode='shared'/>, beside <hugepages/> if that is there",
        )


def _judge_foreign(domain: Domain, machine: LintedMachine) -> None:
    wanted = {f"{_ALIAS}{nic.name}" for nic in machine.vhost_user}
    for path, interface in domain.interfaces:
        alias = _first(interface, "alias")
        name = alias.get("name") if alias else ""
        if name in wanted and interface.get("type") != "vhostuser":
            domain.add(
                "foreign-interface",
                "error",
                path,
                f"alias '{name}' is of an interface of type '{interface.get('type')}': the VM's vhost-user one needs it",
                "remove domainAttachmentType from the binding's registration, and look for other sidecars",
            )


def _first(element: Element, name: str) -> Element | None:
    """The first child of that name; several are not checked here."""
    return next(iter(element.find_all(name)), None)
