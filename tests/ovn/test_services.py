"""Pods of two nodes reach Services that the controller has written into OVN: with real connections, whatever changes or dies."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, Final

import pytest

from tests.lab.kube.services import service
from tests.lab.ovn.attempts import LARGE, SMALL, Attempt, Outcome, tried, unexpected
from tests.lab.ovn.central import version
from tests.lab.ovn.service_world import OTHER_PORT, PORT, Connecting, ServiceWorld, service_world
from tests.lab.ovn.two_chassis import LAST_USE, LONGEST_GAP
from tests.lab.switch.switch import wait_until
from userspace_cni.ovn.topology import HAIRPIN_SOURCES

PODS: Final = {"vhost-a": ("n1", True), "veth-a": ("n1", False), "vhost-b": ("n2", True), "veth-b": ("n2", False)}
PROTOCOLS: Final = ("tcp", "udp")
PORTS: Final = [
    {"name": "web", "port": 80, "protocol": "TCP", "targetPort": "web"},
    {"name": "dns", "port": 80, "protocol": "UDP", "targetPort": PORT},
]
"""Of each Service: one port for both protocols."""
TARGETS: Final = [{"name": "web", "port": PORT, "protocol": "TCP"}, {"name": "dns", "port": PORT, "protocol": "UDP"}]
LARGE_REQUESTS: Final = "26.03"
"""The version of OVN, of those that are tried, from which datagrams to Services may be larger than the MTU."""
ITSELF: Final = " || ".join(f"ip{6 if ':' in each else 4}.src == {each}" for each in HAIRPIN_SOURCES)
Record = Callable[[str, object], None]


@pytest.fixture(scope="module")
def world() -> Iterator[ServiceWorld]:
    with service_world(PODS) as made:
        yield made


def vip(number: int, family: int) -> str:
    return f"10.96.0.{number}" if family == 4 else f"fd10::{number}"


def make(world: ServiceWorld, name: str, number: int, *pods: str, ports: Any = TARGETS, **spec: Any) -> None:
    """A Service of both families with these endpoints, which all chassis have."""
    world.put(service(name, vip(number, 4), vip(number, 6), ports=PORTS, **spec))
    world.put_endpoints(name, *pods, ports=ports)
    parts = [world.pods[each].address(family) for each in pods for family in (4, 6)]
    for protocol in PROTOCOLS:
        world.await_vips(f"default/{name}_{protocol}", vip(number, 4), vip(number, 6), *parts)


def attempts(world: ServiceWorld, client: str, number: int, times: int = 1, protocol: str = "tcp") -> list[Attempt]:
    """So many connections of a pod to the Service, by both families."""
    return [Attempt(world.pods[client].netns, vip(number, family), 80, protocol) for family in (4, 6) for _ in range(times)]


def test_each_pod_reaches_each_endpoint(world: ServiceWorld) -> None:
    """Vhost-user and veth pods, on one node and across nodes, over TCP and UDP, by both families, and each pod itself."""
    for number, name in enumerate(PODS, 10):
        make(world, f"to-{name}", number, name)
    expected = {
        Attempt(world.pods[client].netns, vip(number, family), 80, protocol): endpoint
        for (number, endpoint), client, family, protocol in product(enumerate(PODS, 10), PODS, (4, 6), PROTOCOLS)
    }
    assert unexpected(dict.fromkeys(expected, Outcome.ALLOWED)) == {}
    found = world.answering([each.again() for each in expected])
    assert found == list(expected.values())


@pytest.mark.parametrize("name", ["vhost-a", "veth-b"])
def test_an_isolated_pod_reaches_itself(world: ServiceWorld, name: str) -> None:
    """A rule on the two addresses from which it does lets it, and no other pod, as NetworkPolicies have it."""
    number = 15 + sorted(PODS).index(name)
    make(world, f"own-{name}", number, name)
    rules = (("1000", "ip", "drop"), ("1001", "(nd || nd_rs || nd_ra)", "allow"), ("1001", f"({ITSELF})", "allow-related"))
    words = [
        ("--", "acl-add", "alone", "to-lport", priority, f"outport == @alone && {match}", action)
        for priority, match, action in rules
    ]
    world.ovn.nbctl("--wait=hv", "pg-add", "alone", name, *(word for each in words for word in each))
    world.ovn.revalidate()
    expected = {
        each: Outcome.ALLOWED if client == name else Outcome.TIMED_OUT
        for client, protocol in product((name, "veth-a"), PROTOCOLS)
        for each in attempts(world, client, number, 1, protocol)
    }
    found = unexpected(expected)
    world.ovn.nbctl("--wait=hv", "pg-del", "alone")
    assert found == {}


def test_connections_are_spread(world: ServiceWorld) -> None:
    """Over endpoints of both nodes; they may have other numbers of the port."""
    make(world, "spread", 20, "vhost-a", "veth-b")
    found = world.answering(attempts(world, "vhost-b", 20, 20))
    assert set(found) == {"vhost-a", "veth-b"}
    make(world, "spread", 20, "vhost-a", "veth-b", ports=[{**each, "port": OTHER_PORT} for each in TARGETS])
    world.await_vips("default/spread_tcp", f"{world.pods['veth-b'].ipv4}:{OTHER_PORT}")
    assert set(world.answering(attempts(world, "veth-a", 20, 20))) == {"vhost-a", "veth-b"}


@pytest.mark.parametrize("client", ["vhost-a", "veth-a"])
def test_a_client_keeps_its_endpoint(world: ServiceWorld, client: str) -> None:
    """With the session affinity of its address, from its first connection on, by each family."""
    make(world, "sticky", 30, "vhost-a", "veth-a", "vhost-b", "veth-b", sessionAffinity="ClientIP")
    for family in (4, 6):
        found = [world.answering([Attempt(world.pods[client].netns, vip(30, family), 80)])[0] for _ in range(20)]
        assert len(set(found)) == 1


@pytest.mark.parametrize("client", PODS)
def test_without_endpoints_clients_are_refused(world: ServiceWorld, client: str) -> None:
    """Over TCP and UDP, by both families; they do not wait."""
    make(world, "empty", 40)
    found = {each: Outcome.REFUSED for protocol in PROTOCOLS for each in attempts(world, client, 40, 1, protocol)}
    assert unexpected(found) == {}


def test_datagrams_larger_than_the_mtu(world: ServiceWorld) -> None:
    """Answers arrive with each version of OVN, requests with new ones alone: docs/ovn.md tells it."""
    make(world, "large", 45, "veth-a")
    requests = Outcome.ALLOWED if version() >= LARGE_REQUESTS else Outcome.TIMED_OUT
    expected = {
        Attempt(world.pods[client].netns, vip(45, family), 80, "udp", request, answer): outcome
        for client, family in product(("vhost-a", "veth-b"), (4, 6))
        for request, answer, outcome in ((LARGE, SMALL, requests), (SMALL, LARGE, Outcome.ALLOWED))
    }
    assert unexpected(expected) == {}


def test_a_service_that_goes(world: ServiceWorld) -> None:
    """Its address is no one's then, and one that comes has its own at once."""
    make(world, "gone", 50, "veth-b")
    assert unexpected(dict.fromkeys(attempts(world, "vhost-a", 50), Outcome.ALLOWED)) == {}
    world.api.objects("services").remove("default", "gone")
    wait_until(lambda: not world.vips("default/gone_tcp"), what="the end of the load balancer")
    world.ovn.nbctl("--wait=hv", "sync")
    world.ovn.revalidate()
    assert Outcome.ALLOWED not in tried(attempts(world, "vhost-a", 50))
    make(world, "other", 50, "vhost-b")
    assert set(world.answering(attempts(world, "vhost-a", 50))) == {"vhost-b"}


