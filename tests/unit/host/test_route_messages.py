"""The kernel's answers about routes and rules are checked for the IP version that was asked for; unreadable ones are reported."""

from __future__ import annotations

import errno
import struct
from collections.abc import Sequence
from socket import AF_INET
from typing import cast

import pytest

from userspace_cni.attachment.steps import PolicyRoute
from userspace_cni.host.netlink import rule_messages as rules
from userspace_cni.host.netlink.kept_messages import default_routes, read_configuration
from userspace_cni.host.netlink.node_kernel import NODE_PROTOCOL, Kernel
from userspace_cni.host.netlink.route_messages import MAIN
from userspace_cni.host.netlink.rule_messages import FoundRule
from userspace_cni.host.node_net.policy_routes import _rules_of_ours
from userspace_cni.linux.netlink import Answer, Message, NetlinkConnection, attribute, u32

INDEX = 7
NET = bytes((198, 51, 100, 0))
HOP = bytes((192, 0, 2, 1))
RULE = FoundRule("10.56.0.0/24", MAIN, 1041, NODE_PROTOCOL, 0)


def route(*attributes: bytes, dst_len: int = 24) -> bytes:
    """A static route of IPv4 over the link, as the kernel shows it."""
    head = struct.pack("=BBBBBBBBI", AF_INET, dst_len, 0, 0, MAIN, 4, 0, 1, 0)
    return head + u32(15, MAIN) + b"".join(attributes) + u32(4, INDEX)


class Answering:
    """A connection to a kernel where IPv6 is off: it has these routes and rules, and shows them whatever family is asked for."""

    def __init__(self, routes: Sequence[bytes], rules: Sequence[bytes]) -> None:
        self._listed = {26: routes, 34: rules}

    def ask(self, message: Message) -> list[tuple[int, bytes]]:
        return [(message.type - 2, each) for each in self._listed.get(message.type, ())]


def kernel(*routes: bytes, rules: Sequence[bytes] = ()) -> NetlinkConnection:
    return cast("NetlinkConnection", Answering(routes, rules))


def test_routes_of_the_other_family() -> None:
    """IPv4 routes in the answer about IPv6 are not counted twice, so that none looks stuck."""
    found = read_configuration(kernel(route(attribute(1, NET), attribute(5, HOP))), INDEX, frozenset())
    assert found.stuck == ()
    assert [each.version for each in found.routes] == [4]


@pytest.mark.parametrize(("dst_len", "target"), [(24, "198.51.100.0/24"), (0, "default")])
def test_a_route_that_cannot_be_read(dst_len: int, target: str) -> None:
    """It is reported as stuck, by its destination, and the others are read."""
    dst = attribute(1, NET) if dst_len else b""
    odd = route(dst, attribute(5, b"\x01"), dst_len=dst_len)
    fine = route(attribute(1, bytes((203, 0, 113, 0))), attribute(5, HOP))
    found = read_configuration(kernel(odd, fine), INDEX, frozenset())
    assert len(found.routes) == 1
    [told] = found.stuck
    assert told.startswith(f"{target}: ")


def test_default_routes() -> None:
    """The default routes with a next hop, of the requested IP version, are returned; no other route is decoded."""
    routes = (route(attribute(5, HOP), dst_len=0), route(dst_len=0), route(attribute(1, NET), attribute(5, b"\x01")))
    assert list(default_routes(kernel(*routes))) == [("192.0.2.1", INDEX)]


class Disturbed(NetlinkConnection):
    """Listings of one rule; during the first so many of them the rules change."""

    def __init__(self, times: int) -> None:
        self.times = times

    def exchange(self, *messages: Message) -> list[Answer]:
        self.times -= 1
        error = InterruptedError(errno.EINTR, "the list changed meanwhile") if self.times >= 0 else None
        return [Answer(error, [(32, rules.add(RULE).payload)])]


def test_a_listing_that_was_disturbed() -> None:
    """It is repeated, at most five times."""
    assert Kernel(Disturbed(4)).rules() == [RULE]
    with pytest.raises(InterruptedError):
        Kernel(Disturbed(5)).rules()


def test_rules_of_the_other_family() -> None:
    """IPv4 rules in the answer about IPv6 are counted once."""
    assert Kernel(kernel(rules=[rules.add(RULE).payload])).rules() == [RULE]


def test_rules_of_another_installation() -> None:
    """A rule to the main table is the step's where it stands before its rule to the table, or where that would be."""
    step = PolicyRoute(table=1042, via="192.0.2.1", priority=1042, sources=("10.56.0.0/24",))
    source = "10.56.0.0/24"
    own = [FoundRule(source, MAIN, 1041, NODE_PROTOCOL, 0), FoundRule(source, 1042, 1042, NODE_PROTOCOL, None)]
    former = [FoundRule(source, MAIN, 999, NODE_PROTOCOL, 0), FoundRule(source, 1042, 1000, NODE_PROTOCOL, None)]
    others = [FoundRule("10.57.0.0/24", MAIN, 2041, NODE_PROTOCOL, 0)]
    assert set(_rules_of_ours([*own, *former, *others], step)) == {*own, *former}
    assert _rules_of_ours([own[0], *others], step) == own[:1]
