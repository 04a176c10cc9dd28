"""What a pod, its lease and its row say of the addresses and MACs of a logical port. Pure.

A pod's author can write annotations: what they say counts only where `pod_ports` finds it free, or where the row says the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ipaddress import ip_interface
from itertools import count
from typing import Final

from userspace_cni.base.errors import InvalidConfig
from userspace_cni.base.subnets import Address
from userspace_cni.ovn.address_book import Interface, SwitchSubnet
from userspace_cni.ovn.pod_interfaces import read_lease
from userspace_cni.ovn.pod_notes import PortAddresses, read_noted_addresses
from userspace_cni.ovn.port_claimants import Claimant
from userspace_cni.ovn.port_rows import FoundLogicalPort, read_row_addresses, read_row_macs
from userspace_cni.pod import launcher
from userspace_cni.pod.mac import derive_mac, is_unicast

_MAC: Final = "0a:58"
"""How MACs begin that follow from an IPv4 address, as those of ovn-kubernetes."""


def read_claimed_lease(claimant: Claimant) -> PortAddresses | None:
    """What Multus notes of the IPAM plugin's lease, in an annotation that the pod's author may write, too; None for nothing."""
    if claimant.interface.network.source != "ipam":
        return None
    mac, texts = read_lease(claimant.pod, claimant.interface.ifname)
    ips = tuple(_whole(each) for each in read_row_addresses(FoundLogicalPort("", (" ".join(texts),))))
    return PortAddresses(ips, mac) if ips and is_unicast(mac) else None


def _words(claimant: Claimant, noted: PortAddresses | None) -> set[str]:
    """All addresses and MACs that the pod says its port has."""
    said = read_claimed_lease(claimant) if claimant.interface.network.source == "ipam" else noted
    return set(filter(None, [claimant.interface.mac, *([said.mac, *(str(each.ip) for each in said.ips)] if said else [])]))


def confirms(found: FoundLogicalPort, claimants: Sequence[Claimant], noted: Sequence[PortAddresses | None]) -> bool:
    """Whether the row is the owner's, and has all that the annotations say, which are `noted` of each claimant."""
    if found.version != claimants[0].pod.owner_uid:
        return False
    has = {*map(str, read_row_addresses(found)), *read_row_macs(found)}
    return all(_words(claimant, said) <= has for claimant, said in zip(claimants, noted, strict=True))


def read_claimed_note(claimant: Claimant) -> PortAddresses | None:
    """What the pod's annotations say; what cannot be meant is as good as nothing, and is written over."""
    try:
        return read_noted_addresses(claimant.pod, claimant.interface)
    except InvalidConfig:
        return None


def read_claimed_row(found: FoundLogicalPort, subnets: tuple[SwitchSubnet, ...]) -> PortAddresses | None:
    """What a row of ours says, whose note was not written yet."""
    ips = tuple(with_length(_whole(each), subnets) for each in read_row_addresses(found))
    macs = [text.split()[0] for text in found.addresses if text.split() and text.split()[0].count(":") == 5]
    return PortAddresses(ips, macs[0]) if ips and macs else None


def is_one_of_each(ips: tuple[Interface, ...]) -> bool:
    """Whether a port may have these: one address of a family, as it is given. A pod's author could write more, of many ports."""
    return len({each.version for each in ips}) == len(ips)


def _whole(address: Address) -> Interface:
    return ip_interface(address)


def with_length(ip: Interface, subnets: tuple[SwitchSubnet, ...]) -> Interface:
    """The address with the prefix length of its subnet."""
    network = next((each.network for each in subnets if ip.ip in each.network), None)
    return ip if network is None else type(ip)(f"{ip.ip}/{network.prefixlen}")


def list_macs(claimant: Claimant, said: str, ips: tuple[Interface, ...]) -> Iterator[str]:
    """The MACs that a port is to have, the first that no other has: what its pod asks for, what follows from its address."""
    yield from filter(None, (claimant.interface.mac, said, _mac_of(claimant, ips)))
    for number in count():
        yield derive_mac(claimant.pod.namespace, claimant.pod.name, claimant.interface.ifname, str(number))


def _mac_of(claimant: Claimant, ips: tuple[Interface, ...]) -> str:
    """The MAC of an interface for which none is given: of a VM as the sidecar derives it, else that of its IPv4 address."""
    pod, ifname = claimant.pod, claimant.interface.ifname
    if pod.owner != pod.name:
        return launcher.derive_mac(pod.namespace, launcher.machine_part(pod.owner), ifname)
    four = next((each for each in ips if each.version == 4), None)
    return f"{_MAC}:{four.packed.hex(':')}" if four is not None else derive_mac(pod.namespace, pod.name, ifname)
