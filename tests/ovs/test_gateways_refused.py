"""Gateways that cannot be made, and conditions that make one useless, are reported by name; the node stays as it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.cni.spec import switch_of
from tests.lab.network.gateways import BOTH_HOLD, GATEWAY, NODE, OUTSIDE, Site, everything, kept
from tests.lab.network.outside import Wire
from tests.lab.node.links import inside
from tests.lab.node.node import Node
from tests.lab.switch.proxy import Proxy
from tests.lab.switch.switch import wait_until
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.gateways import EgressGateway, Gateway, StaticRoute
from userspace_cni.network.concerns import look_at

EGRESS = EgressGateway(OUTSIDE[0], 1042, 1042)


def refused(site: Site, gateway: Gateway) -> str:
    """Why the gateway is refused; the node is as it was."""
    before = everything(site.place), inside(site.place, "ip", "-o", "link").count("\n")
    problem = site.keep(gateway)[gateway.port]
    assert (everything(site.place), inside(site.place, "ip", "-o", "link").count("\n")) == before
    return problem


PLAIN = replace(GATEWAY, masquerade=False)


@pytest.mark.parametrize(
    ("gateway", "why"),
    [
        (replace(PLAIN, port="nic0"), "a link of that name exists, and is not ours"),
        (replace(PLAIN, addresses=("192.0.2.129/25",)), "its subnet 192.0.2.128/25 overlaps 192.0.2.11/24 of link nic0"),
        (replace(PLAIN, addresses=("192.0.0.1/16",)), "overlaps 192.0.2.11/24 of link nic0"),
        (replace(PLAIN, addresses=("203.0.113.1/24",)), "the node has a route to 203.0.113.128/25, which is in its subnet"),
        (replace(PLAIN, routes=(StaticRoute("203.0.113.128/25", OUTSIDE[0]),)), "the node has another route to 203.0.113.128/25"),
        (
            replace(PLAIN, routes=(StaticRoute("10.99.0.0/24", "198.51.100.1"),)),
            "the gw 198.51.100.1 of its route is not a neighbour",
        ),
        (replace(PLAIN, egress_gateway=replace(EGRESS, table=77)), "routing table 77 is in use"),
        (replace(PLAIN, egress_gateway=replace(EGRESS, via="198.51.100.1")), "egress gateway 198.51.100.1 is not a neighbour"),
        (replace(PLAIN, egress_gateway=replace(EGRESS, via="203.0.113.129")), "the way there leads over 192.0.2.1"),
        (replace(PLAIN, egress_gateway=replace(EGRESS, via=NODE[0])), "or it is its own address"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_refused_by_a_look(site: Site, gateway: Gateway, why: str) -> None:
    """An address range, route or table that another program has is not used: the problem names it, and nothing is made."""
    inside(site.place, "ip", "route", "add", "203.0.113.128/25", "via", OUTSIDE[0])
    inside(site.place, "ip", "route", "add", "unreachable", "203.0.113.0/29", "table", "77")
    try:
        assert why in refused(site, gateway)
    finally:
        inside(site.place, "ip", "route", "flush", "table", "77")


def test_a_bridge_that_leads_out(node: Node, site: Site, wire: Wire) -> None:
    """A gateway on an administrator's bridge with a NIC is refused unless it says that it is the only one; the bridge stays."""
    switch = switch_of(node)
    switch.vsctl("add-br", "br-admin", "--", "set", "Bridge", "br-admin", "datapath_type=netdev")
    switch.vsctl("add-port", "br-admin", wire.nic)
    there = replace(PLAIN, port="gw0", bridge="br-admin")
    assert "bridge br-admin leads to other machines by nic0" in refused(site, there)
    assert site.keep(replace(there, sole=True)) == {"gw0": ""}
    assert switch.ports("br-admin") == ["gw0", "nic0"]
    assert site.keep() == {}
    assert switch.ports("br-admin") == ["nic0"]
    switch.vsctl("del-br", "br-admin")


def test_a_nic_that_was_added_a_moment_ago(node: Node, wire: Wire, tmp_path: Path) -> None:
    """A new gateway is refused, too, when the replica does not know the administrator's bridge and its NIC yet."""
    switch = switch_of(node)
    with Proxy(tmp_path / "a.sock", switch.dir / "db.sock") as proxy:
        node.settings["USERSPACE_CNI_OVSDB"] = proxy.remote
        with kept(node, wire.node) as site:
            site.local.switch.ports.connect(Deadline.after(60))
            proxy.lag()
            switch.vsctl("add-br", "br-admin", "--", "set", "Bridge", "br-admin", "datapath_type=netdev")
            switch.vsctl("add-port", "br-admin", wire.nic)
            try:
                assert "leads to other machines by nic0" in refused(site, replace(PLAIN, port="gw0", bridge="br-admin"))
            finally:
                proxy.prompt.set()
                switch.vsctl("del-br", "br-admin")


