"""The rows of a cluster and of its nodes, and what is refused before any is written."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from userspace_cni.base.errors import InvalidConfig, NameTaken, UserspaceError
from userspace_cni.base.gateways import read_gateways
from userspace_cni.ovn.chassis_ids import AskedChassis, find_changed_ids, list_missing_ids
from userspace_cni.ovn.desired_rows import DesiredRow, Members, RowKey
from userspace_cni.ovn.free_subnets import AskedFree, choose_subnets, read_lengths
from userspace_cni.ovn.known_cluster import FoundCluster, KnownNode
from userspace_cni.ovn.logical_switches import FoundSwitch, read_subnets
from userspace_cni.ovn.management_table import management_table, read_former_subnets
from userspace_cni.ovn.northbound_tables import LOAD_BALANCER, LOAD_BALANCER_GROUP, ROUTER, ROUTER_PORT, SWITCH, SWITCH_PORT
from userspace_cni.ovn.setting_up import AskedNode, judge_node, plan_cluster
from userspace_cni.ovn.topology import LogicalCluster, LogicalNode, Subnet, cluster_rows, node_rows
from userspace_cni.ovn.topology_values import joins_for, machine_address, require_router_name, require_targets, subnets_of

BOTH = subnets_of("10.244.0.0/16,fd00:10:244::/56", "--cluster-subnet")
CLUSTER = LogicalCluster(BOTH, joins_for(BOTH, ""))


def subnet(text: str) -> tuple[Subnet, ...]:
    return subnets_of(text, "--subnet")


KNOWN = FoundCluster(
    "ovn_cluster_router",
    BOTH,
    {"rtoj-ovn_cluster_router": CLUSTER.joins},
    {"n1": KnownNode("n1", "n1", subnet("10.244.1.0/24,fd00:10:244:1::/64"))},
    balancers=CLUSTER.balancers,
)


def by_key(rows: tuple[DesiredRow, ...]) -> dict[RowKey, DesiredRow]:
    return {each.key: each for each in rows}


def test_a_cluster_of_both_versions_of_ip() -> None:
    """The router has the first address of each subnet of the join switch, and knows the subnets of all pods."""
    rows = by_key(cluster_rows(CLUSTER))
    router = RowKey(ROUTER, "ovn_cluster_router")
    port = rows[RowKey(ROUTER_PORT, "rtoj-ovn_cluster_router")]
    assert port.columns["networks"] == ["100.64.0.1/16", "fd98::1/64"]
    assert port.columns["mac"] == "0a:58:64:40:00:01"
    assert port.within is not None
    assert port.within.key == router
    assert rows[router].columns["external_ids"] == {
        "k8s-cluster-router": "yes",
        "k8s-cluster-subnets": "10.244.0.0/16,fd00:10:244::/56",
    }
    joined = rows[RowKey(SWITCH_PORT, "jtor-ovn_cluster_router")].columns
    assert joined == {"type": "router", "addresses": ["router"], "options": {"router-port": "rtoj-ovn_cluster_router"}}
    for name in ("cluster-load-balancers", "gateway-load-balancers"):
        assert RowKey(LOAD_BALANCER_GROUP, name) in rows


def test_a_node_keeps_its_own_address_from_pods() -> None:
    """From the start: the second address of its subnet is not given to a pod that is there before the node's port."""
    node = LogicalNode("n2", "N2", subnet("10.244.2.0/24,fd00:10:244:2::/64"), "r", management=True, balancers=CLUSTER.balancers)
    rows = by_key(node_rows(node))
    switch = rows[RowKey(SWITCH, "n2")].columns
    assert switch["other_config"] == {
        "subnet": "10.244.2.0/24",
        "exclude_ips": "10.244.2.2",
        "ipv6_prefix": "fd00:10:244:2::",
    }
    assert switch["external_ids"] == {"gateway_ip": "10.244.2.1/24", "k8s-node": "N2"}
    assert switch["load_balancer_group"] == Members(CLUSTER.balancers)
    assert rows[RowKey(SWITCH_PORT, "k8s-n2")].columns["addresses"] == ["0a:58:0a:f4:02:02 10.244.2.2 fd00:10:244:2::2"]
    assert rows[RowKey(ROUTER_PORT, "rtos-n2")].columns["networks"] == ["10.244.2.1/24", "fd00:10:244:2::1/64"]


