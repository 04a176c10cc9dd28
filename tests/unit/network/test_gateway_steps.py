"""The steps of a gateway, and the rules of the table of all gateways: pure functions of the spec."""

from __future__ import annotations

from dataclasses import replace

import pytest

from userspace_cni.attachment.records import step_from_json, step_to_json
from userspace_cni.attachment.steps import LogicalPort, NodeLink, NodeRoute, OvsPort, PolicyRoute, Translation
from userspace_cni.base.gateways import EgressGateway, Gateway, StaticRoute
from userspace_cni.base.limits import Limits, Rate
from userspace_cni.host.node_net.translations import rules
from userspace_cni.network.gateway_specs import GatewayBridge, part_of, steps_of
from userspace_cni.network.spec_list import GATEWAY, OBJECTS, SETTINGS, Desired, merge_sources

STORE = "c0ffee"
FULL = Gateway(
    port="br0-gw",
    bridge="br0",
    addresses=("10.56.217.1/24", "fd00:56::1/64"),
    mtu=1400,
    vlan=100,
    masquerade=True,
    not_masqueraded=("10.0.0.0/8", "10.1.0.0/16"),
    clamp_mss=True,
    routes=(StaticRoute("10.56.218.0/24", "192.0.2.18"),),
    egress_gateway=EgressGateway("192.0.2.1", 1042, 1042),
    limits=Limits(Rate(1_000_000, 800_000)),
)


def test_all_of_a_gateway() -> None:
    """The port with its columns comes first, then the link, the routes, and the rules of the egress gateway's family."""
    port, *others = steps_of(FULL, STORE, "/netns", GatewayBridge())
    assert isinstance(port, OvsPort)
    assert (port.bridge, port.name, port.vlan.tag, port.interface.mtu) == ("br0", "br0-gw", 100, 1400)
    assert (port.limits, port.foreign_bridge, port.datapath) == (FULL.limits, False, "netdev")
    assert port.marks == {"owner": "userspace-cni", "owner-kind": "node", "store": STORE, "spec": "gateway br0-gw"}
    assert others == [
        NodeLink("br0-gw", ("10.56.217.1/24", "fd00:56::1/64"), "/netns"),
        NodeRoute("10.56.218.0/24", "192.0.2.18", "/netns"),
        PolicyRoute(("10.56.217.0/24",), "192.0.2.1", 1042, 1042, "", "/netns"),
    ]


def test_the_mac_stays() -> None:
    """Without a MAC in the spec the link has one of this installation's and the port's own, each time the same."""
    plain = replace(FULL, mac="")
    first, again, other = (steps_of(plain, store, "", GatewayBridge())[0] for store in (STORE, STORE, "f00d"))
    assert first == again
    assert first != other
    assert steps_of(replace(plain, mac="02:00:00:00:00:01"), STORE, "", GatewayBridge())[0].interface.mac == "02:00:00:00:00:01"  # type: ignore[attr-defined]


def test_a_gateway_that_ovn_knows() -> None:
    """Its port has the logical port's name, and its addresses for OVN's control plane; no ADD waits for OVN at it."""
    port, *_ = steps_of(replace(FULL, logical_port="node-n1"), STORE, "", GatewayBridge(is_foreign=True))
    assert isinstance(port, OvsPort)
    assert port.logical == LogicalPort("node-n1", ids={"ip": "10.56.217.1,fd00:56::1"}, waits=False)
    assert step_from_json(step_to_json(port)) == port


@pytest.mark.parametrize(("asked", "of_bridge", "wanted"), [(0, 1500, 1500), (0, 9000, 9000), (1300, 9000, 1300)])
def test_it_asks_for_an_mtu(asked: int, of_bridge: int, wanted: int) -> None:
    """Its port always asks for an MTU: the spec's, or else the bridge's.

    Without one it would get the smallest of the pods' ports.
    """
    port, *_ = steps_of(replace(FULL, mtu=asked), STORE, "", GatewayBridge(mtu=of_bridge))
    assert isinstance(port, OvsPort)
    assert port.interface.mtu == wanted


def test_an_egress_gateway_on_the_bridge() -> None:
    """An egress gateway that is in the gateway's own subnet is reached by its link."""
    near = replace(FULL, egress_gateway=EgressGateway("fd00:56::9", 1042, 1042))
    assert steps_of(near, STORE, "", GatewayBridge())[-1] == PolicyRoute(("fd00:56::/64",), "fd00:56::9", 1042, 1042, "br0-gw")


def test_steps_are_read_back() -> None:
    """Every step is equal after it was in a record; otherwise each look would change the gateway."""
    parts = (part_of(FULL), part_of(replace(FULL, port="other", addresses=("10.9.0.1/24",))))
    for step in (*steps_of(FULL, STORE, "/netns", GatewayBridge(is_foreign=True)), Translation(STORE, parts, "/netns")):
        assert step_from_json(step_to_json(step)) == step


def test_rules_of_the_table() -> None:
    """Sets have all subnets by family; networks within others are left out, because a set allows no overlap."""
    other = replace(FULL, port="other", addresses=("10.9.0.1/24",), masquerade=False, clamp_mss=False)
    lines = rules([part_of(FULL), part_of(other)]).splitlines()
    assert lines[:2] == [
        "set subnets4 { type ipv4_addr; flags interval; elements = { 10.9.0.0/24, 10.56.217.0/24 } }",
        "set subnets6 { type ipv6_addr; flags interval; elements = { fd00:56::/64 } }",
    ]
    assert [line for line in lines if "masquerade" in line] == [
        (
            'oifname != "br0-gw" ip saddr { 10.56.217.0/24 } ip daddr != @subnets4 ip daddr != { 10.0.0.0/8 } '
            'masquerade fully-random comment "br0-gw: masquerade IPv4"'
        ),
        (
            'oifname != "br0-gw" ip6 saddr { fd00:56::/64 } ip6 daddr != @subnets6 '
            'masquerade fully-random comment "br0-gw: masquerade IPv6"'
        ),
    ]
    assert sum("maxseg size set rt mtu" in line for line in lines) == 4
    assert "other" not in "".join(lines)


def test_no_hook_without_need() -> None:
    """If no gateway masquerades or clamps there is no chain, because each costs every connection of the node."""
    assert "chain" not in rules([part_of(replace(FULL, masquerade=False, clamp_mss=False))])


def test_two_sources_of_one_node() -> None:
    """Of two gateways that cannot both exist, the more important source's is made.

    The other is refused, naming what they share.
    """
    rival = replace(FULL, port="other", addresses=("10.9.0.1/24", "fd00:9::1/64"), routes=())
    listed = Desired(SETTINGS, complete=True, gateways=(FULL,)), Desired(OBJECTS, complete=True, gateways=(rival,))
    found = merge_sources(listed, {})
    assert [each for _, each in found.gateways] == [FULL]
    assert "'egress_gateway.table' is 1042, which is that of gateway br0-gw, too" in found.refused[GATEWAY, "other"].why
    assert found.refused[GATEWAY, "other"].source == OBJECTS
