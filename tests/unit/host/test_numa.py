"""NUMA nodes from sysfs, and what follows for the devices of a bridge."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from userspace_cni.base.root import HostRoot
from userspace_cni.host.files.device_directories import device_id, number_of, resource_of
from userspace_cni.host.node_net.numa import node_of_nic, nodes_of_mask
from userspace_cni.node.devices import DeviceRoom


@pytest.fixture
def root(tmp_path: Path) -> HostRoot:
    """A machine of two nodes with four processors each, and NICs of node 0, of node 1, and of none that is known."""
    for node, cpus in ((0, "0-2,6\n"), (1, "3-5,7\n")):
        place = tmp_path / f"sys/devices/system/node/node{node}"
        place.mkdir(parents=True)
        (place / "cpulist").write_text(cpus)
    for address, node in (("0000:03:00.0", 0), ("0001:82:00.1", 1), ("0000:04:00.0", -1)):
        place = tmp_path / "sys/bus/pci/devices" / address
        place.mkdir(parents=True)
        (place / "numa_node").write_text(f"{node}\n")
    return HostRoot(str(tmp_path))


@pytest.mark.parametrize(
    ("devargs", "node"),
    [
        ("0000:03:00.0", 0),
        ("03:00.0", 0),
        ("0001:82:00.1,representor=[0]", 1),
        ("0000:04:00.0", None),
        ("0000:05:00.0", None),
        ("net_pcap0,iface=eth0", None),
        ("class=eth,mac=02:00:00:00:00:01", None),
        ("0000:03:00.0/../../../../etc", None),
        ("", None),
    ],
)
def test_node_of_a_nic(root: HostRoot, devargs: str, node: int | None) -> None:
    """The node of the PCI device that the arguments name; None for another device, and where the firmware does not say."""
    assert node_of_nic(devargs, root) == node


@pytest.mark.parametrize(
    ("mask", "nodes"),
    [("0x1", {0}), ("46", {0}), ("B8", {1}), ("0x9", {0, 1}), ("0x100", None), ("0", None), ("", None), ("0xzz", None)],
)
def test_nodes_of_a_mask(root: HostRoot, mask: str, nodes: set[int] | None) -> None:
    """The nodes of all its processors; None for a mask that names a processor of no known node, or none."""
    assert nodes_of_mask(mask, root) == nodes
    assert nodes_of_mask("1", HostRoot("/nowhere")) is None


@pytest.mark.parametrize(
    ("uplinks", "mask", "node"),
    [
        (("0000:03:00.0",), "0x3", 0),
        (("0000:03:00.0",), "", 0),
        ((), "0x8", 1),
        ((), "", None),
        (("0000:03:00.0",), "0x9", 0),
        (("0001:82:00.1",), "0x9", 1),
        (("0001:82:00.1", "0001:82:00.1"), "0xff", 1),
        ((), "0x9", None),
        (("0000:03:00.0",), "0x8", None),
        (("0000:03:00.0", "0001:82:00.1"), "0x9", None),
        (("0000:04:00.0",), "0x9", None),
        (("0000:03:00.0", "0001:82:00.1"), "", None),
        (("0000:03:00.0", "net_pcap0"), "", None),
        (("0000:04:00.0",), "0x1", None),
        (("0000:03:00.0",), "0x100", None),
    ],
)
def test_node_of_a_bridges_devices(root: HostRoot, uplinks: tuple[str, ...], mask: str, node: int | None) -> None:
    """They have the node of the bridge's NICs if a thread polls there, or without NICs that of all threads.

    There is none if these are on several nodes, if no thread is on the NIC's, or if one is unknown.
    """
    ports: Any = SimpleNamespace(
        list_administrators_bridges=lambda: frozenset({"br0"}),
        read_hardware=lambda: ({"br0": uplinks}, mask),
        dpdk=True,
        daemon=SimpleNamespace(seen=None),
    )
    here: Any = SimpleNamespace(devices=None, root=root)
    journal: Any = None
    bridges = DeviceRoom(here, journal, ports).bridges()
    assert bridges is not None
    assert [(bridge.name, bridge.healthy, bridge.numa) for bridge in bridges] == [("br0", True, node)]


def test_names_of_devices() -> None:
    """A resource has the bridge's name if Kubernetes accepts it; a device's ID gives back its number, another text does not."""
    assert [resource_of(name) for name in ("br0", "br_a.b-c", "br-", "_br", ".", "")] == [
        "userspace-cni.io/br0", "userspace-cni.io/br_a.b-c", "", "", "", "",
    ]  # fmt: skip
    assert number_of("br-a", device_id("br-a", 12)) == 12
    for device in ("br-b-1", "br-a", "br-a-", "br-a--1", "br-a-1x", "br-a-٣", "x/br-a-1", "br-a-1/..", "br-a-99999999"):
        assert number_of("br-a", device) is None
