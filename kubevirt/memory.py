"""Makes a definition's guest memory shared, so that the switch can map it. Pure.

vhost-user hands the guest's memory to the switch as file descriptors. Private memory has none, or its pages are copied at the
first write. libvirt before 11.2 starts such a VM, whose NIC then carries no packet.

With hugepages KubeVirt writes hugepages and memfd, and no access mode: it is not enough that `<memoryBacking>` is there.
A VM that says `private` for one NUMA cell or one memory device says so on purpose: that is refused, not overruled.
"""

from __future__ import annotations

from typing import Final

from kubevirt.edits import Edits, Fragment
from kubevirt.sidecar_errors import DefinitionRefused
from kubevirt.xml_document import Element

_SHARED: Final = Fragment("access", {"mode": "shared"})
_MEMFD: Final = Fragment("source", {"type": "memfd"})
_BEFORE: Final = ("maxMemory", "memory", "currentMemory")
"""Elements behind which libvirt writes memoryBacking."""


def share_memory(edits: Edits) -> None:
    """Make all guest memory shared: access mode, and memfd where neither hugepages nor a file is its source.

    Raises Refused (private-memory) naming the cell or the device that is private, BadInput for a second memoryBacking.
    """
    root = edits.document.root
    _refuse_private(root)
    backing = root.find("memoryBacking")
    if backing is None:
        _insert(edits, root)
        return
    missing = []
    source = backing.find("source")
    if backing.find("hugepages") is None:
        if source is None:
            missing.append(_MEMFD)
        elif source.get("type") in {"", "anonymous"}:
            edits.set_attribute(source, "type", "memfd")
    access = backing.find("access")
    if access is None:
        missing.append(_SHARED)
    elif access.get("mode") != "shared":
        edits.set_attribute(access, "mode", "shared")
    if missing:
        edits.append(backing, missing, root)


def _insert(edits: Edits, root: Element) -> None:
    backing = Fragment("memoryBacking", children=(_MEMFD, _SHARED))
    sizes = [child for child in root.children if child.name in _BEFORE and not child.namespace]
    if sizes:
        edits.insert_after(sizes[-1], root, backing)
    elif root.children:
        edits.insert_before(root.children[0], root, backing)
    else:
        edits.append(root, [backing], None)


def _refuse_private(root: Element) -> None:
    cpu = root.find("cpu")
    numa = cpu.find("numa") if cpu else None
    for number, cell in enumerate(numa.find_all("cell") if numa else ()):
        if cell.get("memAccess") == "private":
            raise _private(f"NUMA cell {cell.get('id') or number} has memAccess='private'")
    devices = root.find("devices")
    for number, device in enumerate(devices.find_all("memory") if devices else ()):
        if device.get("access") == "private":
            raise _private(f"memory device {number} ({device.get('model')}) has access='private'")


def _private(what: str) -> DefinitionRefused:
    return DefinitionRefused(
        "private-memory",
        f"{what}, so that the switch cannot see the guest's memory",
        "take it out: KubeVirt itself never writes it, so another sidecar did",
    )
