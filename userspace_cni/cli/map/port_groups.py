"""Which ports of a bridge stand together: those of one VLAN and network, or of one logical switch. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from userspace_cni.cli.map.box_words import count_ports
from userspace_cni.diagnosis.node_map import OUTWARD, MapBridge, MapPort, vlan_words
from userspace_cni.ovn.logical_networks import LogicalNetworks

_NUMBERS: Final = re.compile(r"([0-9]+)")


@dataclass(frozen=True)
class PortGroup:
    """Ports that stand together. `title` and `subtitle` are the lines above them; `switch`: their logical switch."""

    title: str
    subtitle: str
    ports: tuple[MapPort, ...]
    switch: str = ""


def group_ports(bridge: MapBridge, logical: LogicalNetworks) -> list[PortGroup]:
    """The ports that do not lead out of the bridge: the node's own first, then by VLAN and network."""
    found: dict[tuple[object, ...], list[MapPort]] = {}
    for port in bridge.ports:
        if port.behind not in OUTWARD:
            found.setdefault(_key(port), []).append(port)
    return [_group(sorted(found[key], key=_place), logical) for key in sorted(found)]


def _key(port: MapPort) -> tuple[object, ...]:
    rank = {"node": 0, "pod": 1, "vm": 1, "test": 3}.get(port.behind, 2)
    if rank == 0:
        return (rank,)
    if port.logical:
        return rank, 0, natural(port.logical_switch), port.logical_switch
    vlan = port.vlan
    return rank, 1, -1 if vlan.tag is None else vlan.tag, vlan.trunks, vlan.mode, natural(port.network), port.network


def _place(port: MapPort) -> tuple[object, ...]:
    return natural(port.owner), natural(port.ifname), port.name


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """An order in which pod-10 follows pod-9."""
    parts = ((each, each.lstrip("0") if _NUMBERS.fullmatch(each) else "") for each in _NUMBERS.split(text) if each)
    return tuple((0, len(number), number) if _NUMBERS.fullmatch(each) else (1, 0, each) for each, number in parts)


def _group(ports: Iterable[MapPort], logical: LogicalNetworks) -> PortGroup:
    members = tuple(ports)
    first, number = members[0], count_ports(len(members))
    if first.behind == "node":
        return PortGroup("this node's own links", number, members)
    if first.logical:
        known = {each.name: each for each in logical.switches}.get(first.logical_switch)
        subnets = ", ".join(known.subnets) if known else ""
        title = f"logical switch {first.logical_switch}" if first.logical_switch else "logical ports of OVN"
        return PortGroup(title, " · ".join(filter(None, [subnets, number])), members, first.logical_switch)
    what = {"other": "of other programs", "test": "tests that run now"}.get(first.behind, "")
    network = f"network {first.network}" if first.network else what
    return PortGroup(vlan_words(first.vlan), " · ".join(filter(None, [network, number])), members)
