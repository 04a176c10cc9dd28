"""Ranges of nodes: no two nodes share an address, and an assigned range stays."""

from __future__ import annotations

from ipaddress import ip_network
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from userspace_cni.base.subnets import Subnet, read_subnet
from userspace_cni.controller.ranges import Division, NodeRange, divide, merge

NODES = [f"n{number:02}" for number in range(12)]


def pool(block: str = "10.56.0.0/16", prefix: int = 24, excluded: tuple[str, ...] = ()) -> Subnet:
    return read_subnet("pods", {"cidrBlock": block, "perNodePrefix": prefix, "excludeIps": list(excluded)})


def runs(of: Subnet) -> list[tuple[int, int]]:
    return [(int(first), int(last)) for first, last in of.excluded]


def run(text: str) -> tuple[int, int]:
    """First and last address of a range."""
    network = ip_network(text)
    return int(network.network_address), int(network.broadcast_address)


def given_to(*names: str, of: Subnet | None = None, now: Division | None = None, held: tuple[str, ...] = ()) -> Division:
    nodes = {name: f"192.0.2.{number}" for number, name in enumerate(names, 1)}
    return divide(of or pool(), now.ranges if now else (), nodes, {*names, *held}, {})


def shown(division: Division) -> dict[str, str]:
    return {each.node: each.range for each in division.ranges}


def test_each_node_gets_the_first_free_range_and_its_address() -> None:
    """Nodes get ranges in the order of their names, with the address by which others reach them."""
    division = given_to("b", "a")
    assert division.ranges == (NodeRange("a", "10.56.0.0/24", "192.0.2.2"), NodeRange("b", "10.56.1.0/24", "192.0.2.1"))


def test_a_range_stays_when_nodes_come_and_go() -> None:
    """A node keeps its range, one that is gone gives it back, and the next newcomer gets that."""
    first = given_to("a", "b", "c")
    second = given_to("b", "c", now=first)
    assert shown(second) == {"b": "10.56.1.0/24", "c": "10.56.2.0/24"}
    assert shown(given_to("b", "c", "d", now=second))["d"] == "10.56.0.0/24"


def test_a_node_that_is_only_away_keeps_its_range() -> None:
    """The range of a node that is only away is not given to others."""
    first = given_to("a")
    assert shown(given_to("b", now=first, held=("a",))) == {"a": "10.56.0.0/24", "b": "10.56.1.0/24"}


@pytest.mark.parametrize(
    ("excluded", "first"),
    [
        (("10.56.0.0..10.56.3.255",), "10.56.4.0/24"),
        (("10.56.0.1",), "10.56.0.0/24"),
        (("10.56.0.7",), "10.56.1.0/24"),
        (("10.56.0.250..10.56.1.1",), "10.56.1.0/24"),
        (("fd00::1", "10.56.1.9"), "10.56.0.0/24"),
    ],
    ids=["a-run", "the-gateway", "an-address", "up-to-a-gateway", "elsewhere"],
)
def test_excluded_addresses_are_in_no_new_range(excluded: tuple[str, ...], first: str) -> None:
    """A range with an excluded address is skipped, unless it is the network's or gateway's, which no pod gets."""
    assert shown(given_to("a", of=pool(excluded=excluded))) == {"a": first}


def test_nodes_for_which_nothing_is_left_are_named() -> None:
    """A full Subnet says who has no range."""
    division = given_to("a", "b", "c", of=pool("10.56.0.0/23"))
    assert division.without == ("c",)


def test_another_prefix_cuts_new_ranges_around_those_that_were_given() -> None:
    """When perNodePrefix has changed, assigned ranges stay, and new ones do not overlap them."""
    first = given_to("a", "b", of=pool(prefix=24))
    second = given_to("a", "b", "c", of=pool(prefix=22), now=first)
    assert shown(second) == {"a": "10.56.0.0/24", "b": "10.56.1.0/24", "c": "10.56.4.0/22"}


