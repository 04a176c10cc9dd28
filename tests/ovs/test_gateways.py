"""Gateways of the node: pods reach what is beyond the node's NIC, and nothing of another program is changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.cni.spec import succeeded, switch_of
from tests.lab.frames.taps import SECONDS, TapProcess, echoes
from tests.lab.network.gateways import BOTH_HOLD, GATEWAY, NODE, OUTSIDE, Site, everything, kept, peer_of, podnet
from tests.lab.network.outside import Wire
from tests.lab.node.links import inside
from tests.lab.node.node import Node
from tests.lab.switch.switch import wait_until
from userspace_cni.base.gateways import EgressGateway, StaticRoute
from userspace_cni.base.limits import Limits, Rate
from userspace_cni.base.provider_networks import ProviderNetwork


@pytest.fixture
def site(node: Node) -> Iterator[Site]:
    with kept(node, switch_of(node).netns) as made:
        yield made


def test_masquerade(node: Node, site: Site, wire: Wire, sandbox: str) -> None:
    """Beyond the NIC a pod's connections come from the node's address, by both families; without masquerade from the pod's."""
    pod = succeeded(node.run("ADD", podnet(node), sandbox, ifname="eth0"))
    assert site.keep(GATEWAY) == BOTH_HOLD
    for address, nodes in zip(OUTSIDE, NODE, strict=True):
        assert peer_of(sandbox, wire.outside, address)[0] == nodes
    handles = inside(site.place, "nft", "--handle", "list", "ruleset")
    assert site.keep(GATEWAY) == BOTH_HOLD
    assert inside(site.place, "nft", "--handle", "list", "ruleset") == handles, "what is as desired was made again"
    assert site.keep(replace(GATEWAY, masquerade=False)) == {"br-test-gw": ""}
    wire.on_outside("ip", "route", "add", "10.56.0.0/24", "via", NODE[0])
    wire.on_outside("ip", "-6", "route", "add", "fd00:56::/64", "via", NODE[1])
    for address, each in zip(OUTSIDE, pod["ips"], strict=True):
        assert peer_of(sandbox, wire.outside, address)[0] == each["address"].partition("/")[0]


def test_vhost_user_pod(node: Node, site: Site, wire: Wire, sandbox: str) -> None:
    """A vhost-user port reaches what is beyond the NIC, too, also after ovs-vswitchd was killed and started."""
    assert site.keep(GATEWAY) == BOTH_HOLD
    switch, path = switch_of(node), node.directory / "tap.sock"
    with TapProcess(sandbox, str(path), "--mode", "server", "--name", "net1", "--address", "10.56.0.9/24") as tap:
        wait_until(path.exists, SECONDS, f"a socket at {path}")
        options = ["type=dpdkvhostuserclient", f"options:vhost-server-path={path}"]
        switch.vsctl("add-port", "br-test", "by-hand", "--", "set", "Interface", "by-hand", *options)
        tap.until("ready")
        inside(sandbox, "ip", "route", "add", "default", "via", "10.56.0.1")
        assert peer_of(sandbox, wire.outside, OUTSIDE[0])[0] == NODE[0]
        switch.kill_vswitchd()
        switch.restart_vswitchd()
        wait_until(lambda: echoes(sandbox, OUTSIDE[0]), SECONDS, "an echo from beyond the NIC")
        assert peer_of(sandbox, wire.outside, OUTSIDE[0])[0] == NODE[0]
        assert site.keep(GATEWAY) == BOTH_HOLD
    switch.vsctl("del-port", "by-hand")


def test_behind_an_uplink(node: Node, site: Site, wire: Wire, sandbox: str) -> None:
    """While the NIC's addresses move to a bridge and back, pods reach what is beyond it.

    That bridge can have only one gateway.
    """
    succeeded(node.run("ADD", podnet(node), sandbox, ifname="eth0"))
    full = replace(
        GATEWAY, routes=(StaticRoute("10.57.0.0/24", OUTSIDE[0]),), egress_gateway=EgressGateway(OUTSIDE[0], 1042, 1042)
    )
    uplink = ProviderNetwork("net1", wire.nic, move_addresses="primary")
    assert site.keep(full) == BOTH_HOLD
    assert site.keep(full, uplink=uplink) == {"net1": "", **BOTH_HOLD}
    assert f"{NODE[0]}/24" in inside(site.place, "ip", "-o", "address", "show", "dev", "br-net1")
    for _ in range(2):
        for address, nodes in zip(OUTSIDE, NODE, strict=True):
            assert peer_of(sandbox, wire.outside, address)[0] == nodes
        assert inside(site.place, "ip", "route", "show", "proto", "149").count("10.57.0.0/24 via 192.0.2.1") == 1
        assert site.keep(full, uplink=uplink) == {"net1": "", **BOTH_HOLD}
    there = replace(GATEWAY, port="gw0", bridge="br-net1", addresses=("10.60.0.1/24",), masquerade=False)
    assert "br-net1 leads to other machines by nic0" in site.keep(there, uplink=uplink)["gw0"]
    assert site.keep(replace(there, sole=True), uplink=uplink) == {"net1": "", "gw0": ""}
    assert site.keep(full) == BOTH_HOLD
    assert peer_of(sandbox, wire.outside, OUTSIDE[0])[0] == NODE[0]


