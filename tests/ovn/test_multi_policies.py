"""MultiNetworkPolicies by real connections: they are about the networks that they name, and NetworkPolicies are not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab.ovn.attempts import Attempt, Outcome, unexpected
from tests.lab.ovn.policed_pods import PolicedPod, PolicedWorld, policed_world

WEB = 8080
PODS = {
    name: PolicedPod(on, vhost, "shop", {"role": name}, network="tenants")
    for name, on, vhost in (("server", "n1", True), ("near", "n1", False), ("far", "n2", True))
}


@pytest.fixture(scope="module")
def world() -> Iterator[PolicedWorld]:
    """Its pods' only logical ports are of the network `tenants`."""
    with policed_world(PODS, {"shop": {}}, ovn_default_network=False) as made:
        made.servers.listen(made.pods["server"].netns, (WEB,))
        with made.controlled():
            yield made


def policy(name: str, networks: str) -> dict[str, Any]:
    """Only the pod `near` may reach the pod `server`, in these networks; without any it is a NetworkPolicy."""
    api_version, kind, notes = "networking.k8s.io/v1", "NetworkPolicy", {}
    if networks:
        notes = {"k8s.v1.cni.cncf.io/policy-for": networks}
        api_version, kind = "k8s.cni.cncf.io/v1beta1", "MultiNetworkPolicy"
    peers = [{"podSelector": {"matchLabels": {"role": "near"}}}]
    spec = {"podSelector": {"matchLabels": {"role": "server"}}, "policyTypes": ["Ingress"], "ingress": [{"from": peers}]}
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": name, "namespace": "shop", "annotations": notes},
        "spec": spec,
    }


@pytest.mark.parametrize(
    ("name", "networks", "isolates"),
    [
        ("named", "tenants", True),
        ("among-others", "elsewhere, shop/tenants", True),
        ("others", "elsewhere", False),
        ("plain", "", False),
    ],
)
def test_a_policy_is_about_the_networks_that_it_names(world: PolicedWorld, name: str, networks: str, isolates: bool) -> None:
    """And about no other one; a NetworkPolicy is about the cluster's default network."""
    world.put_policies([policy(name, networks)], {"ingress": {"server"}} if isolates else {})
    server = world.pods["server"]
    expected = {
        Attempt(world.pods[source].netns, server.address(family), WEB): Outcome.ALLOWED if allowed else Outcome.TIMED_OUT
        for source, allowed in (("near", True), ("far", not isolates))
        for family in (4, 6)
    }
    assert unexpected(expected) == {}
