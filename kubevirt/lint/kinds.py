"""Kinds of objects that are judged, and those that look like one of them and are none. Pure.

An object of a misspelt kind would else be passed over, and a VM that is not looked at would count as good.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Final

from kubevirt.lint.reading import DocumentReport

MACHINES: Final = ("VirtualMachine", "VirtualMachineInstance")
GROUPS: Final[Mapping[str, str]] = {
    **dict.fromkeys((*MACHINES, "KubeVirt"), "kubevirt.io"),
    "HyperConverged": "hco.kubevirt.io",
    "NetworkAttachmentDefinition": "k8s.cni.cncf.io",
    "MigrationPolicy": "migrations.kubevirt.io",
    "Plugin": "plugin.kubevirt.io",
    "ResourceClaimTemplate": "resource.k8s.io",
    "Pod": "",
}
"""The API group of each kind that is judged."""
_OTHERS: Final[Mapping[str, tuple[str, ...]]] = {
    "kubevirt.io": ("VirtualMachineInstanceMigration", "VirtualMachineInstanceReplicaSet", "VirtualMachineInstancePreset"),
    "k8s.cni.cncf.io": ("MultiNetworkPolicy", "IPAMClaim"),
    "resource.k8s.io": ("DeviceClass", "DeviceTaintRule", "ResourceClaim", "ResourceSlice"),
}
"""What else these groups have, of no concern here."""
_ALIKE: Final = 0.8
"""How much of a group's name has to be the same for a slip of the pen (difflib's ratio)."""


def group_of(content: Mapping[object, object]) -> str:
    """The API group of an object; "" for the core one, and for none."""
    return str(content.get("apiVersion") or "").rpartition("/")[0]


def judge_kind(content: object, report: DocumentReport) -> None:
    """Report an object that is not judged and seems to be meant as one that is."""
    kind = content.get("kind") if isinstance(content, Mapping) else None
    if not isinstance(content, Mapping) or not isinstance(kind, str) or not kind:
        return
    group = group_of(content)
    mine = [each for each, its in GROUPS.items() if its and its == group]
    if mine and kind not in mine and kind not in _OTHERS.get(group, ()) and not kind.endswith("List"):
        meant = next(iter(get_close_matches(kind, mine, 1)), "")
        message = f"API group {group} has no kind '{kind[:60]}', as far as is known here: it was not looked at"
        report.add("unknown-kind", "warning", message, f"write {meant or 'one of ' + ', '.join(mine)}, if that is meant", "kind")
    elif GROUPS.get(kind) and get_close_matches(group, [GROUPS[kind]], 1, _ALIKE) and not mine:
        message = f"kind {kind} is of API group {GROUPS[kind]}, and this one is of '{group[:60]}': it was not looked at"
        report.add("unknown-kind", "warning", message, "correct apiVersion", "apiVersion")
