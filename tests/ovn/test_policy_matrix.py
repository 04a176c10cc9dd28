"""NetworkPolicies by real connections: allow and deny, by ports of both kinds, in both directions and families, on two nodes.

Each scenario is tried for a vhost-user pod and for a veth pod, over IPv4 and over IPv6; all its connections are tried at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

import pytest

from tests.lab.ovn.attempts import LARGE, SMALL, Attempt, Conversation, Outcome, tried, unexpected
from tests.lab.ovn.central import version
from tests.lab.ovn.policed_pods import PolicedPod, PolicedWorld, policed_world
from tests.lab.ovn.two_chassis import NODES
from tests.lab.switch.switch import wait_until
from tests.lab.switch.veths import give

SERVICE, WEB, NEXT, OTHER = 80, 8080, 8083, 9090
KINDS: Final = ("vhost", "veth")
NAMED: Final = {"web": ("TCP", WEB), "web-udp": ("UDP", WEB)}
PODS: Final = {
    f"{name}-{kind}": PolicedPod(on, kind == "vhost", namespace, {"role": name}, NAMED if name == "server" else {})
    for name, on, namespace in (("server", "n1", "shop"), ("near", "n1", "shop"), ("far", "n2", "other"))
    for kind in KINDS
}
NAMESPACES: Final = {"shop": {"team": "shop"}, "other": {"team": "far"}}


@dataclass(frozen=True)
class Try:
    """A connection, and whether it is let through. The pods are of the kind for which the scenario is tried."""

    source: str
    target: str
    allowed: bool
    port: int = WEB
    protocol: str = "tcp"
    request: int = SMALL
    answer: int = SMALL


@dataclass(frozen=True)
class Scenario:
    """Policies, which pods they isolate by direction, and what comes of connections."""

    policies: tuple[Mapping[str, Any], ...]
    tries: tuple[Try, ...]

    @property
    def isolated(self) -> dict[str, set[str]]:
        """By direction."""
        found: dict[str, set[str]] = {}
        for policy in self.policies:
            role = policy["spec"]["podSelector"]["matchLabels"]["role"]
            for direction in policy["spec"]["policyTypes"]:
                found.setdefault(direction.lower(), set()).update(f"{role}-{kind}" for kind in KINDS)
        return found


def policy(name: str, role: str, namespace: str = "shop", **rules: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One that selects the pods of a role; `ingress` and `egress` are its rules."""
    spec = {"podSelector": {"matchLabels": {"role": role}}, "policyTypes": [each.title() for each in rules], **rules}
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec}


def role(name: str) -> dict[str, Any]:
    return {"podSelector": {"matchLabels": {"role": name}}}


def team(name: str) -> dict[str, Any]:
    return {"namespaceSelector": {"matchLabels": {"team": name}}}


def blocks(*excepted: int) -> list[dict[str, Any]]:
    """All nodes' subnets of both families but those of these nodes."""
    four = {"cidr": "192.168.0.0/16", "except": [f"192.168.{each}.0/24" for each in excepted]}
    six = {"cidr": "fd00::/24", "except": [f"fd00:{each}::/64" for each in excepted]}
    return [{"ipBlock": four}, {"ipBlock": six}]


def port(number: int | str, protocol: str = "TCP", **end: int) -> dict[str, Any]:
    return {"protocol": protocol, "port": number, **end}


