"""The memory of each NUMA node, from sysfs(5)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from userspace_cni.base.root import HERE, HostRoot
from userspace_cni.host.machine.kernel_files import read_word
from userspace_cni.host.node_net.numa import read_nodes

_LINE: Final = re.compile(r"^(?:Node [0-9]+ )?([\w()]+):\s+([0-9]+) kB$", re.MULTILINE)
_CACHES: Final = ("Active(file)", "Inactive(file)")


@dataclass(frozen=True)
class NodeMemory:
    """Bytes. `available`: what huge pages can be made of without taking memory from a process: free, or cached files."""

    total: int
    available: int


def read_node_memory(root: HostRoot = HERE) -> dict[int, NodeMemory]:
    """The memory of each node; of node 0 the machine's where the kernel shows no nodes."""
    nodes = read_nodes(root)
    if not nodes:
        return {0: _read("/proc/meminfo", root)}
    return {node: _read(f"/sys/devices/system/node/node{node}/meminfo", root) for node in nodes}


def _read(path: str, root: HostRoot) -> NodeMemory:
    kib = {name: int(number) for name, number in _LINE.findall(read_word(path, root))}
    available = kib.get("MemFree", 0) + sum(kib.get(name, 0) for name in _CACHES)
    return NodeMemory(kib.get("MemTotal", 0) << 10, available << 10)
