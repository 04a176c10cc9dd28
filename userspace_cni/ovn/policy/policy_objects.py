"""NetworkPolicies and MultiNetworkPolicies as they are read, and namespaces as far as policies follow from them. Pure.

A policy that cannot be read, or that asks for more than one may, closes: its pods are isolated in each direction that it may
mean, and nothing is let through by it. What it selects with a selector that cannot be read is its whole namespace.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import ip_network
from itertools import islice
from typing import Any, Final, Literal, TypeVar

from userspace_cni.base.errors import InvalidConfig
from userspace_cni.ovn.policy.ip_blocks import Network, count_masks, subtract
from userspace_cni.ovn.policy.label_selectors import EVERYTHING, Labels, LabelSelector, read_selector

Direction = Literal["ingress", "egress"]
INGRESS: Final[Direction] = "ingress"
EGRESS: Final[Direction] = "egress"
DIRECTIONS: Final[tuple[Direction, ...]] = (INGRESS, EGRESS)
DEFAULT: Final = ""
"""The cluster's default network among the networks of a policy."""
POLICY: Final = "NetworkPolicy"
MULTI_POLICY: Final = "MultiNetworkPolicy"
LOGGING: Final = "k8s.ovn.org/acl-logging"
POLICY_FOR: Final = "k8s.v1.cni.cncf.io/policy-for"
RULES_MAX: Final = 256
"""Rules of one policy, of both directions."""
PEERS_MAX: Final = 64
"""Selectors of peers in one policy: each is a set of addresses, which may be all pods of the cluster."""
FLOWS_MAX: Final = 4096
"""Addresses, blocks and masks of ports that the rules of one policy name: each is a flow for each of its pods' nodes."""
NETWORKS_MAX: Final = 16
_PROTOCOLS: Final = {"TCP": "tcp", "UDP": "udp", "SCTP": "sctp"}
_PORT_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?")
_SEVERITIES: Final = ("alert", "warning", "notice", "info", "debug")
_NETWORK: Final = re.compile(r"(?:([a-z0-9][-a-z0-9.]{0,252})/)?([a-z0-9][-a-z0-9.]{0,252})")
_LOGGING_MAX: Final = 1024
_FOR_MAX: Final = 16 << 10

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PolicyPorts:
    """Ports that a rule names: `first` to `last`, or those called `name`; with neither all of the protocol."""

    protocol: str
    first: int = 0
    last: int = 0
    name: str = ""


@dataclass(frozen=True)
class PodPeer:
    """Pods that a rule names. `namespaces`: of which namespaces, None for the policy's own."""

    namespaces: LabelSelector | None
    pods: LabelSelector = EVERYTHING


@dataclass(frozen=True, slots=True)
class BlockPeer:
    """Addresses that a rule names: a block without its exceptions, as blocks."""

    version: int
    blocks: tuple[str, ...]


Peer = PodPeer | BlockPeer


@dataclass(frozen=True)
class PolicyRule:
    """Who may pass by which ports. None: everyone, and any."""

    peers: tuple[Peer, ...] | None
    ports: tuple[PolicyPorts, ...] | None


@dataclass(frozen=True)
class NetworkPolicy:
    """A policy. `ingress`, `egress`: the rules where its pods are isolated in that direction, else None. `networks`: whose ports
    it is about, definitions as "namespace/name", DEFAULT for the cluster's default network. `refused`: why it closes, "" for a
    policy that is as it is written."""

    kind: str
    namespace: str
    name: str
    uid: str
    pods: LabelSelector
    ingress: tuple[PolicyRule, ...] | None
    egress: tuple[PolicyRule, ...] | None
    networks: frozenset[str] = frozenset({DEFAULT})
    refused: str = ""

    @property
    def key(self) -> str:
        """It among all policies."""
        return f"{self.kind}/{self.namespace}/{self.name}"

    def rules(self, direction: Direction) -> tuple[PolicyRule, ...] | None:
        return self.ingress if direction == INGRESS else self.egress

    @property
    def directions(self) -> tuple[Direction, ...]:
        """In which ones its pods are isolated."""
        return tuple(each for each in DIRECTIONS if self.rules(each) is not None)

    @property
    def has_ports(self) -> bool:
        """Whether some rule lets through to some ports only."""
        return any(rule.ports is not None for each in self.directions for rule in self.rules(each) or ())

    def close(self, why: str) -> NetworkPolicy:
        """It as what is not to let anything through."""
        closed: tuple[tuple[PolicyRule, ...] | None, ...]
        closed = tuple(None if self.rules(each) is None else () for each in DIRECTIONS)
        return replace(self, ingress=closed[0], egress=closed[1], refused=why)


@dataclass(frozen=True)
class PolicyNamespace:
    """A namespace. `deny`, `allow`: with which severity OVN logs what policies drop and let through, "" for not at all."""

    name: str
    labels: Labels = field(default_factory=dict)
    deny: str = ""
    allow: str = ""


