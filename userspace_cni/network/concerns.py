"""What keeps a gateway from being of use although it is as wished. It is reported; nothing of it is ever set, or ends a process.

Sysctls, other programs' rules and routers are the administrator's: each concern says what was found and what is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import UserspaceError
from userspace_cni.base.log import say
from userspace_cni.base.loops import Loop
from userspace_cni.host.forwarding import Place

if TYPE_CHECKING:
    from userspace_cni.base.gateways import Gateway
    from userspace_cni.node.local import LocalNode

_FORWARDING: Final[Mapping[int, str]] = {4: "net/ipv4/ip_forward", 6: "net/ipv6/conf/all/forwarding"}
_STRICT: Final = "1"
_LOOK_S: Final = 5.0
FIRST_LOOK_S: Final = 2.0
"""Seconds until the first look: the gateways are made by then."""


@dataclass(frozen=True)
class Concern:
    """One thing: `what` it is about, as a sysctl or a router; what was `found`, and what is `needed`; `gateway`: the port."""

    gateway: str
    what: str
    found: str
    needed: str

    @property
    def sentence(self) -> str:
        """In words."""
        return f"gateway {self.gateway}: {self.what} is {self.found}; needed: {self.needed}"


class Concerns(Loop):
    """Looks in each tick, on a thread of its own: a router that is silent must not keep addresses from moving."""

    def __init__(self, node: LocalNode, gateways: Callable[[], Sequence[Gateway]]) -> None:
        super().__init__("gateways' concerns", "looking at gateways")
        self._node = node
        self._gateways = gateways
        self.found: Sequence[Concern] = ()
        """What gateways need of the node and lack, as of the last look."""

    def _run(self) -> None:
        pause_s = FIRST_LOOK_S
        while self._rest(pause_s):
            pause_s = self._node.settings.tick_s
            try:
                found = concerns(self._gateways(), self._node)
            except Exception as error:  # noqa: BLE001 -- the thread must go on: without it what it told grows old
                say("warning", "what gateways need cannot be looked at", error=repr(error))
                continue
            for concern in found:
                if concern not in self.found:
                    say("warning", "a gateway lacks something", concern=concern.sentence)
            self.found = found


def concerns(gateways: Sequence[Gateway], node: LocalNode) -> tuple[Concern, ...]:
    """What is to be said of these gateways, which the node has. Takes up to a second for routers that are silent. Never fails."""
    if not gateways:
        return ()
    place, deadline = Place(node.settings.switch_netns, node.root), Deadline.after(_LOOK_S)
    found: list[Concern] = []
    for look in (_sysctls, _guards, _chains, _routers):
        try:
            found += look(gateways, node, place, deadline)
        except UserspaceError as error:
            found.append(Concern(gateways[0].port, "what it needs of the node", f"not known: {error}", "a look at it"))
    return tuple(found)


def _sysctls(gateways: Sequence[Gateway], _node: LocalNode, place: Place, _deadline: Deadline) -> Iterator[Concern]:
    ways = place.ways(each.egress_gateway.via for each in gateways if each.egress_gateway)
    filters = {hop: ("net/ipv4/conf/all/rp_filter", f"net/ipv4/conf/{link}/rp_filter") for hop, link in ways.items()}
    values = place.sysctls([*_FORWARDING.values(), *(name for each in filters.values() for name in each)])
    for gateway in gateways:
        for version in sorted({each.version for each in gateway.subnets}):
            name = _FORWARDING[version]
            if values[name] == "0":
                yield Concern(gateway.port, _dotted(name), "0", f"1: the node forwards no IPv{version}")
        for name in filters.get(gateway.egress_gateway.via, ()) if gateway.egress_gateway else ():
            if values[name] == _STRICT:
                yield Concern(gateway.port, _dotted(name), "1", "0 or 2: answers come by another way than the main table's")


def _guards(gateways: Sequence[Gateway], node: LocalNode, _place: Place, _deadline: Deadline) -> Iterator[Concern]:
    guarded, needed = node.guarded()
    if guarded < needed:
        what = "the count of pods' host ends with a guard"
        yield Concern(
            gateways[0].port, what, f"{guarded} of {needed}", "all: pods of others reach the node's stack past their VLAN"
        )


def _chains(gateways: Sequence[Gateway], _node: LocalNode, place: Place, deadline: Deadline) -> Iterator[Concern]:
    for gateway in gateways:
        names = [gateway.port, *(str(each.network_address) for each in gateway.subnets)]
        for chain in place.dropping_chains(names, deadline):
            needed = "a rule there that accepts what comes from the gateway's link and goes to it"
            yield Concern(gateway.port, f"chain {chain}", "dropping what is forwarded", needed)


def _routers(gateways: Sequence[Gateway], _node: LocalNode, place: Place, deadline: Deadline) -> Iterator[Concern]:
    """The routers that each gateway needs: its own, that of its egress, else the node's."""
    defaults = place.next_hops()
    wanted = {each.port: _hops(each, {version: hop for version, (hop, _) in defaults.items()}) for each in gateways}
    ways = dict(defaults.values())
    ways |= place.ways(hop for hops in wanted.values() for hop in hops if hop not in ways)
    silent = place.silent(ways, deadline)
    for port, hops in wanted.items():
        for hop in hops:
            if hop in silent or hop not in ways:
                found = "silent" if hop in ways else "no neighbour"
                yield Concern(port, f"router {hop}", found, "an answer to ARP or neighbour solicitation")


def _hops(gateway: Gateway, defaults: Mapping[int, str]) -> list[str]:
    if gateway.next_hops:
        return list(gateway.next_hops)
    own = {ip_address(gateway.egress_gateway.via).version: gateway.egress_gateway.via} if gateway.egress_gateway else {}
    hops = dict(defaults) | own
    return [hops[version] for version in sorted({each.version for each in gateway.subnets}) if version in hops]


def _dotted(name: str) -> str:
    return name.replace("/", ".")
