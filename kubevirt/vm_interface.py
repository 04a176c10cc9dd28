"""The facts that the definition must have of one vhost-user interface, from the VM's spec and its source. Pure.

A fact is a child of `<interface>` and attributes of it. A new interface is made of its facts; an existing one is compared with
them, so that what libvirt or another sidecar added stays: libvirt's address, its `<target dev=''/>`, tuning of the driver. What a
VM does not ask for is not a fact, and stays as it is.

Rules not our own: KubeVirt's pkg/virt-launcher/virtwrap/converter/network (alias, models, queues, ROM, IOMMU with launch
security), libvirt's schema of domains, QEMU's hw/net/virtio-net.c (ring sizes), DPDK's lib/vhost/vhost.h (queues of a port).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kubevirt.edits import Fragment
from kubevirt.sidecar_errors import BadInput, DefinitionRefused
from kubevirt.vm_socket_source import VmSocketSource
from kubevirt.vmi import VmInterface
from kubevirt.xml_document import Element
from userspace_cni.pod.mac import is_unicast, six_octets
from userspace_cni.pod.socket_path import SUN_PATH_MAX

KIND: Final = "vhostuser"
RING_SIZES: Final = (256, 512, 1024)
PORT_QUEUES: Final = 128
"""Pairs that a vhost-user port of DPDK takes: QEMU gives up on a port that has fewer than it wants."""

_ALIAS_PREFIX: Final = "ua-"
_NETWORK: Final = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_PCI: Final = re.compile(r"([0-9a-f]{4}):([0-9a-f]{2}):([01][0-9a-f])\.([0-7])", re.ASCII | re.IGNORECASE)
_PCI_PARTS: Final = ("domain", "bus", "slot", "function")
_MAC: Final = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}", re.ASCII)
_NUMBER: Final = re.compile(r"0[xX][0-9a-fA-F]{1,16}|[0-9]{1,20}", re.ASCII)
_CONTROL: Final = re.compile("[\x00-\x1f\x7f\ud800-\udfff\ufffe\uffff]")
_VIRTIO: Final = ("virtio-non-transitional", "virtio-transitional")
_MTU: Final = range(68, 65536)


@dataclass(frozen=True)
class Fact:
    """`child` has `attributes`. `fresh` are more of them for a child that is new; not `add`: only held against a child that is
    there, and no reason to make one.
    """

    child: str
    attributes: Mapping[str, str] = field(default_factory=dict)
    fresh: Mapping[str, str] = field(default_factory=dict)
    add: bool = True


@dataclass(frozen=True)
class MachineSetting:
    """What the machine says about all its interfaces.

    `vcpus`: enabled at start; `vcpus_max`: with those that can be plugged in.
    `secure`: the guest's memory is encrypted (launchSecurity). `mtu_element`: an MTU that is known is written as `<mtu>`.
    """

    vcpus: int = 1
    vcpus_max: int = 1
    multiqueue: bool = False
    transitional: bool = False
    secure: bool = False
    mtu_element: bool = False


def named(network: str) -> str:
    """The beginning of a message about the network's interface; the caller adds the VM."""
    return f"network {network}"


def alias(network: str) -> str:
    """The alias by which KubeVirt, and this package, find the interface of a network again."""
    return _ALIAS_PREFIX + network


def facts(interface: VmInterface, source: VmSocketSource, setting: MachineSetting) -> list[Fact]:
    """All that has to hold, in the order in which libvirt writes it. Raises BadInput and Refused, naming the network."""
    who = named(interface.network)
    if not _NETWORK.fullmatch(interface.network):
        raise BadInput(f"{who}: libvirt takes no such name in an alias", "name it with letters, digits, `-` and `_` only")
    return [
        Fact("mac", {"address": _mac(who, source)}),
        Fact("source", {"type": "unix", "path": _path(who, source), "mode": source.mode}),
        Fact("model", {"type": _model(who, interface, setting)}),
        _driver(who, source, setting),
        *([Fact("mtu", {"size": str(size)})] if setting.mtu_element and (size := mtu(who, source)) is not None else []),
        *_link(who, interface),
        Fact("alias", {"name": alias(interface.network)}),
        *_boot(who, interface, setting),
        *_places(who, interface),
    ]


