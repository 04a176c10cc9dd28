"""Events of ProviderNetworks, Vlans and Subnets about nodes that lack them, on a real HTTP API server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.lab.kube.apiserver import ApiServer
from tests.lab.kube.cluster_objects import node, ours, spec, state
from tests.lab.switch.switch import wait_until
from userspace_cni.base.back_off import BackOff
from userspace_cni.base.gateways import gateway_port
from userspace_cni.controller.controller_service import Controller
from userspace_cni.controller.status_rounds import RoundTimes
from userspace_cni.kube.credentials import ApiSession
from userspace_cni.kube.list_watch import WatchTimes

NODES = 40
AT_ONCE = WatchTimes(page=100, back_off=BackOff(0.005, 0.02), confirm_s=0)
"""Watches with short waits for the lists that confirm theirs."""
NO_NIC = "there is no NIC eth1 on this node"


@pytest.fixture
def start(api: ApiServer, session: Callable[[], ApiSession]) -> Iterator[Callable[[], Controller]]:
    """Starts a controller, which leads when a former one has been stopped."""
    for number in range(NODES):
        api.add(node(f"n{number:02}"))
    made: list[Controller] = []

    def begin() -> Controller:
        made.append(Controller(session(), "userspace-cni", RoundTimes(rounds_s=0.05, writes_s=0.0, lag_s=0.0), AT_ONCE))
        made[-1].start()
        return made[-1]

    yield begin
    for each in made:
        each.stop()


def report(api: ApiServer, lacking: int, *, kind: str = "provider-network", name: str = "net1") -> None:
    """What the nodes say: so many of them, the first ones, lack it."""
    for number in range(NODES):
        lacks = number < lacking
        said = {**spec(name, ready=not lacks, message=NO_NIC if lacks else ""), "kind": kind}
        api.add(state(f"n{number:02}", [said]))


def events(api: ApiServer, name: str) -> dict[str, dict[str, Any]]:
    """The Events about an object of the cluster, by reason."""
    return api.events.of(name)


def test_a_provider_network_that_nodes_lack(api: ApiServer, start: Callable[[], Controller]) -> None:
    """One Event has the number of nodes and what one of them says; when all have it, another one says that."""
    api.add(ours("ProviderNetwork", "net1", defaultInterface="eth1"))
    report(api, lacking=NODES)
    controller = start()
    wait_until(lambda: f"not on {NODES} of {NODES} nodes" in events(api, "net1").get("NotOnNodes", {}).get("message", ""))
    event = events(api, "net1")["NotOnNodes"]
    uid = api.objects("provider-networks.userspace-cni.io").get("", "net1")["metadata"]["uid"]
    about = {"kind": "ProviderNetwork", "apiVersion": "userspace-cni.io/v1alpha1", "name": "net1", "uid": uid}
    assert event["involvedObject"] == about
    assert (event["type"], event["message"]) == ("Warning", f"not on {NODES} of {NODES} nodes, as on n00: {NO_NIC}")
    controller.stop()  # the next one goes on with the same Event, and does not repeat what the status says
    asked = api.count("EVENT")
    start()
    report(api, lacking=0)
    wait_until(lambda: "OnNodes" in events(api, "net1"))
    assert api.count("EVENT") == asked + 1
    assert events(api, "net1")["OnNodes"]["message"] == f"as its object says on all {NODES} nodes"
    assert set(events(api, "net1")) == {"NotOnNodes", "OnNodes"}


def test_vlans_in_conflict_and_refused(api: ApiServer, start: Callable[[], Controller]) -> None:
    """A Vlan with the id of another, and one that nodes refuse, each get an Event; a valid one gets none."""
    for name in ("first", "second"):
        api.add(ours("Vlan", name, id=100, provider="net1"))
    api.add(ours("Vlan", "third", id=101, provider="net1"))
    report(api, lacking=2, kind="vlan", name="third")
    start()
    wait_until(lambda: "NotOnNodes" in events(api, "third") and (events(api, "first") or events(api, "second")))
    assert events(api, "third")["NotOnNodes"]["message"] == f"not on 2 nodes, as on n00: {NO_NIC}"
    assert [set(events(api, name)) for name in ("first", "second")] in ([set(), {"VlanConflict"}], [{"VlanConflict"}, set()])


def test_subnets_that_cannot_be(api: ApiServer, start: Callable[[], Controller]) -> None:
    """One that cannot be read, one that has no range left for nodes, and one that nodes refuse get a reason each."""
    api.add(ours("Subnet", "odd", cidrBlock="10.0.0.1/24"))
    api.add(ours("Subnet", "small", cidrBlock="10.1.0.0/24", perNodePrefix=25))
    api.add(ours("Subnet", "refused", cidrBlock="10.2.0.0/24"))
    report(api, lacking=3, kind="gateway", name=gateway_port("refused"))
    start()
    reasons = {"odd": "SubnetInvalid", "small": "SubnetFull", "refused": "NotOnNodes"}
    wait_until(lambda: all(reason in events(api, name) for name, reason in reasons.items()))
    assert {name: set(events(api, name)) for name in reasons} == {name: {reason} for name, reason in reasons.items()}
    assert events(api, "refused")["NotOnNodes"]["message"] == f"not on 3 nodes, as on n00: {NO_NIC}"
