"""What a look at a NIC finds, and which part of it can be made again on another link."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

from tests.host.places import eventually, soon
from tests.lab.frames.taps import entered
from tests.lab.network.outside import NIC, Wire, wired
from userspace_cni.attachment.steps import AddressMove
from userspace_cni.attachment.stored_form import form_of
from userspace_cni.host.netlink.kept_messages import (
    LinkConfiguration,
    delete_address,
    delete_route,
    new_address,
    read_configuration,
    replace_route,
)
from userspace_cni.host.node_net import nics
from userspace_cni.host.node_net.forwarding import NodeNamespace
from userspace_cni.host.node_net.nics import KernelBond, Nic, find_answering, look, look_at_all, merge_changes, plan_move
from userspace_cni.linux.netlink import ROUTE, NetlinkConnection

V4, V6 = "192.0.2.11/24", "2001:db8::11/64"


@pytest.fixture
def wire(sandbox: str) -> Iterator[Wire]:
    """A NIC in a namespace of its own, with an address of each family."""
    with wired(sandbox, (V4, V6), ("192.0.2.1/24", "2001:db8::1/64")) as made:
        yield made


def seen(wire: Wire, name: str = NIC) -> Nic:
    """The look at a link, which has to exist."""
    found = look(name, wire.node)
    assert found
    return found


def test_a_nic(wire: Wire) -> None:
    """It has addresses, routes, next hops, MTU, master and the links on top of it; a missing NIC is None."""
    wire.on_node("ip", "route", "add", "198.51.100.0/24", "via", "192.0.2.9")
    wire.on_node("ip", "route", "add", "default", "via", "192.0.2.1", "metric", "5")
    wire.on_node("ip", "link", "add", "upon", "link", NIC, "type", "macvlan")
    nic = seen(wire)
    assert (nic.name, nic.mtu, nic.kind, nic.up, nic.carrier, nic.master) == (NIC, 1500, "veth", True, True, "")
    assert nic.shown_addresses == (V4, V6)
    assert nic.gateways == ("192.0.2.1", "192.0.2.9")
    assert nic.has_default_route
    assert [(each.name, each.kind) for each in nic.uppers] == [("upon", "macvlan")]
    assert (nic.passing, nic.learned, nic.stuck) == ((), (), ())
    assert find_answering(nic, wire.node, deadline=soon()) == ("192.0.2.1",)
    wire.on_outside("ip", "link", "set", wire.beyond, "down")
    assert find_answering(seen(wire), wire.node) == ()
    assert look("none", wire.node) is None
    assert set(look_at_all((NIC, "upon", "none"), wire.node)) == {NIC, "upon"}


@pytest.mark.parametrize(
    ("kind", "data", "tag"),
    [
        ("vlan", [["IFLA_VLAN_ID", 100], ["IFLA_VLAN_PROTOCOL", 0x8100]], 100),
        ("vlan", [["IFLA_VLAN_ID", 4094]], 4094),
        ("vlan", [["IFLA_VLAN_ID", 100], ["IFLA_VLAN_PROTOCOL", 0x88A8]], 0),
        ("macvlan", [["IFLA_MACVLAN_MODE", 4]], 0),
    ],
)
def test_the_tag_of_a_vlans_link(kind: str, data: list[Any], tag: int) -> None:
    """The tag is the kernel's for 802.1Q, also when no protocol is given; links of 802.1ad and others have none."""
    assert nics.tag_of(told(7, kind, data)) == tag


def told(index: int, kind: str, data: list[Any], *others: list[Any]) -> bytes:
    """The kernel's description of a link of that index and kind, named after both."""
    info = {"attrs": [["IFLA_INFO_KIND", kind], ["IFLA_INFO_DATA", {"attrs": data}]]}
    answer = ifinfmsg()
    answer.update({"index": index, "attrs": [["IFLA_IFNAME", f"{kind}{index}"], ["IFLA_LINKINFO", info], *others]})
    answer.encode()
    return bytes(answer.data[16:])


