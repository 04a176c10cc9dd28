"""What ovn-controller reads of a node: keys of Open_vSwitch.external_ids. Pure.

The datapath of the integration bridge is the userspace one, because ports for vhost-user do not open on another, and OVN's own
default needs a kernel module.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

Address = IPv4Address | IPv6Address
SYSTEM_ID = "system-id"
_DATAPATH = "ovn-bridge-datapath-type"
_USERSPACE = "netdev"


@dataclass(frozen=True)
class AskedChassis:
    """What was asked for. Empty values leave what is there; tunnels that are of no type become Geneve's. `checksum`: whether
    tunnels have checksums, None to leave that, too.

    `northbound`: read by our commands and ovn-kubernetes' first tools, not by OVN.
    """

    northbound: str = ""
    southbound: str = ""
    encap_type: str = ""
    encap_ip: str = ""
    checksum: bool | None = None
    datapath: str = _USERSPACE
    system_id: str = ""


def find_changed_ids(asked: AskedChassis, found: Mapping[str, str]) -> dict[str, str]:
    """The keys to write so that the switch with the external_ids `found` is a chassis as it was asked for."""
    wanted = {
        "ovn-nb": asked.northbound,
        "ovn-remote": asked.southbound,
        "ovn-encap-type": asked.encap_type or ("" if found.get("ovn-encap-type") else "geneve"),
        "ovn-encap-ip": asked.encap_ip,
        "ovn-encap-csum": "" if asked.checksum is None else str(asked.checksum).lower(),
        _DATAPATH: asked.datapath,
        SYSTEM_ID: "" if found.get(SYSTEM_ID) else asked.system_id,
    }
    return {key: value for key, value in wanted.items() if value and found.get(key) != value}


def find_missing_datapath(found: Mapping[str, str]) -> dict[str, str]:
    """The keys to write so that the integration bridge has a datapath: the userspace one, unless another one was chosen."""
    return {} if found.get(_DATAPATH) else {_DATAPATH: _USERSPACE}


def list_absent_ends(found: Mapping[str, str], addresses: Collection[Address] | None) -> tuple[str, ...]:
    """The ends of tunnels that are none of the node's addresses; () where these are not known. What is no address is one."""
    said = filter(None, (each.strip() for each in found.get("ovn-encap-ip", "").split(",")))
    return () if addresses is None else tuple(each for each in said if each not in {str(address) for address in addresses})


def list_missing_ids(found: Mapping[str, str]) -> tuple[str, ...]:
    """The keys without which ovn-controller does nothing."""
    return tuple(key for key in (SYSTEM_ID, "ovn-remote", "ovn-encap-type", "ovn-encap-ip") if not found.get(key))
