"""What is kept of Services and EndpointSlices, as far as it decides about load balancers. Pure.

Both are written by tenants. The server has judged them by their schemas, and does not bound how many external addresses or ports
a Service has: what is above a bound here is left out, and told. A field of another type than its schema's counts as absent.

Endpoints are taken as kube-proxy takes them: those that are ready, and those that end but still serve, which get connections only
where none is ready.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final

from userspace_cni.base.addresses import why_no_machines
from userspace_cni.base.subnets import Address

SERVICE_NAME: Final = "kubernetes.io/service-name"
"""The label of an EndpointSlice with its Service."""
_NOT_SERVED: Final = ("service.kubernetes.io/service-proxy-name", "service.kubernetes.io/headless")
"""Labels of a Service, and of its slices, that another program serves, or none. kube-proxy reads no value of them."""
_HOSTNAME: Final = "kubernetes.io/hostname"
"""In the `topology` of an endpoint of v1beta1: its node."""
PROTOCOLS: Final[Mapping[str, str]] = {"TCP": "tcp", "UDP": "udp", "SCTP": "sctp"}
_PORT_MAX: Final = 65535
PORTS_MAX: Final = 1000
EXTERNAL_MAX: Final = 64
ENDPOINTS_MAX: Final = 1000
"""In one slice, as the server bounds it."""


@dataclass(frozen=True, slots=True)
class ServedPort:
    """A port of a Service. `protocol` in OVN's words. `node_port`: 0 for none."""

    name: str
    protocol: str
    port: int
    node_port: int


@dataclass(frozen=True, slots=True)
class ServedService:
    """A Service. `ips`: its own addresses, () where there is nothing to serve. `external`: those that lead to it from outside.

    `affine`: a client keeps its endpoint. `local`, `external_local`: only the node's own
    endpoints get what comes from its pods, and what comes from outside. `cut`: what is left out, in words.
    """

    uid: str
    created: str
    ips: tuple[Address, ...] = ()
    external: tuple[Address, ...] = ()
    ports: tuple[ServedPort, ...] = ()
    affine: bool = False
    local: bool = False
    external_local: bool = False
    cut: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SlicePort:
    """A port of all endpoints of a slice."""

    name: str
    protocol: str
    port: int


@dataclass(frozen=True, slots=True)
class SliceEndpoint:
    """An endpoint that can serve. `ends`: it is ending, and gets connections only where no other does. `node`: "" for unknown."""

    address: Address
    node: str
    ends: bool


@dataclass(frozen=True, slots=True)
class ServiceSlice:
    """Endpoints of the Service `service`, "namespace/name", "" for none."""

    service: str
    ports: tuple[SlicePort, ...] = ()
    endpoints: tuple[SliceEndpoint, ...] = ()


def keep_service(thing: Mapping[str, Any]) -> ServedService:
    """What is kept of a Service. Raises KeyError, TypeError or AttributeError for what is no object."""
    metadata, spec = thing["metadata"], _table(thing.get("spec"))
    uid, created = str(metadata["uid"]), str(metadata.get("creationTimestamp") or "")
    is_served = spec.get("type") != "ExternalName" and _is_served(metadata)
    ips = tuple(_addresses(spec.get("clusterIPs") or [spec.get("clusterIP")]))[:2] if is_served else ()
    if not ips:
        return ServedService(uid, created)
    ports, externals = list(_ports(spec.get("ports"))), list(_external(thing, spec))
    cut = [
        f"{what}: only the first {most} of {len(found)} are served"
        for what, found, most in (("ports", ports, PORTS_MAX), ("external addresses", externals, EXTERNAL_MAX))
        if len(found) > most
    ]
    if _is_load_balancer(spec) and spec.get("loadBalancerSourceRanges"):
        cut.append("loadBalancerSourceRanges cannot be kept: so the addresses of status.loadBalancer are not served")
    return ServedService(
        uid,
        created,
        ips,
        external=tuple(externals[:EXTERNAL_MAX]),
        ports=tuple(ports[:PORTS_MAX]),
        affine=spec.get("sessionAffinity") == "ClientIP",
        local=spec.get("internalTrafficPolicy") == "Local",
        external_local=spec.get("externalTrafficPolicy") == "Local",
        cut=tuple(cut),
    )


