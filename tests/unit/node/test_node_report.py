"""A node's report to a real HTTP API server: its NodeState, and labels and annotations of its Node.

Only differences are written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.lab.kube.apiserver import ApiServer, Fault
from tests.lab.kube.cluster_objects import node
from tests.lab.kube.definitions import defined_server
from tests.lab.switch.switch import wait_until
from userspace_cni.attachment.specs import SpecStatus
from userspace_cni.attachment.steps import NodeBridge, NodeLink, OvsPort, UplinkInterface, UplinkPort
from userspace_cni.attachment.steps.port import Internal
from userspace_cni.base.back_off import BackOff
from userspace_cni.base.errors import Unavailable, UserspaceError
from userspace_cni.base.findings import Finding
from userspace_cni.base.notices import Recipient
from userspace_cni.base.root import HERE
from userspace_cni.base.settings import Settings
from userspace_cni.kube.kubeconfig import KubeconfigBounds
from userspace_cni.kube.object_requests import Objects
from userspace_cni.kube.pod_requests import Clients
from userspace_cni.kube.resources import ApiResource
from userspace_cni.node.reporting import MANAGER, Report, ReportParts, ReportTimes, Withdrawal
from userspace_cni.node.state import CHASSIS, KUBEOVN_CHASSIS, RouteUse, SubnetUse, labels, notes, status

NAME = "worker-1"
QUICK = ReportTimes(settle_s=0.02, back_off=BackOff(0.05, 0.1), look_s=600.0)
BRIDGE = NodeBridge("br-net1", mtu=9000)
UPLINK = UplinkPort("br-net1", "net1-up", (UplinkInterface("enp1s0", "system"),), trunks=(0, 100), mtu=9000)
WELL = SpecStatus("provider-network", "net1", "objects", "ProviderNetwork net1", "", (BRIDGE, UPLINK))
ILL = replace(WELL, problem="no such NIC", steps=())


@dataclass
class World:
    """A server, the report on it, and the switch's name, or its error."""

    api: ApiServer
    objects: Objects
    clients: Clients
    chassis: str | UserspaceError = "chassis-1"
    reports: list[Report] = field(default_factory=list)
    told: list[tuple[Recipient, str, str]] = field(default_factory=list)

    def report(self, *, kubeovn: bool = False, times: ReportTimes = QUICK) -> Report:
        """A report, as of an agent that was just started; its thread does not run."""
        self.reports.append(
            Report(self.objects, NAME, self._named, parts=ReportParts(kubeovn=kubeovn), tell=self._tell, times=times)
        )
        return self.reports[-1]

    def _tell(self, recipient: Recipient, notices: Sequence[Finding]) -> None:
        self.told += [(recipient, each.name, each.message) for each in notices]

    def _named(self) -> str:
        if isinstance(self.chassis, UserspaceError):
            raise self.chassis
        return self.chassis

    @property
    def state(self) -> dict[str, Any]:
        return self.api.objects("nodestates.userspace-cni.io").get("", NAME)

    @property
    def metadata(self) -> dict[str, Any]:
        found: dict[str, Any] = self.api.objects("nodes").get("", NAME)["metadata"]
        return found

    @property
    def writes(self) -> int:
        """How many requests wrote."""
        return sum(request.method != "GET" for request in self.api.requests)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with defined_server() as api:
        api.add(node(NAME, "192.0.2.11") | {"metadata": {"name": NAME, "labels": {"zone": "a"}}})
        clients = Clients(KubeconfigBounds.of(Settings()), HERE, api.kubeconfig(tmp_path))
        made = World(api, Objects(clients.of("").session), clients)
        yield made
        for each in made.reports:
            each.stop()


def test_a_report_says_what_the_node_has() -> None:
    """Specs are in the order of their names, each with what its steps say and why it does not hold."""
    port = OvsPort(bridge="br0", name="gw0", interface=Internal())
    gateway = SpecStatus("gateway", "gw0", "settings", "[[gateway]]", "", (port, NodeLink("gw0", ("10.0.0.1/24",))))
    left = replace(ILL, name="old", desired=False, problem="it is in use")
    found = status([left, WELL, gateway], [SubnetUse("pods", "10.0.1.0/24"), SubnetUse("others", "")], ["192.0.2.11"], "c1")
    plain = {"source": "objects", "kind": "provider-network"}
    assert found == {
        "chassis": "c1",
        "addresses": ["192.0.2.11"],
        "specs": [
            {"kind": "gateway", "name": "gw0", "source": "settings", "ready": True, "reason": "Ready"}
            | {"interface": "gw0", "bridge": "br0"},
            plain
            | {"name": "net1", "ready": True, "reason": "Ready"}
            | {"interface": "enp1s0", "bridge": "br-net1", "mtu": 9000, "vlans": [100]},
            plain | {"name": "old", "ready": False, "reason": "CannotBeUndone", "message": "it is in use"},
        ],
        "subnets": [{"name": "pods", "range": "10.0.1.0/24"}],
    }