NEAR, FAR = Try("near", "server", allowed=True), Try("far", "server", allowed=True)
NOT_NEAR, NOT_FAR = Try("near", "server", allowed=False), Try("far", "server", allowed=False)
ANSWERED: Final = Try("server", "far", allowed=True)
"""What the isolated pod begins itself: its answers pass."""
SCENARIOS: Final = {
    "ingress, denied by default": Scenario((policy("closed", "server", ingress=[]),), (NOT_NEAR, NOT_FAR, ANSWERED)),
    "ingress, from pods": Scenario(
        (policy("near", "server", ingress=[{"from": [role("near")]}]),),
        (NEAR, NOT_FAR, Try("near", "server", allowed=True, protocol="udp"), Try("far", "server", allowed=False, protocol="udp")),
    ),
    "ingress, from namespaces": Scenario((policy("far", "server", ingress=[{"from": [team("far")]}]),), (FAR, NOT_NEAR)),
    "ingress, from pods of namespaces": Scenario(
        (policy("both", "server", ingress=[{"from": [team("far") | role("near")]}, {"from": [team("shop") | role("near")]}]),),
        (NEAR, NOT_FAR),
    ),
    "ingress, to a port": Scenario(
        (policy("port", "server", ingress=[{"ports": [port(WEB)]}]),),
        (NEAR, FAR, Try("far", "server", allowed=False, port=OTHER), Try("near", "server", allowed=False, protocol="udp")),
    ),
    "ingress, to a port with a name": Scenario(
        (policy("name", "server", ingress=[{"from": [role("near")], "ports": [port("web"), port("web-udp", "UDP")]}]),),
        (NEAR, Try("near", "server", allowed=True, protocol="udp"), Try("near", "server", allowed=False, port=OTHER), NOT_FAR),
    ),
    "ingress, to a range of ports": Scenario(
        (policy("range", "server", ingress=[{"ports": [port(WEB, endPort=NEXT)]}]),),
        (NEAR, Try("far", "server", allowed=True, port=NEXT), Try("far", "server", allowed=False, port=OTHER)),
    ),
    "ingress, from blocks but for some": Scenario(
        (policy("block", "server", ingress=[{"from": blocks(2)}]),), (NEAR, NOT_FAR, ANSWERED)
    ),
    "ingress, by either of two": Scenario(
        (
            policy("one", "server", ingress=[{"from": [role("near")], "ports": [port(WEB)]}]),
            policy("two", "server", ingress=[{"from": [team("far")], "ports": [port(OTHER)]}]),
        ),
        (NEAR, NOT_FAR, Try("far", "server", allowed=True, port=OTHER), Try("near", "server", allowed=False, port=OTHER)),
    ),
    "egress, denied by default": Scenario(
        (policy("closed", "near", egress=[]),), (NOT_NEAR, Try("near", "far", allowed=False), Try("far", "near", allowed=True))
    ),
    "egress, to pods and a port": Scenario(
        (policy("port", "near", egress=[{"to": [role("server")], "ports": [port(WEB)]}]),),
        (NEAR, Try("near", "server", allowed=False, port=OTHER), Try("near", "far", allowed=False)),
    ),
    "egress, to namespaces": Scenario(
        (policy("far", "near", egress=[{"to": [team("far")]}]),), (Try("near", "far", allowed=True), NOT_NEAR)
    ),
    "egress, to blocks but for some": Scenario(
        (policy("block", "near", egress=[{"to": blocks(2)}]),), (NEAR, Try("near", "far", allowed=False))
    ),
    "egress, to a port with a name": Scenario(
        (policy("name", "near", egress=[{"to": [role("server")], "ports": [port("web")]}]),),
        (NEAR, Try("near", "server", allowed=False, port=OTHER), Try("near", "server", allowed=False, protocol="udp")),
    ),
    "both directions": Scenario(
        (policy("in", "server", ingress=[{"from": [role("near")]}]), policy("out", "near", egress=[{"to": [role("server")]}])),
        (NEAR, NOT_FAR, Try("near", "far", allowed=False), Try("far", "near", allowed=True)),
    ),
}

_UDP: Final = port(WEB, "UDP")


def large(source: str, target: str, *, allowed: bool, port: int = WEB, answers: bool = False) -> Try:
    """A datagram of three fragments, or an answer of so many."""
    return Try(source, target, allowed, port, "udp", SMALL if answers else LARGE, LARGE if answers else SMALL)


def list_fragmented(*, by_port: bool, by_other: bool) -> dict[str, Scenario]:
    """What comes of datagrams larger than the MTU. `by_port`: whether rules with ports let fragments of requests through, and
    `by_other`: also to another port."""
    return {
        "ingress, denied by default": Scenario(
            (policy("closed", "server", ingress=[]),),
            (large("near", "server", allowed=False), large("far", "server", allowed=False), large("server", "far", allowed=True)),
        ),
        "ingress, from pods": Scenario(
            (policy("near", "server", ingress=[{"from": [role("near")]}]),),
            (large("near", "server", allowed=True), large("far", "server", allowed=False)),
        ),
        "ingress, to a port": Scenario(
            (policy("port", "server", ingress=[{"from": [team("far")], "ports": [_UDP]}]),),
            (
                large("far", "server", allowed=by_port),
                large("far", "server", allowed=by_other, port=OTHER),
                large("near", "server", allowed=False),
                large("far", "server", allowed=True, answers=True),
            ),
        ),
        "egress, to a port": Scenario(
            (policy("port", "near", egress=[{"to": [team("far")], "ports": [_UDP]}]),),
            (
                large("near", "far", allowed=by_port),
                large("near", "far", allowed=by_other, port=OTHER),
                large("near", "server", allowed=False),
                large("near", "far", allowed=True, answers=True),
            ),
        ),
    }