def keep_namespace(thing: Mapping[str, Any]) -> PolicyNamespace:
    """What is kept of a Namespace. Raises KeyError, TypeError or AttributeError for what is no object."""
    metadata = thing["metadata"]
    labels = {str(key): str(value) for key, value in (metadata.get("labels") or {}).items()}
    said = (metadata.get("annotations") or {}).get(LOGGING)
    logged: object = None
    if isinstance(said, str) and len(said) <= _LOGGING_MAX:
        try:
            logged = json.loads(said)
        except (ValueError, RecursionError):
            logged = None
    found = logged if isinstance(logged, dict) else {}
    deny, allow = (each if each in _SEVERITIES else "" for each in (found.get("deny"), found.get("allow")))
    return PolicyNamespace(str(metadata["name"]), labels, deny, allow)


def keep_policy(thing: Mapping[str, Any]) -> NetworkPolicy:
    """What is kept of a NetworkPolicy. Raises KeyError, TypeError or AttributeError for what is no object."""
    return _read_policy(thing, POLICY, frozenset({DEFAULT}))


def keep_multi_policy(thing: Mapping[str, Any]) -> NetworkPolicy:
    """As `keep_policy`, of a MultiNetworkPolicy: it is about the networks that its annotation names, of none without it."""
    metadata = thing["metadata"]
    said = (metadata.get("annotations") or {}).get(POLICY_FOR)
    networks: set[str] = set()
    why = ""
    named = said[:_FOR_MAX].split(",") if isinstance(said, str) else []
    if len(named) > NETWORKS_MAX or len(said or "") > _FOR_MAX:
        why, named = f"it names more than {NETWORKS_MAX} networks", named[:-1][:NETWORKS_MAX]
    for each in map(str.strip, named):
        if match := _NETWORK.fullmatch(each):
            networks.add(f"{match[1] or metadata['namespace']}/{match[2]}")
        elif each:
            why = why or f"{each[:40]!r} in {POLICY_FOR} is no network, as `name` or `namespace/name`"
    policy = _read_policy(thing, MULTI_POLICY, frozenset(networks))
    return policy.close(why) if why else policy


def _read_policy(thing: Mapping[str, Any], kind: str, networks: frozenset[str]) -> NetworkPolicy:
    metadata = thing["metadata"]
    said = thing.get("spec")
    spec = said if isinstance(said, Mapping) else {}
    ingress, egress, doubt = _read_types(spec)
    pods, refused = EVERYTHING, ""
    try:
        pods = read_selector(spec.get("podSelector") or {})
    except InvalidConfig as error:
        refused = str(error)
    closed: tuple[PolicyRule, ...] = ()
    policy = NetworkPolicy(
        kind,
        str(metadata["namespace"]),
        str(metadata["name"]),
        str(metadata.get("uid") or ""),
        pods,
        closed if ingress else None,
        closed if egress else None,
        networks,
        refused or doubt,
    )
    if policy.refused:
        return policy
    try:
        masks = _MaskCount()
        found = {each: _read_rules(spec.get(each), _FAR[each], masks) for each in policy.directions}
        _require_bounds([rule for rules in found.values() for rule in rules])
    except InvalidConfig as error:
        return policy.close(str(error))
    return replace(policy, ingress=found.get(INGRESS), egress=found.get(EGRESS))


_FAR: Final[Mapping[Direction, str]] = {INGRESS: "from", EGRESS: "to"}


def _read_types(spec: Mapping[str, Any]) -> tuple[bool, bool, str]:
    """Whether pods are isolated for ingress and egress, and why that cannot be known."""
    said = spec.get("policyTypes")
    if said is None or said == []:
        return True, bool(spec.get(EGRESS)), ""
    if not isinstance(said, list) or not all(each in ("Ingress", "Egress") for each in said[: len(DIRECTIONS) + 1]):
        return True, True, "its policyTypes are not Ingress and Egress"
    return "Ingress" in said, "Egress" in said, ""


class _MaskCount:
    """Counts what the blocks of a policy take while it is read: of an object of 1.5 MB four million masks could be made."""

    def __init__(self) -> None:
        self.left = FLOWS_MAX

    def take(self, number: int) -> None:
        """Raises InvalidConfig for more than a policy may have."""
        self.left -= number
        if self.left < 0:
            raise InvalidConfig(f"its blocks take at least {FLOWS_MAX - self.left} masks, and may {FLOWS_MAX}")


def _read_rules(said: object, far: str, masks: _MaskCount) -> tuple[PolicyRule, ...]:
    rules = _list(said, "rules", RULES_MAX)
    found = []
    for each in rules:
        fields = _fields(each, "a rule", (far, "ports"))
        peers = [_read_peer(peer, masks) for peer in _list(fields.get(far), f"entries in {far}", FLOWS_MAX)]
        ports = [_read_ports(port) for port in _list(fields.get("ports"), "ports", FLOWS_MAX)]
        # no list and an empty one are the same: everyone
        found.append(PolicyRule(tuple(dict.fromkeys(peers)) or None, tuple(dict.fromkeys(ports)) or None))
    return tuple(found)


