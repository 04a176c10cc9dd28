"""The ports at which this node is asked for Services from outside: NodePorts, external and load balancer addresses.

What a Service says is written by a tenant: of one Service so many ports count, and none at an address of the node's own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TYPE_CHECKING, Any, Final, cast, get_args

from userspace_cni.base.addresses import why_no_machines
from userspace_cni.base.log import say
from userspace_cni.kube.object_watch import ObjectWatch
from userspace_cni.kube.resources import SERVICES
from userspace_cni.node.node_addresses import read_node_addresses
from userspace_cni.switch.openflow.gateway_entries import Protocol, ServicePort

if TYPE_CHECKING:
    from userspace_cni.base.root import HostRoot
    from userspace_cni.kube.credentials import ApiSession

PORTS_MAX: Final = 1024
"""Of one Service: its addresses times its ports are as many flows."""
_NOT_SERVED: Final = ("service.kubernetes.io/service-proxy-name", "service.kubernetes.io/headless")
"""Labels of a Service that another program than the cluster's own serves, or none."""


class GatewayServices(ObjectWatch):
    """The ports of all Services. `switch_netns`: the node's own network, as in steps. `on_change` is called when one has
    changed; it must not wait."""

    def __init__(self, session: ApiSession, switch_netns: str, root: HostRoot, on_change: Callable[[], None]) -> None:
        super().__init__(session, SERVICES, keep=read_service_ports, on_change=on_change)
        self._place = switch_netns, root
        self._told_of: frozenset[str] = frozenset()

    def read_ports(self) -> frozenset[ServicePort] | None:
        """None while not all Services were read. Raises Unavailable, StepFailed where the node's addresses cannot be."""
        known = self.objects()
        if known is None:
            return None
        ports = frozenset(port for each in known.values() for port in each)
        # a Service at an address of the node's would take what is the node's, such as its SSH
        own = read_node_addresses(*self._place) if any(port.address for port in ports) else frozenset()
        refused = frozenset(name for name, each in known.items() if any(port.address in own for port in each if port.address))
        if refused - self._told_of:
            say("warning", "external addresses of Services that are the node's own have no effect", services=sorted(refused)[:10])
        self._told_of = refused
        return frozenset(port for port in ports if port.address not in own)


def read_service_ports(service: Mapping[str, Any]) -> frozenset[ServicePort]:
    """The ports of one Service, PORTS_MAX at most. What cannot be read is none. Pure."""
    spec, metadata = service.get("spec") or {}, service.get("metadata") or {}
    if spec.get("type") == "ExternalName" or spec.get("clusterIP") in (None, "", "None"):
        return frozenset()
    labels = metadata.get("labels") or {}
    if any(each in labels for each in _NOT_SERVED):
        return frozenset()
    found: set[ServicePort] = set()
    for port in _ports(spec, _addresses(service)):
        found.add(port)
        if len(found) == PORTS_MAX:
            say("warning", "a Service has more ports at its gateways than count", service=metadata.get("name"), most=PORTS_MAX)
            break
    return frozenset(found)


def _ports(spec: Mapping[str, Any], addresses: Collection[IPv4Address | IPv6Address]) -> Iterator[ServicePort]:
    for each in spec.get("ports") or ():
        protocol = each.get("protocol", "TCP")
        if protocol not in get_args(Protocol):
            continue
        known = cast("Protocol", protocol)
        if spec.get("type") in ("NodePort", "LoadBalancer") and _is_port(each.get("nodePort")):
            yield ServicePort(known, each["nodePort"])
        if _is_port(each.get("port")):
            for address in addresses:
                yield ServicePort(known, each["port"], address)


def _addresses(service: Mapping[str, Any]) -> list[IPv4Address | IPv6Address]:
    """External addresses, and those that a load balancer has given and does not translate itself."""
    spec, status = service.get("spec") or {}, service.get("status") or {}
    balancers = ((status.get("loadBalancer") or {}).get("ingress") or ()) if spec.get("type") == "LoadBalancer" else ()
    said = [*(spec.get("externalIPs") or ()), *(each.get("ip") for each in balancers if each.get("ipMode", "VIP") == "VIP")]
    return list(dict.fromkeys(found for each in said[:PORTS_MAX] if (found := _address(each))))


def _address(said: object) -> IPv4Address | IPv6Address | None:
    try:
        found = ip_address(said) if isinstance(said, str) and "%" not in said else None
    except ValueError:
        return None
    return None if found is None or why_no_machines(found) else found


def _is_port(said: object) -> bool:
    return isinstance(said, int) and not isinstance(said, bool) and 0 < said < 1 << 16