def test_a_range_outside_of_the_block_is_replaced() -> None:
    """When cidrBlock has changed, a range outside of it is replaced."""
    first = given_to("a")
    assert shown(given_to("a", of=pool("10.57.0.0/16"), now=first)) == {"a": "10.57.0.0/24"}


def test_two_nodes_with_one_range_are_told_apart() -> None:
    """Of two nodes with one range, as after an edit by hand, the first keeps it."""
    now = Division((NodeRange("b", "10.56.0.0/24", ""), NodeRange("a", "10.56.0.128/25", ""), NodeRange("c", "nonsense", "")))
    assert shown(given_to("a", "b", "c", now=now)) == {"a": "10.56.1.0/24", "b": "10.56.0.0/24", "c": "10.56.2.0/24"}


def test_a_lost_range_is_given_back_to_the_node_that_uses_it() -> None:
    """A lost status is restored from nodes' reports; a report that claims more is ignored."""
    used = {"a": "10.56.9.0/24", "b": "10.56.9.0/24", "c": "10.56.0.0/16", "gone": "10.56.1.0/24"}
    division = divide(pool(), (), dict.fromkeys(("a", "b", "c"), ""), {"a", "b", "c"}, used)
    assert shown(division) == {"a": "10.56.9.0/24", "b": "10.56.0.0/24", "c": "10.56.1.0/24"}


def test_the_gateway_outside_is_in_no_range() -> None:
    """A router's address in the middle of a range keeps that from being given."""
    subnet = read_subnet("pods", {"cidrBlock": "10.56.0.0/16", "perNodePrefix": 24, "gateway": "10.56.0.254"})
    assert shown(given_to("a", of=subnet)) == {"a": "10.56.1.0/24"}


def test_a_large_block_of_ipv6_is_divided_at_once() -> None:
    """Only the wanted ranges are computed."""
    names = [f"n{number:04}" for number in range(1000)]
    division = given_to(*names, of=pool("fd00::/16", 64, ("fd00::..fd00::9:ffff:ffff:ffff:ffff",)))
    assert shown(division)["n0999"] == "fd00:0:0:3f1::/64"


@settings(max_examples=80)
@given(
    steps=st.lists(st.tuples(st.sets(st.sampled_from(NODES)), st.integers(25, 29)), min_size=1, max_size=6),
    excluded=st.lists(st.tuples(st.integers(0, 255), st.integers(0, 40)), max_size=3),
)
def test_no_two_nodes_ever_share_an_address(steps: list[tuple[set[str], int]], excluded: list[tuple[int, int]]) -> None:
    """Whatever nodes come and go, and however the prefix changes: ranges are disjoint, in the block, and stay while they can."""
    texts = tuple(f"10.0.0.{first}..10.0.0.{min(first + length, 255)}" for first, length in excluded)
    now = Division(())
    for names, prefix in steps:
        of = pool("10.0.0.0/24", prefix, texts)
        division = given_to(*names, of=of, now=now)
        spans = sorted(run(each.range) for each in division.ranges)
        assert all(one[1] < other[0] for one, other in pairwise(spans))
        before = shown(now)
        kept = {node: text for node, text in shown(division).items() if node in before}
        assert kept == {node: before[node] for node in names if node in before}
        assert set(shown(division)) | set(division.without) == names
        for node, text in shown(division).items():
            if node not in before:
                first, last = run(text)
                assert not any(start <= last and end > first + 1 for start, end in runs(of))
        now = division


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), max_size=8))
def test_runs_are_put_together_without_losing_an_address(lengths: list[tuple[int, int]]) -> None:
    """Merged runs are the same addresses, and have gaps between them."""
    spans = [(first, first + length) for first, length in lengths]
    joined = merge(spans)
    assert {at for first, last in spans for at in range(first, last + 1)} == {
        at for first, last in joined for at in range(first, last + 1)
    }
    assert all(one[1] + 1 < other[0] for one, other in pairwise(joined))
