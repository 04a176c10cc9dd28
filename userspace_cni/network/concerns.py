"""What keeps a gateway from being of use although it is as desired. It is reported; nothing of it is ever set, or ends a process.

Sysctls, other programs' rules and routers are the administrator's: each finding says what was found and what is needed. Whether
the node forwards is not derived from its rules, because there are too many kinds: it is tried.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import UserspaceError
from userspace_cni.base.findings import Finding, date_findings
from userspace_cni.base.log import say
from userspace_cni.base.loops import Loop
from userspace_cni.host.netlink.netns import open_switch_netns
from userspace_cni.host.node_net import legacy_rules
from userspace_cni.host.node_net.forward_path import generation
from userspace_cni.host.node_net.forwarding import NodeNamespace
from userspace_cni.network.passages import CHANGES, Passage, Uplinks, passages

if TYPE_CHECKING:
    from userspace_cni.base.gateways import Gateway
    from userspace_cni.node.installation import Installation
    from userspace_cni.node.local_switch import LocalSwitch

_FORWARDING: Final[Mapping[int, str]] = {4: "net/ipv4/ip_forward", 6: "net/ipv6/conf/all/forwarding"}
_STRICT: Final = "1"
_SUBJECT: Final = "gateway "
_LOOK_S: Final = 5.0
FIRST_LOOK_S: Final = 2.0
"""Seconds until the first look: the gateways are made by then."""
TRIALS_S: Final = 40.0
"""Seconds that trying all gateways may take."""
APART_S: Final = 60.0
"""Seconds between two trials of the same gateways, unless a command asks."""
SELDOM_S: Final = 600.0
"""Seconds after which they are tried although no change was seen: of routes, and of settings of single links, none is."""


@dataclass(frozen=True)
class GatewayLook:
    """What was found: what gateways lack, and of each gateway and version of IP whether the node forwards for it."""

    concerns: Sequence[Finding] = ()
    passages: Sequence[Passage] = ()


class Concerns(Loop):
    """Looks in each tick, on a thread of its own: a router that is silent must not keep addresses from moving.

    `found`, `passages`: what gateways need of the node and lack, and whether it forwards for them, as of the last look and trial.
    """

    failing = "the needs of gateways cannot be checked: "
    first_s = FIRST_LOOK_S

    def __init__(self, here: Installation, switch: LocalSwitch, gateways: Callable[[], Sequence[Gateway]]) -> None:
        super().__init__("gateways' concerns", "checks what gateways need")
        self._here, self._switch = here, switch
        self._gateways = gateways
        self._trying = threading.Lock()
        self._trials = _Trials(here, switch)
        self.found: Sequence[Finding] = ()
        self.passages: Sequence[Passage] = ()

    def look(self) -> None:
        """Look and try now, and wait for it. For any thread."""
        with self._trying:
            self._look(due=True)

    def _round(self) -> float:
        with self._trying:
            self._look(due=False)
        return self._here.settings.tick_s

    def _look(self, *, due: bool) -> None:
        gateways = self._gateways()
        tried = self._trials.made(gateways) if due or self._trials.are_due(gateways) else self.passages
        found = date_findings((*_lacking(gateways, self._here, self._switch), *_of_passages(tried)), self.found, time.time())
        for each in found:
            if each not in self.found:
                say("warning", "a gateway lacks something", concern=sentence(each))
        self.found, self.passages = found, tried


class _Trials:
    """Trials of gateways, and what the node was like then. For one thread at a time."""

    def __init__(self, here: Installation, switch: LocalSwitch) -> None:
        self._here, self._switch = here, switch
        self._gateways: Sequence[Gateway] = ()
        self._passages: Sequence[Passage] = ()
        self._rules = 0
        self._sysctls: Mapping[str, str] = {}
        self._at = 0.0

    def are_due(self, gateways: Sequence[Gateway]) -> bool:
        """Whether others may have changed something since: of nftables and sysctls that is known, of the rest it is not."""
        if gateways != self._gateways:
            return True
        since_s = time.monotonic() - self._at
        if not gateways or since_s < APART_S:
            return False
        return (
            since_s >= SELDOM_S
            or any(each.state != "passes" for each in self._passages)
            or self._seen() != (self._rules, self._sysctls)
            or self._has_legacy_rules()
        )

    def made(self, gateways: Sequence[Gateway]) -> Sequence[Passage]:
        """Try them now. Never fails."""
        self._gateways = gateways
        self._rules, self._sysctls = self._seen()
        self._passages = try_forwarding(gateways, self._here, self._switch)
        own = CHANGES * len(self._passages)
        rules, _ = self._seen()
        if rules == self._rules + own:
            self._rules = rules  # else others have changed theirs meanwhile, or a trial was not made to its end
        self._at = time.monotonic()
        return self._passages

    def _seen(self) -> tuple[int, Mapping[str, str]]:
        settings = self._here.settings
        try:
            place = NodeNamespace(settings.switch_netns, self._here.root)
            return generation(settings.switch_netns, self._here.root), place.sysctls(_FORWARDING.values())
        except UserspaceError:
            return 0, {}

    def _has_legacy_rules(self) -> bool:
        """Of their changes nothing tells."""
        try:
            with open_switch_netns(self._here.settings.switch_netns, self._here.root) as netns:
                return any(legacy_rules.has_tables(netns, version) for version in _FORWARDING)
        except UserspaceError:
            return False


def sentence(concern: Finding) -> str:
    """What a gateway lacks, in words."""
    needed = ": ".join(filter(None, (concern.expected, concern.why)))
    return f"{concern.subject}: {concern.message}; needed: {needed}"


def list_lacks(concerns: Iterable[Finding]) -> list[tuple[str, str]]:
    """Of each the gateway's port, and what it lacks."""
    return [(each.subject.removeprefix(_SUBJECT), each.path) for each in concerns]