def test_the_bond_below_a_link() -> None:
    """A bond, and every link on top of it at any height, has the bond's name and mode; other links have none."""
    answers = [
        told(1, "bond", [["IFLA_BOND_MODE", 6]]),
        told(2, "vlan", [["IFLA_VLAN_ID", 100]], ["IFLA_LINK", 1]),
        told(3, "macvlan", [], ["IFLA_LINK", 2]),
        told(4, "bond", [["IFLA_BOND_MODE", 1]]),
        told(5, "vlan", [["IFLA_VLAN_ID", 100]], ["IFLA_LINK", 9]),
        told(6, "veth", [], ["IFLA_LINK", 1]),
        told(7, "vlan", [["IFLA_VLAN_ID", 100]], ["IFLA_LINK", 1], ["IFLA_LINK_NETNSID", 0]),
        told(8, "bond", [["IFLA_BOND_MODE", 99]]),
    ]
    alb, unknown = KernelBond("bond1", "balance-alb"), KernelBond("bond8", "")
    expected = [alb, alb, alb, KernelBond("bond4", "active-backup"), None, None, None, unknown, None]
    assert [nics.bond_below(answers, index) for index in range(1, 10)] == expected


def test_the_modes_of_a_bond_are_those_of_the_kernel() -> None:
    """Each mode has the number that linux/if_bonding.h and ip(8) give it."""
    by_number = {
        "balance-rr": 0,
        "active-backup": 1,
        "balance-xor": 2,
        "broadcast": 3,
        "802.3ad": 4,
        "balance-tlb": 5,
        "balance-alb": 6,
    }
    for mode, number in by_number.items():
        assert nics.bond_below([told(1, "bond", [["IFLA_BOND_MODE", number]])], 1) == KernelBond("bond1", mode)


def test_an_enslaved_nic(wire: Wire) -> None:
    """The bridge that it is enslaved to is named."""
    wire.on_node("ip", "link", "add", "lb0", "type", "bridge")
    wire.on_node("ip", "link", "set", NIC, "master", "lb0")
    assert seen(wire).master == "lb0"


def test_offloads(wire: Wire) -> None:
    """GRO is reported when it is on."""
    for state in ("on", "off"):
        wire.on_node("ethtool", "-K", NIC, "gro", state)
        assert seen(wire).offloads == (("gro",) if state == "on" else ())


@pytest.mark.parametrize(
    ("made", "where", "told"),
    [
        (["address", "add", "192.0.2.50/24", "dev", NIC, "valid_lft", "600", "preferred_lft", "300"], "passing", "192.0.2.50/24"),
        (["-6", "route", "add", "2001:db8:9::/64", "dev", NIC, "proto", "ra"], "learned", "2001:db8:9::/64"),
        (["-6", "route", "add", "2001:db8:8::/64", "dev", NIC, "expires", "600"], "learned", "2001:db8:8::/64"),
        (["route", "add", "198.51.100.0/24", "nhid", "7"], "stuck", "198.51.100.0/24"),
        (["route", "append", "192.0.2.0/24", "dev", "other"], "stuck", "192.0.2.0/24"),
    ],
)
def test_what_cannot_be_moved(wire: Wire, made: list[str], where: str, told: str) -> None:
    """Addresses that expire, routes of routing daemons, nexthop objects, and
    routes that another link has, too, are named separately.
    """
    wire.on_node("ip", "nexthop", "add", "id", "7", "via", "192.0.2.1", "dev", NIC)
    wire.on_node("ip", "link", "add", "other", "type", "veth", "peer", "name", "otherp")
    for each in ("other", "otherp"):
        wire.on_node("ip", "link", "set", each, "up")
    before = seen(wire)
    wire.on_node("ip", *made)
    nic = seen(wire)
    [found] = getattr(nic, where)
    assert found.startswith(told)
    assert set(nic.shown_addresses) == set(before.shown_addresses)
    assert len(nic.routes) == len(before.routes) - (where == "stuck" and "append" in made)


ROUTES = (
    "198.51.100.0/24 via 192.0.2.9 metric 7 src 192.0.2.11 mtu 1400 advmss 1300 realms 3 tos 0x10",
    "198.51.101.0/24 nexthop via 192.0.2.1 weight 3 nexthop via 192.0.2.9 weight 1 realms 4",
    "198.51.102.0/24 via 203.0.113.1 onlink table 1000 proto 200",
    "198.51.103.0/24 via inet6 2001:db8::9",
    "unicast default via 192.0.2.1",
    "2001:db8:1::/64 via 2001:db8::9 metric 50 pref high mtu lock 1400",
    "2001:db8:2::/64 nexthop via 2001:db8::1 nexthop via 2001:db8::9",
)
ADDRESSES = (
    f"192.0.2.70/24 brd + label {NIC}:one metric 40",
    "192.0.2.71 peer 203.0.113.9/32 scope link",
    "2001:db8::70/64 nodad noprefixroute home preferred_lft 1000000 valid_lft forever",
)


