"""Adds its vhost-user interfaces to a VM's definition: the sidecar's purpose. Pure.

`mutate` adds what is missing for the given networks, and shared memory for them. Every other byte of the definition stays as it
was, so that whatever KubeVirt or another sidecar writes, known here or not, survives. It may be called any number of times: what
holds already is not written again, also when libvirt wrote it in another form. It must never touch an interface that is not ours,
and never guess: what could not work is refused, with the network and what to do.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from posixpath import normpath
from typing import Final, Literal

from kubevirt.edits import Edits, Fragment
from kubevirt.memory import share_memory
from kubevirt.override import override_mtus
from kubevirt.sidecar_errors import BadInput, DefinitionRefused
from kubevirt.taken_sockets import canonical
from kubevirt.vm_interface import KIND, Fact, MachineSetting, alias, differences, facts, fragment, mtu, named, pci_address
from kubevirt.vm_socket_source import VmSocketSource
from kubevirt.vmi import VirtualMachine, VmInterface
from kubevirt.xml_document import REMEDY, Element, XmlDocument, read_document

MTU_WORKS: Final = (12, 8)
"""First libvirt seen to start a vhost-user interface with `<mtu>`. One after MTU_FAILS may be the first that does: none between
the two was at hand, and the change is in no release notes."""
MTU_FAILS: Final = (11, 3)
"""Last libvirt seen to refuse one: `Cannot set interface MTU on ''`."""

_PCI: Final = "{:04x}:{:02x}:{:02x}.{:x}"
_VCPUS: Final = re.compile(r"[0-9]{1,5}", re.ASCII)


@dataclass(frozen=True)
class Policy:
    """How the guest learns a known MTU.

    `off`: not at all; `element`: `<mtu>`; `override`: QEMU's host_mtu by `<qemu:override>`, for a libvirt whose `<mtu>` fails (it
    marks the VM as tainted); `auto`: `<mtu>` if `libvirt`, the launcher's version, is known to take it. () is not known.
    """

    mtu: Literal["off", "element", "override", "auto"] = "off"
    libvirt: tuple[int, ...] = ()


@dataclass(frozen=True)
class _WantedInterface:
    """One interface that the definition must have."""

    interface: VmInterface
    source: VmSocketSource
    facts: list[Fact]


def mutate(domain_xml: str, vmi: VirtualMachine, sources: Mapping[str, VmSocketSource], policy: Policy = Policy()) -> str:
    """The definition with a vhost-user interface for each network of `sources`, in the VM's order.

    An interface with `state: absent` is left out. Without any, the definition comes back as it is, unread. Raises BadInput for
    what cannot be read, Refused for what would not work.
    """
    if unknown := sorted(set(sources) - {each.network for each in vmi.interfaces}):
        raise BadInput(f"the VM has no interface {', '.join(unknown)}", "its interfaces and networks must have the same names")
    chosen = [each for each in vmi.interfaces if each.network in sources and each.state != "absent"]
    if not chosen:
        return domain_xml
    document = read_document(domain_xml)
    if (document.root.namespace, document.root.name) != ("", "domain"):
        raise BadInput(f"the definition's root is <{document.root.name}>, not <domain> without a namespace", REMEDY)
    devices = document.root.find("devices")
    if devices is None:
        raise BadInput("the definition has no <devices>", REMEDY)
    _check_policy(policy)
    setting = _setting(document, vmi, policy)
    wanted = [_WantedInterface(each, sources[each.network], facts(each, sources[each.network], setting)) for each in chosen]
    _check_paths(wanted)
    edits = Edits(document)
    share_memory(edits)
    place_interfaces(edits, devices, wanted)
    if policy.mtu == "override":
        override_mtus(edits, _mtus(wanted))
    return edits.apply().decode()


def find_missing_networks(domain_xml: str, networks: Collection[str]) -> list[str]:
    """The networks without a device in the definition: KubeVirt and sidecars give each its alias. Raises BadInput."""
    devices = read_document(domain_xml).root.find("devices")
    found = devices.children if devices is not None else []
    aliases = {mark.get("name") for device in found for mark in device.find_all("alias")}
    return [network for network in networks if alias(network) not in aliases]


def place_interfaces(edits: Edits, devices: Element, wanted: list[_WantedInterface]) -> None:
    """Correct the interfaces of ours that are there, insert those that are not: after the one before it in the VM's order, else
    before the one after it, else after the last interface, else as the last device.
    """
    named_so = _by_alias(devices)
    there = {each.interface.network: _find_ours(named_so, each) for each in wanted}
    _check_sockets(devices, wanted, there)
    _check_addresses(devices, wanted, there)
    last = next(reversed(devices.find_all("interface")), None)
    new: list[Fragment] = []
    anchor: Element | None = None
    for each in wanted:
        found = there[each.interface.network]
        if found is not None:
            for fresh in new:
                edits.insert_before(found, devices, fresh)
            new, anchor = [], found
            _correct(edits, devices, found, each)
        elif anchor is not None:
            edits.insert_after(anchor, devices, fragment(each.facts))
        else:
            new.append(fragment(each.facts))
    if last is None:
        if new:
            edits.append(devices, new, edits.document.root)
        return
    for fresh in new:
        edits.insert_after(last, devices, fresh)


def _by_alias(devices: Element) -> Mapping[str, list[Element]]:
    found: dict[str, list[Element]] = {}
    for device in devices.children:
        for mark in device.find_all("alias"):
            found.setdefault(mark.get("name"), []).append(device)
    return found


def _find_ours(named_so: Mapping[str, list[Element]], wanted: _WantedInterface) -> Element | None:
    """Find the interface with the network's alias, among devices by alias. Raises Refused where another device has that alias."""
    name = alias(wanted.interface.network)
    found = named_so.get(name, [])
    who = named(wanted.interface.network)
    for device in found:
        if device.name != "interface" or device.namespace:
            what, remedy = f"a <{device.name}>", "give the network another name than the VM's volume or device has"
        elif device.get("type") != KIND or device.find("backend") is not None:
            what = f"an interface of type {_kind(device)}"
            remedy = "leave `domainAttachmentType` out of the binding's registration, and register no other sidecar for it"
        else:
            continue
        raise DefinitionRefused("foreign-interface", f"{who}: alias {name} is already that of {what}", remedy)
    if len(found) > 1:
        raise DefinitionRefused(
            "foreign-interface", f"{who}: {len(found)} interfaces have alias {name}", "one other sidecar adds it: remove that one"
        )
    return found[0] if found else None