def _read_peer(said: object, masks: _MaskCount) -> PodPeer | BlockPeer:
    fields = _fields(said, "a peer", ("podSelector", "namespaceSelector", "ipBlock"))
    block, pods, namespaces = (fields.get(each) for each in ("ipBlock", "podSelector", "namespaceSelector"))
    if block is not None and (pods is not None or namespaces is not None):
        raise InvalidConfig("a peer has ipBlock beside a selector")
    if block is not None:
        return _read_block(block, masks)
    if pods is None and namespaces is None:
        raise InvalidConfig("a peer has neither a selector nor ipBlock")
    chosen = EVERYTHING if pods is None else read_selector(pods)
    return PodPeer(None if namespaces is None else read_selector(namespaces), chosen)


def _read_block(said: object, masks: _MaskCount) -> BlockPeer:
    fields = _fields(said, "an ipBlock", ("cidr", "except"))
    block = _network(fields.get("cidr"))
    excepted = [_network(each) for each in _list(fields.get("except"), "exceptions", FLOWS_MAX)]
    if any(each.version != block.version for each in excepted):
        raise InvalidConfig(f"an exception of {block} is of another version of IP")
    left = list(islice(subtract(block, excepted), masks.left + 1))  # type: ignore[type-var]
    masks.take(len(left))
    return BlockPeer(block.version, tuple(map(str, left)))


def _read_ports(said: object) -> PolicyPorts:
    fields = _fields(said, "a port", ("protocol", "port", "endPort"))
    spoken = fields.get("protocol")
    protocol = _PROTOCOLS.get("TCP" if spoken is None else str(spoken)[:8])
    first, last = fields.get("port"), fields.get("endPort")
    if protocol is None:
        raise InvalidConfig(f"a port's protocol is {str(spoken)[:40]!r}, and not TCP, UDP or SCTP")
    if first is None and last is None:
        return PolicyPorts(protocol)
    if isinstance(first, str) and last is None and _PORT_NAME.fullmatch(first) and not first.isdigit():
        return PolicyPorts(protocol, name=first)
    begin, end = _read_number(first), _read_number(first if last is None else last)
    if not 0 < begin <= end:
        raise InvalidConfig(f"a port is {str(first)[:40]!r}, with endPort {str(last)[:40]!r}")
    return PolicyPorts(protocol, begin, end)


def _read_number(said: object) -> int:
    """The number of a port, 0 for what is none."""
    return said if isinstance(said, int) and not isinstance(said, bool) and 0 < said < 1 << 16 else 0


def _network(said: object) -> Network:
    if not isinstance(said, str) or len(said) > 64:
        raise InvalidConfig("a cidr is no text, or longer than any can be")
    if "%" in said:  # Python keeps any text behind it as the zone of an address, and it would be written into OVN's matches
        raise InvalidConfig(f"{said!r} is no block of addresses")
    try:
        return ip_network(said, strict=False)
    except ValueError as error:
        raise InvalidConfig(f"{said!r} is no block of addresses") from error


def _require_bounds(rules: Sequence[PolicyRule]) -> None:
    """Raises InvalidConfig for more than a policy may have: before OVN gets it, on each node of its pods."""
    if len(rules) > RULES_MAX:
        raise InvalidConfig(f"it has more than {RULES_MAX} rules")
    selected = {peer for rule in rules for peer in rule.peers or () if isinstance(peer, PodPeer)}
    if len(selected) > PEERS_MAX:
        raise InvalidConfig(f"its rules select peers in {len(selected)} different ways, and may in {PEERS_MAX}")
    blocks = sum(len(peer.blocks) for rule in rules for peer in rule.peers or () if isinstance(peer, BlockPeer))
    masks = sum(count_masks(each.first, each.last) for rule in rules for each in rule.ports or ())
    names = sum(_count_named(rule) for rule in rules)
    if names > PEERS_MAX:
        raise InvalidConfig(f"its rules ask for ports by names of {names} choices of pods, and may of {PEERS_MAX}")
    if blocks + masks > FLOWS_MAX:
        raise InvalidConfig(f"its blocks and ports take {blocks + masks} masks, and may {FLOWS_MAX}")


def _count_named(rule: PolicyRule) -> int:
    selectors = sum(1 for each in rule.peers or () if isinstance(each, PodPeer))
    return sum(1 for each in rule.ports or () if each.name) * max(1, selectors)


def _list(said: object, what: str, most: int) -> list[Any]:
    if said is None:
        return []
    if not isinstance(said, list):
        raise InvalidConfig(f"{what} are no list")
    if len(said) > most:
        raise InvalidConfig(f"there are more than {most} {what}")
    return said


def _fields(said: object, what: str, known: tuple[str, ...]) -> Mapping[str, Any]:
    """The fields of an object. One that is not known may restrict what is let through: so it is not left out."""
    if not isinstance(said, Mapping):
        raise InvalidConfig(f"{what} is no object")
    if unknown := said.keys() - set(known):
        raise InvalidConfig(f"{what} has a key that is not known: {min(map(str, unknown))[:40]!r}")
    return said
