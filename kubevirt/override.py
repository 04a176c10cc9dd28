"""QEMU's `host_mtu` by libvirt's `<qemu:override>`: the guest is told its MTU although libvirt's own `<mtu>` would fail. Pure.

Other overrides of the same device, of other devices and of the command line stay. The prefix is whichever the definition has
for QEMU's namespace; only where it has none is one declared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kubevirt.edits import Edits, Fragment
from kubevirt.xml_document import Element

NAMESPACE: Final = "http://libvirt.org/schemas/domain/qemu/1.0"

_PREFIX: Final = "qemu"
_PROPERTY: Final = "host_mtu"
_TYPE: Final = "unsigned"


def override_mtus(edits: Edits, mtus: Mapping[str, int]) -> None:
    """Set host_mtu of each device alias in `mtus`, in bytes. Raises BadInput where the definition has two of what is one."""
    if not mtus:
        return
    root = edits.document.root
    override = root.find("override", NAMESPACE)
    if override is None:
        prefix = _declared_prefix(edits, root)
        devices = tuple(_device(prefix, alias, mtu) for alias, mtu in mtus.items())
        edits.append(root, [Fragment(f"{prefix}override", children=devices)], None)
        return
    prefix = edits.document.prefix(override)
    there: dict[str, Element] = {}
    for each in override.find_all("device", NAMESPACE):
        there.setdefault(each.get("alias"), each)
    missing = []
    for alias, mtu in mtus.items():
        if alias in there:
            _merge(edits, there[alias], override, mtu)
        else:
            missing.append(_device(prefix, alias, mtu))
    if missing:
        edits.append(override, missing, root)


def _merge(edits: Edits, device: Element, override: Element, mtu: int) -> None:
    """Into a device that has overrides already."""
    frontend = device.find("frontend", NAMESPACE)
    if frontend is None:
        edits.append(device, [_frontend(edits.document.prefix(device), mtu)], override)
        return
    there = [each for each in frontend.find_all("property", NAMESPACE) if each.get("name") == _PROPERTY]
    if not there:
        edits.append(frontend, [_property(edits.document.prefix(frontend), mtu)], device)
        return
    for name, value in (("type", _TYPE), ("value", str(mtu))):
        if there[-1].get(name) != value:
            edits.set_attribute(there[-1], name, value)


def _declared_prefix(edits: Edits, root: Element) -> str:
    """A prefix for the namespace, with its colon, that holds in the whole definition."""
    for prefix, namespace in root.prefixes.items():
        if namespace == NAMESPACE and prefix:
            return f"{prefix}:"
    prefix = _PREFIX
    while prefix in root.prefixes:
        prefix += "_"
    edits.set_attribute(root, f"xmlns:{prefix}", NAMESPACE)
    return f"{prefix}:"


def _device(prefix: str, alias: str, mtu: int) -> Fragment:
    return Fragment(f"{prefix}device", {"alias": alias}, (_frontend(prefix, mtu),))


def _frontend(prefix: str, mtu: int) -> Fragment:
    return Fragment(f"{prefix}frontend", children=(_property(prefix, mtu),))


def _property(prefix: str, mtu: int) -> Fragment:
    return Fragment(f"{prefix}property", {"name": _PROPERTY, "type": _TYPE, "value": str(mtu)})
