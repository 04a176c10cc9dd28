"""A gateway's rows, what its router notes, its address on the switch `join`, and the mappings of its chassis."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_interface

import pytest

from userspace_cni.base.errors import InvalidConfig, NameTaken
from userspace_cni.ovn.desired_rows import RowKey
from userspace_cni.ovn.gateways.bridge_mappings import MAPPINGS, OURS, choose_network, plan_mappings, read_mappings
from userspace_cni.ovn.gateways.gateway_notes import AskedGateway, read_notes, write_notes
from userspace_cni.ovn.gateways.gateway_rows import GatewayPlace, LogicalGateway, choose_defaults, gateway_rows, outside_port
from userspace_cni.ovn.gateways.join_addresses import choose_joins
from userspace_cni.ovn.northbound_tables import ROUTER, ROUTER_POLICY, ROUTER_PORT, SWITCH_PORT
from userspace_cni.ovn.topology_values import subnets_of

CLUSTER = subnets_of("10.244.0.0/16,fd00:10:244::/56", "--cluster-subnet")
JOINS = subnets_of("100.64.0.0/16,fd98::/64", "--join-subnet")
ASKED = AskedGateway(
    "n1",
    ("c1",),
    (ip_interface("192.0.2.10/24"), ip_interface("2001:db8::10/64")),
    (ip_address("192.0.2.1"), ip_address("fe80::1")),
    network="br-ex",
    bridge="br-ex",
)
PLACE = GatewayPlace(
    "router", JOINS, (ip_interface("100.64.0.9/16"), ip_interface("fd98::9/64")), CLUSTER, subnets_of("10.244.1.0/24", "--subnet")
)


@pytest.mark.parametrize(
    "asked",
    [
        ASKED,
        replace(ASKED, vlan=7, snat=False, mtu=1442, source_subnets=subnets_of("10.244.9.0/24", "")),
        replace(ASKED, name="distributed", chassis=("c1", "c2"), bridge="", distributed=True),
        replace(ASKED, shared="0a:00:00:00:00:11", addresses=ASKED.addresses[:1], next_hops=ASKED.next_hops[:1]),
    ],
)
def test_what_was_asked_for_is_noted(asked: AskedGateway) -> None:
    """All of it is read again from the router's external_ids; keys of what was not asked for are removed."""
    notes = write_notes(asked)
    assert read_notes(asked.name, {key: value for key, value in notes.items() if value is not None}) == asked
    assert (notes["gateway-vlan"] is None) is (asked.vlan == 0)


@pytest.mark.parametrize("ids", [{}, {"gateway-addresses": "x", "gateway-chassis": "c1"}, {"gateway-addresses": "192.0.2.1/24"}])
def test_notes_that_are_not_whole(ids: dict[str, str]) -> None:
    """A router whose notes were changed by hand is no gateway whose rows could be compared."""
    assert read_notes("n1", ids) is None


def test_where_pods_are_led() -> None:
    """What is for the cluster or the switch `join` is not; of two chosen subnets the longer one counts first."""
    asked = replace(ASKED, source_subnets=(*subnets_of("10.244.8.0/22", ""), *subnets_of("10.244.9.0/24", "")))
    rows = [each for each in gateway_rows(LogicalGateway(asked, PLACE)) if each.key.table == ROUTER_POLICY]
    assert all(each.columns["nexthops"] == ["100.64.0.9"] for each in rows)
    assert [(each.columns["priority"], each.columns["match"]) for each in rows] == [
        (500, "ip4.src == 10.244.1.0/24 && ip4.dst != 10.244.0.0/16 && ip4.dst != 100.64.0.0/16"),
        (622, "ip4.src == 10.244.8.0/22 && ip4.dst != 10.244.0.0/16 && ip4.dst != 100.64.0.0/16"),
        (624, "ip4.src == 10.244.9.0/24 && ip4.dst != 10.244.0.0/16 && ip4.dst != 100.64.0.0/16"),
    ]


def test_a_shared_gateway() -> None:
    """It has the bridge's MAC, a port that a link of the node's has, and is announced by the node alone."""
    asked = replace(ASKED, shared="0a:00:00:00:00:11")
    rows = {each.key: each.columns for each in gateway_rows(LogicalGateway(asked, PLACE))}
    assert rows[RowKey(ROUTER_PORT, "rtoe-GR_n1")]["mac"] == "0a:00:00:00:00:11"
    assert rows[RowKey(SWITCH_PORT, "br-ex_n1")]["type"] == ""
    assert rows[RowKey(SWITCH_PORT, "etor-GR_n1")]["options"] == {"router-port": "rtoe-GR_n1"}
    assert outside_port(asked) == "br-ex_n1"


def test_pods_reach_a_node_that_shares_its_address() -> None:
    """By the node's own port, in each version of IP that its pods have; the gateway would take the packet as its own."""
    asked = replace(ASKED, shared="0a:00:00:00:00:11")
    place = replace(PLACE, node_subnets=subnets_of("10.244.1.0/24,fd00:1:2:3::/64", "--subnet"))
    rows = [each for each in gateway_rows(LogicalGateway(asked, place)) if each.columns.get("priority") == 800]
    assert [(each.columns["match"], each.columns["nexthops"]) for each in rows] == [
        ("ip4.dst == 192.0.2.10", ["10.244.1.2"]),
        ("ip6.dst == 2001:db8::10", ["fd00:1:2:3::2"]),
    ]
    assert all("dst ==" not in str(each.columns.get("match")) for each in gateway_rows(LogicalGateway(ASKED, place)))