def test_nodes_of_ipv6_alone_have_macs_of_their_own() -> None:
    """Their addresses end alike."""
    nodes = [LogicalNode(f"n{n}", f"n{n}", subnet(f"fd00:10:244:{n}::/64"), "r", True, ()) for n in (1, 2)]
    macs = {by_key(node_rows(each))[RowKey(ROUTER_PORT, f"rtos-{each.name}")].columns["mac"] for each in nodes}
    assert len(macs) == 2


def test_a_server_without_groups_gets_two_load_balancers() -> None:
    """By the marks of ovn-kubernetes' first tools."""
    rows = by_key(plan_cluster(CLUSTER, FoundCluster(groups=False)))
    found = [each.columns for key, each in rows.items() if key.table == LOAD_BALANCER]
    assert [each["protocol"] for each in found] == [["tcp"], ["udp"]]
    assert found[0]["external_ids"] == {"k8s-cluster-lb-tcp": "yes"}


REFUSED: list[tuple[Callable[[], Any], type[UserspaceError], tuple[str, ...]]] = [
    (lambda: subnet("10.244.1.7/24"), InvalidConfig, ("10.244.1.7/24", "10.244.1.0/24")),
    (lambda: subnet("10.244.1.0"), InvalidConfig, ("10.244.1.0", "a subnet")),
    (lambda: subnet("10.244.1.0/31"), InvalidConfig, ("10.244.1.0/31", "/30")),
    (lambda: subnet("fd00::/127"), InvalidConfig, ("fd00::/127", "/126")),
    (lambda: subnet("10.1.0.0/24,10.2.0.0/24"), InvalidConfig, ("one subnet of IPv4",)),
    (lambda: subnet("224.0.0.0/24"), InvalidConfig, ("multicast",)),
    (lambda: joins_for(subnet("10.244.0.0/16"), "fd98::/64"), InvalidConfig, ("fd98::/64", "no subnet of IPv6")),
    (
        lambda: plan_cluster(LogicalCluster(subnet("100.0.0.0/8"), joins_for(subnet("100.0.0.0/8"), "")), FoundCluster()),
        InvalidConfig,
        ("100.64.0.0/16", "100.0.0.0/8"),
    ),
    (
        lambda: plan_cluster(LogicalCluster(subnet("10.1.0.0/16"), subnet("100.64.0.0/16")), KNOWN),
        InvalidConfig,
        ("10.1.0.0/16", "10.244.1.0/24", "n1"),
    ),
    (lambda: judge(subnet("10.244.2.0/24")), InvalidConfig, ("10.244.2.0/24", "fd00:10:244::/56")),
    (lambda: judge(subnet("10.245.2.0/24,fd00:10:244:2::/64")), InvalidConfig, ("10.245.2.0/24", "10.244.0.0/16")),
    (lambda: judge(subnet("10.244.1.128/25,fd00:10:244:2::/64")), InvalidConfig, ("10.244.1.128/25", "10.244.1.0/24", "node n1")),
    (lambda: judge(()), InvalidConfig, ("--subnet is missing",)),
    (
        lambda: judge_node(AskedNode("n2", (), free=AskedFree((24,))), KNOWN),
        InvalidConfig,
        ("/24", "fd00:10:244::/56", "for each"),
    ),
    (
        lambda: judge_node(AskedNode("n2", (), free=AskedFree((16, 64))), KNOWN),
        InvalidConfig,
        ("/16", "10.244.0.0/16", "from /17 to /29"),
    ),
    (
        lambda: choose_subnets(AskedFree((17,)), KNOWN.subnets[:1], KNOWN.subnets),
        InvalidConfig,
        ("/17", "10.244.0.0/16", "is free"),
    ),
    (lambda: judge(subnet("10.244.9.0/30")), InvalidConfig, ("10.244.9.0/30", "no address for a pod", "/29")),
    (lambda: judge(subnet("10.244.9.0/29,fd00:10:244:9::/126")), InvalidConfig, ("/126", "no address for a pod", "/125")),
    (lambda: read_lengths("/24,24", "--subnet"), InvalidConfig, ("'/24,24'",)),
    (lambda: judge((), "N1"), NameTaken, ("'N1'", "'n1'")),
    (lambda: judge((), "n_1"), InvalidConfig, ("'n_1'",)),
    (lambda: judge((), "a..b"), InvalidConfig, ("'a..b'",)),
    (lambda: judge((), "a" * 254), InvalidConfig, ("RFC 1123",)),
    (lambda: judge((), "\N{KELVIN SIGN}"), InvalidConfig, ("RFC 1123",)),
    (lambda: machine_address("10.0.0.256", "--encap-ip"), InvalidConfig, ("--encap-ip", "10.0.0.256")),
    (lambda: require_router_name(""), InvalidConfig, ("--router is ''",)),
    (lambda: require_targets(["ptcp:6641", "6641"]), InvalidConfig, ("'6641'",)),
    (lambda: judge_node(AskedNode("n2", subnet("10.244.2.0/24")), FoundCluster()), NameTaken, ("no router of a cluster",)),
    (lambda: machine_address("0.0.0.0", "--encap-ip"), InvalidConfig, ("unspecified",)),
    (lambda: machine_address("fe80::1%eth0", "--encap-ip"), InvalidConfig, ("fe80::1%eth0",)),
]


