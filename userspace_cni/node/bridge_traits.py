"""What a bridge is like for a pod that is to be put on it: its datapath, and what its uplinks carry. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from userspace_cni.base.cpu_sets import as_list
from userspace_cni.base.switch_bridges import SwitchBridge
from userspace_cni.base.vlans import list_carried_vlans

_NICS: Final = frozenset({"system", "dpdk", "afxdp"})
"""Types of interfaces that lead out of the node."""
_OF_PODS: Final = frozenset({"pod", "claim", "run"})


@dataclass(frozen=True)
class BridgeTraits:
    """`mtu`: the smallest of its uplinks', None where it has none, or where it is not known. `vlans`: those that they carry, as
    "10,20-29", "" for all."""

    datapath: str
    mtu: int | None = None
    vlans: str = ""


def traits_of(bridge: SwitchBridge) -> BridgeTraits:
    """Of a bridge as its rows say it; a veth or tap of another program counts as a NIC."""
    uplinks = [
        port
        for port in bridge.ports
        if port.owner not in _OF_PODS and port.interfaces and {each.type for each in port.interfaces} <= _NICS
    ]
    mtus = [each.mtu for port in uplinks for each in port.interfaces if each.mtu]
    carried = [list_carried_vlans(port.vlan) for port in uplinks]
    vlans: set[int] = set()
    for each in carried:
        vlans |= each or set()
    return BridgeTraits(bridge.datapath, min(mtus, default=None), "" if None in carried else as_list(vlans))
