"""Merges the specs of all sources: the settings, objects of the API, annotations of the node. Pure.

When two sources name the same thing, the more important one counts, also when its spec is refused: settings beat objects, and
objects beat annotations. A NIC that two provider networks need stays with the one that has it; else the more important one gets
it. The other is refused by name and not applied; the node keeps what it has of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from userspace_cni.base.gateways import Gateway, clash
from userspace_cni.base.mirrors import NodeMirror
from userspace_cni.base.provider_networks import ProviderNetwork

PROVIDER_NETWORK: Final = "provider-network"
GATEWAY: Final = "gateway"
MIRROR: Final = "mirror"
TRANSLATION: Final = "translation"
"""Kinds of specs. The last is one for all gateways together: their rules are one table."""
RUNTIME_NETWORK: Final = "runtime-network"
"""Kind of the spec for a network in the runtimes' directory."""
SHARED_GATEWAY: Final = "shared-gateway"
"""Kind, and source, of the spec for the bridge that OVN's gateway router shares with the node."""
VLAN: Final = "vlan"
"""Kind of what is told of a Vlan that is refused; no spec of the node is of it."""

SETTINGS: Final = "settings"
OBJECTS: Final = "objects"
ANNOTATIONS: Final = "annotations"
COMMANDS: Final = "commands"
INSTALL: Final = "install"
"""Sources of specs. What a command asked for stands in no list: only its record has it, until it is undone or the node boots.
What `install` was given lies in the state directory."""


@dataclass(frozen=True)
class Desired:
    """What one source specs of this node. `complete`: a list was read to its end, so what it lacks is gone.

    `refused`: why something of it cannot be, by kind and name, where that shows without a look at the node.
    """

    source: str
    complete: bool
    provider_networks: tuple[ProviderNetwork, ...] = ()
    gateways: tuple[Gateway, ...] = ()
    refused: Mapping[tuple[str, str], str] = field(default_factory=dict)
    mirrors: tuple[NodeMirror, ...] = ()


@dataclass(frozen=True)
class Refusal:
    """Why something that `source` specs cannot be, where that shows without a look at the node."""

    source: str
    why: str


@dataclass(frozen=True)
class SpecList:
    """The specs of all sources that go together, each with its source; and what is refused, by kind and name.

    No kind and name is in both.
    """

    provider_networks: tuple[tuple[str, ProviderNetwork], ...]
    gateways: tuple[tuple[str, Gateway], ...]
    refused: Mapping[tuple[str, str], Refusal]
    mirrors: tuple[tuple[str, NodeMirror], ...]


def merge_sources(desired: Sequence[Desired], holders: Mapping[str, str]) -> SpecList:
    """Put together what the sources spec, the most important source first.

    `holders`: which provider network has which interface now, by interface.
    """
    refused: dict[tuple[str, str], Refusal] = {}
    networks: dict[str, tuple[str, ProviderNetwork]] = {}
    gateways: dict[str, tuple[str, Gateway]] = {}
    for each in desired:
        known = {(PROVIDER_NETWORK, name) for name in networks} | {(GATEWAY, port) for port in gateways}
        for key, why in each.refused.items():
            if key not in refused and key not in known:
                refused[key] = Refusal(each.source, why)
        for network in each.provider_networks:
            if network.name not in networks and (PROVIDER_NETWORK, network.name) not in refused:
                networks[network.name] = each.source, network
        for gateway in each.gateways:
            if gateway.port not in gateways and (GATEWAY, gateway.port) not in refused:
                gateways[gateway.port] = each.source, gateway
    for kind, name, source, why in (*_contested(networks, holders), *_misplaced(gateways, networks), *_clashing(gateways)):
        refused[kind, name] = Refusal(source, why)
    return SpecList(
        tuple(spec for name, spec in networks.items() if (PROVIDER_NETWORK, name) not in refused),
        tuple(spec for port, spec in gateways.items() if (GATEWAY, port) not in refused),
        refused,
        tuple((each.source, mirror) for each in desired for mirror in each.mirrors),
    )


_Refused = Iterator[tuple[str, str, str, str]]
"""Kind, name, source and reason."""


def _contested(networks: Mapping[str, tuple[str, ProviderNetwork]], holders: Mapping[str, str]) -> _Refused:
    """Provider networks whose interface or bridge another one has, or wants first."""
    users: dict[str, str] = {}
    for source, network in sorted(networks.values(), key=lambda spec: not _holds(spec[1], holders)):
        things = {**dict.fromkeys(sorted(network.claims), "interface"), network.bridge: "bridge"}
        taken = next((each for each in things if each in users), None)
        if taken is None:
            users |= dict.fromkeys(things, network.name)
        else:
            why = f"{things[taken]} {taken} is desired for provider network {users[taken]}, too"
            yield PROVIDER_NETWORK, network.name, source, why


def _misplaced(gateways: Mapping[str, tuple[str, Gateway]], networks: Mapping[str, tuple[str, ProviderNetwork]]) -> _Refused:
    """Gateways that cannot be where they are desired."""
    bridges = {network.bridge: name for name, (_, network) in networks.items()}
    links = {each for _, network in networks.values() for each in (network.bridge, *network.claims)}
    for source, gateway in gateways.values():
        if gateway.port in links:
            yield GATEWAY, gateway.port, source, f"{gateway.port} is a bridge or an interface of a provider network"
        elif gateway.bridge in bridges and not gateway.sole:
            why = (
                f"bridge {gateway.bridge} has the uplink of provider network {bridges[gateway.bridge]}, and other nodes would "
                "have this address, too; 'sole = true' says that only this node has it"
            )
            yield GATEWAY, gateway.port, source, why


def _clashing(gateways: Mapping[str, tuple[str, Gateway]]) -> _Refused:
    """Gateways that cannot be beside an earlier one: a subnet overlaps, or a route or a routing table is the same."""
    kept: list[Gateway] = []
    for source, gateway in gateways.values():
        why = next((why for each in kept if (why := clash(each, gateway))), "")
        if why:
            yield GATEWAY, gateway.port, source, why
        else:
            kept.append(gateway)


def _holds(network: ProviderNetwork, holders: Mapping[str, str]) -> bool:
    return any(holders.get(each) == network.name for each in network.claims)
