"""The load balancers of one Service: one for each protocol and place where it is served. Pure.

What comes to the Service's own addresses is balanced where it begins: every node's switch has these load balancers by their
group. External addresses and NodePorts have a second one, in the group of the gateways' routers and of the switches. A policy
`Local` makes the answer depend on the node: then switches or routers have load balancers of their own.

A VIP without endpoints stays, and OVN refuses what comes to it (`reject`). A client would wait else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final

from userspace_cni.base.subnets import Address, Cidr
from userspace_cni.ovn.desired_rows import RowKey
from userspace_cni.ovn.northbound_tables import LOAD_BALANCER, LOAD_BALANCER_GROUP, ROUTER, SWITCH
from userspace_cni.ovn.services.service_objects import ServedPort, ServedService, ServiceSlice
from userspace_cni.ovn.topology import CLUSTER_GROUP, GATEWAY_GROUP, HAIRPIN_SOURCES

BACKENDS_MAX: Final = 50_000
"""Endpoints of all VIPs of one Service."""
ENDPOINTS_MAX: Final = 1000
"""Endpoints of one VIP."""
OPTIONS: Final[Mapping[str, str | None]] = {
    "reject": "true",
    "ct_flush": "true",
    "neighbor_responder": "none",
    "hairpin_snat_ip": " ".join(HAIRPIN_SOURCES),
    "skip_snat": None,
}
"""Those that are kept, and what they are where nothing else is said. No router answers for the MAC of a Service's address: all of
them have the load balancer, and an external address is routed to a gateway. A policy lets a pod reach itself by an address that
is known beforehand."""
AFFINE: Final = ("eth_src", "ip_src")
"""By what a client is told from others: a hash of it chooses the endpoint, so that it stays while the endpoints do. `ip_src` is
none of IPv6, where the pod's MAC tells clients apart.

OVN's own `affinity_timeout` loses the first connection of each client: the packet from which OVN learns the endpoint is dropped;
those that follow it are translated by then, learned from again, and dropped, too."""
_EXTERNAL: Final = "_external"
_AT: Final = "_at_"

Claim = tuple[Address, str, int]
"""An external address, with protocol and port."""


@dataclass(frozen=True)
class ServiceGateway:
    """A gateway's router. `addresses`: its physical ones; `node`: on which it is."""

    node: str
    addresses: tuple[Address, ...]


@dataclass(frozen=True)
class ServiceFacts:
    """What load balancers depend on beside Services. `switches`: by node. `gateways`: by router. `groups`: those that are there.

    `owners`: whose an address is that no Service can have, in words; `subnets`: where no Service's address can be.
    """

    switches: Mapping[str, str] = field(default_factory=dict)
    gateways: Mapping[str, ServiceGateway] = field(default_factory=dict)
    groups: frozenset[str] = frozenset()
    owners: Mapping[Address, str] = field(default_factory=dict)
    subnets: tuple[Cidr, ...] = ()


@dataclass(frozen=True)
class Balancer:
    """A load balancer. `service`: "namespace/name"; `holders`: what has it; `fields`: what chooses an endpoint, () for each
    connection's own."""

    name: str
    service: str
    protocol: str
    vips: Mapping[str, str]
    options: Mapping[str, str | None]
    holders: tuple[RowKey, ...]
    fields: tuple[str, ...] = ()

    @property
    def key(self) -> RowKey:
        return RowKey(LOAD_BALANCER, self.name)


@dataclass(frozen=True, slots=True)
class Target:
    """Where connections go. `ends`, `node`: as of SliceEndpoint."""

    address: Address
    port: int
    node: str
    ends: bool


class ServiceTargets:
    """The targets of a Service by its ports. `cut`: there are more than are kept."""

    def __init__(self, slices: Iterable[ServiceSlice]) -> None:
        self._found: dict[tuple[str, str, int], list[Target]] = {}
        self.cut = False
        left = BACKENDS_MAX
        for each in slices:
            for port in each.ports:
                left -= len(each.endpoints)
                if left < 0:
                    self.cut = True
                    return
                for one in each.endpoints:
                    found = self._found.setdefault((port.name, port.protocol, one.address.version), [])
                    found.append(Target(one.address, port.port, one.node, one.ends))

    def of(self, port: ServedPort, version: int) -> Sequence[Target]:
        return self._found.get((port.name, port.protocol, version), ())

    def nodes(self) -> set[str]:
        return {each.node for found in self._found.values() for each in found}


