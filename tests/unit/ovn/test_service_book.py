"""The load balancers that Services are to have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lab.kube.services import endpoint, endpoint_slice, service
from userspace_cni.ovn.desired_rows import RowKey
from userspace_cni.ovn.northbound_tables import LOAD_BALANCER_GROUP, ROUTER, SWITCH
from userspace_cni.ovn.services.balancer_rows import (
    ENDPOINTS_MAX,
    Balancer,
    Claim,
    ServiceFacts,
    ServiceGateway,
    read_claims,
)
from userspace_cni.ovn.services.service_book import ServiceBook
from userspace_cni.ovn.services.service_objects import keep_service, keep_slice

INSIDE = (RowKey(LOAD_BALANCER_GROUP, "cluster-load-balancers"),)
OUTSIDE = (RowKey(LOAD_BALANCER_GROUP, "gateway-load-balancers"),)
FACTS = ServiceFacts(
    switches={"n1": "n1", "N2": "n2"},
    gateways={"GR_n1": ServiceGateway("n1", (ip_address("192.0.2.11"), ip_address("2001:db8::11")))},
    owners={ip_address("192.0.2.11"): "the gateway's on node n1"},
    subnets=(ip_network("10.244.0.0/16"),),
)
WEB = (
    service("web", "10.96.0.10"),
    endpoint_slice("web-1", "web", endpoint("10.244.1.3"), endpoint("10.244.2.3", "N2")),
)


class World:
    """A book, and what came out of it so far."""

    def __init__(self, facts: ServiceFacts = FACTS, held: Mapping[Claim, str] | None = None) -> None:
        self.book = ServiceBook(held)
        self.book.take_facts(facts)
        self.rows: dict[str, tuple[Balancer, ...]] = {}

    def put(self, *things: Mapping[str, Any]) -> World:
        for each in things:
            key = f"{each['metadata']['namespace']}/{each['metadata']['name']}"
            if each["kind"] == "Service":
                self.book.take_services({key: keep_service(each)})
            else:
                self.book.take_slices({key: keep_slice(each)})
        return self.settle()

    def drop(self, *, services: Sequence[str] = (), slices: Sequence[str] = ()) -> World:
        self.book.take_services(dict.fromkeys(f"default/{name}" for name in services))
        self.book.take_slices(dict.fromkeys(f"default/{name}" for name in slices))
        return self.settle()

    def settle(self) -> World:
        self.rows |= self.book.settle()
        return self

    @property
    def balancers(self) -> dict[str, Balancer]:
        return {each.name: each for found in self.rows.values() for each in found}

    def vips(self, name: str = "default/web_tcp") -> dict[str, str]:
        return dict(self.balancers[name].vips)


def test_a_service_with_endpoints_on_two_nodes() -> None:
    """One load balancer in the cluster's group, with the options that let clients know of what is lost."""
    made = World().put(*WEB).balancers
    assert list(made) == ["default/web_tcp"]
    web = made["default/web_tcp"]
    assert (web.protocol, dict(web.vips), web.holders) == ("tcp", {"10.96.0.10:80": "10.244.1.3:8080,10.244.2.3:8080"}, INSIDE)
    assert {key: value for key, value in web.options.items() if value} == {
        "reject": "true",
        "ct_flush": "true",
        "neighbor_responder": "none",
        "hairpin_snat_ip": "169.254.169.5 fd69::5",
    }


def test_without_endpoints_the_vip_stays() -> None:
    """So clients are refused, and do not wait."""
    world = World().put(WEB[0])
    assert world.vips() == {"10.96.0.10:80": ""}
    assert world.put(WEB[1]).vips()["10.96.0.10:80"]
    assert world.drop(slices=["web-1"]).vips() == {"10.96.0.10:80": ""}