def test_the_nodes_own_endpoints(world: ServiceWorld) -> None:
    """With `internalTrafficPolicy` Local; where a node has none, its pods are refused."""
    make(world, "local", 60, internalTrafficPolicy="Local")
    world.put_endpoints("local", "veth-a", ports=TARGETS)
    world.await_vips("default/local_tcp_at_n1", world.pods["veth-a"].ipv4, world.pods["veth-a"].ipv6)
    assert set(world.answering(attempts(world, "vhost-a", 60))) == {"veth-a"}
    assert unexpected(dict.fromkeys(attempts(world, "vhost-b", 60), Outcome.REFUSED)) == {}


def test_pods_reach_node_ports_and_external_addresses(world: ServiceWorld) -> None:
    """At the addresses of a gateway, and at those of the Service: from pods of each node."""
    world.ovn.nbctl(
        "lr-add", "GR_n1", "--", "set", "Logical_Router", "GR_n1", 'external_ids:physical_ips="192.0.2.101,2001:db8::101"'
    )
    ports = [{**each, "nodePort": 30080} for each in PORTS]
    spec: dict[str, Any] = {"type": "NodePort", "externalIPs": ["198.51.100.7", "2001:db8:1::7"]}
    world.put(service("outside", vip(70, 4), vip(70, 6), ports=ports, **spec))
    world.put_endpoints("outside", "vhost-b", ports=TARGETS)
    reached = [("192.0.2.101", 30080), ("2001:db8::101", 30080), ("198.51.100.7", 80), ("2001:db8:1::7", 80)]
    for protocol in PROTOCOLS:
        world.await_vips(f"default/outside_{protocol}_external", *(address for address, _ in reached), world.pods["vhost-b"].ipv6)
    expected = {
        Attempt(world.pods[client].netns, address, port, protocol): Outcome.ALLOWED
        for client, (address, port), protocol in product(PODS, reached, PROTOCOLS)
    }
    assert unexpected(expected) == {}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_endpoint_goes_under_a_running_client(world: ServiceWorld, protocol: str, record_property: Record) -> None:
    """New connections go to the other one; how long some still went to the lost one is told."""
    make(world, "moved", 80, "vhost-a", "veth-b")
    with Connecting(world.pods["vhost-b"], vip(80, 4), 80, protocol) as client:
        began = time.monotonic()
        world.put_endpoints("moved", "veth-b", ports=TARGETS)
        world.await_vips(f"default/moved_{protocol}", f"{vip(80, 4)}:80={world.pods['veth-b'].ipv4}:{PORT} ")
        client.await_answer()
        settled = len(client.answers)
        for _ in range(10):
            client.await_answer()
    lost = [when - began for when, token in client.answers if when > began and world.answered_by(token) == "vhost-a"]
    record_property(f"an endpoint goes, {protocol}: {LAST_USE}", round(max(lost, default=0.0) * 1000))
    record_property(f"an endpoint goes, {protocol}: {LONGEST_GAP}", round(client.gap_s * 1000))
    assert {world.answered_by(token) for _, token in client.answers[settled:]} == {"veth-b"}


