"""The ACLs of policies, and what the rows of policies are called. Pure.

OVN takes a match that it cannot parse: then only each node's ovn-controller says so in its log, and the ACL has no effect. So a
match is made here of numbers, blocks that were parsed, and names that were made here, and of nothing that an author has written.

Egress is judged after a load balancer has chosen an endpoint (`apply-after-lb`), as ingress is: a policy speaks of pods, and not
of addresses of Services.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from userspace_cni.ovn.desired_rows import DesiredRow, MemberSet, RowKey, Within
from userspace_cni.ovn.northbound_tables import ACL, METER, METER_BAND, PORT_GROUP
from userspace_cni.ovn.policy.policy_objects import (
    EGRESS,
    INGRESS,
    BlockPeer,
    Direction,
    NetworkPolicy,
    Peer,
    PolicyNamespace,
    PolicyPorts,
    PolicyRule,
)
from userspace_cni.ovn.topology import HAIRPIN_SOURCES
from userspace_cni.ovsdb.columns import Columns

NODES_GROUP: Final = "policy_nodes"
"""The group of the nodes' own ports."""
ISOLATED: Final = "policy_isolated_"
"""How the groups begin whose ports are isolated. In the order of names, in which rows are written, those of policies come before
them, and the sets of their peers first: what a new policy lets through is not cut for a moment."""
METER_NAME: Final = "userspace_policies"
"""Of what OVN logs of policies."""
METER_RATE: Final = 20
"""Lines a second, of each node."""
_DENIED: Final = 1000
_ALLOWED: Final = 1001
_NAME_MAX: Final = 63
_NEIGHBOURS: Final = "(nd || nd_rs || nd_ra || mldv1 || mldv2)"
_DHCP: Final = (
    "((ip4.dst == 255.255.255.255 && udp.src == 68 && udp.dst == 67)"
    " || (ip6.dst == ff02::1:2 && udp.src == 546 && udp.dst == 547))"
)
_STAGES: Final[Mapping[Direction, str]] = {INGRESS: "to-lport", EGRESS: "from-lport"}
_NEAR: Final[Mapping[Direction, str]] = {INGRESS: "outport", EGRESS: "inport"}

SetsOf = Callable[[Direction, Peer | None, PolicyPorts | None], Mapping[int, str]]
"""Takes the direction of a rule; a peer, None for every pod or, of ingress, for the policy's own; and ports with a name, None for
any port. The names of the address sets without their family, by port number, 0 for any port."""


@dataclass(frozen=True, slots=True)
class PolicyAcl:
    """An ACL. `rule`: what of its group it is, as "ingress 1"; `severity`: with which OVN logs it, "" for not at all."""

    direction: Direction
    priority: int
    match: str
    action: str
    name: str
    rule: str
    severity: str = ""

    @property
    def columns(self) -> Columns:
        """All columns that it has, but for the marks."""
        return {
            "direction": _STAGES[self.direction],
            "priority": self.priority,
            "match": self.match,
            "action": self.action,
            "name": [self.name],
            "log": bool(self.severity),
            "severity": [self.severity] if self.severity else [],
            "meter": [METER_NAME] if self.severity else [],
            "options": {"apply-after-lb": "true" if self.direction == EGRESS else None},
            "external_ids": {"rule": self.rule},
        }


@dataclass(frozen=True)
class GroupContent:
    """What a port group of ours has beside its ports. `external_ids`: whose it is."""

    acls: tuple[PolicyAcl, ...] = ()
    external_ids: Mapping[str, str] = field(default_factory=dict)

    def list_rows(self, group: str, ports: MemberSet) -> tuple[DesiredRow, ...]:
        """The rows of the group called so, with these ports."""
        key, counts = RowKey(PORT_GROUP, group), Counter[str]()
        rows = [DesiredRow(key, {"ports": ports, "external_ids": dict(self.external_ids)})]
        for acl in self.acls:
            called = f"{group}/{acl.rule}/{counts[acl.rule]}"
            counts[acl.rule] += 1
            rows.append(DesiredRow(RowKey(ACL, called), acl.columns, Within(key, "acls")))
        return tuple(rows)


