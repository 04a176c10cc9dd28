"""What a PCI device lacks before DPDK can open it, in a tree like sysfs: this machine has no such device."""

from __future__ import annotations

import os
from pathlib import Path

from userspace_cni.base.root import HostRoot
from userspace_cni.host.node_net import pci

NIC = "0000:3b:00.0"
SIBLING = "0000:3b:00.1"


class Tree:
    """A root of the host with devices, IOMMU groups and huge pages below /sys, all ready until a test removes something."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.device(NIC, "vfio-pci", "7")
        self.write("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "1024\n")
        self.write("sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "0\n")

    def device(self, address: str, driver: str = "", group: str = "", links: tuple[str, ...] = ()) -> None:
        """Make a device, in place of the former one."""
        real = self.directory / "sys/devices/pci0000:3a" / address
        real.mkdir(parents=True, exist_ok=True)
        for name, target in (("driver", f"sys/bus/pci/drivers/{driver}"), ("iommu_group", f"sys/kernel/iommu_groups/{group}")):
            (real / name).unlink(missing_ok=True)
            if target[-1] != "/":
                (self.directory / target).mkdir(parents=True, exist_ok=True)
                (real / name).symlink_to(os.path.relpath(self.directory / target, real))
        for link in links:
            (real / "net" / link).mkdir(parents=True)
        for place in ["sys/bus/pci/devices", *([f"sys/kernel/iommu_groups/{group}/devices"] if group else [])]:
            (self.directory / place).mkdir(parents=True, exist_ok=True)
            entry = self.directory / place / address
            entry.unlink(missing_ok=True)
            entry.symlink_to(os.path.relpath(real, entry.parent))

    def write(self, path: str, text: str) -> None:
        file = self.directory / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def lacking(self, address: str = NIC) -> tuple[str, ...]:
        return pci.find_obstacles(address, HostRoot(str(self.directory)))


def test_a_device_that_is_ready(tmp_path: Path) -> None:
    """Bound to vfio-pci, alone in its IOMMU group, with huge pages: nothing is missing."""
    tree = Tree(tmp_path)
    assert tree.lacking() == ()
    assert pci.look(NIC, HostRoot(str(tmp_path))) == pci.PciDevice(NIC, "vfio-pci", "7", ())


def test_no_such_device(tmp_path: Path) -> None:
    """An address without a device is reported as that, and a path instead of an address leads nowhere."""
    tree = Tree(tmp_path)
    assert "no PCI device 0000:99:00.0" in tree.lacking("0000:99:00.0")[0]
    assert "no PCI device ../devices" in tree.lacking("../devices")[0]


def test_a_kernel_driver(tmp_path: Path) -> None:
    """A device with a kernel driver is named with the driver, and with the way to bind it to another."""
    tree = Tree(tmp_path)
    tree.device(NIC, "ixgbe", "7", ("enp59s0f0",))
    [said] = tree.lacking()
    assert "bound to driver ixgbe" in said
    assert f"driverctl set-override {NIC} vfio-pci" in said
    tree.device(NIC, "", "7")
    assert "bound to no driver" in tree.lacking()[0]


def test_a_device_that_is_away(tmp_path: Path) -> None:
    """A device that is missing, or that DPDK's driver has released, is reported; without /sys nothing is known."""
    tree, root = Tree(tmp_path), HostRoot(str(tmp_path))
    assert not pci.is_away(NIC, root)
    assert pci.is_away("0000:99:00.0", root)
    tree.device(NIC, "", "7")
    assert pci.is_away(NIC, root)
    assert pci.drivers_of((NIC, SIBLING), root) == {NIC: "", SIBLING: ""}
    tree.device(SIBLING, "vfio-pci")
    assert pci.drivers_of((NIC, SIBLING), root) == {NIC: "", SIBLING: "vfio-pci"}
    assert not pci.is_away(NIC, HostRoot(str(tmp_path / "empty")))


def test_a_bifurcated_driver(tmp_path: Path) -> None:
    """mlx5_core works beside the kernel's driver, without an IOMMU group of its own; its links are known."""
    tree = Tree(tmp_path)
    tree.device(NIC, "mlx5_core", "", ("enp59s0f0np0",))
    assert tree.lacking() == ()
    device = pci.look(NIC, HostRoot(str(tmp_path)))
    assert device
    assert device.is_bifurcated
    assert device.links == ("enp59s0f0np0",)


def test_the_iommu(tmp_path: Path) -> None:
    """vfio-pci needs an IOMMU group, or its mode without one; other devices of the group must have no kernel driver, either."""
    tree = Tree(tmp_path)
    tree.device(NIC, "vfio-pci")
    assert "no IOMMU group" in tree.lacking()[0]
    tree.write("sys/module/vfio/parameters/enable_unsafe_noiommu_mode", "N\n")
    assert "no IOMMU group" in tree.lacking()[0]
    tree.write("sys/module/vfio/parameters/enable_unsafe_noiommu_mode", "Y\n")
    assert tree.lacking() == ()
    tree.device(NIC, "vfio-pci", "7")
    tree.device(SIBLING, "ixgbe", "7")
    assert f"PCI device {SIBLING}, in the same IOMMU group 7" in tree.lacking()[0]
    tree.device(SIBLING, "", "7")
    assert tree.lacking() == ()


def test_all_that_is_missing_at_once(tmp_path: Path) -> None:
    """Each missing thing is reported in a sentence of its own."""
    tree = Tree(tmp_path)
    tree.write("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "0\n")
    tree.device(NIC, "ixgbe")
    said = tree.lacking()
    assert len(said) == 2
    assert "driver ixgbe" in said[0]
    assert "no huge pages" in said[1]


def test_a_device_that_is_no_nic(tmp_path: Path) -> None:
    """A disk controller is refused as such, and not with advice to bind it; a network controller is looked at further."""
    tree = Tree(tmp_path)
    tree.device(NIC, "nvme", "7")
    tree.write(f"sys/bus/pci/devices/{NIC}/class", "0x010802\n")
    [said] = tree.lacking()
    assert "not a network device: its class is 0x010802" in said
    tree.device(NIC, "vfio-pci", "7")
    tree.write(f"sys/bus/pci/devices/{NIC}/class", "0x020000\n")
    assert tree.lacking() == ()