def keep_slice(thing: Mapping[str, Any]) -> ServiceSlice:
    """What is kept of an EndpointSlice of v1 or v1beta1. Raises KeyError, TypeError or AttributeError for what is no object."""
    metadata = thing["metadata"]
    name = _table(metadata.get("labels")).get(SERVICE_NAME)
    version = {"IPv4": 4, "IPv6": 6}.get(str(thing.get("addressType")))
    if not isinstance(name, str) or version is None or not _is_served(metadata):
        return ServiceSlice("")
    endpoints = [_endpoint(each, version) for each in _tables(thing.get("endpoints"))[:ENDPOINTS_MAX]]
    ports = [
        SlicePort(str(each.get("name") or ""), PROTOCOLS[protocol], port)
        for each in _tables(thing.get("ports"))[:ENDPOINTS_MAX]
        if (protocol := str(each.get("protocol") or "TCP")) in PROTOCOLS and (port := _port(each.get("port")))
    ]
    return ServiceSlice(f"{metadata['namespace']}/{name}", tuple(ports), tuple(filter(None, endpoints)))


def keep_node_addresses(thing: Mapping[str, Any]) -> tuple[Address, ...]:
    """What is kept of a Node. Raises KeyError, TypeError or AttributeError for what is no object."""
    found = _tables(_table(thing.get("status")).get("addresses"))
    return tuple(_addresses([each.get("address") for each in found]))


def _is_served(metadata: Mapping[str, Any]) -> bool:
    labels = _table(metadata.get("labels"))
    return not any(each in labels for each in _NOT_SERVED)


def _endpoint(each: Mapping[str, Any], version: int) -> SliceEndpoint | None:
    """The endpoint by its first address, as kube-proxy takes it; None for one that does not serve."""
    address = next((found for found in _addresses(_list(each.get("addresses"))[:1]) if found.version == version), None)
    conditions = _table(each.get("conditions"))
    is_ready = conditions.get("ready") is not False
    ends = not is_ready and conditions.get("serving") is True and conditions.get("terminating") is True
    if address is None or not (is_ready or ends):
        return None
    node = each.get("nodeName") or _table(each.get("topology")).get(_HOSTNAME) or ""
    return SliceEndpoint(address, str(node), ends)


def _ports(found: object) -> Iterator[ServedPort]:
    for each in _tables(found):
        protocol, port = str(each.get("protocol") or "TCP"), _port(each.get("port"))
        if protocol in PROTOCOLS and port:
            yield ServedPort(str(each.get("name") or ""), PROTOCOLS[protocol], port, _port(each.get("nodePort")))


def _external(thing: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterable[Address]:
    """Addresses of the author, then those that a load balancer's controller has written; `ipMode` Proxy is for others."""
    found = list(_addresses(spec.get("externalIPs")))
    if _is_load_balancer(spec) and not spec.get("loadBalancerSourceRanges"):
        ingress = _tables(_table(_table(thing.get("status")).get("loadBalancer")).get("ingress"))
        found += _addresses([each.get("ip") for each in ingress if each.get("ipMode") != "Proxy"])
    return dict.fromkeys(found)


def _is_load_balancer(spec: Mapping[str, Any]) -> bool:
    return spec.get("type") == "LoadBalancer"


def _port(found: object) -> int:
    return found if isinstance(found, int) and 0 < found <= _PORT_MAX else 0


def _addresses(found: object) -> Iterator[Address]:
    """The addresses among these that a machine can have on a network."""
    for each in _list(found):
        try:
            address = ip_address(each) if isinstance(each, str) and "%" not in each else None
        except ValueError:
            continue
        if address and not (address.is_link_local or why_no_machines(address)):
            yield address


def _list(found: object) -> list[Any]:
    return found if isinstance(found, list) else []


def _tables(found: object) -> list[Mapping[str, Any]]:
    return [each for each in _list(found) if isinstance(each, dict)]


def _table(found: object) -> Mapping[str, Any]:
    return found if isinstance(found, dict) else {}