def meter_rows() -> tuple[DesiredRow, ...]:
    """What keeps OVN's log of policies from filling a disk."""
    key = RowKey(METER, METER_NAME)
    band = {"action": "drop", "rate": METER_RATE, "burst_size": 0}
    return (
        DesiredRow(key, {"unit": "pktps", "fair": [True]}),
        DesiredRow(RowKey(METER_BAND, METER_NAME), band, Within(key, "bands")),
    )


def policy_group(policy: NetworkPolicy) -> str:
    """The port group of a policy: the ports of the pods that it selects."""
    return f"policy_{_digest(policy.key)}"


def deny_group(namespace: str, direction: Direction) -> str:
    """The port group of a namespace's ports that some policy isolates in this direction."""
    return f"{ISOLATED}{direction}_{_digest(namespace)}"


def set_name(said: str, number: int = 0) -> str:
    """The address sets of a choice of pods, which `said` tells from all others; of those with this port."""
    return f"peers_{_digest(said)}{f'_p{number}' if number else ''}"


def with_family(name: str, version: int) -> str:
    return f"{name}_ip{version}"


def policy_content(
    policy: NetworkPolicy, namespace: PolicyNamespace, sets: SetsOf, families: Sequence[int], *, fragments: bool
) -> GroupContent:
    """The group of a policy. `families`: the versions of IP that pods can have. `fragments`: whether fragments of requests pass
    to every port, where a rule with ports lets their sender through: OVN does not know the ports of fragments."""
    group = policy_group(policy)
    acls: dict[tuple[Direction, str], PolicyAcl] = {}
    for direction in policy.directions:
        for number, rule in enumerate(policy.rules(direction) or ()):
            called = f"{direction} {number}"
            matches = list(_list_matches(rule, direction, sets, families))
            if fragments and rule.ports is not None and (where := _far(rule, direction, sets, families)):
                matches.append(f"{where} && ip.is_frag")
            for match in matches:
                whole = f"{_NEAR[direction]} == @{group} && {match}"
                name = _name(f"{policy.namespace}/{policy.name}", called)
                acl = PolicyAcl(direction, _ALLOWED, whole, "allow-related", name, called, severity=namespace.allow)
                acls.setdefault((direction, whole), acl)
    ids = {"kind": policy.kind, "namespace": policy.namespace, "policy": policy.name}
    return GroupContent(tuple(acls.values()), ids)


def deny_content(namespace: PolicyNamespace, direction: Direction) -> GroupContent:
    """The group of the ports of a namespace that are isolated: what no policy lets through is dropped.

    Neighbour discovery is none of a policy's: without it there is no IPv6 at all. Nor is a pod's way to itself by a Service. One
    ACL at least is `allow-related`: without any such OVN tracks no connections of the switch, and would drop answers, too.
    """
    near = f"{_NEAR[direction]} == @{deny_group(namespace.name, direction)}"

    def allow(match: str, what: str, action: str = "allow") -> PolicyAcl:
        return PolicyAcl(direction, _ALLOWED, f"{near} && {match}", action, _name(namespace.name, what), f"{direction} {what}")

    dropped = PolicyAcl(
        direction,
        _DENIED,
        f"{near} && ip",
        "drop",
        _name(namespace.name, f"{direction} isolated"),
        f"{direction} isolated",
        severity=namespace.deny,
    )
    acls = [dropped, allow(_NEIGHBOURS, "neighbours")]
    if direction == INGRESS:
        itself = " || ".join(f"ip{6 if ':' in each else 4}.src == {each}" for each in HAIRPIN_SOURCES)
        acls.append(allow(f"({itself})", "itself", "allow-related"))
    else:
        acls.append(allow(_DHCP, "dhcp", "allow-related"))
    return GroupContent(tuple(acls), {"namespace": namespace.name, "isolated": direction})


def nodes_content() -> GroupContent:
    """The group of the nodes' own ports: a node reaches the pods that it has, as the kubelet's probes do, whatever policies say.

    From another node's port a packet comes through a router, so this match does not let it in.
    """
    match = f"inport == @{NODES_GROUP} && ip"
    return GroupContent((PolicyAcl(INGRESS, _ALLOWED, match, "allow", "own-node", "ingress node"),))


