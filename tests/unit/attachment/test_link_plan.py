"""Golden plans of kernel links: the steps of an ordinary pod's attachment, in their order, and its routes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from userspace_cni.attachment.facts import LinkFacts, Pod
from userspace_cni.attachment.plan import plan
from userspace_cni.attachment.planned import Attachment
from userspace_cni.attachment.steps import (
    Announcement,
    Guard,
    HostEnd,
    Link,
    OvsPort,
    Shaper,
    Step,
    host_alias,
    host_end,
)
from userspace_cni.base.errors import BadEnvironment
from userspace_cni.base.limits import Limits, Netem, Rate
from userspace_cni.base.port_kinds import KernelPort
from userspace_cni.cni.interface_keys import LinkOptions
from userspace_cni.cni.options import read_options
from userspace_cni.cni.request import Request, read_environment, read_network
from userspace_cni.cni.result import EMPTY, ResultAddresses, ResultInterface
from userspace_cni.consumers import CONSUMERS

CONTAINER = "0123456789abcdef0123456789abcdef"
HOST = host_end(CONTAINER, "eth0")
AT_POD: dict[str, Any] = {"name": "eth0", "netns": "/run/netns/x", "netns_inode": 4711}
FACTS = LinkFacts(
    boot_id="boot", store="5707e", netns_inode=4711, pod=Pod("ns", "pod"), switch_netns="/switch", opened_as="system", mtu=1450
)
LEASED = ResultAddresses(
    ips=({"address": "10.56.0.7/24", "gateway": "10.56.0.1"}, {"address": "fd00::7/64", "gateway": "fd00::1"}),
    routes=({"dst": "0.0.0.0/0"}, {"dst": "::/0", "mtu": 1400}),
)
BOTH = Limits(Rate(10_000_000, 1_000_000), Rate(20_000_000, 2_000_000))


def planned(facts: LinkFacts = FACTS, addresses: ResultAddresses = EMPTY, ifname: str = "eth0", **link: Any) -> Attachment:
    """The plan of one ADD; `link`: the network's keys for the link."""
    stdin = json.dumps({"cniVersion": "1.1.0", "name": "net", "type": "userspace"}).encode()
    variables = {"CNI_CONTAINERID": CONTAINER, "CNI_NETNS": "/run/netns/x", "CNI_IFNAME": ifname}
    request = Request(read_environment(variables, "ADD"), read_network(stdin, "ADD"), stdin)
    options = replace(read_options(request, CONSUMERS, lambda _text: None), link=LinkOptions(**link))
    return plan(request, options, CONSUMERS["pod"], facts, addresses)


def only(attachment: Attachment, kind: type[Step]) -> Any:
    [step] = [step for step in attachment.steps if isinstance(step, kind)]
    return step


def test_order_and_names() -> None:
    """The guard is there before the link, the link before the port that is named after it, the announcement last."""
    attachment = planned(addresses=LEASED)
    assert [type(step) for step in attachment.steps] == [Guard, Link, OvsPort, Announcement]
    link, port = only(attachment, Link), only(attachment, OvsPort)
    assert only(attachment, Guard) == Guard(HOST, "5707e", "/switch")
    assert (link.host, link.alias, link.name, link.mtu) == (HOST, host_alias("5707e", CONTAINER, "eth0"), "eth0", 1450)
    assert link.addresses == ("10.56.0.7/24", "fd00::7/64")
    assert (port.name, port.interface, port.datapath, port.mac) == (HOST, HostEnd("system", 1450), "netdev", link.mac)
    assert attachment.interfaces == (
        ResultInterface(HOST, "", link.host_mac, 1450),
        ResultInterface("eth0", "/run/netns/x", link.mac, 1450),
    )


def test_names_fit_the_kernel() -> None:
    """A link's name has 15 bytes at most and its alias 255, however long the container's ID is."""
    names = {host_end(container, "eth0") for container in ("a", "b", "a" * 500)}
    assert {len(name) for name in names} == {14}
    assert len(names) == 3
    assert len(host_alias("0" * 32, "c" * 500, "eth0")) < 256


@pytest.mark.parametrize("ifname", ["all", "default", "a%d"])
def test_names_that_no_link_has(ifname: str) -> None:
    """A name that the kernel takes for a pattern or for all links is refused."""
    with pytest.raises(BadEnvironment, match=f"CNI_IFNAME '{ifname}' cannot be"):
        planned(ifname=ifname)