def _kind(interface: Element) -> str:
    """The interface's type; that of passt is vhostuser too for libvirt, with a back-end of its own."""
    backend = interface.find("backend")
    return f"{interface.get('type')!r}" + (f", back-end {backend.get('type')!r}" if backend is not None else "")


def _correct(edits: Edits, devices: Element, element: Element, wanted: _WantedInterface) -> None:
    attributes, children = differences(element, wanted.facts)
    for child, name, value in attributes:
        edits.set_attribute(child, name, value)
    if children:
        edits.append(element, children, devices)
    source = element.find("source")
    if source is not None and wanted.source.mode == "server":
        for reconnect in source.find_all("reconnect"):
            edits.remove(reconnect, source)


def _setting(document: XmlDocument, vmi: VirtualMachine, policy: Policy) -> MachineSetting:
    enabled, most = _vcpus(document, vmi)
    element = policy.mtu == "element" or (policy.mtu == "auto" and policy.libvirt >= MTU_WORKS)
    return MachineSetting(
        vcpus=enabled,
        vcpus_max=most,
        multiqueue=vmi.multiqueue,
        transitional=vmi.transitional,
        secure=document.root.find("launchSecurity") is not None,
        mtu_element=element,
    )


def _vcpus(document: XmlDocument, vmi: VirtualMachine) -> tuple[int, int]:
    """vCPUs at start, and with those that can be plugged in: KubeVirt counts queues by the former."""
    element = document.root.find("vcpu")
    if element is None:
        return (vmi.vcpus or 1,) * 2
    text = document.text(element).strip()
    current = element.get("current").strip() or text
    if not (_VCPUS.fullmatch(text) and _VCPUS.fullmatch(current)):
        raise BadInput(f"the definition's <vcpu> is {text[:20]!r}, current {current[:20]!r}: not numbers", REMEDY)
    each = document.root.find("vcpus")
    enabled = sum(one.get("enabled") == "yes" for one in each.find_all("vcpu")) if each else 0
    return enabled or int(current) or 1, int(text) or 1