def test_made_again(wire: Wire) -> None:
    """Recorded addresses and routes, with every attribute, can be made again on the link that lost them."""
    eventually(lambda: "tentative" not in wire.on_node("ip", "-6", "address"))
    for each in ADDRESSES:
        wire.on_node("ip", "address", "add", *each.split(), "dev", NIC)
    for each in ROUTES:
        version = ["-6"] if each.startswith("2001") else []
        # each of several next hops is over the link
        words = each.replace(" weight", f" dev {NIC} weight") if "weight" in each else each
        wire.on_node("ip", *version, "route", "add", *words.split(), *([] if "nexthop" in each else ["dev", NIC]))

    def shown() -> list[str]:
        links, ways = wire.on_node("ip", "address", "show", "dev", NIC), wire.on_node("ip", "-d", "route", "show", "table", "all")
        told = f"{links}{ways}{wire.on_node('ip', '-d', '-6', 'route', 'show', 'table', 'all')}"
        return sorted(re.sub(r"preferred_lft \d+sec", "preferred_lft some", each).strip() for each in told.splitlines())

    before, nic = shown(), seen(wire)
    assert (nic.passing, nic.learned, nic.stuck) == ((), (), ())
    form = form_of(AddressMove)
    step = form.read(json.loads(json.dumps(form.write(plan_move(nic, "br-net1", store="s", boot_id="b")))))
    assert (step.addresses, step.routes) == (nic.addresses, nic.routes)
    with closing(entered(wire.node, lambda: NetlinkConnection(ROUTE))) as kernel:
        for route in reversed(step.routes):
            kernel.exchange(delete_route(route, nic.index))
        kernel.send(*(delete_address(each, nic.index) for each in reversed(step.addresses)))
        assert (seen(wire).addresses, seen(wire).routes) == ((), ())
        kernel.send(*(new_address(each, nic.index, NIC) for each in step.addresses))
        kernel.exchange(*(replace_route(each, nic.index) for each in step.routes))
    assert shown() == before


def test_merged_by_what_each_link_has(wire: Wire) -> None:
    """What the NIC still has, or has again, stays in the move with its own attributes; an empty move takes what is added."""
    nic = seen(wire)
    step = plan_move(nic, "br-net1", store="s", boot_id="b", switch_netns=wire.node)
    assert merge_changes(step, nic, None) == step
    assert merge_changes(step, None, None) == step
    empty = AddressMove(NIC, nic.index, "br-net1", "s", "b", switch_netns=wire.node)
    assert merge_changes(empty, nic, None) == step
    assert merge_changes(empty, None, nic).addresses == step.addresses


def test_more_routes_than_are_moved(wire: Wire) -> None:
    """A daemon's thousand routes are not read, but the default route and manual ones are; the reason is one line."""
    before = seen(wire)
    batch = "".join(f"route add 10.7.{each >> 8}.{each & 255}/32 via 192.0.2.1 proto bird\n" for each in range(1001))
    argv = ["nsenter", f"--net={wire.node}", "ip", "-batch", "-"]
    subprocess.run(argv, input=batch, text=True, check=True, timeout=60)
    wire.on_node("ip", "route", "add", "default", "via", "192.0.2.1")
    nic = seen(wire)
    assert len(nic.routes) == len(before.routes) + 1
    assert nic.has_default_route
    [told] = nic.stuck
    assert "more than 1000 are not moved" in told
    assert NodeNamespace(wire.node).next_hops() == {4: ("192.0.2.1", NIC)}


def test_a_nic_that_vanishes_amid(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that vanishes after it was listed is left out, and the look has the others."""
    wire.on_node("ip", "link", "add", "upon", "link", NIC, "type", "macvlan")

    def slow(kernel: NetlinkConnection, index: int, beside: frozenset[int]) -> LinkConfiguration:
        wire.on_node("sh", "-c", "ip link delete upon 2>/dev/null || true")
        return read_configuration(kernel, index, beside)

    monkeypatch.setattr(nics, "read_configuration", slow)
    assert set(look_at_all((NIC, "upon"), wire.node)) == {NIC}


def test_neighbours_that_answer(wire: Wire) -> None:
    """Of two routers that were never heard, the existing one answers, in each family; the kernel keeps it from then on."""
    for on in (wire.on_node, wire.on_outside):
        eventually(lambda on=on: "tentative" not in on("ip", "-6", "address"))  # type: ignore[misc]
    place, there = NodeNamespace(wire.node), {"192.0.2.1": NIC, "2001:db8::1": NIC}
    assert place.find_silent({**there, "192.0.2.99": NIC, "192.0.2.98": "gone"}, soon()) == {"192.0.2.99", "192.0.2.98"}
    assert place.find_silent(there, soon()) == frozenset()
