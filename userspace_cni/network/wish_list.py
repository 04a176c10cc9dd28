"""What the node is to have, by all who may wish it: the settings, objects of the API, annotations of the node. Pure.

Settings beat objects. Of two wishes for one NIC or one bridge the one that holds it keeps it; else the earlier one gets it. The
other is refused by name, and nothing of it is applied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from userspace_cni.base.gateways import Gateway
from userspace_cni.base.provider_networks import ProviderNetwork

PROVIDER_NETWORK: Final = "provider-network"
GATEWAY: Final = "gateway"
TRANSLATION: Final = "translation"
"""Kinds of wishes. The last is one for all gateways together: their rules are one table."""

SETTINGS: Final = "settings"
OBJECTS: Final = "objects"
ANNOTATIONS: Final = "annotations"
"""Sources of wishes."""


@dataclass(frozen=True)
class Desired:
    """What one source wishes of this node. `complete`: a list was read to its end, so what it lacks is gone.

    `refused`: why something of it cannot be, by kind and name, where that shows without a look at the node.
    """

    source: str
    complete: bool
    provider_networks: tuple[ProviderNetwork, ...] = ()
    gateways: tuple[Gateway, ...] = ()
    refused: Mapping[tuple[str, str], str] = field(default_factory=dict)


@dataclass(frozen=True)
class WishList:
    """The wishes of all sources that go together, each with its source, and why the others do not, by kind and name."""

    provider_networks: tuple[tuple[str, ProviderNetwork], ...]
    gateways: tuple[tuple[str, Gateway], ...]
    refused: Mapping[tuple[str, str], str]


def agreed(desired: Sequence[Desired], holders: Mapping[str, str]) -> WishList:
    """Put together what the sources wish, the most important source first.

    `holders`: which provider network has which interface now, by interface.
    """
    refused: dict[tuple[str, str], str] = {}
    networks: dict[str, tuple[str, ProviderNetwork]] = {}
    gateways: dict[str, tuple[str, Gateway]] = {}
    users: dict[str, str] = {}
    wished = [(each.source, network) for each in desired for network in each.provider_networks]
    for each in desired:
        refused |= {key: why for key, why in each.refused.items() if key not in refused}
    for source, network in sorted(wished, key=lambda item: not _holds(item[1], holders)):
        if network.name in networks:
            continue  # a more important source, or a holder, says what it is to be
        taken = {each: users[each] for each in network.interfaces if each in users}
        if taken:
            interface, user = next(iter(taken.items()))
            refused[PROVIDER_NETWORK, network.name] = f"interface {interface} is wished for provider network {user}, too"
            continue
        networks[network.name] = source, network
        users |= dict.fromkeys(network.interfaces, network.name)
    bridges = {network.bridge: network.name for _, network in networks.values()}
    for each in desired:
        for gateway in each.gateways:
            if gateway.port in gateways:
                continue
            if gateway.bridge in bridges and not gateway.sole:
                refused[GATEWAY, gateway.port] = (
                    f"bridge {gateway.bridge} has the uplink of provider network {bridges[gateway.bridge]}, where this address "
                    "would meet itself on other nodes; 'sole = true' says that only this node has it"
                )
                continue
            gateways[gateway.port] = each.source, gateway
    return WishList(tuple(networks.values()), tuple(gateways.values()), refused)


def _holds(network: ProviderNetwork, holders: Mapping[str, str]) -> bool:
    return any(holders.get(each) == network.name for each in network.interfaces)