def test_named_ports_that_differ_between_slices() -> None:
    """Each port has the endpoints of the slices' port of its name and protocol, each with its own number."""
    ports = [
        {"name": "http", "port": 80, "protocol": "TCP", "targetPort": "web"},
        {"name": "dns", "port": 53, "protocol": "UDP"},
        {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
        {"name": "s", "port": 5, "protocol": "SCTP"},
    ]
    old = endpoint_slice("a", "web", endpoint("10.244.1.3"), ports=[{"name": "http", "port": 8080}])
    new = endpoint_slice(
        "b",
        "web",
        endpoint("10.244.1.4"),
        ports=[{"name": "http", "port": 9090}, {"name": "dns", "port": 5353, "protocol": "UDP"}],
    )
    world = World().put(service("web", "10.96.0.10", ports=ports), old, new)
    assert world.vips() == {"10.96.0.10:80": "10.244.1.3:8080,10.244.1.4:9090", "10.96.0.10:53": ""}
    assert world.vips("default/web_udp") == {"10.96.0.10:53": "10.244.1.4:5353"}
    assert world.vips("default/web_sctp") == {"10.96.0.10:5": ""}


def test_both_families() -> None:
    """Each address has endpoints of its own family."""
    six = endpoint_slice("web-6", "web", endpoint("fd00:244::3"), kind="IPv6")
    world = World().put(service("web", "10.96.0.10", "fd10::a"), WEB[1], six)
    assert world.vips() == {
        "10.96.0.10:80": "10.244.1.3:8080,10.244.2.3:8080",
        "[fd10::a]:80": "[fd00:244::3]:8080",
    }


def test_endpoints_that_end_serve_where_no_other_does() -> None:
    """They get connections until one is ready."""
    ending = endpoint("10.244.1.9", ready=False, serving=True, terminating=True)
    world = World().put(WEB[0], endpoint_slice("web-1", "web", ending))
    assert world.vips() == {"10.96.0.10:80": "10.244.1.9:8080"}
    world.put(endpoint_slice("web-1", "web", ending, endpoint("10.244.1.3")))
    assert world.vips() == {"10.96.0.10:80": "10.244.1.3:8080"}


@pytest.mark.parametrize(
    ("change", "vips"),
    [
        ({"clusterIP": "10.96.0.11", "clusterIPs": ["10.96.0.11"]}, {"10.96.0.11:80"}),
        ({"ports": [{"port": 81, "protocol": "TCP"}]}, {"10.96.0.10:81"}),
        ({"ports": [{"port": 80, "protocol": "UDP"}]}, None),
        ({"type": "ExternalName", "clusterIP": "", "clusterIPs": []}, None),
        ({"clusterIP": "None", "clusterIPs": ["None"]}, None),
    ],
    ids=["address", "port", "protocol", "name", "headless"],
)
def test_a_service_that_changes(change: dict[str, Any], vips: set[str] | None) -> None:
    """What it was before is not served any more."""
    world = World().put(*WEB)
    world.put({**WEB[0], "spec": WEB[0]["spec"] | change})
    assert set(world.vips()) == vips if vips else "default/web_tcp" not in world.balancers
    assert world.drop(services=["web"]).balancers == {}


def test_affinity_and_its_end() -> None:
    """A client is told from others by its addresses, and then by its connection again."""
    affine = {**WEB[0], "spec": WEB[0]["spec"] | {"sessionAffinity": "ClientIP"}}
    world = World().put(affine)
    assert world.balancers["default/web_tcp"].fields == ("eth_src", "ip_src")
    assert world.put(WEB[0]).balancers["default/web_tcp"].fields == ()


def test_what_is_reached_from_outside() -> None:
    """NodePorts at the addresses of each gateway, of the Service's families alone, and external addresses, in the other group."""
    ports = [{"port": 80, "protocol": "TCP", "nodePort": 30080}]
    world = World().put(service("web", "10.96.0.10", ports=ports, type="NodePort", externalIPs=["198.51.100.7"]), WEB[1])
    outside = world.balancers["default/web_tcp_external"]
    targets = world.vips()["10.96.0.10:80"]
    assert (dict(outside.vips), outside.holders) == ({"198.51.100.7:80": targets, "192.0.2.11:30080": targets}, OUTSIDE)
    world.book.take_facts(replace(FACTS, gateways={}))
    assert world.settle().vips("default/web_tcp_external") == {"198.51.100.7:80": targets}


def test_local_inside() -> None:
    """A node's switch has its own endpoints; those without any share a load balancer that refuses."""
    spec = WEB[0]["spec"] | {"internalTrafficPolicy": "Local"}
    one = endpoint_slice("web-1", "web", endpoint("10.244.2.3", "N2"), endpoint("10.244.9.9", ""))
    made = World().put({**WEB[0], "spec": spec}, one).balancers
    near, far = made["default/web_tcp_at_N2"], made["default/web_tcp"]
    assert (dict(near.vips), near.holders) == ({"10.96.0.10:80": "10.244.2.3:8080"}, (RowKey(SWITCH, "n2"),))
    assert (dict(far.vips), far.holders) == ({"10.96.0.10:80": ""}, (RowKey(SWITCH, "n1"),))


def test_local_outside() -> None:
    """A gateway has the endpoints of its node, and leaves the client's address; pods reach all of them by the switches."""
    ports = [{"port": 80, "protocol": "TCP", "nodePort": 30080}]
    thing = service("web", "10.96.0.10", ports=ports, type="NodePort", externalTrafficPolicy="Local")
    made = World().put(thing, WEB[1]).balancers
    near, pods = made["default/web_tcp_external_at_n1"], made["default/web_tcp_external"]
    assert (dict(near.vips), near.holders) == ({"192.0.2.11:30080": "10.244.1.3:8080"}, (RowKey(ROUTER, "GR_n1"),))
    assert near.options["skip_snat"] == "true"
    assert pods.holders == (RowKey(SWITCH, "n1"), RowKey(SWITCH, "n2"))
    assert pods.vips["192.0.2.11:30080"].count(",") == 1


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("192.0.2.11", "the gateway's on node n1"),
        ("10.244.7.7", "in 10.244.0.0/16"),
        ("10.96.0.10", "that of Service default/web"),
        ("192.0.2.250", "the API server's"),
        ("fd69::5", "reach themselves"),
    ],
)
def test_external_addresses_that_no_service_can_have(address: str, why: str) -> None:
    """They are told, and the rest of the Service is served."""
    server = endpoint_slice("kubernetes", "kubernetes", endpoint("192.0.2.250", ""))
    world = World().put(server, *WEB, service("greedy", "10.96.0.66", externalIPs=[address]))
    assert "default/greedy_tcp_external" not in world.balancers
    assert why in world.book.lacking["default/greedy"]
    assert world.vips("default/greedy_tcp") == {"10.96.0.66:80": ""}
    world.put(service("greedy", "10.96.0.66"))
    assert world.book.lacking == {}