def test_segments_are_clamped(node: Node, site: Site, wire: Wire, sandbox: str) -> None:
    """With clamp_mss a connection's segments fit the gateway's link, whose MTU is smaller than that of pod and NIC."""
    succeeded(node.run("ADD", podnet(node), sandbox, ifname="eth0"))
    narrow = replace(GATEWAY, mtu=1400)
    assert site.keep(narrow) == BOTH_HOLD
    assert [peer_of(sandbox, wire.outside, each)[1] > 1360 for each in OUTSIDE] == [True, True]
    assert site.keep(replace(narrow, clamp_mss=True)) == BOTH_HOLD
    assert [peer_of(sandbox, wire.outside, each)[1] <= 1360 for each in OUTSIDE] == [True, True]


def test_limits(site: Site) -> None:
    """The kernel's own queue limits what the node sends to the pods; a limit that this kernel does not support is refused."""
    limited = replace(GATEWAY, limits=Limits(to_pod=Rate(20_000_000, 2_000_000)))
    assert site.keep(limited) == BOTH_HOLD
    wait_until(lambda: "htb" in inside(site.place, "tc", "qdisc", "show", "dev", "br-test-gw"), what="a queueing discipline")
    assert "rate 20Mbit" in inside(site.place, "tc", "class", "show", "dev", "br-test-gw")
    assert site.keep(GATEWAY) == BOTH_HOLD
    wait_until(lambda: "htb" not in inside(site.place, "tc", "qdisc", "show", "dev", "br-test-gw"), what="no such discipline")
    other = replace(GATEWAY, limits=Limits(from_pod=Rate(20_000_000, 2_000_000)))
    assert "br-test-gw" in site.keep(other)["br-test-gw"]
    assert site.keep(GATEWAY) == BOTH_HOLD


def test_the_bridge_has_two_kinds_of_users(node: Node, site: Site, sandbox: str) -> None:
    """A bridge that was made on demand is removed with the last of pods and gateway, in either order."""
    switch, network = switch_of(node), podnet(node)
    for last in ("pod", "gateway"):
        succeeded(node.run("ADD", network, sandbox, ifname="eth0"))
        assert site.keep(GATEWAY) == BOTH_HOLD
        if last == "pod":
            assert site.keep() == {}
            assert "br-test" in switch.bridges()
            assert node.run("DEL", network, sandbox, ifname="eth0").status == 0
        else:
            assert node.run("DEL", network, sandbox, ifname="eth0").status == 0
            assert switch.ports("br-test") == ["br-test-gw"]
            assert site.keep() == {}
        assert switch.bridges() == []


def test_egress_gateway(node: Node, site: Site, wire: Wire, sandbox: str) -> None:
    """Traffic out of the subnet uses the egress gateway and not the node's default route.

    Traffic within the node's networks does not.
    """
    succeeded(node.run("ADD", podnet(node), sandbox, ifname="eth0"))
    wire.on_outside("ip", "address", "add", "198.51.100.9/32", "dev", wire.beyond)
    wire.on_outside("ip", "route", "add", "10.56.0.0/24", "via", NODE[0])
    egress = replace(GATEWAY, masquerade=False, egress_gateway=EgressGateway(OUTSIDE[0], 1042, 1042))
    assert site.keep(egress) == {"br-test-gw": ""}
    assert peer_of(sandbox, wire.outside, "198.51.100.9")[0].startswith("10.56.0.")
    assert "unreachable" in inside(site.place, "sh", "-c", "ip route get 198.51.100.9 2>&1 || true")
    assert inside(sandbox, "ping", "-c1", "-w5", "10.56.0.1")
    assert site.keep(replace(egress, egress_gateway=EgressGateway(OUTSIDE[0], 1042, 500))) == {"br-test-gw": ""}
    rules = inside(site.place, "ip", "rule")
    assert (rules.count("10.56.0.0/24"), "1042:" in rules, "500:" in rules) == (2, False, True)


