"""The leader's rounds against a real HTTP API server: each difference is written once, and nothing at rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.lab.kube.apiserver import ApiServer, Fault, Request
from tests.lab.kube.cluster_objects import ip, node, ours, spec, state
from tests.lab.switch.switch import wait_until
from userspace_cni.base.back_off import BackOff
from userspace_cni.controller.absence import Absence
from userspace_cni.controller.cluster import ClusterState
from userspace_cni.controller.status_rounds import Rounds, RoundTimes, WriteListener
from userspace_cni.controller.watches import Watches
from userspace_cni.controller.writes import versions
from userspace_cni.kube.credentials import ApiSession
from userspace_cni.kube.object_requests import Objects

QUICK = RoundTimes(rounds_s=0.05, writes_s=0.0, lag_s=0.0, back_off=BackOff(0.1, 0.2))
NODES = 250
AT_REST = 50


class Leader:
    """A controller's rounds on watches of its own, with what it counted. `leads` may be set to False."""

    def __init__(self, session: Callable[[], ApiSession], watching: Callable[[Callable[[], None]], Watches]) -> None:
        self.leads = True
        self.counted: Counter[tuple[str, str]] = Counter()
        self.absence = Absence()
        self.rounds = self.on(self._cluster, session)
        self.watches = watching(self.rounds.ask)

    def on(
        self, cluster: Callable[[], ClusterState | None], session: Callable[[], ApiSession], times: RoundTimes = QUICK
    ) -> Rounds:
        hearing = WriteListener(lambda resource, outcome: self.counted.update([(resource, outcome)]))
        return Rounds(Objects(session()), cluster, lambda: self.leads, self.absence, hearing, times)

    def known(self, told: Callable[[ClusterState], Any]) -> Any:
        """Wait until something is known of the cluster; what that is."""
        return wait_until(lambda: (cluster := self.watches.cluster()) and told(cluster))

    def settle(self) -> int:
        """Do rounds until one writes nothing; how many writes there were."""
        writes = 0
        while now := self.rounds.round():
            writes += now
            wait_until(self._seen)
        return writes

    def _cluster(self) -> ClusterState | None:
        return self.watches.cluster()

    def _seen(self) -> bool:
        """Whether the watches have reported the last writes."""
        cluster = self.watches.cluster()
        return cluster is not None and not self.rounds._unseen & versions(cluster)


@pytest.fixture
def leader(session: Callable[[], ApiSession], watching: Callable[[Callable[[], None]], Watches]) -> Iterator[Leader]:
    """A leader, whose thread does not run unless a test starts it."""
    made = Leader(session, watching)
    yield made
    made.rounds.stop()


def writes(api: ApiServer) -> list[Request]:
    return [request for request in api.requests if request.method != "GET"]


