"""What is kept of Services and EndpointSlices."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lab.kube.services import endpoint, endpoint_slice, service
from userspace_cni.ovn.services.service_objects import (
    EXTERNAL_MAX,
    PORTS_MAX,
    SlicePort,
    keep_node_addresses,
    keep_service,
    keep_slice,
)


def labelled(thing: dict[str, Any], label: str) -> dict[str, Any]:
    metadata = thing["metadata"]
    return {**thing, "metadata": {**metadata, "labels": {**metadata.get("labels", {}), label: ""}}}


NO_MACHINES = ("255.255.255.255", "0.1.2.3", "::ffff:198.51.100.7")


def external(**spec: Any) -> list[str]:
    return [str(each) for each in keep_service(service("a", "10.96.0.1", **spec)).external]


@pytest.mark.parametrize(
    "thing",
    [
        service("headless"),
        service("name", "10.96.0.1", type="ExternalName", externalName="example.org"),
        service("broken", "not an address"),
        labelled(service("other", "10.96.0.1"), "service.kubernetes.io/service-proxy-name"),
        labelled(service("without", "10.96.0.1"), "service.kubernetes.io/headless"),
    ],
)
def test_a_service_that_is_not_to_be_served(thing: dict[str, Any]) -> None:
    """Headless ones, names of others, and those of another proxy have no addresses."""
    kept = keep_service(thing)
    assert (kept.ips, kept.external, kept.ports) == ((), (), ())


def test_both_families_and_the_field_of_before() -> None:
    """`clusterIPs` says both; a server without dual stack says `clusterIP` alone."""
    assert [str(each) for each in keep_service(service("a", "10.96.0.1", "fd10::1")).ips] == ["10.96.0.1", "fd10::1"]
    before = service("a", "10.96.0.1")
    del before["spec"]["clusterIPs"]
    assert [str(each) for each in keep_service(before).ips] == ["10.96.0.1"]


def test_external_addresses() -> None:
    """Those of its author, and those that a load balancer's controller wrote; none that no machine on a network can have."""
    assert external(
        externalIPs=["192.0.2.1", "127.0.0.1", "169.254.169.254", "224.0.0.1", "::", "fe80::1", 5, "2001:db8::1%1", *NO_MACHINES]
    ) == ["192.0.2.1"]
    status = {"loadBalancer": {"ingress": [{"ip": "192.0.2.9"}, {"hostname": "x"}, {"ip": "192.0.2.8", "ipMode": "Proxy"}]}}
    assert external(type="LoadBalancer", status=status) == ["192.0.2.9"]
    assert external(status=status) == []


def test_ranges_of_sources_cannot_be_kept() -> None:
    """So the load balancer's address is not served, rather than to all; it is told."""
    status = {"loadBalancer": {"ingress": [{"ip": "192.0.2.9"}]}}
    kept = keep_service(service("a", "10.96.0.1", type="LoadBalancer", status=status, loadBalancerSourceRanges=["192.0.2.0/24"]))
    assert kept.external == ()
    assert "loadBalancerSourceRanges" in kept.cut[0]


def test_what_is_above_the_bounds_is_told() -> None:
    """A Service may have any number of ports and external addresses."""
    ports = [{"port": number + 1, "protocol": "TCP"} for number in range(PORTS_MAX + 1)]
    addresses = [f"192.0.2.{number + 1}" for number in range(EXTERNAL_MAX + 1)]
    kept = keep_service(service("a", "10.96.0.1", ports=ports, externalIPs=addresses))
    assert (len(kept.ports), len(kept.external), len(kept.cut)) == (PORTS_MAX, EXTERNAL_MAX, 2)


@pytest.mark.parametrize(
    ("conditions", "kept"),
    [
        ({"ready": True}, [False]),
        ({"ready": None}, [False]),
        ({"ready": False}, []),
        ({"ready": False, "serving": True, "terminating": True}, [True]),
        ({"ready": False, "serving": False, "terminating": True}, []),
        ({"ready": False, "serving": True, "terminating": False}, []),
        ({"ready": True, "serving": True, "terminating": True}, [False]),
    ],
)
def test_which_endpoints_serve(conditions: dict[str, Any], kept: list[bool]) -> None:
    """As kube-proxy takes them."""
    found = keep_slice(endpoint_slice("s", "a", endpoint("10.244.1.3", **conditions)))
    assert [each.ends for each in found.endpoints] == kept


def test_a_slice_of_v1beta1() -> None:
    """It says an endpoint's node in its topology."""
    thing = endpoint_slice("s", "a", {"addresses": ["10.244.1.3"], "topology": {"kubernetes.io/hostname": "n2"}})
    assert [(str(each.address), each.node) for each in keep_slice(thing).endpoints] == [("10.244.1.3", "n2")]


def test_ports_of_a_slice() -> None:
    """One without a number, or of another protocol, is none; TCP where none is said."""
    ports: list[dict[str, Any]] = [
        {"name": None, "port": 80},
        {"name": "x"},
        {"name": "u", "port": 53, "protocol": "UDP"},
        {"port": 1, "protocol": "Q"},
    ]
    assert keep_slice(endpoint_slice("s", "a", ports=ports)).ports == (SlicePort("", "tcp", 80), SlicePort("u", "udp", 53))


@pytest.mark.parametrize(
    "endpoints", [["no"], [{}], [{"addresses": []}], [{"addresses": ["127.0.0.1"]}], [{"addresses": ["fd00::1"]}], None]
)
def test_endpoints_that_are_none(endpoints: Any) -> None:
    """Of another type, without an address, of another family, or with an address that no machine on a network has."""
    assert keep_slice({**endpoint_slice("s", "a"), "endpoints": endpoints}).endpoints == ()


def test_slices_that_are_nobodys() -> None:
    """Those of names, those of no Service, and those that another program serves."""
    assert keep_slice(labelled(endpoint_slice("s", "a"), "service.kubernetes.io/service-proxy-name")).service == ""
    assert keep_slice(labelled(endpoint_slice("s", "a"), "service.kubernetes.io/headless")).service == ""
    assert keep_slice(endpoint_slice("s", "a", kind="FQDN")).service == ""
    assert keep_slice({"metadata": {"namespace": "default", "name": "s"}, "addressType": "IPv4"}).service == ""


def test_addresses_of_a_node() -> None:
    """Without its names."""
    addresses = [{"type": "Hostname", "address": "n1"}, {"type": "InternalIP", "address": "192.0.2.11"}]
    assert [str(each) for each in keep_node_addresses({"status": {"addresses": addresses}})] == ["192.0.2.11"]
