"""The flows of a bridge that OVN's gateway router and the node share: one MAC and one address for both. Pure.

P is the bridge's patch port to OVN, N its NIC, LOCAL the node's own link. NORMAL alone would learn the common MAC on P and on
LOCAL by turns. So what comes from the NIC to this MAC is led by its connection: what OVN has begun, and what asks for a Service,
goes to OVN, all other to the node. ARP and neighbour discovery go to both. What OVN sends leaves by the NIC alone, and is never
learned. Frames with a VLAN tag, and those to other MACs, are NORMAL's as before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Final, Literal

from userspace_cni.switch.openflow.flow_entries import (
    ARP,
    ESTABLISHED,
    IPV4,
    IPV6,
    LOCAL,
    RELATED,
    SCTP,
    TCP,
    TRACKED,
    UDP,
    FlowEntry,
    commit,
    from_port,
    of_icmpv6,
    of_type,
    output,
    to_address,
    to_mac,
    to_port,
    track,
    tracked_as,
    without_tag,
)

TABLE: Final = 64
"""Of what conntrack has looked up: high, because others' flows are in low tables."""
BOTH, SERVICE, TRACK, FROM_OVN = 20140, 20130, 20120, 20110
"""Priorities in table 0, which no flow of others has."""
_KNOWN, _OTHER = 300, 100
"""Priorities in TABLE."""
_NEIGHBOUR_TYPES: Final = range(133, 138)
"""Neighbour discovery: solicitations, advertisements, redirects."""
_PROTOCOLS: Final = {"TCP": TCP, "UDP": UDP, "SCTP": SCTP}

Protocol = Literal["TCP", "UDP", "SCTP"]


@dataclass(frozen=True)
class SharedBridge:
    """OpenFlow numbers of the NIC and of the patch port; the MAC of the node's link, six bytes; conntrack's zone."""

    uplink: int
    patch: int
    mac: bytes
    zone: int


@dataclass(frozen=True)
class ServicePort:
    """A port at which the node is asked for a Service: of any of its addresses, or of the Service's own `address`."""

    protocol: Protocol
    port: int
    address: IPv4Address | IPv6Address | None = None


def list_base_entries(bridge: SharedBridge) -> frozenset[FlowEntry]:
    """The flows without those of Services."""
    return frozenset(_base(bridge))


def list_service_entries(bridge: SharedBridge, ports: Iterable[ServicePort]) -> frozenset[FlowEntry]:
    """The flows of these ports of Services.

    They come before conntrack: what that has looked up here does not get the translations of OVN's router for a pod of this node
    (Open vSwitch 3.1, userspace datapath).
    """
    return frozenset(entry for port in ports for entry in _of_service(bridge, port))


def _to_us(bridge: SharedBridge) -> bytes:
    return from_port(bridge.uplink) + to_mac(bridge.mac)


def _base(bridge: SharedBridge) -> Iterator[FlowEntry]:
    to_us = _to_us(bridge)
    for neighbours in (of_type(ARP), *(of_type(IPV6) + of_icmpv6(each) for each in _NEIGHBOUR_TYPES)):
        yield FlowEntry(0, BOTH, to_us + without_tag() + neighbours, output(LOCAL, bridge.patch))
    for family in (IPV4, IPV6):
        yield FlowEntry(0, TRACK, to_us + without_tag() + of_type(family), track(bridge.zone, TABLE))
        yield FlowEntry(0, TRACK, from_port(bridge.patch) + of_type(family), commit(bridge.zone) + output(bridge.uplink))
    yield FlowEntry(0, FROM_OVN, from_port(bridge.patch), output(bridge.uplink))
    for state in (ESTABLISHED, RELATED):
        yield FlowEntry(TABLE, _KNOWN, tracked_as(TRACKED | state), output(bridge.patch))
    yield FlowEntry(TABLE, _OTHER, b"", output(LOCAL))


def _of_service(bridge: SharedBridge, asked: ServicePort) -> Iterator[FlowEntry]:
    versions = (4, 6) if asked.address is None else (asked.address.version,)
    for version in versions:
        match = _to_us(bridge) + without_tag() + of_type(IPV4 if version == 4 else IPV6)
        if asked.address is not None:
            match += to_address(asked.address)
        match += to_port(_PROTOCOLS[asked.protocol], asked.port)
        yield FlowEntry(0, SERVICE, match, output(bridge.patch))