class ServiceBalancers:
    """Makes the load balancers of one Service. `granted`: which external addresses it has. `cut`: what is left out, in words."""

    def __init__(self, key: str, service: ServedService, targets: ServiceTargets, granted: Iterable[Claim]) -> None:
        self.cut: list[str] = ["only some of its endpoints get connections: there are too many"] if targets.cut else []
        self._key = key
        self._service = service
        self._targets = targets
        self._granted: dict[tuple[str, int], list[Address]] = {}
        for address, protocol, port in granted:
            self._granted.setdefault((protocol, port), []).append(address)
        self._left = BACKENDS_MAX
        self._chosen: dict[tuple[ServedPort, int, str | None], str] = {}

    def list(self, facts: ServiceFacts) -> Iterator[Balancer]:
        """All of them."""
        for protocol in dict.fromkeys(each.protocol for each in self._service.ports):
            ports = [each for each in self._service.ports if each.protocol == protocol]
            yield from self._inside(protocol, ports, facts)
            yield from self._outside(protocol, ports, facts)

    def _inside(self, protocol: str, ports: Sequence[ServedPort], facts: ServiceFacts) -> Iterator[Balancer]:
        """What serves its own addresses."""
        asked = [(address, port.port, port) for port in ports for address in self._service.ips]
        name = f"{self._key}_{protocol}"
        if not self._service.local:
            yield self._balancer(name, protocol, self._vips(asked), (RowKey(LOAD_BALANCER_GROUP, CLUSTER_GROUP),))
            return
        near = sorted(self._targets.nodes() & facts.switches.keys())
        for node in near:
            place = RowKey(SWITCH, facts.switches[node])
            yield self._balancer(f"{name}{_AT}{node}", protocol, self._vips(asked, node), (place,))
        far = tuple(RowKey(SWITCH, switch) for node, switch in sorted(facts.switches.items()) if node not in near)
        if far:
            yield self._balancer(name, protocol, {_join(address, number): "" for address, number, _ in asked}, far)

    def _outside(self, protocol: str, ports: Sequence[ServedPort], facts: ServiceFacts) -> Iterator[Balancer]:
        """What serves external addresses and NodePorts."""
        name = f"{self._key}_{protocol}{_EXTERNAL}"
        asked = [(address, port.port, port) for port in ports for address in self._granted.get((protocol, port.port), ())]
        at = {router: list(self._node_ports(ports, gateway)) for router, gateway in sorted(facts.gateways.items())}
        if vips := self._vips([*asked, *(each for found in at.values() for each in found)]):
            group = (RowKey(LOAD_BALANCER_GROUP, GATEWAY_GROUP),)
            switches = tuple(RowKey(SWITCH, each) for each in sorted(facts.switches.values()))
            yield self._balancer(name, protocol, vips, switches if self._service.external_local else group)
        for router, found in at.items() if self._service.external_local else ():
            node = facts.gateways[router].node
            near = {vip: targets for vip, targets in self._vips([*asked, *found], node).items() if targets}
            if near:
                yield self._balancer(f"{name}{_AT}{node}", protocol, near, (RowKey(ROUTER, router),), skip_snat="true")

    def _node_ports(self, ports: Sequence[ServedPort], gateway: ServiceGateway) -> Iterator[tuple[Address, int, ServedPort]]:
        versions = {each.version for each in self._service.ips}
        for port in ports:
            for address in gateway.addresses:
                if port.node_port and address.version in versions:
                    yield address, port.node_port, port

    def _balancer(
        self, name: str, protocol: str, vips: Mapping[str, str], holders: tuple[RowKey, ...], **options: str
    ) -> Balancer:
        fields = AFFINE if self._service.affine else ()
        return Balancer(name, self._key, protocol, vips, {**OPTIONS, **options}, holders, fields)

    def _vips(self, asked: Iterable[tuple[Address, int, ServedPort]], node: str | None = None) -> dict[str, str]:
        """VIPs with their targets, those of a node alone if one is given; "" is none."""
        vips = {}
        for address, number, port in asked:
            chosen = self._choose(port, address.version, node)
            self._left -= chosen.count(",") + 1
            if self._left < 0:
                self._note(
                    f"it has more than {BACKENDS_MAX} endpoints at all its addresses together: some addresses are left out"
                )
                break
            vips[_join(address, number)] = chosen
        return vips

    def _choose(self, port: ServedPort, version: int, node: str | None) -> str:
        """The targets that get connections: those that are ready, else those that end and still serve."""
        if (port, version, node) not in self._chosen:
            found = [each for each in self._targets.of(port, version) if node is None or each.node == node]
            serving = [each for each in found if not each.ends] or found
            pairs = sorted({(each.address, each.port) for each in serving})
            if len(pairs) > ENDPOINTS_MAX:
                self._note(f"only {ENDPOINTS_MAX} of {len(pairs)} endpoints get connections")
            self._chosen[port, version, node] = ",".join(_join(*pair) for pair in pairs[:ENDPOINTS_MAX])
        return self._chosen[port, version, node]

    def _note(self, text: str) -> None:
        if text not in self.cut:
            self.cut.append(text)


def read_claims(balancer: str, protocol: str, vips: Iterable[str]) -> Iterator[Claim]:
    """The external addresses that a load balancer of ours has."""
    if _EXTERNAL not in balancer:
        return
    for vip in vips:
        host, _, port = vip.rpartition(":")
        try:
            yield ip_address(host.strip("[]")), protocol, int(port)
        except ValueError:
            continue


def _join(address: Address, port: int) -> str:
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"