def test_a_lost_endpoint_lets_its_client_over_udp_go(world: ServiceWorld) -> None:
    """One socket's datagrams go to one endpoint, and to the other one when that is lost."""
    make(world, "flow", 90, "veth-a")
    pod = world.pods["vhost-b"]

    def answering() -> str:
        attempt = Attempt(pod.netns, vip(90, 4), 80, "udp", source=pod.ipv4, source_port=45000)
        return world.answered_by(attempt.token) if tried([attempt]) == [Outcome.ALLOWED] else ""

    wait_until(lambda: answering() == "veth-a", what="an answer of the first")
    world.put_endpoints("flow", "veth-a", "veth-b", ports=TARGETS)
    world.await_vips("default/flow_udp", world.pods["veth-b"].ipv4)
    assert {answering() for _ in range(10)} == {"veth-a"}
    world.put_endpoints("flow", "veth-b", ports=TARGETS)
    wait_until(lambda: answering() == "veth-b", what="an answer of the other one")


@pytest.mark.parametrize("what", ["nothing", "controller", "northd", "nb", "sb", "n1", "n2"])
def test_a_part_dies_under_a_client(world: ServiceWorld, what: str, record_property: Record) -> None:
    """Connections are answered on; what changes meanwhile is there afterwards. n1 and n2 are the nodes' controllers."""
    make(world, "stays", 100, "veth-b")
    with Connecting(world.pods["vhost-a"], vip(100, 4), 80) as client:
        if what == "controller":
            world.watching.kill()
        elif what != "nothing":
            world.ovn.kill(what)
        if what != "nb":
            world.put_endpoints("stays", "veth-b", "vhost-b", ports=TARGETS)
        for _ in range(10):
            client.await_answer()
        if what == "controller":
            world.watching.start()
        elif what != "nothing":
            world.ovn.start(what)
        world.put_endpoints("stays", "vhost-b", ports=TARGETS)
        wait_until(lambda: world.answered_by(client.answers[-1][1]) == "vhost-b", 180.0, "an answer of the other one")
    record_property(f"connections, {what} killed: {LONGEST_GAP}", round(client.gap_s * 1000))
