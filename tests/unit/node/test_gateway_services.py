"""What a Service asks of a gateway, whatever a tenant writes into it."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

import pytest

from userspace_cni.node.gateway_services import PORTS_MAX, read_service_ports
from userspace_cni.switch.openflow.gateway_entries import ServicePort

WEB = {"protocol": "TCP", "port": 80, "nodePort": 30080}
DNS = {"protocol": "UDP", "port": 53, "nodePort": 30053}


def service(kind: str = "NodePort", status: Any = None, **spec: Any) -> dict[str, Any]:
    """A Service with one port, as the server sends it."""
    said = {"type": kind, "clusterIP": "10.96.0.9", "ports": [WEB], **spec}
    return {"metadata": {"name": "web"}, "spec": said, "status": status or {}}


def test_node_ports() -> None:
    """Each port with a NodePort, of NodePort and LoadBalancer, at every address of the node."""
    expected = {ServicePort("TCP", 30080), ServicePort("UDP", 30053)}
    for kind in ("NodePort", "LoadBalancer"):
        assert read_service_ports(service(kind, ports=[WEB, DNS])) == expected
    assert not read_service_ports(service("ClusterIP"))
    assert not read_service_ports(service("LoadBalancer", ports=[{"protocol": "TCP", "port": 80}]))


def test_addresses_of_a_service() -> None:
    """External addresses of any type of Service, and those of a load balancer that hands on what it gets."""
    found = read_service_ports(service("ClusterIP", externalIPs=["198.51.100.7", "2001:db8::7", "198.51.100.7"]))
    assert found == {ServicePort("TCP", 80, ip_address(each)) for each in ("198.51.100.7", "2001:db8::7")}
    ingress = [{"ip": "198.51.100.8"}, {"ip": "198.51.100.9", "ipMode": "Proxy"}, {"hostname": "lb.example"}]
    status = {"loadBalancer": {"ingress": ingress}}
    assert ServicePort("TCP", 80, ip_address("198.51.100.8")) in read_service_ports(service("LoadBalancer", status))
    assert len(read_service_ports(service("LoadBalancer", status))) == 2
    assert not read_service_ports(service("ClusterIP", status))


@pytest.mark.parametrize(
    "spec",
    [
        {"kind": "ExternalName"},
        {"clusterIP": "None"},
        {"clusterIP": None},
        {"ports": None},
        {"ports": [{"protocol": "ICMP", "port": 1, "nodePort": 30001}]},
        {"ports": [{"port": 80, "nodePort": 1 << 16}]},
        {"ports": [{"port": 80, "nodePort": True}]},
        {
            "kind": "ClusterIP",
            "externalIPs": ["127.0.0.1", "ff02::1", "0.0.0.0", "fe80::1%eth0", "255.255.255.255", "no address", 7, None],
        },
    ],
)
def test_what_asks_for_nothing(spec: dict[str, Any]) -> None:
    """A Service without addresses of its own, and what can be no port or address."""
    assert not read_service_ports(service(**spec))


@pytest.mark.parametrize("label", ["service.kubernetes.io/service-proxy-name", "service.kubernetes.io/headless"])
def test_another_proxy_serves_it(label: str) -> None:
    """By the labels with which others take a Service over, or no one serves it: OVN has no load balancer of it, either."""
    theirs = service()
    theirs["metadata"]["labels"] = {label: "other"}
    assert not read_service_ports(theirs)


def test_a_service_of_any_size() -> None:
    """However many addresses and ports it says, so many flows it has at most."""
    addresses = [f"198.{18 + number // 65536}.{number // 256 % 256}.{number % 256}" for number in range(50_000)]
    ports = [{"protocol": "TCP", "port": number} for number in range(1, 50_000)]
    assert len(read_service_ports(service("ClusterIP", externalIPs=addresses, ports=ports))) == PORTS_MAX
