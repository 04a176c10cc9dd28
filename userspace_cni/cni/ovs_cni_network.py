"""What a network of ovs-cni is as one of this plugin, for people who move. Pure; no call uses it.

ovs-cni (k8snetworkplumbingwg/ovs-cni, here as of 0.39) makes a veth at a bridge of Open vSwitch. Its networks have the type `ovs`
and their keys at the top, which Go's decoder matches without regard to case.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from userspace_cni.cni.keys import fold_case

TYPE: Final = "ovs"
_WAITS: Final = "nothing is polled: ADD waits for the switch's notice, at most as long as the setting 'deadline_s'"
_WITHOUT: Final[Mapping[str, str]] = {
    "socket_file": "the node's setting 'ovsdb' says where the switch's database is",
    "configuration_path": "the node's own settings take the place of that file",
    "link_state_check_retries": _WAITS,
    "link_state_check_interval": _WAITS,
    "ofport_request": "Open vSwitch chooses the number of the OpenFlow port",
    "interface_type": "'host.port' says how Open vSwitch opens the host end",
    "deviceid": "there is no SR-IOV and no vDPA here: leave such a network with ovs-cni",
}
"""Its keys, folded, that have no equal here, and why."""
_BRIDGE: Final = "bridge"
_VLAN: Final = "vlan"
_TRUNK: Final = "trunk"
_MTU: Final = "mtu"
_OWN: Final = frozenset((_BRIDGE, _VLAN, _TRUNK, _MTU, "type", *_WITHOUT))


@dataclass(frozen=True)
class ConvertedNetwork:
    """`configuration`: of this plugin. `losses`: by key of ovs-cni, what of it is not in there, and why."""

    configuration: dict[str, Any]
    losses: tuple[tuple[str, str], ...]


def convert_network(given: Mapping[str, Any]) -> ConvertedNetwork:
    """A configuration of type `ovs` as one of this plugin. Values are taken as they are: who reads the result judges them."""
    by_name = {fold_case(key): (key, value) for key, value in given.items() if isinstance(key, str) and value is not None}
    bridge, host, losses = {}, {"engine": "ovs", "iftype": "veth"}, []
    if _BRIDGE in by_name:
        bridge["bridgeName"] = by_name[_BRIDGE][1]
    else:
        losses.append((_BRIDGE, "it follows from ovnPort or deviceID there: write host.bridge.bridgeName, or 'ovn': {} for OVN"))
    if _given(by_name, _TRUNK):
        bridge["trunks"] = by_name[_TRUNK][1]
        if _VLAN in by_name:
            losses.append((by_name[_VLAN][0], "ovs-cni ignores it beside 'trunk', so it is left out"))
    elif _given(by_name, _VLAN):
        bridge["vlanId"] = by_name[_VLAN][1]
    elif _VLAN in by_name:
        bridge["vlanMode"] = "access"  # VLAN 0: only frames without a tag
    if _given(by_name, _MTU):
        host["mtu"] = by_name[_MTU][1]
    losses += [(key, _WITHOUT[name]) for name, (key, value) in by_name.items() if name in _WITHOUT and value not in ("", 0)]
    kept = {key: value for key, value in given.items() if isinstance(key, str) and fold_case(key) not in _OWN}
    return ConvertedNetwork({**kept, "type": "userspace", "host": {**host, "bridge": bridge}}, tuple(losses))


def _given(by_name: Mapping[str, tuple[str, Any]], name: str) -> bool:
    """Whether the key says more than its zero value, as which Go reads a key that is not there."""
    return name in by_name and by_name[name][1] not in (0, "", [])
