"""What on this node keeps VMs from their network, by what was seen of the switch, huge pages and each interface. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from kubevirt.kubevirt_traps import TRAPS
from userspace_cni.base.findings import Finding
from userspace_cni.consumers.kubevirt.guests import Guest, judge_guest
from userspace_cni.consumers.kubevirt.node_faults import SeenSwitch, judge_hugepages, judge_switch
from userspace_cni.fastpath.memory.hugepages import HugepagePool


def judge_machines(
    switch: SeenSwitch, guests: Sequence[Guest], pools: Sequence[HugepagePool], wanted: int | None
) -> tuple[list[Finding], list[list[Finding]]]:
    """What is wrong for all VMs, and with each interface. `wanted`: bytes of a VM that is to be started."""
    of_guests = [_explained(judge_guest(each)) for each in guests]
    of_switch = list(judge_switch(switch, guests=bool(guests)))
    failing = any(each.severity != "note" for found in (of_switch, *of_guests) for each in found)
    needed = switch.other_config.get("dpdk-socket-mem", "")
    return _explained([*of_switch, *judge_hugepages(pools, needed, wanted, failing=failing)]), of_guests


def _explained(findings: Iterable[Finding]) -> list[Finding]:
    """With what happens to a VM that falls into the trap of this name."""
    return [replace(each, why=TRAPS[each.name]) for each in findings]
