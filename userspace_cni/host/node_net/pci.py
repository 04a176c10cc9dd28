"""Whether DPDK could open a PCI device of this node: its driver, the IOMMU, huge pages; from sysfs(5).

Reads only: binding a driver is the administrator's, and a device that is not ready is refused with what it lacks, all at once.
"""
# Paths of another root rather than pathlib's.
# ruff: noqa: PTH110, PTH115, PTH119, PTH123, PTH208

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from userspace_cni.base.root import HERE, HostRoot

_DEVICES: Final = "/sys/bus/pci/devices"
_GROUPS: Final = "/sys/kernel/iommu_groups"
_HUGEPAGES: Final = "/sys/kernel/mm/hugepages"
_NO_IOMMU: Final = "/sys/module/vfio/parameters/enable_unsafe_noiommu_mode"
_VFIO: Final = "vfio-pci"
_UIO: Final = ("igb_uio", "uio_pci_generic")
_BIFURCATED: Final = ("mlx4_core", "mlx5_core")
"""Drivers of the kernel beside which DPDK opens the device: it keeps its kernel link."""
_SHARES_GROUP: Final = ("", _VFIO, "pci-stub", "pcieport")
"""Drivers of the other devices of an IOMMU group with which vfio gives the group out."""
_NETWORK: Final = "0x02"
"""What the class of a network controller begins with (the PCI base class 02)."""
_ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")


@dataclass(frozen=True)
class PciDevice:
    """A device, with the driver that it is bound to and its IOMMU group, "" for none, and its kernel links."""

    address: str
    driver: str
    group: str
    links: tuple[str, ...]

    @property
    def is_for_dpdk(self) -> bool:
        """Whether its driver is one under which DPDK opens it."""
        return self.driver in (_VFIO, *_UIO, *_BIFURCATED)

    @property
    def is_bifurcated(self) -> bool:
        """Whether DPDK opens it beside the kernel's driver, so that its frames no longer reach the kernel link."""
        return self.driver in _BIFURCATED


def look(address: str, root: HostRoot = HERE) -> PciDevice | None:
    """The device at that address (as 0000:3b:00.0); None where there is none."""
    path = f"{_DEVICES}/{address}"
    if not _ADDRESS.fullmatch(address) or not os.path.exists(root.path(path)):
        return None
    return PciDevice(address, _target(f"{path}/driver", root), _target(f"{path}/iommu_group", root), _names(f"{path}/net", root))


def drivers_of(addresses: Iterable[str], root: HostRoot = HERE) -> Mapping[str, str]:
    """The driver of each of the devices, "" where it has none or is not there. Cheap enough for each second."""
    return {each: _target(f"{_DEVICES}/{each}/driver", root) for each in addresses}


def is_away(address: str, root: HostRoot = HERE) -> bool:
    """Whether the device is not there, or no driver has it under which DPDK opens devices. False where the node's devices cannot
    be looked at: nothing is known then."""
    device = look(address, root)
    return bool(_names(_DEVICES, root)) and not (device and device.is_for_dpdk)


def find_obstacles(address: str, root: HostRoot = HERE) -> tuple[str, ...]:
    """What keeps DPDK from opening the device, a sentence each with its remedy; () for a device that is ready."""
    device = look(address, root)
    if device is None:
        return (f"there is no PCI device {address} on this node: 'lspci -D' lists them",)
    kind = _read(f"{_DEVICES}/{address}/class", root)
    if kind and not kind.startswith(_NETWORK):
        return (f"PCI device {address} is not a network device: its class is {kind}, and theirs begin with {_NETWORK}",)
    return tuple(each for each in (_of_driver(device), *_of_iommu(device, root), _of_hugepages(root)) if each)


def _of_driver(device: PciDevice) -> str:
    if device.is_for_dpdk:
        return ""
    found = f"is bound to driver {device.driver}" if device.driver else "is bound to no driver"
    return (
        f"PCI device {device.address} {found}, from which DPDK cannot take it: "
        f"'driverctl set-override {device.address} {_VFIO}' binds it to {_VFIO}, and takes its kernel link away"
    )


def _of_iommu(device: PciDevice, root: HostRoot) -> list[str]:
    if device.driver != _VFIO:
        return []
    if not device.group:
        if _read(_NO_IOMMU, root) in ("Y", "1"):
            return []
        remedy = "turn the IOMMU on (firmware, and intel_iommu=on or its like on the kernel's command line)"
        return [
            f"PCI device {device.address} is in no IOMMU group: {remedy}, or, without its protection, write Y to {_NO_IOMMU}",
        ]
    others = {
        other: _target(f"{_DEVICES}/{other}/driver", root)
        for other in _names(f"{_GROUPS}/{device.group}/devices", root)
        if other != device.address
    }
    return [
        f"PCI device {other}, in the same IOMMU group {device.group} as {device.address}, is bound to driver {driver}: "
        f"{_VFIO} gives out whole groups only; bind that one to {_VFIO}, too, or to none"
        for other, driver in others.items()
        if driver not in _SHARES_GROUP
    ]


def _of_hugepages(root: HostRoot) -> str:
    sizes = _names(_HUGEPAGES, root)
    if any(_read(f"{_HUGEPAGES}/{size}/nr_hugepages", root) not in ("", "0") for size in sizes):
        return ""
    remedy = "sysctl vm.nr_hugepages, or hugepages= on the kernel's command line"
    return f"the node has no huge pages, in which DPDK keeps frames: {remedy}"


def _names(path: str, root: HostRoot) -> tuple[str, ...]:
    try:
        return tuple(sorted(os.listdir(root.path(path))))
    except OSError:
        return ()


def _target(path: str, root: HostRoot) -> str:
    """The last component of what the link at `path` leads to; "" where there is no link."""
    parent, _, name = path.rpartition("/")
    try:
        return os.path.basename(os.readlink(f"{root.path(parent)}/{name}"))
    except OSError:
        return ""


def _read(path: str, root: HostRoot) -> str:
    try:
        with open(root.path(path), encoding="ascii", errors="replace") as file:
            return file.read(4096).strip()
    except OSError:
        return ""