def test_what_others_have_stays(node: Node, site: Site, wire: Wire) -> None:
    """Rules, routes, tables and addresses of other programs are the same after a gateway has come, changed and gone."""
    theirs = "add table inet theirs; add chain inet theirs post { type nat hook postrouting priority 100; }"
    inside(site.place, "nft", theirs)
    inside(site.place, "ip", "route", "add", "203.0.113.0/24", "via", OUTSIDE[0])
    inside(site.place, "ip", "rule", "add", "from", "203.0.113.0/24", "lookup", "77", "priority", "900")
    try:
        before = everything(site.place)
        full = replace(
            GATEWAY,
            clamp_mss=True,
            routes=(StaticRoute("10.57.0.0/24", OUTSIDE[0]), StaticRoute("fd00:57::/64", OUTSIDE[1])),
            egress_gateway=EgressGateway(OUTSIDE[0], 1042, 1042),
        )
        assert site.keep(full) == BOTH_HOLD
        assert "10.57.0.0/24 via 192.0.2.1 dev nic0 proto 149" in inside(site.place, "ip", "route")
        assert site.keep(replace(full, routes=(StaticRoute("10.57.0.0/24", "192.0.2.2"),))) == BOTH_HOLD
        assert "10.57.0.0/24 via 192.0.2.2 " in inside(site.place, "ip", "route")
        assert "fd00:57::" not in inside(site.place, "ip", "-6", "route")
        assert site.keep() == {}
        wait_until(lambda: everything(site.place) == before, what="the node as it was before")
    finally:
        inside(site.place, "ip", "rule", "del", "priority", "900")
        inside(site.place, "nft", "delete table inet theirs")


def test_what_is_lost_is_made_again(node: Node, site: Site, wire: Wire, sandbox: str) -> None:
    """All rules or one, an address, a route and a policy rule that were flushed or deleted are made again at the next look."""
    full = replace(
        GATEWAY,
        clamp_mss=True,
        routes=(StaticRoute("10.57.0.0/24", OUTSIDE[0]),),
        egress_gateway=EgressGateway(OUTSIDE[0], 1042, 1042),
    )
    assert site.keep(full) == BOTH_HOLD
    whole = everything(site.place)
    table = f"inet userspace-cni-{site.local.store.journal.identity()}"
    for damage in (
        ("nft", "flush", "ruleset"),
        ("nft", "flush", "chain", *table.split(), "forward"),
        ("nft", "add", "rule", *table.split(), "forward", "accept"),
        ("ip", "address", "del", "10.56.0.1/24", "dev", "br-test-gw"),
        ("ip", "link", "set", "br-test-gw", "down"),
        ("ip", "route", "del", "10.57.0.0/24"),
        ("ip", "rule", "del", "priority", "1041"),
        ("ip", "route", "flush", "table", "1042"),
    ):
        inside(site.place, *damage)
        assert everything(site.place) != whole
        assert site.keep(full) == BOTH_HOLD
        assert everything(site.place) == whole, damage


def test_after_a_reboot(site: Site, wire: Wire) -> None:
    """After a reboot the rows exist but nothing of the kernel's: the gateway is made anew, also when its spec has changed."""
    full = replace(
        GATEWAY, routes=(StaticRoute("10.57.0.0/24", OUTSIDE[0]),), egress_gateway=EgressGateway(OUTSIDE[0], 1042, 1042)
    )
    assert site.keep(full) == BOTH_HOLD
    whole = everything(site.place)
    journal = site.local.store.journal
    for record in journal.node_records():
        journal.write(record.to(record.state, boot_id="of another boot"))
    for lost in (
        ("nft", "flush", "ruleset"),
        ("ip", "address", "flush", "dev", "br-test-gw"),
        ("ip", "route", "flush", "proto", "149"),
        ("ip", "route", "flush", "table", "1042"),
        ("ip", "rule", "flush", "protocol", "149"),
    ):
        inside(site.place, *lost)
    assert site.keep(replace(full, masquerade=False)) == {"br-test-gw": ""}
    assert site.keep(full) == BOTH_HOLD
    assert everything(site.place) == whole
