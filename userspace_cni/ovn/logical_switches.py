"""What the rows of logical switches say of their addresses. Pure.

The columns are those that OVN's own allocation reads: `other_config:subnet`, `exclude_ips` and `ipv6_prefix`; and the gateway
that the tools which made the switch noted in `external_ids:gateway_ip`. A text that is no such value counts as absent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address, ip_interface, ip_network

from userspace_cni.base.subnets import Address, Cidr, Span
from userspace_cni.ovn.address_book import SwitchSubnet
from userspace_cni.ovn.topology import OVNS_LENGTH

_RESERVED = 2
"""At the start of a subnet: its router's address, and that of the node's own port, which may come after the first pods."""


@dataclass(frozen=True)
class FoundSwitch:
    """A logical switch, by what its row says."""

    name: str
    other_config: Mapping[str, str]
    external_ids: Mapping[str, str]


def read_subnets(switch: FoundSwitch) -> tuple[SwitchSubnet, ...]:
    """The networks from which its ports get addresses, IPv4 first."""
    gateways = list(_gateways(switch.external_ids.get("gateway_ip", "")))
    excluded = tuple(_spans(switch.other_config.get("exclude_ips", "")))
    return tuple(_subnet(network, gateways, excluded) for network in _networks(switch.other_config))


def _subnet(network: Cidr, gateways: list[Address], excluded: tuple[Span, ...]) -> SwitchSubnet:
    if network.num_addresses <= _RESERVED + 2:
        return SwitchSubnet(network, None, excluded)
    first, last = network.network_address + 1, network.network_address + _RESERVED
    gateway = next((each for each in gateways if each in network), first)
    mine = tuple(span for span in excluded if span[0].version == network.version)
    return SwitchSubnet(network, gateway, (*mine, (first, last)))


def _networks(config: Mapping[str, str]) -> Iterator[Cidr]:
    for text in (config.get("subnet", ""), config.get("ipv6_prefix", "")):
        whole = f"{text.strip()}/{OVNS_LENGTH}" if ":" in text and "/" not in text else text.strip()
        try:
            yield ip_network(whole, strict=False)
        except ValueError:
            continue


def _gateways(text: str) -> Iterator[Address]:
    for each in text.replace(",", " ").split():
        try:
            yield ip_interface(each).ip
        except ValueError:
            continue


def _spans(text: str) -> Iterator[Span]:
    """OVN's `exclude_ips`: addresses, and ranges as 192.0.2.4..192.0.2.9."""
    for each in text.split():
        first, _, last = each.partition("..")
        try:
            span = ip_address(first), ip_address(last or first)
        except ValueError:
            continue
        if span[0].version == span[1].version and int(span[0]) <= int(span[1]):
            yield span