def fragment(wanted: list[Fact]) -> Fragment:
    return Fragment(
        "interface", {"type": KIND}, tuple(_written(fact) for fact in wanted if fact.add and (fact.attributes or fact.fresh))
    )


def differences(element: Element, wanted: list[Fact]) -> tuple[list[tuple[Element, str, str]], list[Fragment]]:
    """What an existing interface lacks: attributes to set (child, name, value), and children to add."""
    attributes: list[tuple[Element, str, str]] = []
    children: list[Fragment] = []
    for fact in wanted:
        child = element.find(fact.child)
        if child is not None:
            attributes += [(child, name, value) for name, value in fact.attributes.items() if not _same(child.get(name), value)]
        elif fact.add and fact.attributes:
            children.append(_written(fact))
    return attributes, children


def pci_address(attributes: Mapping[str, str]) -> tuple[int, ...] | None:
    """Domain, bus, slot and function of an `<address>`; None for one that is not PCI, or without a slot: libvirt picks that."""
    if attributes.get("type") != "pci" or not (attributes.get("slot") or attributes.get("bus")):
        return None
    numbers = [_number(attributes.get(part, "0")) for part in _PCI_PARTS]
    return tuple(each for each in numbers if each is not None) if None not in numbers else None


def mtu(who: str, source: VmSocketSource) -> int | None:
    """The port's MTU in bytes, as QEMU's host_mtu takes it; None when it is not known."""
    if source.mtu is not None and source.mtu not in _MTU:
        raise BadInput(f"{who}: an MTU of {source.mtu} bytes ({source.origin})", f"it must be {_MTU.start} to {_MTU.stop - 1}")
    return source.mtu


def _written(fact: Fact) -> Fragment:
    return Fragment(fact.child, {**fact.fresh, **fact.attributes})


def _same(found: str, wanted: str) -> bool:
    """Whether two attribute values say the same: numbers in any base, MACs in any case."""
    if found == wanted:
        return True
    if _MAC.fullmatch(wanted):
        return found.lower() == wanted
    number = _number(wanted)
    return number is not None and number == _number(found)


def _number(text: str) -> int | None:
    if not _NUMBER.fullmatch(text):
        return None
    return int(text, 16 if text[:2] in {"0x", "0X"} else 10)


def _mac(who: str, source: VmSocketSource) -> str:
    mac = six_octets(source.mac)
    if not mac:
        raise BadInput(f"{who}: {source.mac!r} is not a MAC ({source.origin})", "write it as 02:00:00:00:00:01")
    if not is_unicast(mac):
        raise DefinitionRefused(
            "mac-mismatch", f"{who}: {mac} is a multicast address or all zero, no NIC's", "give `macAddress` an even first byte"
        )
    return mac


def _path(who: str, source: VmSocketSource) -> str:
    if not source.path.startswith("/") or _CONTROL.search(source.path):
        raise BadInput(
            f"{who}: {source.path!a} is not a socket's path ({source.origin})", "it must be absolute, without control characters"
        )
    if (length := len(source.path.encode())) > SUN_PATH_MAX:
        raise DefinitionRefused(
            "path-too-long",
            f"{who}: the socket's path has {length} bytes, {SUN_PATH_MAX} are the most: {source.path}",
            "use a shorter directory or file name",
        )
    return source.path


def _model(who: str, interface: VmInterface, setting: MachineSetting) -> str:
    if interface.model in {"", "virtio"}:
        return _VIRTIO[setting.transitional]
    if interface.model not in _VIRTIO:
        raise DefinitionRefused(
            "wrong-model",
            f"{who}: the interface's model is {interface.model!r}, and only virtio has a vhost-user backend",
            "leave `model` out of the interface or set it to virtio",
        )
    return interface.model


