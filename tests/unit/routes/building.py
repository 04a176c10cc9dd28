"""Makes Routes, pods and namespaces for the tests of this room."""

from __future__ import annotations

from ipaddress import ip_address, ip_interface, ip_network
from typing import Any

from userspace_cni.base.routing import Inside, PodLink, PodRoute
from userspace_cni.routes.cluster_facts import ClusterService
from userspace_cni.routes.resolving import ResolvedRoutes
from userspace_cni.routes.resource import RouteObject, read_route

KERNEL = 2
STATIC = 4
OURS = 148


def thing(name: str = "r", created: str = "2026-01-01T00:00:00Z", **spec: Any) -> dict[str, Any]:
    metadata = {"name": name, "uid": f"uid-{name}", "creationTimestamp": created, "generation": 1}
    return {"apiVersion": "k8s.ovn.org/v1", "kind": "Route", "metadata": metadata, "spec": spec}


def route(name: str = "r", *entries: str, **spec: Any) -> RouteObject:
    """A Route without problems. An entry is `10.0.0.0/8 eth1 [VIA]`, or with Services `NAME/SERVICE`, `NAME/*`, `*/*`."""
    networks, services = [], []
    for each in entries:
        to, dev, *via = each.split()
        others = {"dev": dev, **({"via": via[0]} if via else {})}
        if (to[0].isalpha() or to[0] == "*") and "/" in to and ":" not in to:
            namespace, _, service = to.partition("/")
            services.append({"namespace": namespace, "name": service, **others})
        else:
            networks.append({"dst": to, **others})
    found = read_route(thing(name, **{"route": networks, "svc": services, **spec}))
    assert not found.problems, found.problems
    return found


def service(named: str, *addresses: str, **others: Any) -> ClusterService:
    namespace, _, name = named.partition("/")
    return ClusterService(namespace, name, tuple(map(ip_address, addresses)), **others)


def link(name: str, index: int, *addresses: str, up: bool = True) -> PodLink:
    return PodLink(name, index, up, tuple(map(ip_interface, addresses)))


def found(text: str, protocol: int = STATIC, metric: int | None = None) -> PodRoute:
    """A route in the main table, from `10.0.0.0/8 eth1 [VIA]`."""
    dst, dev, *via = text.split()
    network = ip_network(dst)
    said = metric if metric is not None else (1024 if network.version == 6 else 0)
    return PodRoute(network, ip_address(via[0]) if via else None, dev, said, protocol)


def inside(*routes: PodRoute, eth1: tuple[str, ...] = ("10.124.2.5/24",), up: bool = True) -> Inside:
    """The namespace of a pod with Calico's eth0, and an eth1 of a network with a router."""
    links = {"eth0": link("eth0", 3, "192.168.9.7/32"), "eth1": link("eth1", 5, *eth1, up=up)}
    calico = (found("0.0.0.0/0 eth0 169.254.1.1", 3), found("169.254.1.1/32 eth0", 3))
    return Inside(links, (*calico, found("10.124.2.0/24 eth1", KERNEL), *routes))


def lines(resolved: ResolvedRoutes) -> list[str]:
    """The desired routes, as ip(8) writes them."""
    return [str(each) for each in resolved.routes]
