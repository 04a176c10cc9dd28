"""What Kubernetes says of a connection between pods, by the words of its documentation and as slowly as they read.

It knows nothing of how policies are kept or written, so that tests can compare these with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Any


@dataclass(frozen=True)
class NaivePod:
    """A pod. `ports`: numbers by protocol ("TCP") and name."""

    namespace: str
    name: str
    labels: Mapping[str, str]
    addresses: tuple[str, ...]
    ports: Mapping[tuple[str, str], int] = field(default_factory=dict)


@dataclass(frozen=True)
class NaiveCluster:
    """`namespaces`: labels by name; `policies`: objects."""

    namespaces: Mapping[str, Mapping[str, str]]
    pods: Sequence[NaivePod]
    policies: Sequence[Mapping[str, Any]]

    def allows(self, connection: NaiveConnection) -> bool:
        """Whether both ends let the connection pass."""
        if connection.source == connection.target:
            return True
        return self._lets(connection, "Ingress") and self._lets(connection, "Egress")

    def _lets(self, connection: NaiveConnection, kind: str) -> bool:
        own, other = (connection.target, connection.source) if kind == "Ingress" else (connection.source, connection.target)
        pod = self._pod_at(own)
        if pod is None:
            return True
        isolating = [each for each in self.policies if _selects_pod(each, pod) and kind in _types(each)]
        rules = [(each, rule) for each in isolating for rule in each["spec"].get(kind.lower()) or ()]
        return not isolating or any(self._rule_lets(connection, other, kind, *each) for each in rules)

    def _rule_lets(
        self, connection: NaiveConnection, other: str, kind: str, policy: Mapping[str, Any], rule: Mapping[str, Any]
    ) -> bool:
        peers = rule.get("from" if kind == "Ingress" else "to") or ()
        namespace = policy["metadata"]["namespace"]
        is_peer = not peers or any(self._is_peer(other, each, namespace) for each in peers)
        ports = rule.get("ports") or ()
        return is_peer and (not ports or any(self._is_port(connection, each) for each in ports))

    def _is_peer(self, address: str, peer: Mapping[str, Any], namespace: str) -> bool:
        if "ipBlock" in peer:
            block, ip = peer["ipBlock"], ip_address(address)
            return ip in ip_network(block["cidr"]) and not any(ip in ip_network(each) for each in block.get("except") or ())
        pod = self._pod_at(address)
        if pod is None:
            return False
        if "namespaceSelector" in peer:
            is_there = selects(peer["namespaceSelector"], self.namespaces.get(pod.namespace, {}))
        else:
            is_there = pod.namespace == namespace
        return is_there and ("podSelector" not in peer or selects(peer["podSelector"], pod.labels))

    def _is_port(self, connection: NaiveConnection, port: Mapping[str, Any]) -> bool:
        if port.get("protocol", "TCP") != connection.protocol:
            return False
        number = port.get("port")
        if number is None:
            return True
        if isinstance(number, str):
            pod = self._pod_at(connection.target)
            return pod is not None and pod.ports.get((connection.protocol, number)) == connection.port
        return bool(number <= connection.port <= port.get("endPort", number))

    def _pod_at(self, address: str) -> NaivePod | None:
        return next((each for each in self.pods if address in each.addresses), None)


@dataclass(frozen=True)
class NaiveConnection:
    """From an address to a port of another. `protocol`: "TCP", "UDP" or "SCTP"."""

    source: str
    target: str
    protocol: str
    port: int


def isolates(cluster: NaiveCluster) -> dict[str, set[str]]:
    """The pods that some policy isolates, by direction: "ingress" and "egress"."""
    found: dict[str, set[str]] = {}
    for policy in cluster.policies:
        for pod in cluster.pods:
            if _selects_pod(policy, pod):
                for kind in _types(policy):
                    found.setdefault(kind.lower(), set()).add(pod.name)
    return found


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a selector of Kubernetes selects these labels."""
    return all(_holds(selector, labels))


def _holds(selector: Mapping[str, Any], labels: Mapping[str, str]) -> Iterator[bool]:
    for key, value in (selector.get("matchLabels") or {}).items():
        yield labels.get(key) == value
    for each in selector.get("matchExpressions") or ():
        key, values = each["key"], each.get("values")
        match each["operator"]:
            case "In":
                yield key in labels and labels[key] in values
            case "NotIn":
                yield key not in labels or labels[key] not in values
            case "Exists":
                yield key in labels
            case "DoesNotExist":
                yield key not in labels


def _selects_pod(policy: Mapping[str, Any], pod: NaivePod) -> bool:
    return bool(policy["metadata"]["namespace"] == pod.namespace) and selects(policy["spec"].get("podSelector") or {}, pod.labels)


def _types(policy: Mapping[str, Any]) -> Sequence[str]:
    spec = policy["spec"]
    said: Sequence[str] = spec.get("policyTypes") or ()
    return said or (["Ingress", "Egress"] if spec.get("egress") else ["Ingress"])