def judge(subnets: tuple[Subnet, ...], name: str = "n2") -> LogicalNode:
    return judge_node(AskedNode(name, subnets), KNOWN)


@pytest.mark.parametrize(("call", "kind", "words"), REFUSED)
def test_what_is_refused(call: Callable[[], Any], kind: type[UserspaceError], words: tuple[str, ...]) -> None:
    """With the value, and with what it stands against."""
    with pytest.raises(kind) as refused:
        call()
    assert [word for word in words if word not in str(refused.value)] == []


def test_a_node_without_a_subnet_gets_a_free_one() -> None:
    """The first of the length that was asked for; a node that has one keeps it."""
    node = judge_node(AskedNode("n2", (), free=AskedFree((24, 64))), KNOWN)
    assert list(map(str, node.subnets)) == ["10.244.0.0/24", "fd00:10:244::/64"]
    beside = replace(KNOWN, nodes={**KNOWN.nodes, "n2": replace(KNOWN.nodes["n1"], name="n2", subnets=node.subnets)})
    third = judge_node(AskedNode("n3", (), free=AskedFree(read_lengths("/24,/64", "--subnet"))), beside)
    assert list(map(str, third.subnets)) == ["10.244.2.0/24", "fd00:10:244:2::/64"]
    assert judge_node(AskedNode("n1", (), free=AskedFree((24, 64))), KNOWN).subnets == KNOWN.nodes["n1"].subnets


def test_a_node_gets_a_subnet_of_the_clusters_second_family() -> None:
    """It keeps the one that it has, of whatever length."""
    nodes = {**KNOWN.nodes, "n2": KnownNode("n2", "n2", subnet("10.244.7.0/24"))}
    node = judge_node(AskedNode("n2", (), free=AskedFree((20, 64), subnet("10.244.8.0/24"))), replace(KNOWN, nodes=nodes))
    assert list(map(str, node.subnets)) == ["10.244.7.0/24", "fd00:10:244::/64"]


