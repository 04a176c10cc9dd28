"""What is kept of policies, and what closes one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import IPv4Address, IPv4Network, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from userspace_cni.ovn.policy import policy_objects
from userspace_cni.ovn.policy.ip_blocks import count_masks, subtract
from userspace_cni.ovn.policy.label_selectors import EVERYTHING
from userspace_cni.ovn.policy.policy_objects import (
    FLOWS_MAX,
    NETWORKS_MAX,
    PEERS_MAX,
    RULES_MAX,
    NetworkPolicy,
    keep_multi_policy,
    keep_namespace,
    keep_policy,
)

BLOCK = st.builds(
    lambda number, length: ip_network((number, length), strict=False), st.integers(0, 2**32 - 1), st.integers(16, 32)
)


def kept(spec: Any, **notes: str) -> NetworkPolicy:
    return keep_policy({"metadata": {"namespace": "n", "name": "p", "uid": "u", "annotations": notes}, "spec": spec})


def peers(*said: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"podSelector": {"matchLabels": {"app": "web"}}, "ingress": [{"from": list(said)}]}


def ported(*said: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"podSelector": {}, "ingress": [{"ports": list(said)}]}


@pytest.mark.parametrize(
    ("spec", "ingress", "egress"),
    [
        ({}, True, False),
        ({"ingress": []}, True, False),
        ({"egress": []}, True, False),
        ({"egress": [{}]}, True, True),
        ({"policyTypes": ["Egress"]}, False, True),
        ({"policyTypes": ["Ingress", "Egress"]}, True, True),
        ({"policyTypes": ["Ingres"]}, True, True),
        ({"policyTypes": "Egress"}, True, True),
        ("nonsense", True, False),
    ],
)
def test_directions(spec: Any, ingress: bool, egress: bool) -> None:
    """As Kubernetes has them by default; both where they cannot be read."""
    policy = kept(spec)
    assert (policy.ingress is not None, policy.egress is not None) == (ingress, egress)


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (peers({}), "neither a selector nor ipBlock"),
        (peers({"podSelector": {}, "ipBlock": {"cidr": "10.0.0.0/8"}}), "ipBlock beside a selector"),
        (peers({"fqdn": "example.org"}), "a key that is not known: 'fqdn'"),
        (peers({"podSelector": {"matchFields": {}}}), "a key that is not known: 'matchFields'"),
        (peers({"podSelector": {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}}), "'Gt'"),
        (peers({"podSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}), "In has 0 values"),
        (peers({"ipBlock": {"cidr": "10.0.0.0/33"}}), "'10.0.0.0/33' is no block"),
        (peers({"ipBlock": {"cidr": "10.0.0.0/8 || ip"}}), "is no block"),
        (peers({"ipBlock": {"cidr": "::%} || ip || ip6.src == {::1/128"}}), "is no block"),
        (peers({"ipBlock": {"cidr": "::/0", "except": ["fe80::%eth0/128"]}}), "is no block"),
        (peers({"ipBlock": {"cidr": "10.0.0.0/8", "except": ["fd00::/64"]}}), "another version"),
        (ported({"port": 0}), "a port is '0'"),
        (ported({"port": 80, "endPort": 79}), "with endPort '79'"),
        (ported({"port": True}), "a port is 'True'"),
        (ported({"port": "80"}), "a port is '80'"),
        (ported({"port": "web || ip"}), "a port is 'web || ip'"),
        (ported({"port": "web", "endPort": 90}), "with endPort '90'"),
        (ported({"endPort": 90}), "a port is 'None'"),
        (ported({"protocol": "ICMP"}), "'ICMP'"),
        ({"podSelector": {}, "ingress": {}}, "are no list"),
        ({"podSelector": {}, "ingress": ["x"]}, "a rule is no object"),
        ({"podSelector": {}, "ingress": [{"from": [], "to": []}]}, "a key that is not known: 'to'"),
        ({"podSelector": {}, "ingress": [{}] * (RULES_MAX + 1)}, "more than 256 rules"),
        (peers(*({"podSelector": {"matchLabels": {"a": str(n)}}} for n in range(PEERS_MAX + 1))), "in 65 different ways"),
        (ported(*({"port": n} for n in range(1, FLOWS_MAX + 2))), "more than 4096 ports"),
        (ported(*({"port": 1, "endPort": n} for n in range(4000, 8000))), "masks, and may 4096"),
        (peers(*({"ipBlock": {"cidr": "::/0", "except": [f"2001:db8::{n:x}/128"]}} for n in range(40))), "masks, and may 4096"),
    ],
)
def test_what_cannot_be_read_lets_nothing_through(spec: Any, why: str) -> None:
    """It isolates the pods that it selects, and says why."""
    policy = kept(spec)
    assert why in policy.refused
    assert policy.ingress == ()
    assert policy.pods.selects({"app": "web"})


def test_a_selector_that_cannot_be_read_selects_all_pods() -> None:
    """So no pod that its author meant stays open."""
    policy = kept({"podSelector": {"matchLabels": ["app"]}, "ingress": [{}]})
    assert (policy.pods, policy.ingress) == (EVERYTHING, ())
    assert "is no object" in policy.refused


@given(BLOCK, st.lists(BLOCK, max_size=6), st.integers(0, 2**32 - 1))
def test_what_is_left_of_a_block(block: Any, excepted: list[Any], number: int) -> None:
    """Each address of it that is in no exception, once, in no more blocks than the exceptions have bits."""
    left = list(subtract(block, excepted))
    address = IPv4Address(block.network_address + number % block.num_addresses)
    assert sum(address in each for each in left) == (not any(address in each for each in excepted))
    assert len(left) <= max(1, 32 * len(excepted))


def test_many_exceptions_take_linear_time() -> None:
    """Two thousand scattered addresses of a block leave a sum of blocks, and no product."""
    excepted = [IPv4Network(f"10.{n % 250}.{n // 250}.1/32") for n in range(2000)]
    left = list(subtract(IPv4Network("10.0.0.0/8"), excepted))
    assert sum(each.num_addresses for each in left) == 2**24 - 2000
    assert len(left) <= 24 * 2000


def test_no_more_is_made_of_blocks_than_a_policy_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """The API server takes an object of 1.5 MB, of whose blocks four million masks could be made, one block after the other."""
    made = []

    def subtract_noted(*asked: Any) -> Iterator[Any]:
        for each in subtract(*asked):
            made.append(each)
            yield each

    monkeypatch.setattr(policy_objects, "subtract", subtract_noted)
    blocks = [{"cidr": "::/0", "except": [f"{n:x}:{m:x}::/128" for m in range(8)]} for n in range(1, 500)]
    rules = [{"ports": [{"port": 80}], "to": [{"ipBlock": each}]} for each in blocks[:200]]
    policy = kept({**peers(*({"ipBlock": each} for each in blocks)), "egress": rules, "policyTypes": ["Ingress", "Egress"]})
    assert (policy.ingress, policy.egress) == ((), ())
    assert "masks, and may 4096" in policy.refused
    assert len(made) == FLOWS_MAX + 1


@given(st.integers(1, 65535), st.integers(1, 65535))
def test_masks_of_a_range(one: int, other: int) -> None:
    """As many as there are ones where its ends differ, at most."""
    first, last = min(one, other), max(one, other)
    assert 1 <= count_masks(first, last) <= 30
    assert count_masks(first, first) == 1


@pytest.mark.parametrize(
    ("said", "deny", "allow"),
    [
        ('{"deny": "alert", "allow": "info"}', "alert", "info"),
        ('{"deny": "", "allow": "loud"}', "", ""),
        ('{"deny": ["alert"]}', "", ""),
        ("[" * 900, "", ""),
        (7, "", ""),
        ("x" * 5000, "", ""),
    ],
)
def test_what_a_namespace_has_logged(said: Any, deny: str, allow: str) -> None:
    """Severities that OVN has; anything else is none."""
    found = keep_namespace({"metadata": {"name": "n", "annotations": {"k8s.ovn.org/acl-logging": said}}})
    assert (found.deny, found.allow) == (deny, allow)


def test_the_networks_of_a_multi_policy() -> None:
    """Those that its annotation names, of its own namespace where it says none; none without it, and no more than may be."""

    def networks(said: Any) -> NetworkPolicy:
        about = {"namespace": "n", "name": "p", "annotations": {"k8s.v1.cni.cncf.io/policy-for": said}}
        return keep_multi_policy({"metadata": about, "spec": {"podSelector": {}, "ingress": [{}]}})

    assert networks("red, other/blue").networks == {"n/red", "other/blue"}
    assert networks(None).networks == networks("!").networks == frozenset()
    assert networks(None).refused == networks("red,").refused == ""
    for said in ("red, blue@net1", "red, Blue", "red, " + "b" * 20_000, "red" + ", other/blue/green"):
        closed = networks(said)
        assert closed.networks == {"n/red"}
        assert closed.ingress == ()
        assert "no network" in closed.refused or "more than 16" in closed.refused
    many = networks(",".join(f"net{number}" for number in range(NETWORKS_MAX + 1)))
    assert ("names more than" in many.refused, many.ingress) == (True, ())
