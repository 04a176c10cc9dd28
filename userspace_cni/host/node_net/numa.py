"""NUMA nodes of NICs and processors, from sysfs(5). Reads only, and says None for what it cannot know."""
# Paths of another root rather than pathlib's.
# ruff: noqa: PTH123

from __future__ import annotations

import os
import re
from typing import Final

from userspace_cni.base.root import HERE, HostRoot

_ADDRESS: Final = re.compile(r"(?:pci:)?((?:[0-9a-fA-F]{4}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])(?:,.*)?")
"""A PCI address at the beginning of DPDK's device arguments; the domain may be left out."""
_NODES: Final = "/sys/devices/system/node"
_NODE: Final = re.compile(r"node([0-9]+)")
_MASK: Final = re.compile(r"(?:0[xX])?([0-9a-fA-F]+)")


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
    found = _MASK.fullmatch(mask.strip())
    wanted = int(found[1], 16) if found and len(found[1]) <= 4096 else 0
    nodes: set[int] = set()
    seen = 0
    for node, cpus in _cpus(root).items():
        seen |= cpus
        if cpus & wanted:
            nodes.add(node)
    return frozenset(nodes) if wanted and not wanted & ~seen else None


def _cpus(root: HostRoot) -> dict[int, int]:
    """The processors of each node, as a mask."""
    try:
        names = os.listdir(root.path(_NODES))  # noqa: PTH208
    except OSError:
        return {}
    found = ((int(match[1]), name) for name in names if (match := _NODE.fullmatch(name)))
    return {node: _mask_of(_read(f"{_NODES}/{name}/cpulist", root)) for node, name in found}


def _mask_of(cpulist: str) -> int:
    """A mask of a list as `0-3,8`."""
    mask = 0
    for item in cpulist.split(","):
        first, _, last = item.partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            mask |= sum(1 << cpu for cpu in range(int(first), int(last or first) + 1))
    return mask


def _read(path: str, root: HostRoot) -> str:
    try:
        with open(root.path(path), encoding="ascii", errors="replace") as file:
            return file.read(4096).strip()
    except OSError:
        return ""