@pytest.mark.parametrize(
    ("datapath", "opened_as", "guarded"),
    [("netdev", "system", True), ("netdev", "af_packet", True), ("netdev", "afxdp", False), ("system", "system", False)],
)
def test_guard_where_the_stack_has_a_copy(datapath: str, opened_as: KernelPort, *, guarded: bool) -> None:
    """There is a guard only where OVS receives a copy of each frame, so that the node's own stack gets it, too."""
    steps = planned(replace(FACTS, opened_as=opened_as), datapath=datapath).steps
    assert any(isinstance(step, Guard) for step in steps) == guarded


def test_limits_at_the_switch_and_at_the_pods_end() -> None:
    """On ports of type system OVS cannot limit what leaves a pod, so that the pod's end does; on DPDK's ports it limits both."""
    kernel = planned(replace(FACTS, limits=replace(BOTH, netem=Netem(5))))
    assert only(kernel, OvsPort).limits == Limits(to_pod=BOTH.to_pod, netem=Netem(5))
    assert only(kernel, Shaper) == Shaper(rate=20_000_000, burst=2_000_000, **AT_POD)
    dpdk = planned(replace(FACTS, limits=BOTH, opened_as="af_packet"))
    assert only(dpdk, OvsPort).limits == BOTH
    assert not any(isinstance(step, Shaper) for step in dpdk.steps)


@pytest.mark.parametrize(
    ("route", "wanted"),
    [
        ({"dst": "10.0.0.0/8"}, {"dst": "10.0.0.0/8", "gw": "10.56.0.1"}),
        ({"dst": "fd01::/64"}, {"dst": "fd01::/64", "gw": "fd00::1"}),
        ({"dst": "10.0.0.0/8", "gw": "10.56.0.9", "priority": 5}, {"dst": "10.0.0.0/8", "gw": "10.56.0.9", "priority": 5}),
        ({"dst": "10.0.0.0/8", "gw": "0.0.0.0"}, {"dst": "10.0.0.0/8"}),
        ({"dst": "10.0.0.0/8", "scope": 253}, {"dst": "10.0.0.0/8", "scope": 253}),
    ],
)
def test_routes(route: dict[str, Any], wanted: dict[str, Any]) -> None:
    """A route without a gateway uses that of its family's address; 0.0.0.0 and scope link mean on-link."""
    assert only(planned(addresses=replace(LEASED, routes=(route,))), Link).routes == (wanted,)


def test_a_route_without_any_gateway() -> None:
    """A route without any gateway is on-link."""
    addresses = ResultAddresses(ips=({"address": "10.56.0.7/24"},), routes=({"dst": "10.9.0.0/16"},))
    assert only(planned(addresses=addresses), Link).routes == ({"dst": "10.9.0.0/16"},)


def test_routes_to_node_and_services() -> None:
    """They use the first gateway of their family, and never lead to the pod's own address or that gateway."""
    facts = replace(FACTS, node_addresses=("192.0.2.5", "10.56.0.1", "2001:db8::5"))
    addresses = replace(LEASED, routes=())
    routes = only(planned(facts, addresses, node_routes=True, service_cidrs=("10.96.0.0/12",)), Link).routes
    assert routes == (
        {"dst": "192.0.2.5/32", "gw": "10.56.0.1"},
        {"dst": "2001:db8::5/128", "gw": "fd00::1"},
        {"dst": "10.96.0.0/12", "gw": "10.56.0.1"},
    )
    assert only(planned(facts, addresses), Link).routes == ()
    told = replace(FACTS, node_services=("172.30.0.0/16",))
    assert only(planned(told, addresses), Link).routes == ({"dst": "172.30.0.0/16", "gw": "10.56.0.1"},)


def test_questions_before_the_announcement() -> None:
    """They are asked only if the network asks for that."""
    asked = only(planned(addresses=LEASED, gateway_check=True, duplicate_check=True), Announcement)
    assert (asked.gateways, asked.duplicate_check) == (("10.56.0.1", "fd00::1"), True)
    plain = only(planned(addresses=LEASED), Announcement)
    assert (plain.gateways, plain.duplicate_check) == ((), False)
    assert not any(isinstance(step, Announcement) for step in planned().steps)