def test_labels_are_of_desired_provider_networks_and_can_be_labels() -> None:
    """Characters that a label cannot have become hyphens; a network that is to be undone has no label."""
    pci = UplinkPort("br-net2", "up", (UplinkInterface("up", "dpdk", devargs="0000:3b:00.0,rx=1"),))
    told = (WELL, replace(WELL, name="net2", steps=(pci,)), replace(ILL, name="net3"), replace(WELL, name="old", desired=False))
    assert labels(told) == {
        "net1.provider-network.userspace-cni.io/ready": "true",
        "net1.provider-network.userspace-cni.io/interface": "enp1s0",
        "net1.provider-network.userspace-cni.io/mtu": "9000",
        "net2.provider-network.userspace-cni.io/ready": "true",
        "net2.provider-network.userspace-cni.io/interface": "0000-3b-00.0-rx-1",
        "net3.provider-network.userspace-cni.io/ready": "false",
    }


def test_the_chassis_is_noted_for_kube_ovn_only_where_asked() -> None:
    """It is noted only with the setting; without a name nothing is noted."""
    assert notes("c", kubeovn=False) == {CHASSIS: "c"}
    assert notes("c", kubeovn=True) == {CHASSIS: "c", KUBEOVN_CHASSIS: "c"}
    assert notes("", kubeovn=True) == {}


def test_a_node_is_reported_once_and_owned_by_its_node(world: World) -> None:
    """The NodeState belongs to the Node, and goes with it; the Node keeps what others wrote; at rest nothing is written."""
    report = world.report(kubeovn=True)
    report.note_specs([WELL])
    report.report()
    assert world.state["status"]["addresses"] == ["192.0.2.11"]
    [owner] = world.state["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", NAME, world.metadata["uid"])
    assert world.metadata["labels"] == {"zone": "a", **labels([WELL])}
    assert world.metadata["annotations"] == {CHASSIS: "chassis-1", KUBEOVN_CHASSIS: "chassis-1"}
    assert world.writes == 2
    for _ in range(20):
        report.report()
    assert world.writes == 2


def test_an_agent_that_starts_again_writes_only_what_differs(world: World) -> None:
    """The next agent reads what the server has, and writes nothing before it knows what became of the specs."""
    first = world.report()
    first.note_specs([WELL])
    first.report()
    second = world.report()
    second.report()
    second.note_specs([WELL])
    second.report()
    assert world.writes == 2
    second.note_specs([ILL])
    second.report()
    assert world.writes == 4
    assert world.state["status"]["specs"][0]["message"] == "no such NIC"


def test_a_range_whose_word_was_lost_is_still_reported(world: World) -> None:
    """When a Subnet's status is lost, or not known yet, the range that was reported stays, for the controller to give it back."""
    report = world.report()
    report.note_specs([WELL])
    report.note_subnets([SubnetUse("pods", "10.0.1.0/24"), SubnetUse("gone", "10.1.1.0/24")])
    report.report()
    following = world.report()
    following.note_specs([ILL])
    following.note_subnets(None)
    following.report()
    assert [each["name"] for each in world.state["status"]["subnets"]] == ["gone", "pods"]
    following.note_subnets([SubnetUse("pods", "")])
    following.report()
    assert world.state["status"]["subnets"] == [{"name": "pods", "range": "10.0.1.0/24"}]


def test_a_network_that_is_gone_loses_its_labels_and_no_others(world: World) -> None:
    """Server-side apply removes what we no longer apply."""
    report = world.report()
    report.note_specs([WELL])
    report.report()
    report.note_specs([])
    report.report()
    assert world.metadata["labels"] == {"zone": "a"}
    assert world.metadata["annotations"] == {CHASSIS: "chassis-1"}