def _check_policy(policy: Policy) -> None:
    if policy.mtu == "element" and policy.libvirt and policy.libvirt[:2] <= MTU_FAILS:
        version = ".".join(map(str, policy.libvirt))
        raise DefinitionRefused(
            "mtu-element",
            f"libvirt {version} does not start a vhost-user interface with <mtu>",
            "set the sidecar's MTU policy to off or override",
        )


def _check_paths(wanted: list[_WantedInterface]) -> None:
    """Raise Refused for two interfaces with one socket: QEMU would silently take over the one of the first interface."""
    seen: dict[str, str] = {}
    for each in wanted:
        network, path = each.interface.network, canonical(each.source.path)
        if path in seen:
            raise DefinitionRefused(
                "socket-name-collision",
                f"{named(network)}: its socket {each.source.path} is that of network {seen[path]} too",
                "give each network a path of its own",
            )
        seen[path] = network


def _check_sockets(devices: Element, wanted: list[_WantedInterface], there: Mapping[str, Element | None]) -> None:
    """Raise Refused for a foreign device of any kind at our socket: QEMU would have two devices on one path.

    It does not count as ours: the sidecar that adds it without the alias may add it again, and KubeVirt would not find it.
    """
    paths = {canonical(each.source.path): each for each in wanted}
    ours = {element for element in there.values() if element is not None}
    for device in devices.children:
        used = set() if device in ours else {canonical(path) for path in _sockets(device)}
        for path in sorted(used & paths.keys()):
            raise DefinitionRefused(
                "socket-name-collision",
                f"{named(paths[path].interface.network)}: its socket {paths[path].source.path} is that of {_called(device)} too",
                "another sidecar or plugin adds that device: remove the one, or give the other another path",
            )


def _sockets(element: Element) -> Iterable[str]:
    """The possible socket paths of a device: of interfaces, disks and character devices, also in a back-end of theirs."""
    for name in ("path", "socket"):
        if found := element.get(name):
            yield normpath(found)
    for child in element.children:
        yield from _sockets(child)


def _check_addresses(devices: Element, wanted: list[_WantedInterface], there: Mapping[str, Element | None]) -> None:
    """Raise Refused for a PCI address that another device has: libvirt would not name the two devices."""
    asked = {each.interface.network: where for each in wanted if (where := _asked(each)) is not None}
    moving = {there[network] for network in asked}
    taken = {where: _called(device) for device in devices.children if device not in moving for where in _addresses(device)}
    for network, where in asked.items():
        if where in taken:
            raise DefinitionRefused(
                "pci-address",
                f"{named(network)}: pciAddress {_PCI.format(*where)} is that of {taken[where]}",
                "give one of the two another address, or leave it out",
            )
        taken[where] = f"network {network}"


def _asked(wanted: _WantedInterface) -> tuple[int, ...] | None:
    return next((pci_address(fact.attributes) for fact in wanted.facts if fact.child == "address"), None)


def _addresses(device: Element) -> Iterable[tuple[int, ...]]:
    return [where for address in device.find_all("address") if (where := pci_address(address.attributes)) is not None]


def _called(device: Element) -> str:
    names = [mark.get("name") for mark in device.find_all("alias")]
    return f"a <{device.name}>" + (f" ({names[0]})" if names else "")


def _mtus(wanted: list[_WantedInterface]) -> dict[str, int]:
    """Alias -> MTU of the interfaces for which one is known."""
    known: dict[str, int] = {}
    for each in wanted:
        size = mtu(named(each.interface.network), each.source)
        if size is not None:
            known[alias(each.interface.network)] = size
    return known
