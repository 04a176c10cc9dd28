"""Random NetworkPolicies by real connections, beside what Kubernetes says of them: how many changes leave something wrong.

`python tests/bench/random_policies.py [--json] [--changes N] [--seed N]`, as root. OVN has two chassis in userspace, with six
pods: three roles, each with a vhost-user port and with a veth. Each change replaces all policies by one to four random ones.
Once they are in force, 180 kinds of connections are tried: each pair of pods, both families, two ports of TCP and one of UDP.
What should pass and does not is tried three times more, 2 s each. Of what is wrong it is told whether it still is after the
datapath's flows were deleted: if not, Open vSwitch had kept a flow, and the rules are right.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations, product
from typing import Any, Final

from rich.console import Console

from tests.bench.report import arguments, machine, tell
from tests.lab.ovn.attempts import Attempt, Outcome, tried
from tests.lab.ovn.central import version
from tests.lab.ovn.logical_pods import LogicalPod
from tests.lab.ovn.naive_policies import NaiveCluster, NaiveConnection, NaivePod, isolates
from tests.lab.ovn.policed_pods import PolicedPod, PolicedWorld, policed_world

WEB, OTHER = 8080, 9090
SERVICES: Final = ((WEB, "tcp"), (OTHER, "tcp"), (WEB, "udp"))
ROLES: Final = {"server": ("n1", "shop"), "near": ("n1", "shop"), "far": ("n2", "other")}
NAMESPACES: Final = {"shop": {"team": "shop"}, "other": {"team": "far"}}
PODS: Final = {
    f"{role}-{kind}": PolicedPod(on, kind == "vhost", namespace, {"role": role}, {"web": ("TCP", WEB), "web-udp": ("UDP", WEB)})
    for (role, (on, namespace)), kind in product(ROLES.items(), ("vhost", "veth"))
}
_BLOCKS: Final = (
    {"cidr": "192.168.0.0/16", "except": ["192.168.1.0/24"]},
    {"cidr": "192.168.1.0/24"},
    {"cidr": "fd00::/24", "except": ["fd00:2::/64"]},
    {"cidr": "fd00:2::/64"},
    {"cidr": "0.0.0.0/0"},
    {"cidr": "::/0", "except": ["fd00:1::/64"]},
)
_PORTS: Final = (
    {"port": WEB},
    {"port": WEB, "protocol": "UDP"},
    {"protocol": "TCP"},
    {"port": 8000, "endPort": 8100},
    {"port": "web"},
    {"protocol": "UDP", "port": "web-udp"},
    {"port": OTHER},
)
_AGAIN: Final = 3


class RandomPolicies:
    """Policies of one seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def choose(self, number: int) -> list[dict[str, Any]]:
        """Those of a change; `number` makes their names new."""
        return [self._policy(f"r{number}-{each}") for each in range(self._random.randint(1, 4))]

    def _policy(self, name: str) -> dict[str, Any]:
        types = self._random.choice([["Ingress"], ["Egress"], ["Ingress", "Egress"]])
        spec: dict[str, Any] = {"podSelector": self._selector("role", tuple(ROLES)), "policyTypes": types}
        for kind in types:
            far = "from" if kind == "Ingress" else "to"
            spec[kind.lower()] = [self._rule(far) for _ in range(self._random.randint(0, 2))]
        metadata = {"name": name, "namespace": self._random.choice(["shop", "shop", "other"])}
        return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec}

    def _rule(self, far: str) -> dict[str, Any]:
        rule = {}
        if self._random.random() < 0.8:
            rule[far] = [self._peer() for _ in range(self._random.randint(1, 2))]
        if self._random.random() < 0.6:
            rule["ports"] = [self._random.choice(_PORTS) for _ in range(self._random.randint(1, 2))]
        return rule

    def _peer(self) -> dict[str, Any]:
        pods, teams = self._selector("role", tuple(ROLES)), self._selector("team", ("shop", "far"))
        ways = ({"podSelector": pods}, {"namespaceSelector": teams}, {"namespaceSelector": teams, "podSelector": pods})
        return dict(self._random.choice((*ways, {"ipBlock": self._random.choice(_BLOCKS)})))

    def _selector(self, key: str, values: Sequence[str]) -> dict[str, Any]:
        some = self._random.sample(values, self._random.randint(1, len(values) - 1))
        operator = self._random.choice(["In", "NotIn", "Exists", "DoesNotExist"])
        expression = {"key": key, "operator": operator} | ({"values": some} if operator.endswith("In") else {})
        return self._random.choice([{}, {"matchLabels": {key: some[0]}}, {"matchExpressions": [expression]}])


def expect(world: PolicedWorld, cluster: NaiveCluster) -> dict[Attempt, Outcome]:
    """What Kubernetes says of each kind of connection."""

    def attempts() -> Iterator[tuple[Attempt, Outcome]]:
        for (source, target), family, (port, protocol) in product(permutations(world.pods.values(), 2), (4, 6), SERVICES):
            ends = (source.address(family), target.address(family))
            allowed = cluster.allows(NaiveConnection(*ends, protocol.upper(), port))
            yield Attempt(source.netns, ends[1], port, protocol), Outcome.ALLOWED if allowed else Outcome.TIMED_OUT

    return dict(attempts())


def find_wrong(expected: Mapping[Attempt, Outcome], seconds: float = 1.0) -> dict[Attempt, Outcome]:
    """Those with another outcome; one that is late only counts when it stays so."""
    found = dict(zip(expected, tried(list(expected), seconds), strict=True))
    for _ in range(_AGAIN):
        late = [each for each, outcome in found.items() if outcome is Outcome.TIMED_OUT is not expected[each]]
        if not late:
            break
        found |= zip(late, tried([each.again() for each in late], 2.0), strict=True)
    return {each: outcome for each, outcome in found.items() if outcome is not expected[each]}


def naive(name: str, pod: LogicalPod) -> NaivePod:
    made = PODS[name]
    ports = {(protocol, called): number for called, (protocol, number) in made.ports.items()}
    return NaivePod(made.namespace, name, made.labels, (pod.ipv4, pod.ipv6), ports)


def measure(world: PolicedWorld, changes: int, policies: RandomPolicies) -> dict[str, Any]:
    pods = [naive(name, pod) for name, pod in world.pods.items()]
    wrong, kept = [], []
    for number in range(changes):
        cluster = NaiveCluster(NAMESPACES, pods, policies.choose(number))
        world.put_policies(cluster.policies, isolates(cluster), forget=False)
        expected = expect(world, cluster)
        found = find_wrong(expected)
        world.settle()
        kept.append(len(find_wrong({each.again(): expected[each] for each in found})) if found else 0)
        wrong.append(len(found))
    return {
        "changes": changes,
        "kinds of connections": len(expected),
        "changes with something wrong": sum(map(bool, wrong)),
        "wrong connections": sum(wrong),
        "wrong after the datapath's flows were deleted": sum(kept),
    }


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--changes", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with policed_world(PODS, NAMESPACES) as world:
        for pod in world.pods.values():
            world.servers.listen(pod.netns, (WEB, OTHER))
        with world.controlled():
            report = measure(world, options.changes, RandomPolicies(options.seed))
        switch = world.ovn.switches["n1"].vsctl("--version").split()[3]
    report |= {"machine": machine(), "versions": f"OVN {version()}, OVS {switch}"}
    return tell(report, options.json, Console().print)


if __name__ == "__main__":
    sys.exit(main())