def look_at(gateways: Sequence[Gateway], here: Installation, switch: LocalSwitch) -> GatewayLook:
    """What is to be said of these gateways, which the node has, and whether it forwards for them. Never fails."""
    tried = try_forwarding(gateways, here, switch)
    return GatewayLook((*_lacking(gateways, here, switch), *_of_passages(tried)), tried)


def try_forwarding(gateways: Sequence[Gateway], here: Installation, switch: LocalSwitch) -> Sequence[Passage]:
    """Whether the node forwards for these gateways, by trying each. Takes a third of a second for each version of IP of one
    as a rule, and TRIALS_S at most. Never fails."""
    gateways = [each for each in gateways if each.forwards]
    if not gateways:
        return ()
    try:
        uplinks = _uplinks(gateways, NodeNamespace(here.settings.switch_netns, here.root))
    except UserspaceError as error:
        versions = [(each.port, version) for each in gateways for version in sorted({net.version for net in each.subnets})]
        return tuple(Passage(*each, "unknown", str(error)) for each in versions)
    return passages(gateways, here, switch.ports, uplinks, Deadline.after(TRIALS_S))


def _lacking(gateways: Sequence[Gateway], here: Installation, switch: LocalSwitch) -> tuple[Finding, ...]:
    """What they lack that can be read. Takes up to a second for routers that are silent."""
    if not gateways:
        return ()
    place, deadline = NodeNamespace(here.settings.switch_netns, here.root), Deadline.after(_LOOK_S)
    found: list[Finding] = []
    for look in (_sysctls, _guards, _routers):
        try:
            found += look(gateways, switch, place, deadline)
        except UserspaceError as error:
            what = "what it needs of the node"
            found.append(_concern("gateway-not-seen", gateways[0].port, what, f"not known: {error}", "a look at it"))
    return tuple(found)


def _concern(name: str, gateway: str, what: str, found: str, needed: str, why: str = "") -> Finding:
    """A finding about `what`, as a sysctl or a router, of which the gateway's port needs something else than was found."""
    said = f"{what} is {found}"
    return Finding(name, "warning", f"{_SUBJECT}{gateway}", said, path=what, why=why, expected=needed, found=found)