FRAGMENTED: Final = tuple(list_fragmented(by_port=True, by_other=True))


@pytest.fixture(scope="module")
def world() -> Iterator[PolicedWorld]:
    with policed_world(PODS, NAMESPACES) as made:
        for pod in made.pods.values():
            made.servers.listen(pod.netns, (WEB, NEXT, OTHER))
        yield made


Wrong = Mapping[tuple[str, int], list[str]]


def judge(world: PolicedWorld, title: str, scenario: Scenario) -> Wrong:
    """By kind and family the connections of which something else came than should."""
    world.put_policies([named(each, title) for each in scenario.policies], scenario.isolated)
    expected, told = {}, {}
    for kind, family, each in product(KINDS, (4, 6), scenario.tries):
        source, target = world.pods[f"{each.source}-{kind}"], world.pods[f"{each.target}-{kind}"]
        made = Attempt(source.netns, target.address(family), each.port, each.protocol, each.request, each.answer)
        expected[made] = Outcome.ALLOWED if each.allowed else Outcome.TIMED_OUT
        told[made.token] = ((kind, family), each)
    wrong: dict[tuple[str, int], list[str]] = {each: [] for each in product(KINDS, (4, 6))}
    for attempt, outcome in unexpected(expected, 1.0).items():
        whose, each = told[attempt.token]
        wrong[whose].append(f"{each}: {outcome}")
    return wrong


def named(policy: Mapping[str, Any], title: str) -> dict[str, Any]:
    """The policy with a name that none of another scenario has."""
    prefix = re.sub(r"[^a-z]+", "-", title)
    return {**policy, "metadata": {**policy["metadata"], "name": f"{prefix}-{policy['metadata']['name']}"}}


def test_fragments_can_be_let_through_to_every_port(world: PolicedWorld) -> None:
    """With `policy_fragments` `allow`, for those whom a rule with ports lets through; from OVN 26.03 on that changes nothing.

    This comes before the controller of the other tests: one at a time can write.
    """
    knows = version() >= "26.03"
    scenario = list_fragmented(by_port=True, by_other=not knows)["ingress, to a port"]
    with world.controlled(policy_fragments="allow"):
        assert not any(judge(world, "fragments are let through", scenario).values())


@pytest.fixture(scope="module")
def controlled(world: PolicedWorld) -> Iterator[PolicedWorld]:
    """With a controller as it is by default."""
    with world.controlled():
        yield world


@pytest.fixture(scope="module")
def wrong(controlled: PolicedWorld, request: pytest.FixtureRequest) -> Wrong:
    return judge(controlled, request.param, SCENARIOS[request.param])


@pytest.mark.parametrize("wrong", SCENARIOS, indirect=True)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", [4, 6])
def test_a_policy_lets_through_what_it_says(wrong: Wrong, kind: str, family: int) -> None:
    """And nothing else."""
    assert wrong[kind, family] == []


@pytest.fixture(scope="module")
def wrong_fragments(controlled: PolicedWorld, request: pytest.FixtureRequest) -> Wrong:
    knows = version() >= "26.03"
    return judge(controlled, f"fragments, {request.param}", list_fragmented(by_port=knows, by_other=False)[request.param])


@pytest.mark.parametrize("wrong_fragments", FRAGMENTED, indirect=True)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", [4, 6])
def test_a_policy_judges_what_is_larger_than_the_mtu(wrong_fragments: Wrong, kind: str, family: int) -> None:
    """Before OVN 26.03 rules with ports drop fragments of requests."""
    assert wrong_fragments[kind, family] == []


def outcomes_of(
    world: PolicedWorld, tries: Mapping[tuple[str, str], bool], port: int = WEB, protocol: str = "tcp"
) -> Mapping[Attempt, Outcome]:
    """What is expected of connections from a pod to an address, by whether they are let through."""
    return {
        Attempt(world.pods[source].netns, address, port, protocol): Outcome.ALLOWED if allowed else Outcome.TIMED_OUT
        for (source, address), allowed in tries.items()
    }