def _list_matches(rule: PolicyRule, direction: Direction, sets: SetsOf, families: Sequence[int]) -> Iterator[str]:
    """What a rule lets through, as matches of which any may hold."""
    plain = None if rule.ports is None else tuple(each for each in rule.ports if not each.name)
    if plain is None or plain:
        where = _far(rule, direction, sets, families)
        if where:
            yield f"{where}{_transport(plain)}"
    for ports in rule.ports or ():
        if ports.name:
            yield from _list_named(rule, direction, ports, sets, families)


def _list_named(
    rule: PolicyRule, direction: Direction, ports: PolicyPorts, sets: SetsOf, families: Sequence[int]
) -> Iterator[str]:
    """What a rule lets through to ports with a name, of which each pod may have another number."""
    if direction == INGRESS:
        where = _far(rule, direction, sets, families)
        for number, name in sets(direction, None, ports).items():
            targets = _join(_families(families, "dst", {each: [f"${with_family(name, each)}"] for each in families}))
            if where and targets:
                yield f"{where} && {targets}{_transport((PolicyPorts(ports.protocol, number, number),))}"
        return
    peers: Sequence[Peer | None] = [None] if rule.peers is None else rule.peers
    found: dict[int, list[str]] = {}
    for peer in peers:
        for number, name in sets(direction, peer, ports).items():
            found.setdefault(number, []).append(name)
    for number, names in sorted(found.items()):
        sides = {each: [f"${with_family(name, each)}" for name in names] for each in families}
        if targets := _join(_families(families, "dst", sides)):
            yield f"{targets}{_transport((PolicyPorts(ports.protocol, number, number),))}"


def _far(rule: PolicyRule, direction: Direction, sets: SetsOf, families: Sequence[int]) -> str:
    """What says who the other end is; "" for no one."""
    if rule.peers is None:
        return "ip"
    sides: dict[int, list[str]] = {4: [], 6: []}
    for peer in rule.peers:
        if isinstance(peer, BlockPeer):
            sides[peer.version] += peer.blocks
        elif name := sets(direction, peer, None).get(0):
            for version in families:
                sides[version].append(f"${with_family(name, version)}")
    return _join(_families((4, 6), "src" if direction == INGRESS else "dst", sides))


def _families(versions: Sequence[int], side: str, found: Mapping[int, Sequence[str]]) -> list[str]:
    """A match for each version of IP that has something."""
    matches = []
    for version in versions:
        said = found[version]
        if any(each.endswith("/0") for each in said):
            matches.append(f"ip{version}")
        elif said:
            matches.append(f"ip{version}.{side} == {{{', '.join(said)}}}")
    return matches


def _join(matches: Sequence[str]) -> str:
    return f"({' || '.join(matches)})" if len(matches) > 1 else "".join(matches)


def _transport(ports: Sequence[PolicyPorts] | None) -> str:
    """What says the ports, to be put behind a match; "" for any of any protocol."""
    if ports is None:
        return ""
    matches = []
    for protocol in dict.fromkeys(each.protocol for each in ports):
        of = [each for each in ports if each.protocol == protocol]
        if any(not each.first for each in of):
            matches.append(protocol)
            continue
        single = sorted({each.first for each in of if each.first == each.last})
        ranges = sorted({(each.first, each.last) for each in of if each.first != each.last})
        if single:
            matches.append(f"{protocol}.dst == {{{', '.join(map(str, single))}}}")
        matches += [f"{first} <= {protocol}.dst <= {last}" for first, last in ranges]
    return f" && {_join(matches)}"


def _name(whose: str, what: str) -> str:
    """How an ACL is called, in logs, too. It is cut where it is too long; `external_ids` says all of it."""
    name = f"{whose}/{what.replace(' ', '/')}"
    if len(name) <= _NAME_MAX:
        return name
    end = f"~{_digest(whose)[:6]}/{what.replace(' ', '/')}"
    return f"{name[: _NAME_MAX - len(end)]}{end}"


def _digest(said: str) -> str:
    return hashlib.sha256(said.encode()).hexdigest()[:20]
