"""The rows of policies, evaluated packet by packet, against what Kubernetes says of the same policies."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.lab.ovn.acl_matches import MatchedPacket, MatchReader, NamedMembers
from tests.lab.ovn.naive_policies import NaiveCluster, NaiveConnection, NaivePod
from userspace_cni.ovn.desired_rows import DesiredRow
from userspace_cni.ovn.northbound_tables import ACL, ADDRESS_SET, PORT_GROUP
from userspace_cni.ovn.policy.pod_selections import PolicyPod
from userspace_cni.ovn.policy.policy_book import PolicyBook
from userspace_cni.ovn.policy.policy_members import PolicyPort, PortSubject
from userspace_cni.ovn.policy.policy_objects import POLICY, keep_namespace, keep_policy

NAMES = ("one", "two", "three")
LABELS = st.dictionaries(st.sampled_from(["app", "tier"]), st.sampled_from(["a", "b", "c"]))
OUTSIDE = ("10.0.0.200", "192.0.2.1", "fd00::200")
PORTS = ((80, "TCP"), (8080, "TCP"), (80, "UDP"), (9000, "SCTP"))
KEYS, VALUES = st.sampled_from(["app", "tier"]), st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=2)
EXPRESSIONS = st.one_of(
    st.builds(
        lambda key, way, values: {"key": key, "operator": way, "values": values}, KEYS, st.sampled_from(["In", "NotIn"]), VALUES
    ),
    st.builds(lambda key, way: {"key": key, "operator": way}, KEYS, st.sampled_from(["Exists", "DoesNotExist"])),
)
SELECTORS = st.one_of(
    st.just({}),
    st.builds(lambda labels: {"matchLabels": labels}, LABELS),
    st.builds(lambda labels, each: {"matchLabels": labels, "matchExpressions": each}, LABELS, st.lists(EXPRESSIONS, max_size=2)),
)
BLOCKS = st.sampled_from(
    [
        {"cidr": "0.0.0.0/0"},
        {"cidr": "10.0.0.0/24", "except": ["10.0.0.1/32", "10.0.0.128/25"]},
        {"cidr": "10.0.0.0/30"},
        {"cidr": "10.0.0.0/24", "except": ["10.0.0.0/24"]},
        {"cidr": "::/0", "except": ["fd00::/124", "fd00::200/128"]},
        {"cidr": "fd00::2/127"},
    ]
)
PEERS = st.one_of(
    st.builds(lambda pods: {"podSelector": pods}, SELECTORS),
    st.builds(lambda spaces: {"namespaceSelector": spaces}, SELECTORS),
    st.builds(lambda spaces, pods: {"namespaceSelector": spaces, "podSelector": pods}, SELECTORS, SELECTORS),
    st.builds(lambda block: {"ipBlock": block}, BLOCKS),
)
RULE_PORTS = st.sampled_from(
    [
        {"port": 80},
        {"protocol": "UDP", "port": 80},
        {"protocol": "TCP"},
        {"protocol": "SCTP", "port": 9000},
        {"port": 8000, "endPort": 8100},
        {"port": "web"},
        {"protocol": "UDP", "port": "web"},
    ]
)


def rules(far: str) -> st.SearchStrategy[list[dict[str, Any]]]:
    rule = st.fixed_dictionaries({}, optional={far: st.lists(PEERS, max_size=2), "ports": st.lists(RULE_PORTS, max_size=2)})
    return st.lists(rule, max_size=2)


SPECS = st.fixed_dictionaries(
    {"podSelector": SELECTORS},
    optional={
        "ingress": rules("from"),
        "egress": rules("to"),
        "policyTypes": st.sampled_from([["Ingress"], ["Egress"], ["Ingress", "Egress"], []]),
    },
)
POLICIES = st.builds(
    lambda namespace, name, spec: {"metadata": {"namespace": namespace, "name": name, "uid": "u"}, "spec": spec},
    st.sampled_from(NAMES),
    st.sampled_from(["p", "q", "r"]),
    SPECS,
)
NAMESPACES = st.fixed_dictionaries(dict.fromkeys(NAMES[:2], LABELS), optional={NAMES[2]: LABELS})
PODS = st.lists(
    st.tuples(st.sampled_from(NAMES), LABELS, st.booleans(), st.dictionaries(st.just("TCP"), st.sampled_from([80, 8080]))),
    max_size=5,
).map(
    lambda made: [
        NaivePod(
            namespace,
            f"pod{number}",
            labels,
            (f"10.0.0.{number}", *([f"fd00::{number}"] if is_dual else [])),
            {(protocol, "web"): port for protocol, port in ports.items()},
        )
        for number, (namespace, labels, is_dual, ports) in enumerate(made, 1)
    ]
)
CLUSTERS = st.builds(NaiveCluster, NAMESPACES, PODS, st.lists(POLICIES, max_size=4))


def tell(book: PolicyBook, cluster: NaiveCluster, former: NaiveCluster | None = None) -> None:
    """Have the book know the cluster, and nothing of a former one that it has not."""
    for name in {*cluster.namespaces, *(former.namespaces if former else ())}:
        labels = cluster.namespaces.get(name)
        kept = None if labels is None else keep_namespace({"metadata": {"name": name, "labels": labels}})
        book.take_namespace(name, kept)
    for pod in former.pods if former else ():
        if pod not in cluster.pods:
            book.take_pod(f"{pod.namespace}/{pod.name}", None)
            book.take_port(f"{pod.namespace}_{pod.name}", None)
    for pod in cluster.pods:
        ports = {(protocol.lower(), name): number for (protocol, name), number in pod.ports.items()}
        book.take_pod(f"{pod.namespace}/{pod.name}", PolicyPod(pod.namespace, pod.name, pod.name, pod.labels, ports))
        addresses = tuple((6 if ":" in each else 4, each) for each in pod.addresses)
        name = f"{pod.namespace}_{pod.name}"
        book.take_port(name, PolicyPort(name, pod.namespace, pod.name, "", "", addresses))
    now = {f"{each['metadata']['namespace']}/{each['metadata']['name']}": each for each in cluster.policies}
    then = {f"{each['metadata']['namespace']}/{each['metadata']['name']}" for each in former.policies} if former else set()
    for key in {*now, *then}:
        book.take_policy(f"{POLICY}/{key}", keep_policy(now[key]) if key in now else None)


def unique(cluster: NaiveCluster) -> NaiveCluster:
    """The cluster as a server has it: one policy of a name, and pods of namespaces that are there."""
    found = {(each["metadata"]["namespace"], each["metadata"]["name"]): each for each in cluster.policies}
    pods = [each for each in cluster.pods if each.namespace in cluster.namespaces]
    return replace(cluster, pods=pods, policies=list(found.values()))


def rows_of(book: PolicyBook) -> Mapping[str, tuple[DesiredRow, ...]]:
    book.take_changed()
    return {name: rows for name in book.rows if (rows := book.desired(name, port_id))}


def port_id(name: str) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_DNS, name)


class EvaluatedRows:
    """Rows, as OVN would read them."""

    def __init__(self, cluster: NaiveCluster, rows: Mapping[str, tuple[DesiredRow, ...]]) -> None:
        self.ports = {address: f"{pod.namespace}_{pod.name}" for pod in cluster.pods for address in pod.addresses}
        names = {port_id(name): name for name in self.ports.values()}
        every = [row for each in rows.values() for row in each]
        groups = {row.key.name: row.columns["ports"].members for row in every if row.key.table == PORT_GROUP}
        self.members = NamedMembers(
            {name: {names[each] for each in ports} for name, ports in groups.items()},
            {row.key.name: row.columns["addresses"].members for row in every if row.key.table == ADDRESS_SET},
        )
        self.acls = [row.columns for row in every if row.key.table == ACL]

    def allows(self, connection: NaiveConnection) -> bool:
        source, target = self.ports.get(connection.source, ""), self.ports.get(connection.target, "")
        if connection.source == connection.target:
            return True  # it reaches no switch
        ends = (connection.source, connection.target, connection.protocol.lower(), connection.port)
        packet = MatchedPacket(*ends, inport=source, outport=target)
        return all(self._verdict(packet, direction) for direction in ("from-lport", "to-lport"))

    def _verdict(self, packet: MatchedPacket, direction: str) -> bool:
        matched = [
            each
            for each in self.acls
            if each["direction"] == direction and MatchReader(each["match"], packet, self.members).holds()
        ]
        highest = max((each["priority"] for each in matched), default=0)
        return all(each["action"] != "drop" for each in matched if each["priority"] == highest)


def connections(cluster: NaiveCluster) -> list[NaiveConnection]:
    addresses = [*(address for pod in cluster.pods for address in pod.addresses), *OUTSIDE]
    pairs = [(one, other) for one, other in product(addresses, addresses) if (":" in one) == (":" in other)]
    return [NaiveConnection(one, other, protocol, port) for (one, other), (port, protocol) in product(pairs, PORTS)]


@given(CLUSTERS)
def test_rows_let_through_what_kubernetes_says(cluster: NaiveCluster) -> None:
    """Each connection between pods, and with the outside, by each protocol and port, in both families."""
    cluster = unique(cluster)
    book = PolicyBook()
    tell(book, cluster)
    rows = EvaluatedRows(cluster, rows_of(book))
    assert [each for each in connections(cluster) if rows.allows(each) != cluster.allows(each)] == []


@given(CLUSTERS, CLUSTERS, CLUSTERS)
def test_rows_after_changes_are_those_of_a_new_start(first: NaiveCluster, second: NaiveCluster, third: NaiveCluster) -> None:
    """Whatever was before, in whatever order it has changed; and all rows that have become others are told."""
    clusters = [unique(each) for each in (first, second, third)]
    book, former, had = PolicyBook(), None, dict[str, tuple[DesiredRow, ...]]()
    for cluster in clusters:
        tell(book, cluster, former)
        changed = book.take_changed()
        now = rows_of(book)
        assert {name for name in {*had, *now} if had.get(name) != now.get(name)} <= changed
        former, had = cluster, dict(now)
    fresh = PolicyBook()
    tell(fresh, NaiveCluster({}, [*clusters[0].pods, *clusters[1].pods], ()))
    tell(fresh, clusters[2], NaiveCluster({}, [*clusters[0].pods, *clusters[1].pods], ()))
    assert dict(rows_of(fresh)) == had


@given(CLUSTERS)
def test_a_new_port_is_told_all_groups_that_it_will_be_in(cluster: NaiveCluster) -> None:
    """Who makes a port asks before its row is there; nothing is said before all policies are known."""
    cluster = unique(cluster)
    book = PolicyBook()
    tell(book, cluster)
    rows = EvaluatedRows(cluster, rows_of(book))
    for pod in cluster.pods:
        subject = [PortSubject(pod.namespace, pod.labels, "")]
        book.known = set()
        assert book.list_groups(subject) is None
        book.known = {POLICY}
        port = f"{pod.namespace}_{pod.name}"
        found = book.list_groups(subject)
        assert set(found or ()) == {name for name, ports in rows.members.groups.items() if port in ports}


def test_a_port_with_a_name_in_a_block_is_that_of_the_pods_there() -> None:
    """Of egress: each pod with such a port whose address is in the block, by its own number; in an empty block there is none."""
    names = {("TCP", "web"): 8080}
    pods = [NaivePod("one", f"pod{number}", {}, (f"10.0.0.{number}", f"fd00::{number}"), names) for number in (1, 2, 130)]
    blocks = [{"cidr": "10.0.0.0/24", "except": ["10.0.0.0/25"]}, {"cidr": "fd00::/64", "except": ["fd00::/64"]}]
    rule = {"to": [{"ipBlock": each} for each in blocks], "ports": [{"port": "web"}]}
    spec = {"podSelector": {}, "policyTypes": ["Egress"], "egress": [rule]}
    policies = [{"metadata": {"namespace": "one", "name": "p", "uid": "u"}, "spec": spec}]
    cluster, book = NaiveCluster({"one": {}}, pods, policies), PolicyBook()
    tell(book, cluster)
    rows = EvaluatedRows(cluster, rows_of(book))
    assert rows.allows(NaiveConnection("10.0.0.1", "10.0.0.130", "TCP", 8080))
    assert [each for each in connections(cluster) if rows.allows(each) != cluster.allows(each)] == []
