"""Says what an attachment with a kernel link consists of, and derives every name in it. Pure.

    Lease, Guard, Link, Shaper, OvsPort, Announcement

The guard is there before the link, so that no frame of the pod reaches the node's own stack; the link before the port, which OVS
opens by the link's name; the neighbours are told when the port is open.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import ip_address, ip_interface, ip_network
from typing import Any, Final

from userspace_cni.attachment.consumer import Consumer
from userspace_cni.attachment.facts import LinkFacts
from userspace_cni.attachment.planned import Attachment, divide_limits, logical_of, mac_of, marks_of, require_text
from userspace_cni.attachment.steps import (
    Announcement,
    Guard,
    HostEnd,
    Link,
    OvsPort,
    Step,
    host_alias,
    host_end,
)
from userspace_cni.base.errors import BadEnvironment
from userspace_cni.base.port_kinds import KernelPort
from userspace_cni.cni.interface_keys import LinkOptions
from userspace_cni.cni.options import Options
from userspace_cni.cni.request import Request
from userspace_cni.cni.result import LINK_SCOPE, ResultAddresses, ResultInterface
from userspace_cni.pod.mac import derive_mac

_COPIED: Final[Mapping[str, tuple[KernelPort, ...]]] = {"netdev": ("system", "af_packet"), "system": ()}
"""By datapath, how OVS takes a copy of each frame, so that the node's own stack has it, too."""
QUEUE: Final = 20
"""Packets that wait at a host end which OVS limits. All ports of type system send through one socket, in whose buffer (212,992
bytes by default) each waiting packet has 2304: when it is full, every other such port loses frames. With 50 two flooded ports
filled it, with 20 it takes five; rates are the same."""
_NO_LINKS: Final = ("all", "default")
"""Directories of sysctls for all links together."""
_UNIVERSE_GATEWAYS: Final = ("0.0.0.0", "::")  # noqa: S104 - not an address to listen on


def plan_link(request: Request, options: Options, consumer: Consumer, facts: LinkFacts, addresses: ResultAddresses) -> Attachment:
    """Plan a veth whose host end is a port of the switch. Raises BadEnvironment for a name that it cannot have."""
    environment, asked = request.environment, options.link or LinkOptions()
    require_text(environment.ifname)
    if environment.ifname in _NO_LINKS or "%" in environment.ifname:
        why = "the kernel makes no link named 'all' or 'default', and completes a name with '%' by a number of its own"
        raise BadEnvironment(f"CNI_IFNAME {environment.ifname!r} cannot be the name of a kernel link", why)
    host = host_end(environment.container_id, environment.ifname)
    mac = mac_of(request, options, consumer, facts)
    cidrs = tuple(ip["address"] for ip in addresses.ips)
    at_pod: dict[str, Any] = {"name": environment.ifname, "netns": environment.netns, "netns_inode": facts.netns_inode}
    datapath = asked.datapath
    steps: list[Step] = []
    if facts.opened_as in _COPIED[datapath]:
        steps.append(Guard(host, facts.store, facts.switch_netns))
    link = Link(
        host=host,
        host_mac=derive_mac(request.network.name, environment.container_id, f"host end of {environment.ifname}"),
        alias=host_alias(facts.store, environment.container_id, environment.ifname),
        mac=mac,
        mtu=facts.mtu,
        switch_netns=facts.switch_netns,
        queue=QUEUE if facts.opened_as == "system" else 0,
        addresses=cidrs,
        routes=tuple(_with_mtu(route, facts.route_mtu) for route in _routes(asked, facts, addresses)),
        **at_pod,
    )
    end = HostEnd(facts.opened_as, facts.mtu)
    limits, shaped = divide_limits(facts.limits, end)
    port = OvsPort(
        bridge=facts.bridge or options.bridge,
        name=host,
        interface=end,
        vlan=facts.vlan,
        mac=mac,
        marks=marks_of(request, facts, consumer.marks(facts.pod)),
        foreign_bridge=facts.foreign_bridge,
        datapath=datapath,
        limits=limits,
        mirrors=facts.mirrors,
        mirror_outputs=options.mirror_outputs,
        terms=facts.terms,
        logical=logical_of(facts, addresses),
    )
    steps += [link, *([link.limited(shaped)] if shaped else []), port]
    if cidrs:
        gateways = tuple(dict.fromkeys(ip["gateway"] for ip in addresses.ips if ip.get("gateway")))
        steps.append(
            Announcement(
                mac=mac,
                addresses=cidrs,
                duplicate_check=asked.duplicate_check,
                gateways=gateways if asked.gateway_check else (),
                **at_pod,
            )
        )
    ends = (
        ResultInterface(name=host, sandbox="", mac=link.host_mac, mtu=facts.mtu),
        ResultInterface(name=environment.ifname, sandbox=environment.netns, mac=mac, mtu=facts.mtu),
    )
    return Attachment(tuple(steps), ends)


def _routes(asked: LinkOptions, facts: LinkFacts, addresses: ResultAddresses) -> Iterator[Mapping[str, Any]]:
    """The routes as the kernel is to have them; without `gw` they are on the link.

    A CNI route without a gateway goes over the address's gateway of its family, as in the reference plugins.
    """
    gateways: dict[int, str] = {}
    for ip in addresses.ips:
        if ip.get("gateway"):
            gateways.setdefault(ip_interface(ip["address"]).version, ip["gateway"])
    for route in addresses.routes:
        rest = {key: value for key, value in route.items() if key != "gw"}
        given = route.get("gw", "")
        on_link = given in _UNIVERSE_GATEWAYS or (not given and route.get("scope") == LINK_SCOPE)
        gateway = "" if on_link else given or gateways.get(ip_network(route["dst"], strict=False).version, "")
        yield {**rest, "gw": gateway} if gateway else rest
    node = [str(ip_network(address)) for address in facts.node_addresses] if asked.node_routes else []
    own = {ip_interface(ip["address"]).ip for ip in addresses.ips}
    for dst in (*node, *asked.service_cidrs, *facts.node_services):
        network = ip_network(dst)
        if network.version in gateways and network.network_address not in {*own, ip_address(gateways[network.version])}:
            yield {"dst": dst, "gw": gateways[network.version]}


def _with_mtu(route: Mapping[str, Any], mtu: int) -> Mapping[str, Any]:
    return {"mtu": mtu, **route} if mtu else route