def test_what_others_put_beside_ours_is_written_over_once(world: World) -> None:
    """A label and an annotation of our form that another owns do not go by our write, so it is not repeated at each look."""
    theirs = {"x.provider-network.userspace-cni.io/ready": "true"}
    world.api.add(node(NAME) | {"metadata": {"name": NAME, "labels": theirs, "annotations": {KUBEOVN_CHASSIS: "ovn"}}})
    report = world.report()
    report.note_specs([WELL])
    for _ in range(3):
        report.report()
    assert world.writes == 2
    assert world.metadata["labels"] == {**theirs, **labels([WELL])}
    assert world.metadata["annotations"] == {CHASSIS: "chassis-1", KUBEOVN_CHASSIS: "ovn"}


def test_the_note_for_kube_ovn_goes_when_it_is_no_longer_asked_for(world: World) -> None:
    """The next agent, whose setting is off, takes back what the former one wrote."""
    for kubeovn in (True, False):
        report = world.report(kubeovn=kubeovn)
        report.note_specs([WELL])
        report.report()
    assert world.metadata["annotations"] == {CHASSIS: "chassis-1"}


def test_while_the_switch_is_away_its_name_stays(world: World) -> None:
    """The name that was reported is not taken back because OVSDB does not answer."""
    report = world.report()
    report.note_specs([WELL])
    report.report()
    world.chassis = Unavailable("no session with OVSDB", "")
    report.note_specs([ILL])
    report.report()
    assert world.state["status"]["chassis"] == "chassis-1"
    assert world.metadata["annotations"] == {CHASSIS: "chassis-1"}


@pytest.mark.parametrize("state", [True, False])
def test_an_agent_that_starts_while_the_switch_is_away_keeps_its_name(world: World, state: bool) -> None:
    """It is known from the NodeState, or from the Node where there is no NodeState."""
    for chassis in ("chassis-1", Unavailable("no session with OVSDB", "")):
        world.chassis = chassis
        report = Report(world.objects, NAME, world._named, parts=ReportParts(state=state, kubeovn=True), times=QUICK)
        report.note_specs([WELL])
        report.report()
    assert world.metadata["annotations"] == {CHASSIS: "chassis-1", KUBEOVN_CHASSIS: "chassis-1"}


def test_a_node_is_told_without_a_node_state(world: World) -> None:
    """Labels and annotations alone need neither the resource nor the right to it; the NodeState of a former agent is left."""
    world.api.faults.append(Fault(status=403, about="/nodestates"))
    report = Report(world.objects, NAME, lambda: "chassis-1", parts=ReportParts(state=False, kubeovn=True), times=QUICK)
    for _ in range(3):
        report.note_specs([WELL])
        report.report()
    assert (world.writes, world.metadata["labels"]) == (1, {"zone": "a", **labels([WELL])})
    assert world.metadata["annotations"] == {CHASSIS: "chassis-1", KUBEOVN_CHASSIS: "chassis-1"}


def test_changes_that_come_together_are_one_report(world: World) -> None:
    """`note_specs` only stores; the thread writes the latest, a moment later."""
    report = world.report(times=replace(QUICK, settle_s=0.3))
    report.start()
    for number in range(50):
        report.note_specs([replace(ILL, problem=f"try {number}")])
        report.note_subnets([SubnetUse("pods", f"10.0.{number}.0/24")])
    wait_until(lambda: report.writes == 2)
    assert world.state["status"]["specs"][0]["message"] == "try 49"
    assert world.state["status"]["subnets"] == [{"name": "pods", "range": "10.0.49.0/24"}]


@pytest.mark.parametrize("fault", [Fault("PATCH", status=500), Fault(status=403), Fault(close=True)])
def test_what_cannot_be_written_is_written_later(world: World, fault: Fault) -> None:
    """While the server is away `note_specs` goes on at once, and the latest is written afterwards."""
    world.api.faults.append(fault)
    report = world.report()
    report.start()
    report.note_specs([ILL])
    wait_until(lambda: report.problem)
    report.note_specs([WELL])
    world.api.faults.clear()
    wait_until(lambda: not report.problem and report.writes == 2)
    assert world.state["status"]["specs"][0]["ready"] is True


def test_an_account_that_may_not_write_nodes_still_reports(world: World) -> None:
    """The permission to patch Nodes is for labels and annotations alone: without it there is a problem, and the NodeState."""
    world.api.faults.append(Fault("PATCH", status=403, about="/nodes/"))
    report = world.report()
    report.note_specs([WELL])
    with pytest.raises(UserspaceError, match="patch on nodes"):
        report.report()
    assert world.state["status"]["specs"]