def status(api: ApiServer, plural: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = api.objects(f"{plural}.userspace-cni.io").get("", name).get("status") or {}
    return found


def populate(api: ApiServer, count: int) -> None:
    """A cluster with so many nodes, of which each reports a provider network."""
    api.add(ours("ProviderNetwork", "net1", defaultInterface="eth1"))
    api.add(ours("Vlan", "v100", id=100, provider="net1"))
    api.add(ours("Subnet", "pods", cidrBlock="10.0.0.0/8", perNodePrefix=24, vlan="v100"))
    for number in range(count):
        api.add(node(f"n{number:04}", f"192.168.{number // 200}.{number % 200 + 1}"))
        api.add(state(f"n{number:04}", [spec()]))


def populated(count: int) -> Callable[[ClusterState], bool]:
    """Whether all of `populate` is known: each kind of object has a watch of its own."""

    def is_known(cluster: ClusterState) -> bool:
        specs = cluster.provider_networks and cluster.vlans and cluster.subnets
        return bool(specs) and len(cluster.states) == len(cluster.nodes) == count

    return is_known


def test_many_nodes_are_one_write_per_object_and_none_at_rest(api: ApiServer, leader: Leader) -> None:
    """All reports together are one write of each status; then a node's change is one write of one object; then nothing."""
    populate(api, NODES)
    leader.known(populated(NODES))
    assert leader.settle() == 3
    assert len(status(api, "provider-networks", "net1")["readyNodes"]) == NODES
    ranges = status(api, "subnets", "pods")["nodeRanges"]
    assert len({each["range"] for each in ranges}) == NODES
    api.add(state("n0125", [spec(ready=False, message="no such NIC")]))
    leader.known(lambda cluster: not cluster.states["n0125"].specs[0]["ready"])
    before = len(writes(api))
    assert leader.settle() == 1
    [write] = writes(api)[before:]
    assert write.path.startswith(
        "/apis/userspace-cni.io/v1alpha1/provider-networks/net1/status?fieldManager=userspace-cni-controller"
    )
    found = status(api, "provider-networks", "net1")
    assert (found["ready"], found["notReadyNodes"]) == (False, ["n0125"])
    assert sum(leader.rounds.round() for _ in range(AT_REST)) == 0
    assert len(writes(api)) == before + 1


def test_changes_that_come_together_are_few_writes(api: ApiServer, leader: Leader) -> None:
    """A hundred nodes that change within a moment cause few writes, because rounds have a minimal distance."""
    populate(api, 100)
    leader.rounds.start()
    wait_until(lambda: len(status(api, "provider-networks", "net1").get("readyNodes", ())) == 100)
    before = len(writes(api))
    for number in range(100):
        api.add(state(f"n{number:04}", [spec(ready=False)]))
    wait_until(lambda: len(status(api, "provider-networks", "net1")["notReadyNodes"]) == 100)
    assert len(writes(api)) - before <= 30


def test_a_large_status_is_left_alone_for_a_while_unless_nodes_wait_for_it(
    api: ApiServer, leader: Leader, session: Callable[[], ApiSession]
) -> None:
    """In a large cluster changed reports wait, but a node's first range does not; what waits is written later by itself."""
    populate(api, 2)
    leader.known(populated(2))
    lagging = leader.on(leader.watches.cluster, session, replace(QUICK, lag_s=0.4))
    assert lagging.round() == 3
    leader.known(lambda cluster: cluster.subnets["pods"].status and cluster.provider_networks["net1"].status)
    api.add(state("n0000", [spec(ready=False)]))
    api.add(node("a"))
    api.add(state("a", [spec(ready=False)]))
    leader.known(lambda cluster: len(cluster.states) == 3 and len(cluster.nodes) == 3)
    assert lagging.round() == 1
    assert len(status(api, "subnets", "pods")["nodeRanges"]) == 3
    assert len(status(api, "provider-networks", "net1")["readyNodes"]) == 2
    lagging.start()
    wait_until(lambda: status(api, "provider-networks", "net1")["notReadyNodes"] == ["a", "n0000"])
    lagging.stop()


def test_a_controller_that_does_not_lead_writes_nothing(api: ApiServer, leader: Leader) -> None:
    """It has all the knowledge, and is ready to begin."""
    populate(api, 2)
    leader.leads = False
    leader.known(populated(2))
    assert leader.rounds.round() == 0
    leader.leads = True
    assert leader.settle() == 3


def test_a_death_between_two_writes_is_finished_by_the_next_leader(
    api: ApiServer, leader: Leader, session: Callable[[], ApiSession], watching: Callable[[Callable[[], None]], Watches]
) -> None:
    """What was not written is written by another controller, which begins with what the server has; ranges stay as they are."""
    populate(api, 3)
    leader.known(populated(3))

    class Died(BaseException):
        """As SIGKILL: nothing is done after it."""

    def die(resource: str, outcome: str) -> None:
        raise Died

    dying = Rounds(Objects(session()), leader.watches.cluster, lambda: True, Absence(), WriteListener(die), QUICK)
    with pytest.raises(Died):
        dying.round()
    given = status(api, "subnets", "pods")["nodeRanges"]
    assert len(given) == 3
    assert not status(api, "provider-networks", "net1")
    following = Leader(session, watching)
    following.known(lambda cluster: len(cluster.states) == 3 and cluster.subnets["pods"].status)
    assert following.settle() == 2
    assert status(api, "subnets", "pods")["nodeRanges"] == given


def test_a_former_leader_cannot_write_over_what_the_next_one_wrote(
    api: ApiServer, leader: Leader, session: Callable[[], ApiSession]
) -> None:
    """A write that follows from an older version is refused by the server, so that two leaders never give one range twice."""
    populate(api, 1)
    stale = leader.known(lambda cluster: populated(1)(cluster) and cluster)
    former = leader.on(lambda: stale, session)
    api.add(node("a"))
    api.add(state("a"))
    leader.known(populated(2))
    leader.settle()
    ranges = status(api, "subnets", "pods")["nodeRanges"]
    leader.counted.clear()
    former.round()
    assert leader.counted[("subnets", "conflict")] == 1
    assert status(api, "subnets", "pods")["nodeRanges"] == ranges


def test_what_a_gone_node_left_is_collected(api: ApiServer, leader: Leader) -> None:
    """A Node that stays away takes its NodeState, IP objects and range with it; before that all of it stays."""
    populate(api, 3)
    api.add(ip("web", "pods", "n0001", "10.0.1.5"))
    api.add(ip("db", "pods", "n0002", "10.0.2.5"))
    leader.known(lambda cluster: populated(3)(cluster) and len(cluster.addresses) == 2)
    leader.settle()
    api.objects("nodes").remove("", "n0001")
    leader.known(lambda cluster: len(cluster.nodes) == 2)
    leader.settle()
    assert len(status(api, "subnets", "pods")["nodeRanges"]) == 3
    leader.absence._gone_s = 0.0
    leader.rounds.start()
    wait_until(lambda: status(api, "subnets", "pods")["v4usingIPs"] == 1)
    assert api.objects("ips.userspace-cni.io").names() == [("", "db")]
    assert ("", "n0001") not in api.objects("nodestates.userspace-cni.io").names()
    assert [each["node"] for each in status(api, "subnets", "pods")["nodeRanges"]] == ["n0000", "n0002"]


def test_an_absence_that_was_not_watched_does_not_count(api: ApiServer, leader: Leader) -> None:
    """A controller that leads again, or watches nodes again, begins anew: the node may have been there meanwhile."""
    populate(api, 2)
    leader.known(populated(2))
    leader.settle()
    api.objects("nodes").remove("", "n0001")
    leader.known(lambda cluster: len(cluster.nodes) == 1)
    wait_until(lambda: not leader.watches.obstacles)
    leader.settle()
    assert leader.absence.next_due < float("inf")
    leader.leads = False
    leader.rounds.round()
    assert leader.absence.next_due == float("inf")
    leader.leads = True
    leader.absence._gone_s = 0.0
    api.faults.append(Fault(status=403, about="/nodes?"))
    api.close_watches()
    leader.known(lambda cluster: not cluster.nodes_watched)
    assert leader.rounds.round() == 0
    leader.rounds.start()
    assert ("", "n0001") in api.objects("nodestates.userspace-cni.io").names()
    api.faults.clear()
    wait_until(lambda: ("", "n0001") not in api.objects("nodestates.userspace-cni.io").names())


@pytest.mark.parametrize("fault", [Fault("PATCH", status=403), Fault("PATCH", status=500), Fault("PATCH", close=True)])
def test_a_write_that_fails_is_told_and_done_later(api: ApiServer, leader: Leader, fault: Fault) -> None:
    """While the server refuses it there is a problem, with pauses; afterwards it is written."""
    populate(api, 1)
    api.faults.append(fault)
    leader.rounds.start()
    wait_until(lambda: leader.rounds.problem)
    assert leader.counted[("subnets", "failed")]
    api.faults.clear()
    wait_until(lambda: status(api, "provider-networks", "net1").get("ready"))
    wait_until(lambda: not leader.rounds.problem)


def test_the_servers_order_of_conditions_is_no_difference(api: ApiServer, leader: Leader) -> None:
    """A node with an earlier name that comes later stands last in the server's list, which is no reason to write again."""
    populate(api, 2)
    leader.known(populated(2))
    leader.settle()
    api.add(node("a"))
    api.add(state("a", [spec()]))
    leader.known(lambda cluster: "a" in cluster.states and "a" in cluster.nodes)
    leader.settle()
    assert {each["node"] for each in status(api, "provider-networks", "net1")["conditions"]} == {"a", "n0000", "n0001"}
    assert leader.rounds.round() == 0


def test_an_outage_of_the_server_takes_nothing_away(api: ApiServer, leader: Leader) -> None:
    """While lists fail, what was known stays known: no node counts as gone."""
    populate(api, 2)
    leader.known(populated(2))
    leader.settle()
    leader.absence._gone_s = 0.0
    api.faults += [Fault("LIST", status=500), Fault("WATCH", status=410)]
    api.close_watches()
    wait_until(lambda: leader.watches.obstacles)
    assert leader.rounds.round() == 0
    assert len(api.objects("nodestates.userspace-cni.io").names()) == 2


def test_nothing_is_done_before_everything_is_known(
    api: ApiServer, session: Callable[[], ApiSession], watching: Callable[[Callable[[], None]], Watches]
) -> None:
    """While a resource cannot be listed, for example because its definition is missing, the controller writes nothing."""
    fault = Fault("LIST", status=404, about="/ips")
    api.faults.append(fault)
    populate(api, 1)
    leader = Leader(session, watching)
    wait_until(lambda: any("ips" in problem for problem in leader.watches.obstacles))
    assert leader.rounds.round() == 0
    api.faults.remove(fault)
    leader.known(lambda cluster: len(cluster.states) == 1)
    assert leader.rounds.round() == 3