def _driver(who: str, source: VmSocketSource, setting: MachineSetting) -> Fact:
    """libvirt ignores the name for vhost-user; KubeVirt writes it, and so do we where we make the element."""
    attributes: dict[str, str] = {}
    queues = _queues(who, source, setting)
    if queues > 1:
        attributes["queues"] = str(queues)
    for name, size in (("rx_queue_size", source.rx_queue_size), ("tx_queue_size", source.tx_queue_size)):
        if size is not None:
            attributes[name] = _ring(who, name, size)
    if setting.secure:
        attributes["iommu"] = "on"
    return Fact("driver", attributes, {"name": "vhost"})


def _queues(who: str, source: VmSocketSource, setting: MachineSetting) -> int:
    """Queue pairs: what was asked for, else by KubeVirt's rule. libvirt drops a 1, so it is never written."""
    if source.queues is None:
        return min(setting.vcpus, PORT_QUEUES) if setting.multiqueue else 1
    if source.queues < 1:
        raise BadInput(f"{who}: {source.queues} queues are asked for", "ask for one or more, or for none")
    if source.queues > setting.vcpus_max:
        raise DefinitionRefused(
            "queues-over-vcpus",
            f"{who}: {source.queues} queues are asked for and the VM has {setting.vcpus_max} vCPUs",
            "ask for one queue per vCPU at most, or give the VM more vCPUs",
        )
    if source.queues > PORT_QUEUES:
        raise DefinitionRefused(
            "queues-over-port",
            f"{who}: {source.queues} queues are asked for and a DPDK vhost-user port takes {PORT_QUEUES}",
            f"ask for {PORT_QUEUES} at most",
        )
    return source.queues


def _ring(who: str, name: str, size: int) -> str:
    if size not in RING_SIZES:
        raise DefinitionRefused("ring-size", f"{who}: {name} is {size}", f"QEMU takes {', '.join(map(str, RING_SIZES))}")
    return str(size)


def _link(who: str, interface: VmInterface) -> list[Fact]:
    """`up` is libvirt's default: it is only told to an interface that says otherwise."""
    if interface.state not in {"", "up", "down"}:
        raise BadInput(f"{who}: the interface's state is {interface.state!r}", "it must be up, down or absent")
    return [Fact("link", {"state": "down"}) if interface.state == "down" else Fact("link", {"state": "up"}, add=False)]


def _boot(who: str, interface: VmInterface, setting: MachineSetting) -> list[Fact]:
    """As KubeVirt has it: without a boot order, and with encrypted memory always, there is no boot ROM."""
    boot = [Fact("boot", {"order": str(interface.boot_order)})] if interface.boot_order is not None else []
    if interface.boot_order is not None and interface.boot_order < 1:
        raise BadInput(f"{who}: bootOrder is {interface.boot_order}", "it begins at 1")
    return boot + ([Fact("rom", fresh={"enabled": "no"})] if setting.secure or not boot else [])


def _places(who: str, interface: VmInterface) -> list[Fact]:
    """Where the guest finds the NIC: `acpiIndex` 0 is none, as for KubeVirt."""
    places = []
    if interface.acpi_index:
        if interface.acpi_index < 0:
            raise BadInput(f"{who}: acpiIndex is {interface.acpi_index}", "it must not be negative")
        places.append(Fact("acpi", {"index": str(interface.acpi_index)}))
    if interface.pci_address:
        found = _PCI.fullmatch(interface.pci_address)
        if found is None:
            raise BadInput(
                f"{who}: pciAddress is {interface.pci_address!r}", "write it as 0000:02:01.0, in hexadecimal, slots to 1f"
            )
        parts = {part: f"0x{value.lower()}" for part, value in zip(_PCI_PARTS, found.groups(), strict=True)}
        places.append(Fact("address", {"type": "pci", **parts}))
    return places