def test_a_policy_holds_on_the_way_to_a_service(controlled: PolicedWorld) -> None:
    """It judges the endpoint and its port, not the Service's: at the endpoint, and where the connection begins."""
    world, rows = controlled, []
    vips = [("10.96.0.1", "vhost"), ("[fd10::1]", "vhost"), ("10.96.0.2", "veth"), ("[fd10::2]", "veth")]
    for vip, kind in vips:
        pod = world.pods[f"server-{kind}"]
        backend = f"[{pod.ipv6}]" if ":" in vip else pod.ipv4
        rows += ["--", "lb-add", vip.strip("[]"), f"{vip}:{SERVICE}", f"{backend}:{WEB}", "tcp"]
        rows += [word for node in NODES for word in ("--", "ls-lb-add", node, vip.strip("[]"))]
    world.ovn.nbctl(*rows[1:])
    near = {(f"near-{kind}", vip.strip("[]")): True for vip, kind in vips}
    far = {(f"far-{kind}", vip.strip("[]")): False for vip, kind in vips}
    into = policy("service-in", "server", ingress=[{"from": [role("near"), role("far") | team("far")], "ports": [port(WEB)]}])
    out = policy("service-out", "near", egress=[{"to": [role("server")], "ports": [port(WEB)]}])
    blocked = policy("service-blocked", "far", "other", egress=[{"to": [{"ipBlock": {"cidr": "10.96.0.0/16"}}]}])
    servers = {f"server-{kind}" for kind in KINDS}
    clients = {f"{each}-{kind}" for each in ("near", "far") for kind in KINDS}
    world.put_policies([into, out, blocked], {"ingress": servers, "egress": clients})
    assert unexpected(outcomes_of(world, near | far, port=SERVICE)) == {}
    world.put_policies([policy("service-closed", "server", ingress=[{"from": [role("far")]}])], {"ingress": servers})
    assert unexpected(outcomes_of(world, dict.fromkeys(near, False), port=SERVICE)) == {}


def test_another_pods_address_does_not_open_a_policy(controlled: PolicedWorld) -> None:
    """What a pod sends from an address that is not its own goes nowhere."""
    world = controlled
    world.put_policies(
        [policy("spoofed", "server", ingress=[{"from": [team("far")]}])], {"ingress": {f"server-{kind}" for kind in KINDS}}
    )
    sent = []
    for kind, family in product(KINDS, (4, 6)):
        source, own = world.pods[f"near-{kind}"], world.pods[f"far-{kind}"].address(family)
        target = world.pods[f"server-{kind}"].address(family)
        give(source.netns, "lo", f"{own}/{32 if family == 4 else 128}")
        sent.append(Attempt(source.netns, target, WEB, "udp", source=own))
    allowed = outcomes_of(
        world,
        {(f"far-{kind}", world.pods[f"server-{kind}"].address(family)): True for kind, family in product(KINDS, (4, 6))},
        protocol="udp",
    )
    assert unexpected(allowed) == {}
    tried(sent)
    assert not any(each.token in world.servers.received for each in sent)


def test_a_label_that_changes_stops_a_running_connection(controlled: PolicedWorld) -> None:
    """A pod that is no peer any more is not answered on connections that it has; a peer again, it is, on these, too."""
    world, (source, target) = controlled, (controlled.pods["near-vhost"], controlled.pods["server-veth"])
    policed = policy("labelled", "server", ingress=[{"from": [role("near")]}])
    world.put_policies([policed], {"ingress": {f"server-{kind}" for kind in KINDS}})
    with Conversation(Attempt(source.netns, target.ipv4, WEB)) as talk:
        assert talk.answers()
        world.api.change("shop", "near-vhost", {"metadata": {"labels": {"role": "other"}}})
        wait_until(lambda: source.ipv4 not in world.ovn.nbctl("list", "Address_Set"), what="the pod is no peer")
        world.settle()
        assert not talk.answers(1.0)
        world.api.change("shop", "near-vhost", {"metadata": {"labels": {"role": "near"}}})
        wait_until(lambda: source.ipv4 in world.ovn.nbctl("list", "Address_Set"), what="the pod is a peer again")
        assert unexpected(outcomes_of(world, {("near-vhost", target.ipv4): True})) == {}
        assert talk.answers()
