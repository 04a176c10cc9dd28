"""Where a packet was lost, from the kernel's trace of it."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from userspace_cni.host.netlink import trace_messages as traces
from userspace_cni.host.netlink.trace_messages import BACK, FORWARD, FORWARDED, LEAVING, POLICY, RETURN, RULE, THERE, TraceNotice
from userspace_cni.host.node_net import packet_trail
from userspace_cni.host.node_net.packet_trail import Trail

BEGUN = TraceNotice(7, 2, "way", THERE, RULE, 3, ended=False, queued=False, leads_to="", link=0)


def at(point: str) -> TraceNotice:
    """The packet at the end of one of our chains."""
    return replace(BEGUN, chain=point, kind=POLICY, rule=0)


def trail(*told: TraceNotice) -> Trail:
    """What is known of the packet after this trace."""
    made = Trail("way", THERE)
    for each in told:
        made.follow(each)
    return made


@pytest.mark.parametrize(
    ("told", "where"),
    [
        ((), packet_trail.BEFORE),
        ((BEGUN,), packet_trail.ROUTING),
        ((BEGUN, at(FORWARD)), packet_trail.IN_FORWARD),
        ((BEGUN, at(FORWARD), at(FORWARDED)), packet_trail.IN_POSTROUTING),
        ((BEGUN, at(FORWARD), at(FORWARDED), at(LEAVING)), packet_trail.AFTER),
    ],
)
def test_between_two_points(told: tuple[TraceNotice, ...], where: str) -> None:
    """Without a rule that ended it, the packet was lost between two points."""
    assert (trail(*told).lost_at, trail(*told).dropped_by, trail(*told).led_away) == (where, None, 0)


def test_a_rule() -> None:
    """The result is the chain and the rule that ended the packet; the rules that it passed are known."""
    jump = TraceNotice(7, 1, "theirs", "C", RULE, 4, ended=False, queued=False, leads_to="sub", link=0)
    drop = TraceNotice(7, 1, "theirs", "sub", RULE, 9, ended=True, queued=False, leads_to="", link=0)
    found = trail(BEGUN, at(FORWARD), jump, drop)
    assert found.dropped_by == (("inet", "theirs", "sub"), 9)
    assert found.chains == {(1, "theirs", "C"), (1, "theirs", "sub")}


def test_a_policy() -> None:
    """A policy counts as no rule, whatever handle came before."""
    found = trail(BEGUN, TraceNotice(7, 2, "filter", "FORWARD", POLICY, 5, ended=True, queued=False, leads_to="", link=0))
    assert found.dropped_by == (("ip", "filter", "FORWARD"), 0)


def test_what_is_of_others() -> None:
    """The trace of another packet, also of the other direction, does not count for this one."""
    other = replace(BEGUN, number=8, chain=BACK)
    drop = TraceNotice(8, 2, "filter", "FORWARD", RULE, 5, ended=True, queued=False, leads_to="", link=0)
    found = Trail("way", THERE)
    assert not any(found.follow(each) for each in (drop, other, drop, replace(BEGUN, table="else"), replace(BEGUN, kind=RETURN)))
    assert (found.lost_at, found.dropped_by) == (packet_trail.BEFORE, None)


def test_led_away() -> None:
    """A packet that our own table ends would have left by another link."""
    found = trail(BEGUN, at(FORWARD), at(FORWARDED), replace(BEGUN, chain=LEAVING, ended=True, link=12))
    assert (found.led_away, found.dropped_by, found.may_come) == (12, None, False)


def test_a_program_has_it() -> None:
    """A queued packet has not ended: it may still come. Once it went on and was dropped, it has."""
    queue = TraceNotice(7, 2, "filter", "FORWARD", RULE, 5, ended=False, queued=True, leads_to="", link=0)
    found = trail(BEGUN, at(FORWARD), queue)
    assert (found.queued_by, found.may_come, found.dropped_by) == ("ip filter FORWARD", True, None)
    found.follow(replace(queue, ended=True, queued=False, rule=6))
    assert (found.may_come, found.dropped_by) == (False, (("ip", "filter", "FORWARD"), 6))


NIC, BEGIN, END = b"nic0".ljust(16, b"\0"), b"ni".ljust(16, b"\0"), b"nj".ljust(16, b"\0")


@pytest.mark.parametrize(
    ("value", "is_of"),
    [
        (NIC, True),
        (b"ni", True),
        (b"nj", False),
        (bytes(16), False),
        (struct.pack("=I", 9), True),
        (struct.pack("=I", 8), False),
        (b"gw".ljust(16, b"\0") + NIC, True),
        (NIC + b"\x11\0\0\0", True),
        (struct.pack("=I", 9) + b"\x11\0\0\0", True),
        (b"gw".ljust(16, b"\0") + b"nic".ljust(16, b"\0"), False),
        (b"x" + NIC, False),
    ],
)
def test_values_of_a_link(value: bytes, is_of: bool) -> None:
    """A rule may have a link's name, a beginning of it, or its number, also together with another key of the lookup."""
    assert traces.is_of("nic0", 9, value) == is_of


@pytest.mark.parametrize(
    ("keys", "is_between"),
    [
        ([(END, True), (BEGIN, False), (bytes(16), True)], True),
        ([(NIC, True), (BEGIN, False), (bytes(16), True)], False),
        ([(END, True), (NIC, True), (NIC, False), (BEGIN, False)], True),
        ([(END, False), (bytes(16), True)], False),
        ([(BEGIN, False)], False),
        ([], False),
    ],
)
def test_intervals_of_names(keys: list[tuple[bytes, bool]], is_between: bool) -> None:
    """A set with '*' names has the beginning and the end of an interval."""
    assert traces.is_between("nic0", keys) == is_between