def test_who_came_first_keeps_an_external_address() -> None:
    """The other one is told, and gets it when it is let go; another port of it is free."""
    first = service("first", "10.96.0.1", externalIPs=["198.51.100.7"])
    other = service("other", "10.96.0.2", externalIPs=["198.51.100.7"], created="2020-01-01T00:00:00Z")
    world = World().put(first).put(other)
    assert "default/other_tcp_external" not in world.balancers
    assert "Service default/first has its port 80" in world.book.lacking["default/other"]
    third = service("third", "10.96.0.3", externalIPs=["198.51.100.7"], ports=[{"port": 81, "protocol": "TCP"}])
    assert world.put(third).vips("default/third_tcp_external") == {"198.51.100.7:81": ""}
    assert world.drop(services=["first"]).vips("default/other_tcp_external") == {"198.51.100.7:80": ""}
    assert world.book.lacking == {}


def test_the_rows_tell_a_new_controller_who_came_first() -> None:
    """Else the older Service has it, in whatever order they come."""
    first = service("first", "10.96.0.1", externalIPs=["198.51.100.7"])
    older = service("older", "10.96.0.2", externalIPs=["198.51.100.7"], created="2020-01-01T00:00:00Z")
    held = {(ip_address("198.51.100.7"), "tcp", 80): "default/first"}
    for known, holder in (({}, "older"), (held, "first")):
        world = World(held=known)
        world.book.take_services({f"default/{each['metadata']['name']}": keep_service(each) for each in (first, older)})
        assert f"default/{holder}_tcp_external" in world.settle().balancers