def _of_passages(tried: Sequence[Passage]) -> Iterator[Finding]:
    for each in tried:
        if each.state == "lost":
            what = f"forwarding of IPv{each.version}"
            needed = "a way for what comes from the gateway's link, and for the answers to it"
            yield _concern("gateway-loses", each.gateway, what, f"lost {each.reason}", needed)
        elif each.state == "unknown":
            what, why = f"whether IPv{each.version} is forwarded", "nothing shows that it is forwarded"
            yield _concern("gateway-untried", each.gateway, what, f"unknown: {each.reason}", "a look from a pod", why)


def _uplinks(gateways: Sequence[Gateway], place: NodeNamespace) -> Uplinks:
    defaults = {version: link for version, (_, link) in place.next_hops().items()}
    ways = place.ways(each.egress_gateway.via for each in gateways if each.egress_gateway)
    own = {each.port: each.egress_gateway.via for each in gateways if each.egress_gateway}
    return {
        each.port: defaults | ({ip_address(via).version: ways.get(via, "")} if (via := own.get(each.port, "")) else {})
        for each in gateways
    }


def _sysctls(every: Sequence[Gateway], _switch: LocalSwitch, place: NodeNamespace, _deadline: Deadline) -> Iterator[Finding]:
    gateways = [each for each in every if each.forwards]
    ways = place.ways(each.egress_gateway.via for each in gateways if each.egress_gateway)
    filters = {hop: ("net/ipv4/conf/all/rp_filter", f"net/ipv4/conf/{link}/rp_filter") for hop, link in ways.items()}
    values = place.sysctls([*_FORWARDING.values(), *(name for each in filters.values() for name in each)])
    for gateway in gateways:
        for version in sorted({each.version for each in gateway.subnets}):
            name = _FORWARDING[version]
            if values[name] == "0":
                why = f"the node forwards no IPv{version}"
                yield _concern("gateway-sysctl", gateway.port, _dotted(name), "0", "1", why)
        for name in filters.get(gateway.egress_gateway.via, ()) if gateway.egress_gateway else ():
            if values[name] == _STRICT:
                why = "answers come by another way than the main table's"
                yield _concern("gateway-sysctl", gateway.port, _dotted(name), "1", "0 or 2", why)


def _guards(gateways: Sequence[Gateway], switch: LocalSwitch, _place: NodeNamespace, _deadline: Deadline) -> Iterator[Finding]:
    guarded, needed = switch.count_guarded()
    if guarded < needed:
        what, why = "the count of pods' host ends with a guard", "pods of others reach the node's stack past their VLAN"
        yield _concern("gateway-guards", gateways[0].port, what, f"{guarded} of {needed}", "all", why)


def _routers(every: Sequence[Gateway], _switch: LocalSwitch, place: NodeNamespace, deadline: Deadline) -> Iterator[Finding]:
    """The routers that each gateway needs: its own, that of its egress, else the node's."""
    gateways = [each for each in every if each.forwards]
    defaults = place.next_hops()
    wanted = {each.port: _hops(each, {version: hop for version, (hop, _) in defaults.items()}) for each in gateways}
    ways = dict(defaults.values())
    ways |= place.ways(hop for hops in wanted.values() for hop in hops if hop not in ways)
    silent = place.find_silent(ways, deadline)
    for port, hops in wanted.items():
        for hop in hops:
            if hop in silent or hop not in ways:
                found, needed = "silent" if hop in ways else "no neighbour", "an answer to ARP or neighbour solicitation"
                yield _concern("gateway-router", port, f"router {hop}", found, needed)


def _hops(gateway: Gateway, defaults: Mapping[int, str]) -> list[str]:
    if gateway.next_hops:
        return list(gateway.next_hops)
    own = {ip_address(gateway.egress_gateway.via).version: gateway.egress_gateway.via} if gateway.egress_gateway else {}
    hops = dict(defaults) | own
    return [hops[version] for version in sorted({each.version for each in gateway.subnets}) if version in hops]


def _dotted(name: str) -> str:
    return name.replace("/", ".")