def test_a_node_whose_rows_were_lost_gets_its_former_subnet() -> None:
    """Its settings file has it, in the table of its own port. Where another node has that of a family by now it gets another."""
    node = judge(subnet("10.244.7.0/24,fd00:10:244:7::/64"))
    table = read_gateways(tomllib.loads(management_table(node, "br-int"))["gateway"], "the settings")
    former = read_former_subnets(table, "n2")
    assert (former, read_former_subnets(table, "n3")) == (node.subnets, ())
    assert judge_node(AskedNode("n2", (), free=AskedFree((24, 64), former)), KNOWN).subnets == former
    taken = subnet("10.244.1.0/24,fd00:10:244:7::/64")
    found = judge_node(AskedNode("n2", (), free=AskedFree((24, 64), taken)), KNOWN).subnets
    assert list(map(str, found)) == ["10.244.0.0/24", "fd00:10:244:7::/64"]
    elsewhere = subnet("10.9.1.0/24,fd00:9::/64")
    found = judge_node(AskedNode("n2", (), free=AskedFree((24, 64), elsewhere)), KNOWN).subnets
    assert list(map(str, found)) == ["10.244.0.0/24", "fd00:10:244::/64"]


def test_a_node_that_is_there_keeps_its_subnet() -> None:
    """Where none is given; a name with capitals is one in small letters, which its row remembers as it was given."""
    assert judge((), "n1").subnets == KNOWN.nodes["n1"].subnets
    node = judge(subnet("10.244.2.0/24,fd00:10:244:2::/64"), "Node.B")
    assert (node.name, node.given_name) == ("node.b", "Node.B")


def test_a_free_subnet_is_found_past_a_large_one() -> None:
    """At once: the large one has more parts of that length than can be looked at."""
    (whole,) = subnet("fd00::/48")
    taken = [each for text in ("fd00::/64", "fd00::/96", "fd00:0:0:1::1:0/120", "fd00:0:0:3::/120") for each in subnet(text)]
    assert choose_subnets(AskedFree((120,)), [whole], taken) == subnet("fd00:0:0:1::/120")
    assert choose_subnets(AskedFree((64,)), [whole], taken) == subnet("fd00:0:0:2::/64")
    with pytest.raises(InvalidConfig, match="is free"):
        choose_subnets(AskedFree((125,)), [whole], [whole])


def test_pods_have_addresses_of_their_nodes_subnet_alone() -> None:
    """Whatever the length of its prefix: other nodes can have the rest of what OVN takes for a switch's prefix."""
    for text in ("10.244.2.0/24,fd00:10:244:2::/64", "10.244.2.0/25,fd00:10:244:2:1::/80", "fd00:10:244::/60"):
        node = LogicalNode("n2", "n2", subnet(text), "r", management=True, balancers=())
        columns = by_key(node_rows(node))[RowKey(SWITCH, "n2")].columns
        config = {key: value for key, value in columns["other_config"].items() if value is not None}
        found = read_subnets(FoundSwitch("n2", config, columns["external_ids"]))
        assert tuple(each.network for each in found) == node.subnets


def test_keys_of_a_chassis() -> None:
    """Only those that differ are written, a system-id that is there stays, and the datapath is the userspace one."""
    asked = AskedChassis(
        "tcp:192.0.2.1:6641", "tcp:192.0.2.1:6642", "geneve", encap_ip="192.0.2.7", checksum=False, system_id="new"
    )
    ids = find_changed_ids(asked, {"system-id": "old", "ovn-encap-type": "vxlan"})
    assert ids == {
        "ovn-nb": "tcp:192.0.2.1:6641",
        "ovn-remote": "tcp:192.0.2.1:6642",
        "ovn-encap-type": "geneve",
        "ovn-encap-ip": "192.0.2.7",
        "ovn-encap-csum": "false",
        "ovn-bridge-datapath-type": "netdev",
    }
    assert find_changed_ids(asked, {**ids, "system-id": "old"}) == {}
    assert find_changed_ids(AskedChassis(system_id="new"), {})["system-id"] == "new"
    assert find_changed_ids(AskedChassis(), {})["ovn-encap-type"] == "geneve"
    assert list_missing_ids({"system-id": "x", "ovn-remote": "y"}) == ("ovn-encap-type", "ovn-encap-ip")
