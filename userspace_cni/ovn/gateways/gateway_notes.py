"""What was asked for a gateway, and how its router notes it in external_ids: by that a look finds what differs. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv6Interface, ip_address, ip_interface, ip_network
from typing import Final, TypeVar

from userspace_cni.ovn.topology import Address, Subnet

T = TypeVar("T")
PHYSICAL_IPS: Final = "physical_ips"
"""The key with the addresses at which Services are reached from outside, between commas: Services are written by it."""
_PREFIX: Final = "gateway-"


@dataclass(frozen=True)
class AskedGateway:
    """What was asked for. `name`: its node's, in small letters, or `distributed`. `chassis`: the first that lives has it.

    `addresses`, `next_hops`: outside, one of each version of IP at most, IPv4 first. `network`: what OVN calls the network
    outside; `bridge`: the bridge of the chassis that leads to it, "" where each has its own; `vlan`: 0 for none. `shared`: the
    MAC of the bridge, where the node and the gateway have one address. `mtu`: of the largest packet that pods take, 0 for any.
    """

    name: str
    chassis: tuple[str, ...]
    addresses: tuple[IPv4Interface | IPv6Interface, ...]
    next_hops: tuple[Address, ...]
    network: str
    bridge: str = ""
    vlan: int = 0
    snat: bool = True
    source_subnets: tuple[Subnet, ...] = ()
    shared: str = ""
    mtu: int = 0
    distributed: bool = False


def write_notes(asked: AskedGateway) -> dict[str, str | None]:
    """The keys of external_ids; None for one that is not to be there."""
    notes = {
        "addresses": _join(asked.addresses),
        "chassis": _join(asked.chassis),
        "next-hops": _join(asked.next_hops),
        "network": asked.network,
        "bridge": asked.bridge,
        "vlan": str(asked.vlan or ""),
        "snat": "yes" if asked.snat else "no",
        "source-subnets": _join(asked.source_subnets),
        "shared": asked.shared,
        "mtu": str(asked.mtu or ""),
        "distributed": "yes" if asked.distributed else "",
    }
    physical = _join(each.ip for each in asked.addresses)
    return {PHYSICAL_IPS: physical, **{f"{_PREFIX}{key}": value or None for key, value in notes.items()}}


def read_notes(name: str, ids: Mapping[str, str]) -> AskedGateway | None:
    """What was asked for the gateway whose router has these external_ids; None where they do not say it whole."""
    said = {key.removeprefix(_PREFIX): value for key, value in ids.items() if key.startswith(_PREFIX)}
    try:
        asked = AskedGateway(
            name,
            _split(said.get("chassis", ""), str),
            _split(said.get("addresses", ""), ip_interface),
            _split(said.get("next-hops", ""), ip_address),
            said.get("network", ""),
            said.get("bridge", ""),
            int(said.get("vlan") or 0),
            said.get("snat") != "no",
            _split(said.get("source-subnets", ""), ip_network),
            said.get("shared", ""),
            int(said.get("mtu") or 0),
            said.get("distributed") == "yes",
        )
    except ValueError:
        return None
    return asked if asked.chassis and asked.addresses else None


def _join(values: Iterable[object]) -> str:
    return ",".join(map(str, values))


def _split(text: str, read: Callable[[str], T]) -> tuple[T, ...]:
    return tuple(read(each) for each in text.split(",") if each)