def test_what_others_changed_or_deleted_is_mended_by_a_look(world: World) -> None:
    """Though nothing has changed on the node, the next look restores the report on the server."""
    report = world.report(times=replace(QUICK, look_s=0.1))
    report.start()
    report.note_specs([WELL])
    wait_until(lambda: report.writes == 2)
    world.api.objects("nodestates.userspace-cni.io").remove("", NAME)
    wait_until(lambda: report.writes == 3)
    assert world.state["status"]["specs"]


def test_no_node_is_ever_made(world: World) -> None:
    """A Node that is gone is not made again by what is written to it, also when it goes between look and write."""
    nodes = world.api.objects("nodes")

    class Vanishing(Objects):
        """The Node goes once it was read."""

        def get(self, resource: ApiResource, name: str) -> dict[str, Any] | None:
            found = super().get(resource, name)
            if ("", NAME) in nodes.names():
                nodes.remove("", NAME)
            return found

    world.objects = Vanishing(world.objects._session)
    report = world.report()
    report.note_specs([WELL])
    for _ in range(2):
        with pytest.raises(UserspaceError):
            report.report()
    assert ("", NAME) not in nodes.names()


def test_the_manager_of_what_is_written_is_the_agent(world: World) -> None:
    """So its fields are distinguished from those of people and of the controller."""
    report = world.report()
    report.note_specs([WELL])
    report.report()
    assert {each["manager"] for each in world.state["metadata"]["managedFields"]} == {MANAGER}


def test_an_agent_without_routes_takes_back_those_that_were_reported(world: World) -> None:
    """Only they go, after a fault, too, and nothing is written again; else a Route would await this node for ever."""
    report = world.report()
    report.note_specs([WELL])
    report.note_routes([RouteUse("fast", 3, 2, 2, 0, 0)])
    report.report()
    before = world.state["status"]
    writes = world.writes
    world.api.faults.append(Fault(status=503, times=1, about="/nodestates/"))
    withdrawal = Withdrawal(world.clients, NAME)
    withdrawal.start()
    wait_until(lambda: not withdrawal.alive)
    assert world.state["status"] == {key: value for key, value in before.items() if key != "routes"}
    Withdrawal(world.clients, NAME).withdraw()
    assert world.writes == writes + 1


def test_news_of_the_node_are_told_once(world: World) -> None:
    """The agent that first reports it makes one Event for what is not ready, with the cause, and one when it is ready again."""
    gateway = replace(ILL, kind="gateway", name="gw0", problem="no bridge")
    former = world.report()
    former.note_specs([WELL])
    former.report()
    former.note_specs([ILL, gateway])
    former.report()
    uid = world.state["metadata"]["uid"]
    about = {recipient.interface: (reason, text) for recipient, reason, text in world.told}
    assert about == {
        "provider-network net1 objects": ("NetworkNotReady", "no such NIC"),
        "gateway gw0 objects": ("NetworkNotReady", "no bridge"),
    }
    assert {each.uid for each, _, _ in world.told} == {uid}
    assert {(each.kind, each.name, each.namespace) for each, _, _ in world.told} == {("NodeState", NAME, "")}
    world.told.clear()
    report = world.report()
    report.note_specs([ILL, gateway])
    report.report()
    assert world.told == []
    report.note_specs([WELL])
    report.report()
    assert [(each.interface, reason) for each, reason, _ in world.told] == [("provider-network net1 objects", "NetworkReady")]


def test_a_new_agent_keeps_the_report_of_routes_until_it_has_looked(world: World) -> None:
    """Else each restart would take the node out of every Route's status for a moment."""
    former = world.report()
    former.note_specs([WELL])
    former.note_routes([RouteUse("fast", 3, 2, 2, 0, 0)])
    former.report()
    routes = world.state["status"]["routes"]
    report = Report(world.objects, NAME, lambda: "chassis-1", parts=ReportParts(routes=True), times=QUICK)
    report.note_specs([ILL])
    report.report()
    assert (world.state["status"]["routes"], world.state["status"]["specs"][0]["ready"]) == (routes, False)
    report.note_routes([])
    report.report()
    assert world.state["status"]["routes"] == []


def test_a_node_that_never_reported_writes_nothing(world: World) -> None:
    """Neither without a NodeState, nor without the right to read it."""
    for fault in (None, Fault(status=403)):
        if fault:
            world.api.faults.append(fault)
        withdrawal = Withdrawal(world.clients, NAME)
        withdrawal.start()
        withdrawal._thread.join(60)
        assert not withdrawal.alive
    assert not world.writes