def test_a_services_own_address_goes_before_an_external_one() -> None:
    """Also where the other one asked for it first."""
    world = World().put(service("greedy", "10.96.0.66", externalIPs=["10.96.0.10"]))
    assert "default/greedy_tcp_external" in world.balancers
    world.put(*WEB)
    assert "default/greedy_tcp_external" not in world.balancers
    assert world.drop(services=["web"]).vips("default/greedy_tcp_external") == {"10.96.0.10:80": ""}


def test_many_endpoints() -> None:
    """One VIP has a bounded number, the same ones each time; it is told."""
    slices = [
        endpoint_slice(f"s{number}", "web", *(endpoint(f"10.244.{number}.{host}") for host in range(200))) for number in range(6)
    ]
    world = World().put(WEB[0], *slices)
    assert world.vips()["10.96.0.10:80"].count(",") == ENDPOINTS_MAX - 1
    assert "1000 of 1200 endpoints" in world.book.lacking["default/web"]


def test_rows_say_external_addresses() -> None:
    """Those of external addresses say which ones a Service has."""
    vips = {"198.51.100.7:80": "x", "[2001:db8::7]:81": "", "what": ""}
    found = list(read_claims("default/web_tcp_external", "tcp", vips))
    assert found == [(ip_address("198.51.100.7"), "tcp", 80), (ip_address("2001:db8::7"), "tcp", 81)]
    assert list(read_claims("default/web_tcp", "tcp", vips)) == []


NAMES = ("a", "b", "c")
EXTERNALS = ("198.51.100.7", "198.51.100.8", "10.96.0.1", "10.244.0.9")


@st.composite
def changes(draw: st.DrawFn) -> tuple[str, str, Any]:
    """A Service or a slice that comes, changes or goes."""
    name = draw(st.sampled_from(NAMES))
    what = draw(st.sampled_from(["service", "slice", "no service", "no slice"]))
    if what == "service":
        spec: dict[str, Any] = {"externalIPs": draw(st.lists(st.sampled_from(EXTERNALS), max_size=2))}
        if draw(st.booleans()):
            spec["externalTrafficPolicy"] = spec["internalTrafficPolicy"] = "Local"
        number = 30000 + 100 * NAMES.index(name)
        ports = [
            {"name": f"p{port}", "port": port, "protocol": draw(st.sampled_from(["TCP", "UDP"])), "nodePort": number + port}
            for port in draw(st.sets(st.sampled_from([80, 81]), min_size=1))
        ]
        ip = draw(st.sampled_from([f"10.96.0.{NAMES.index(name) + 1}", f"10.96.1.{NAMES.index(name) + 1}"]))
        return what, name, service(name, ip, ports=ports, **spec)
    hosts = draw(st.sets(st.integers(2, 5), max_size=3))
    endpoints = [endpoint(f"10.244.1.{host}", draw(st.sampled_from(["n1", "N2"]))) for host in sorted(hosts)]
    return what, name, endpoint_slice(f"{name}-s", name, *endpoints, ports=[{"name": "p80", "port": 8080}])


@given(st.lists(changes(), max_size=12))
def test_whatever_happened_before(steps: list[tuple[str, str, Any]]) -> None:
    """The load balancers are those of what there is at the end; of external addresses no two Services have one."""
    world = World()
    services: dict[str, Any] = {}
    slices: dict[str, Any] = {}
    for what, name, thing in steps:
        if what.startswith("no "):
            world.drop(**{f"{what.split()[1]}s": [name if "service" in what else f"{name}-s"]})
            (services if "service" in what else slices).pop(name, None)
        else:
            world.put(thing)
            (services if what == "service" else slices)[name] = thing
    held = {
        claim: each.service
        for each in world.balancers.values()
        for claim in read_claims(each.name, each.protocol, each.vips)
        if str(claim[0]) in EXTERNALS
    }
    whose: dict[tuple[str, str], set[str]] = {}
    for each in world.balancers.values():
        for vip in each.vips:
            whose.setdefault((each.protocol, vip), set()).add(each.service)
    assert all(len(found) == 1 for vip, found in whose.items())
    anew = World(held=held)
    anew.put(*slices.values(), *services.values())
    assert anew.balancers == world.balancers
    assert anew.book.lacking == world.book.lacking