def test_one_that_is_refused_leaves_the_former(site: Site, wire: Wire) -> None:
    """A gateway whose new subnet overlaps another link's stays as it was, with its former masquerade."""
    assert site.keep(GATEWAY) == BOTH_HOLD
    before = everything(site.place)
    problems = site.keep(replace(GATEWAY, addresses=("192.0.2.129/25",)))
    assert "overlaps" in problems[GATEWAY.port]
    assert problems["all"] == ""
    assert everything(site.place) == before
    assert site.keep(replace(GATEWAY, addresses=("10.57.0.1/24",))) == BOTH_HOLD
    assert "10.56.0" not in str(everything(site.place))


def test_unknown_keeps(site: Site) -> None:
    """While a gateway's source cannot be read, the gateway and its masquerade stay, beside those of another gateway."""
    other = replace(GATEWAY, port="other-gw", bridge="br-other", addresses=("10.58.0.1/24",))
    assert site.keep(GATEWAY, other) == {**BOTH_HOLD, "other-gw": ""}
    before = everything(site.place)
    assert site.keep(other, complete=False) == {"other-gw": "", "br-test-gw": "", "all": ""}
    assert everything(site.place) == before
    assert site.keep(complete=False) == {"other-gw": "", "br-test-gw": "", "all": ""}
    assert everything(site.place) == before
    assert site.keep(other) == {"other-gw": "", "all": ""}
    assert "10.56.0" not in str(everything(site.place))


def test_concerns(node: Node, site: Site, wire: Wire) -> None:
    """What the node lacks is reported: sysctls, a forwarding rule, routers that do not answer. Nothing of it is changed."""

    def told(gateway: Gateway) -> dict[str, str]:
        return {each.path: each.found for each in look_at([gateway], site.local.installation, site.local.switch).concerns}

    gateway = replace(GATEWAY, egress_gateway=EGRESS)
    assert site.keep(gateway) == BOTH_HOLD
    inside(site.place, "ip", "route", "add", "default", "via", OUTSIDE[0])
    inside(site.place, "ip", "-6", "route", "add", "default", "via", OUTSIDE[1])
    strict = inside(site.place, "cat", "/proc/sys/net/ipv4/conf/nic0/rp_filter").strip()
    inside(site.place, "sh", "-c", "echo 2 > /proc/sys/net/ipv4/conf/nic0/rp_filter")
    wait_until(lambda: told(gateway) == {}, what="no concern: the NIC's link-local address may be asked for yet")
    inside(site.place, "sh", "-c", "echo 0 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv4/conf/nic0/rp_filter")
    inside(
        site.place, "nft", "add table ip theirs; add chain ip theirs FWD { type filter hook forward priority 0; policy drop; }"
    )
    assert told(replace(gateway, next_hops=("10.56.0.77",))) == {
        "net.ipv4.ip_forward": "0",
        "net.ipv4.conf.nic0.rp_filter": "1",
        "forwarding of IPv4": "lost on the way out: after prerouting and before forward, by routing "
        "(net.ipv4.ip_forward, rp_filter, or a route or rule that leads nowhere)",
        "router 10.56.0.77": "silent",
    }
    of_ovn = replace(GATEWAY, masquerade=False, clamp_mss=False, logical_port="k8s-n1")
    assert told(of_ovn) == {}, "a node's own logical port is no router of pods"
    inside(site.place, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
    assert told(gateway)["forwarding of IPv4"] == "lost on the way out: at chain ip theirs FWD, by its policy"
    inside(site.place, "nft", "add rule ip theirs FWD iifname br-test-gw accept")
    assert told(gateway)["forwarding of IPv4"] == "lost on the way back: at chain ip theirs FWD, by its policy"
    inside(site.place, "nft", "add rule ip theirs FWD oifname br-test-gw accept")
    inside(wire.outside, "ip", "link", "set", wire.beyond, "down")
    inside(site.place, "ip", "neigh", "flush", "all")
    found = told(gateway)
    assert "forwarding of IPv4" not in found
    assert {key for key in found if key.startswith("router")} == {f"router {each}" for each in OUTSIDE}
    inside(site.place, "nft", "delete table ip theirs")
    inside(site.place, "sh", "-c", f"echo {strict} > /proc/sys/net/ipv4/conf/nic0/rp_filter")
