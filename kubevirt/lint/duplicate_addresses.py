"""MACs and PCI addresses that two interfaces have, of one VM or of two. Pure.

One MAC on two networks is no conflict as long as nothing connects them: Open vSwitch learns MACs by bridge and VLAN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kubevirt.interface_mac import read_mac
from kubevirt.kubevirt_traps import SEVERITIES, Severity
from kubevirt.lint.machine import LintedInterface, LintedMachine
from kubevirt.sidecar_errors import KubevirtError

_GRAVITY: Final[dict[bool | None, tuple[Severity, str]]] = {
    True: ("error", ""),
    None: ("warning", "; whether their networks are apart is not known from what was given"),
    False: ("note", ", on a network that is apart from this one"),
}
"""By whether two interfaces are on one network, None for what is not known."""
_REMEDY: Final = "give each interface its own"
_COMPARED_MAX: Final = 16
"""Interfaces of one MAC with which one more is compared."""

_Place = tuple[LintedMachine, LintedInterface]


def judge_addresses(machine: LintedMachine) -> None:
    macs: dict[str, LintedInterface] = {}
    slots: dict[str, LintedInterface] = {}
    for nic in machine.nics:
        slot = nic.spot.text("pciAddress").lower()
        first = slots.setdefault(slot, nic) if slot else nic
        if first is not nic and (nic.is_vhost_user or first.is_vhost_user):
            message = f"interface '{first.name}' has pciAddress {slot} too"
            nic.spot.find("pci-address", "error", message, "give one of the two another address, or leave it out")
        try:
            mac = read_mac(nic.spot.text("macAddress"), "macAddress", "correct it, or leave it out: one is then derived")
        except KubevirtError as error:
            if nic.is_vhost_user:
                nic.spot.find("mac-mismatch", "error", error.message, error.remedy)
            continue
        other = macs.setdefault(mac, nic) if mac else nic
        if other is not nic and (nic.is_vhost_user or other.is_vhost_user):
            severity, suffix = _GRAVITY[_together((machine, nic), (machine, other))]
            nic.spot.find("mac-conflict", severity, f"interface '{other.name}' has the same MAC{suffix}", _REMEDY)


def judge_machines(machines: Sequence[LintedMachine]) -> None:
    """MACs that two VMs have. A VM that is given twice, or with its instance, is one."""
    owners: dict[str, list[_Place]] = {}
    for machine in machines:
        for nic in machine.vhost_user:
            if mac := _plain(nic.spot.text("macAddress")):
                known = owners.setdefault(mac, [])
                _judge_owners((machine, nic), [place for place in known if not _is_same(place[0], machine)])
                known += [(machine, nic)] if len(known) < _COMPARED_MAX else []


def _judge_owners(place: _Place, others: Sequence[_Place]) -> None:
    """One finding: of the one with which it is worst."""
    conflicts = [(_GRAVITY[_together(place, other)], other[0]) for other in others]
    if not conflicts:
        return
    (severity, suffix), owner = min(conflicts, key=lambda conflict: SEVERITIES.index(conflict[0][0]))
    mac = place[1].spot.text("macAddress")
    remedy = "give each VM its own macAddress, or none: one is then derived from namespace, VM and network"
    place[1].spot.find("mac-conflict", severity, f"VM {owner} has the MAC {mac} too{suffix}", remedy)


def _is_same(one: LintedMachine, other: LintedMachine) -> bool:
    """A namespace that is not written may be any."""
    if one is other:
        return True
    named = bool(one.name) and one.name == other.name
    return named and (one.namespace == other.namespace or not (one.namespace and other.namespace))


def _together(one: _Place, other: _Place) -> bool | None:
    """Whether the two are on one network, as far as is known."""
    (machine, nic), (machine_2, nic_2) = one, other
    if nic.network.has("pod") != nic_2.network.has("pod"):
        return False
    segment, segment_2 = (each.definition.segment if each.definition else None for each in (nic, nic_2))
    if segment and segment_2:
        if segment[0] != segment_2[0] or segment == segment_2:
            return segment == segment_2
        return None if None in (segment[1], segment_2[1]) else False
    return True if _network(machine, nic) == _network(machine_2, nic_2) else None


def _network(machine: LintedMachine, nic: LintedInterface) -> str:
    name = nic.definition_name
    return name if not name or "/" in name else f"{machine.namespace}/{name}"


def _plain(mac: str) -> str:
    """A MAC as it can be compared."""
    return mac.strip().replace("-", ":").lower()