def test_a_distributed_gateway_has_no_chassis_of_its_own() -> None:
    """Its router is of none, and its port has the group."""
    asked = replace(ASKED, name="distributed", chassis=("c1", "c2"), distributed=True)
    rows = {each.key: each.columns for each in gateway_rows(LogicalGateway(asked, PLACE))}
    assert rows[RowKey(ROUTER, "GR_distributed")]["options"] == {"chassis": None, "lb_force_snat_ip": None}
    assert "ha_chassis_group" in rows[RowKey(ROUTER_PORT, "rtoe-GR_distributed")]


def test_the_default_gateway() -> None:
    """The one that is wanted, else the one of now, else the first; in a version of IP that it lacks another one."""
    four = replace(PLACE, own_joins=PLACE.own_joins[:1])
    only4 = LogicalGateway(replace(ASKED, addresses=ASKED.addresses[:1], next_hops=ASKED.next_hops[:1]), four)
    other = LogicalGateway(
        replace(ASKED, name="n2"), replace(PLACE, own_joins=(ip_interface("100.64.0.10/16"), ip_interface("fd98::10/64")))
    )

    def chosen(now: dict[int, str], wanted: str = "") -> dict[int, str]:
        return {version: each.asked.name for version, each in choose_defaults([other, only4], now, wanted).items()}

    assert chosen({}) == {4: "n1", 6: "n2"}
    assert chosen({4: "100.64.0.10"}) == {4: "n2", 6: "n2"}
    assert chosen({4: "100.64.0.10"}, "n1") == {4: "n1", 6: "n2"}
    assert choose_defaults([], {4: "100.64.0.10"}) == {}


def test_addresses_on_the_switch_join() -> None:
    """They follow from the name; a former one is kept; one that is taken is passed over, and a full subnet is told."""
    first = choose_joins("n1", JOINS, (), ())
    assert first == choose_joins("n1", JOINS, (), ())
    assert first != choose_joins("n2", JOINS, (), ())
    assert choose_joins("n1", JOINS, {first[0].ip}, ())[0] != first[0]
    kept = ip_interface("100.64.0.7/16")
    assert choose_joins("n1", JOINS[:1], (), (kept,)) == (kept,)
    assert choose_joins("n1", JOINS[:1], {kept.ip}, (kept,)) == first[:1]
    small = subnets_of("100.64.0.0/29", "")
    free = {ip_address(f"100.64.0.{number}") for number in range(2, 7)}
    assert {choose_joins(f"n{number}", small, (), ())[0].ip for number in range(50)} == free
    with pytest.raises(InvalidConfig, match="all addresses of the join subnet"):
        choose_joins("n1", small, free, ())


def test_mappings_of_others_stay() -> None:
    """Ours come beside them, and are the only ones that go; the network of a bridge that OVN knows keeps its name."""
    theirs = {"system-id": "c1", MAPPINGS: "physnet:br-phy"}
    added = plan_mappings(theirs, {"br-ex"}, {"br-ex": "br-ex"})
    assert added == {MAPPINGS: "physnet:br-phy,br-ex:br-ex", OURS: "br-ex:br-ex"}
    there = {**theirs, **added}
    assert plan_mappings(there, {"br-ex"}, {"br-ex": "br-ex"}) == {}
    assert plan_mappings(there, set(), {}) == {MAPPINGS: "physnet:br-phy", OURS: ""}
    assert plan_mappings(there, {"br-ex"}, {"br-ex": "br-2"})[MAPPINGS] == "physnet:br-phy,br-ex:br-2"
    assert choose_network("br-phy", theirs) == "physnet"
    assert choose_network("br-ex", theirs) == "br-ex"
    assert plan_mappings(theirs, {"physnet"}, {"physnet": "br-phy"}) == {}
    assert plan_mappings(theirs, set(), {}) == {}
    with pytest.raises(NameTaken, match="on bridge br-phy"):
        plan_mappings(theirs, {"physnet"}, {"physnet": "br-ex"})


def test_mappings_stay_as_others_wrote_them() -> None:
    """Also those that cannot be read, and a network that is there twice: what becomes of them is not ours to change."""
    theirs = {"system-id": "c1", MAPPINGS: "phys:br-1,phys:br-2,odd,ex:"}
    added = plan_mappings(theirs, {"ex"}, {"ex": "br-ex"})
    assert added[MAPPINGS] == "phys:br-1,phys:br-2,odd,ex:,ex:br-ex"
    assert plan_mappings({**theirs, **added}, {"ex"}, {"ex": "br-ex"}) == {}
    assert plan_mappings({**theirs, **added}, set(), {})[MAPPINGS] == theirs[MAPPINGS]
    with pytest.raises(NameTaken, match="on bridge br-2"):
        plan_mappings(theirs, {"phys"}, {"phys": "br-1"})


def test_mappings_of_one_chassis_count_first() -> None:
    """Where the key with the chassis' name is there, ovn-controller reads no other."""
    ids = {"system-id": "c1", MAPPINGS: "a:br-a", f"{MAPPINGS}-c1": "b:br-b"}
    assert read_mappings(ids) == {"b": "br-b"}
    assert plan_mappings(ids, {"c"}, {"c": "br-c"}) == {f"{MAPPINGS}-c1": "b:br-b,c:br-c", OURS: "c:br-c"}
