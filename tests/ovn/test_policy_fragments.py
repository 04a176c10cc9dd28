"""What OVN's rules do with IP fragments in the userspace datapath, seen with ACLs written by hand: docs/ovn.md tells it.

Pods with vhost-user ports and with veths, of one node and across Geneve, with both families. A request or an answer of 4000
bytes is three fragments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Final

import pytest

from tests.lab.ovn.attempts import LARGE, SMALL, Attempt, Outcome, tried, unexpected
from tests.lab.ovn.central import version
from tests.lab.ovn.logical_pods import LogicalWorld, logical_world

PODS: Final = {
    "vhost-a": ("n1", True),
    "veth-a": ("n1", False),
    "vhost-b": ("n1", True),
    "veth-b": ("n1", False),
    "vhost-c": ("n2", True),
    "veth-c": ("n2", False),
}
SERVERS, CLIENTS = tuple(PODS)[:2], tuple(PODS)[2:]
PORT, OTHER = 4444, 5555
SHAPES: Final = {
    "small": (PORT, SMALL, SMALL),
    "large": (PORT, LARGE, SMALL),
    "answer": (PORT, SMALL, LARGE),
    "other port": (OTHER, LARGE, SMALL),
}
"""To which port, and how large request and answer are."""
ALL: Final = frozenset(SHAPES)
UNFRAGMENTED: Final = frozenset({"small", "answer"})
"""What passes where the fragments of a request do not: those of an answer belong to a connection that was let through."""

TO, FROM = ("to-lport", "outport == @pods"), ("from-lport", "inport == @pods")
PEERS: Final = "(ip4.src == 192.168.0.0/16 || ip6.src == fd00::/16)"
Rule = tuple[tuple[str, str], int, str, str]
DENY: Final[Rule] = (TO, 1000, "ip", "drop")
BY_PORT: Final[Rule] = (TO, 1001, f"{PEERS} && udp.dst == {PORT}", "allow-related")
RULES: Final[Mapping[str, tuple[Rule, ...]]] = {
    "peers": (DENY, (TO, 1001, PEERS, "allow-related")),
    "a protocol": (DENY, (TO, 1001, "udp", "allow-related")),
    "a port": (DENY, BY_PORT),
    "a port, where it leaves": ((FROM, 1000, "ip", "drop"), (FROM, 1001, f"udp.dst == {PORT}", "allow-related")),
    "a port, and fragments of its peers": (DENY, BY_PORT, (TO, 1001, f"{PEERS} && ip.is_frag", "allow-related")),
    "all but a port": ((TO, 1001, "ip", "allow-related"), (TO, 1002, f"udp.dst == {PORT}", "drop")),
}
"""ACLs of the servers' ports, or of the clients'."""
Passes = Mapping[str, tuple[frozenset[str], frozenset[str]]]
BEFORE: Final[Passes] = {
    "peers": (ALL, ALL),
    "a protocol": (ALL, UNFRAGMENTED),
    "a port": (UNFRAGMENTED, UNFRAGMENTED),
    "a port, where it leaves": (UNFRAGMENTED, UNFRAGMENTED),
    "a port, and fragments of its peers": (ALL, ALL),
    "all but a port": (frozenset({"large", "other port"}), frozenset({"large", "other port"})),
}
"""What passes by each, of IPv4 and of IPv6, without `acl_ct_translation`."""
RIGHT: Final = ALL - {"other port"}
TRANSLATED: Final[Passes] = {
    "peers": (ALL, ALL),
    "a protocol": (ALL, ALL),
    "a port": (RIGHT, RIGHT),
    "a port, where it leaves": (RIGHT, RIGHT),
    "a port, and fragments of its peers": (ALL, ALL),
    "all but a port": (frozenset({"other port"}), frozenset({"other port"})),
}
"""And with it."""


@pytest.fixture(scope="module")
def world() -> Iterator[LogicalWorld]:
    with logical_world(PODS) as made:
        for pod in made.pods.values():
            made.servers.listen(pod.netns, (PORT, OTHER), ("udp",))
        made.write("pg-add", "pods")
        yield made


def wrong_attempts(world: LogicalWorld, passing: tuple[frozenset[str], frozenset[str]]) -> list[str]:
    """Which requests had another outcome than they should.

    What passed and should not is tried once more, alone: Open vSwitch 3.1 lets single fragments of a burst pass with those of
    another connection.
    """
    expected, named = {}, {}
    for server, client, family, shape in product(SERVERS, CLIENTS, (4, 6), SHAPES):
        port, request, answer = SHAPES[shape]
        attempt = Attempt(world.pods[client].netns, world.pods[server].address(family), port, "udp", request, answer)
        expected[attempt] = Outcome.ALLOWED if shape in passing[family == 6] else Outcome.TIMED_OUT
        named[attempt.token] = f"{client} -> {server}, IPv{family}, {shape}"
    wrong = {each: found for each, found in unexpected(expected).items() if tried([each.again()]) != [expected[each]]}
    return [f"{named[each.token]}: {outcome}" for each, outcome in wrong.items()]


def write_rules(world: LogicalWorld, rule: str) -> None:
    """The rule alone, on the ports of those that it is about."""
    ports = CLIENTS if "leaves" in rule else SERVERS
    acls = []
    for (direction, about), priority, match, action in RULES[rule]:
        acls += ["--", "--type=port-group", "acl-add", "pods", direction, str(priority), f"{about} && {match}", action]
    world.write("acl-del", "pods", "--", "pg-set-ports", "pods", *ports, *acls)


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_on_a_port_does_not_know_the_fragments_of_a_request(world: LogicalWorld, rule: str) -> None:
    """All fragments have port 0 for it, and the later ones of IPv6 another protocol: it drops what it should let through, and a
    rule that drops a port lets it through. Fragments of answers pass, and rules without a port hold."""
    world.write("set", "NB_Global", ".", "options:acl_ct_translation=false")
    write_rules(world, rule)
    assert wrong_attempts(world, BEFORE[rule]) == []


def test_translation_makes_rules_know_fragments(world: LogicalWorld) -> None:
    """From OVN 26.03 on; before it the option changes nothing."""
    world.write("set", "NB_Global", ".", "options:acl_ct_translation=true")
    translates = version() >= "26.03"
    for rule in RULES if translates else ("a port",):
        write_rules(world, rule)
        assert wrong_attempts(world, (TRANSLATED if translates else BEFORE)[rule]) == [], rule


def test_fragments_of_a_request_to_a_load_balancer(world: LogicalWorld) -> None:
    """They reach an endpoint with OVN 26.03, and with 25.03 and before they do not; fragments of its answers always arrive."""
    server, client = world.pods[SERVERS[0]], world.pods[CLIENTS[-1]]
    rows = []
    for name, vip, backend in (("four", "10.96.0.1:80", server.ipv4), ("six", "[fd10::1]:80", f"[{server.ipv6}]")):
        rows += ["--", "lb-add", name, vip, f"{backend}:{PORT}", "udp", "--", "ls-lb-add", client.node, name]
    world.write("acl-del", "pods", *rows)
    large = Outcome.ALLOWED if version() >= "26.03" else Outcome.TIMED_OUT
    expected = {
        Attempt(client.netns, vip, 80, "udp", *sizes): outcome
        for vip in ("10.96.0.1", "fd10::1")
        for sizes, outcome in (((SMALL, LARGE), Outcome.ALLOWED), ((LARGE, SMALL), large))
    }
    assert unexpected(expected) == {}
