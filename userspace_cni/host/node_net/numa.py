"""NUMA nodes of NICs and processors, from sysfs(5). Reads only, and says None for what it cannot know."""
# Paths of another root rather than pathlib's.
# ruff: noqa: PTH123

from __future__ import annotations

import os
import re
from typing import Final

from userspace_cni.base.cpu_sets import read_list, read_mask
from userspace_cni.base.root import HERE, HostRoot

_ADDRESS: Final = re.compile(r"(?:pci:)?((?:[0-9a-fA-F]{4}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])(?:,.*)?")
"""A PCI address at the beginning of DPDK's device arguments; the domain may be left out."""
_NODES: Final = "/sys/devices/system/node"
_NODE: Final = re.compile(r"node([0-9]+)")


def node_of_nic(devargs: str, root: HostRoot = HERE) -> int | None:
    """The node of the NIC of these arguments (Interface.options:dpdk-devargs); None for no PCI device, or an unknown node."""
    found = _ADDRESS.fullmatch(devargs)
    if found is None:
        return None
    address = found[1].lower() if found[1].count(":") == 2 else f"0000:{found[1].lower()}"
    text = _read(f"/sys/bus/pci/devices/{address}/numa_node", root)
    return int(text) if text.isascii() and text.isdecimal() else None  # -1: the firmware does not say


def nodes_of_mask(mask: str, root: HostRoot = HERE) -> frozenset[int] | None:
    """The nodes of the processors of a mask in hexadecimal (other_config:pmd-cpu-mask); None where one is not known."""
    wanted = read_mask(mask)
    nodes = read_nodes(root)
    if not wanted or not wanted <= frozenset().union(*nodes.values()):
        return None
    return frozenset(node for node, cpus in nodes.items() if cpus & wanted)


def read_nodes(root: HostRoot = HERE) -> dict[int, frozenset[int]]:
    """The processors of each node; empty where the kernel shows no nodes."""
    try:
        names = os.listdir(root.path(_NODES))  # noqa: PTH208
    except OSError:
        return {}
    found = sorted((int(match[1]), name) for name in names if (match := _NODE.fullmatch(name)))
    return {node: read_list(_read(f"{_NODES}/{name}/cpulist", root)) for node, name in found}


def _read(path: str, root: HostRoot) -> str:
    try:
        with open(root.path(path), encoding="ascii", errors="replace") as file:
            return file.read(4096).strip()
    except OSError:
        return ""
