"""What of a bridge, its ports and their frames counts as a cause, and what does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from userspace_cni.attachment.port_now import PortNow
from userspace_cni.attachment.records import Record
from userspace_cni.attachment.steps import LogicalPort, OvsPort, PortTerms, VhostUserClient
from userspace_cni.base.findings import Finding
from userspace_cni.base.limits import Limits, Rate
from userspace_cni.base.polling import PolledQueue, PollingReading, PollingThread
from userspace_cni.base.seen_bridge import LearnedMacs, SeenBridge, SeenController, SeenMirror, SeenPort, TracedFrame
from userspace_cni.base.vlans import Vlan
from userspace_cni.diagnosis.why import bridge_causes, traffic_causes
from userspace_cni.diagnosis.why.attachment_sight import AttachmentSight, SwitchSight
from userspace_cni.diagnosis.why.traffic_sight import Lately, TrafficSight

MAC = "02:00:00:00:00:01"
RATE = Rate(1_000_000, 100_000)
STEP = OvsPort("br0", "mine", VhostUserClient("/s"), mac=MAC)
MINE = SeenPort("mine", "dpdkvhostuserclient", mtu=1500, mac=MAC, pod="default/web", ours=True, number=1)
PEER = SeenPort("peer", "dpdkvhostuserclient", mtu=1500, mac="02:00:00:00:00:02", pod="default/db", ours=True, number=2)
UPLINK = SeenPort("eth1", "dpdk", mtu=1500, outward=True, number=3)


@dataclass(frozen=True)
class Connected:
    """The port, with an application."""

    name: str = "mine"
    bridge: str = "br0"
    interface_type: str = "dpdkvhostuserclient"
    link_state: str = "up"
    status: Mapping[str, str] = field(default_factory=lambda: {"status": "connected", "numa": "0"})
    error: str = ""
    installed: str = ""
    now: PortNow = field(default_factory=PortNow)


def record_of(step: OvsPort, name: str = "web", address: str = "", container: str = "c" * 64, **result: Any) -> Record:
    found = {"interfaces": [{"name": "net1", "sandbox": "/ns"}], "ips": [], **result}
    if address:
        found["ips"] = [{"address": address, "interface": 0, **({"gateway": result["gw"]} if "gw" in result else {})}]
    return Record("ready", "net", container, "net1", "/ns", pod_namespace="default", pod_name=name, steps=(step,), result=found)


def seen(
    *peers: SeenPort, mine: SeenPort = MINE, step: OvsPort = STEP, record: Record | None = None, **facts: Any
) -> AttachmentSight:
    """An attachment whose bridge has these other ports; `facts` of the bridge and of the traffic."""
    bridge_facts = {
        name: facts.pop(name) for name in ("mirrors", "controllers", "fail_mode", "spanning", "learned") if name in facts
    }
    port = facts.pop("port", Connected())
    bridge = SeenBridge("br0", (mine, *peers), **bridge_facts)
    switch = SwitchSight("alive", ports={"mine": port})
    return AttachmentSight(record or record_of(step), switch=switch, traffic=TrafficSight(bridge, mine, **facts))


def found(sight: AttachmentSight) -> list[Finding]:
    return [each for judge in (*bridge_causes.OF_BRIDGES, *traffic_causes.OF_TRAFFIC) for each in judge(sight)]


def names(sight: AttachmentSight) -> list[tuple[str, str]]:
    return [(each.name, each.severity) for each in found(sight)]


def tagged(port: SeenPort, *trunks: int, tag: int | None = None) -> SeenPort:
    return replace(port, vlan=Vlan(tag, trunks))


def test_a_port_that_is_well() -> None:
    """Beside a peer and an uplink, with frames that arrive and a core that polls it, nothing is found."""
    polling = PollingReading((PollingThread(1, 0, queues=(PolledQueue("mine", 0, True, None),)),), 60)
    counted = {"rx_packets": 10, "tx_packets": 10, "ovs_tx_failure_drops": 0, "ovs_tx_qos_drops": 0}
    traced = TracedFrame(False, "0. priority 0", normal=True)
    assert names(seen(PEER, UPLINK, polling=polling, statistics=counted, traced=traced, own_addresses=frozenset())) == []


def test_logical_ports_have_no_neighbours_on_their_bridge() -> None:
    """Two ports of OVN on one bridge may be of two networks: neither address nor MAC, MTU or gateway are compared."""
    logical = replace(STEP, logical=LogicalPort("default_web"))
    mine = record_of(logical, address="10.0.0.5/24", gw="10.0.0.1", routes=[{"dst": "0.0.0.0/0"}])
    other = (record_of(replace(logical, name="other"), "db", "10.0.0.5/24", "d" * 64),)
    twin = replace(PEER, mac=MAC, mtu=9000)
    assert names(seen(twin, record=mine, others=other, own_addresses=frozenset({"10.0.0.5"}))) == []


def test_what_is_not_known_is_no_fault() -> None:
    """Without any facts of its traffic nothing is found of it."""
    assert found(AttachmentSight(record_of(STEP))) == []
    assert names(seen()) == []


@pytest.mark.parametrize(
    ("mine", "peers", "alone"),
    [
        (tagged(MINE, tag=7), (PEER,), True),
        (tagged(MINE, tag=7), (tagged(PEER, tag=8),), True),
        (tagged(MINE, 7, 8), (tagged(PEER, 9),), True),
        (tagged(MINE, tag=7), (tagged(PEER, tag=8), UPLINK), False),
        (tagged(MINE, tag=7), (tagged(UPLINK, 8, 9),), True),
        (tagged(MINE, tag=7), (tagged(PEER, 7, 8),), False),
        (tagged(MINE, 7, 8), (tagged(PEER, tag=8),), False),
        (MINE, (tagged(PEER, tag=7),), False),
        (tagged(MINE, tag=7), (), False),
    ],
)
def test_a_vlan_that_no_other_port_has(mine: SeenPort, peers: tuple[SeenPort, ...], alone: bool) -> None:
    """An uplink without VLANs carries all; a pod without any has none. Without neighbours no VLAN is wrong."""
    assert (("vlan-alone", "warning") in names(seen(*peers, mine=mine))) == alone


def test_mtus_that_differ() -> None:
    """Within a VLAN they have to be the same, and the uplink's is told first. A patch has none."""
    jumbo = replace(MINE, mtu=9000)
    [each] = found(seen(PEER, UPLINK, mine=jumbo))
    assert (each.name, each.message) == (
        "mtu-unlike",
        "the pod's MTU is 9000, and others in its VLAN have another: uplink eth1 1500, pod default/db (port peer) 1500",
    )
    assert names(seen(tagged(PEER, tag=8), mine=tagged(jumbo, tag=7), record=record_of(STEP))) == [("vlan-alone", "warning")]
    assert names(seen(replace(UPLINK, kind="patch", mtu=0), mine=jumbo)) == []


def test_addresses_that_two_have() -> None:
    """Another pod with its address or MAC in its VLAN is the cause; its own former sandbox, and another VLAN, are not."""
    mine, theirs = record_of(STEP, address="10.0.0.5/24"), replace(STEP, name="theirs")
    others = (record_of(theirs, "db", "10.0.0.5/16", "d" * 64),)
    [each] = found(seen(PEER, record=mine, others=others))
    assert (each.name, each.severity) == ("duplicate-address", "error")
    assert "address 10.0.0.5 is also that of default/db/net1 (container dddddddddddd)" in each.message
    former = (record_of(theirs, "web", "10.0.0.5/24", "d" * 64),)
    assert names(seen(PEER, record=mine, others=former)) == [("duplicate-address", "note")]
    elsewhere = (record_of(replace(theirs, vlan=Vlan(9)), "db", "10.0.0.5/24", "d" * 64),)
    with_tag = record_of(replace(STEP, vlan=Vlan(8)), address="10.0.0.5/24")
    assert names(seen(record=with_tag, others=elsewhere)) == []
    assert names(seen(PEER, record=mine, own_addresses=frozenset({"10.0.0.5"}))) == [("duplicate-address", "error")]
    assert names(seen(replace(PEER, mac=MAC))) == [("duplicate-mac", "error")]
    assert names(seen(replace(PEER, mac=MAC, vlan=Vlan(8)), mine=tagged(MINE, tag=8))) == [("duplicate-mac", "error")]
    assert ("duplicate-mac", "error") not in names(seen(replace(PEER, mac=MAC, vlan=Vlan(9)), mine=tagged(MINE, tag=8)))


def test_a_gateway_that_is_not_there() -> None:
    """Only a network with routes needs it; an uplink, the node itself or a pod may have it."""
    routed = record_of(STEP, address="10.0.0.5/24", gw="10.0.0.1", routes=[{"dst": "0.0.0.0/0"}])
    assert names(seen(PEER, record=routed, own_addresses=frozenset())) == [("gateway-away", "warning")]
    assert names(seen(PEER, UPLINK, record=routed, own_addresses=frozenset())) == []
    assert names(seen(PEER, record=routed, own_addresses=frozenset({"10.0.0.1"}))) == []
    assert names(seen(PEER, record=routed, own_addresses=None)) == []
    gateway = record_of(replace(STEP, name="gw"), "router", "10.0.0.1/24", "d" * 64)
    assert names(seen(PEER, record=routed, own_addresses=frozenset(), others=(gateway,))) == []
    assert names(seen(PEER, record=record_of(STEP, address="10.0.0.5/24", gw="10.0.0.1"), own_addresses=frozenset())) == []


def test_drops_by_a_limit() -> None:
    """One frame in a hundred is a fault; fewer, or a few, are to know. What has set the limit is what raises it."""
    limited = replace(STEP, limits=Limits(RATE, RATE))
    many = {"rx_packets": 100, "tx_packets": 100, "ovs_tx_qos_drops": 50, "ovs_rx_qos_drops": 40}
    to_pod, from_pod = found(seen(step=limited, statistics=many))
    assert (to_pod.severity, from_pod.severity) == ("warning", "warning")
    what, since = "of 1000000 bit/s (burst 100000 bit) has dropped", "frames so far"
    assert to_pod.message == f"the limit to the pod {what} 50 of 150 {since}"
    assert from_pod.message == f"the limit from the pod {what} 40 of 140 {since}"
    assert names(seen(step=limited, statistics={**many, "tx_packets": 100_000, "ovs_rx_qos_drops": 0})) == [
        ("limit-drops", "note")
    ]
    assert names(seen(step=limited, statistics={**many, "ovs_tx_qos_drops": 31, "ovs_rx_qos_drops": 0})) == [
        ("limit-drops", "note")
    ]
    assert "raise ingressRate" in to_pod.remedy
    noted = replace(limited, terms=PortTerms(noted=Limits(RATE)))
    assert "a running agent applies it at once" in found(seen(step=noted, statistics=many))[0].remedy
    asked = replace(limited, terms=PortTerms(runtime=Limits(RATE)))
    assert "recreate the pod" in found(seen(step=asked, statistics=many))[0].remedy
    by_hand = replace(Connected(), now=PortNow(limits=Limits(RATE)))
    assert "`ovs-vsctl clear Port mine qos`" in found(seen(statistics=many, port=by_hand))[0].remedy
    assert names(seen(step=limited, limit_drops={"to_pod": 50})) == [("limit-drops", "warning")]
    assert to_pod.why == "TCP becomes slow by that, and UDP loses data"
    [every] = found(seen(step=limited, statistics={"rx_packets": 9, "tx_packets": 0, "ovs_tx_qos_drops": 50}))
    assert every.why == "nothing reaches the pod"


def test_drops_by_a_limit_that_is_gone() -> None:
    """Neither the record nor the switch has one now: its drops are to know, and there is nothing to remove."""
    [gone] = found(seen(statistics={"rx_packets": 9, "tx_packets": 0, "ovs_tx_qos_drops": 50}))
    assert (gone.name, gone.severity, gone.remedy) == ("limit-former", "note", "")
    assert gone.message == "a limit to the pod, which is gone now, has dropped 50 of 50 frames so far"
    unread = replace(Connected(), now=PortNow(qos="linux-codel"))
    assert names(seen(statistics={"ovs_tx_qos_drops": 50}, port=unread)) == [("limit-drops", "warning")]


def test_an_application_that_does_not_read() -> None:
    """Drops at a full queue are not the limit's. Without an application they are of former times."""
    counted = {"rx_packets": 0, "tx_packets": 5, "ovs_tx_failure_drops": 95, "ovs_tx_qos_drops": 0}
    [each] = found(seen(PEER, statistics=counted))
    assert (each.name, each.severity) == ("application-not-reading", "warning")
    assert "95 of 100 frames" in each.message
    gone = replace(Connected(), link_state="down", status={"status": "disconnected"})
    assert names(seen(PEER, statistics=counted, port=gone)) == []
    again = found(seen(PEER, statistics=counted, lately={"to_pod": Lately(3, 1)}))
    assert "95 of 100 frames so far, and 1 of 4 in the moment of this look" in again[0].message
    assert names(seen(PEER, statistics=counted, lately={"to_pod": Lately(3, 0)})) == [("application-not-reading", "note")]
    assert names(seen(PEER, statistics={**counted, "tx_packets": 100_000})) == [("application-not-reading", "note")]
    [few] = found(seen(PEER, statistics={**counted, "tx_packets": 0, "ovs_tx_failure_drops": 8}))
    assert (few.message, few.remedy) == ("the application has read none of its frames (8 of 8 dropped so far)", "")
    assert names(seen(PEER, statistics={"ovs_tx_mtu_exceeded_drops": 3})) == [("mtu-exceeded", "warning")]


def test_flows_that_drop() -> None:
    """No flow, or one that drops; a flood to no other port is none, and what is told elsewhere is not told twice."""
    none = found(seen(traced=TracedFrame(True), fail_mode="secure"))
    assert [each.name for each in none] == ["flows-none"]
    [drop] = found(seen(traced=TracedFrame(True, "0. in_port=1, priority 100, cookie 0x5")))
    assert "`ovs-ofctl --strict del-flows br0 table=0,priority=100,in_port=1`" in drop.remedy
    [every] = found(seen(traced=TracedFrame(True, "0. priority 7")))
    assert "`ovs-ofctl --strict del-flows br0 table=0,priority=7`" in every.remedy
    assert names(seen(traced=TracedFrame(True, "0. priority 0", normal=True))) == []
    closed = replace(MINE, config=frozenset({"no-receive"}))
    assert names(seen(mine=closed, traced=TracedFrame(True, "0. priority 0"))) == [("port-no-receive", "error")]


def test_threads_that_do_not_poll() -> None:
    """A connected port needs a thread, best on the NUMA node of its memory; queues that are not used are to know."""

    def reading(*queues: PolledQueue, numa: int = 0, isolated: bool = False) -> PollingReading:
        return PollingReading((PollingThread(1, numa, isolated=isolated, queues=queues),), 60)

    used, unused = PolledQueue("mine", 0, True, None), PolledQueue("mine", 1, False, None)
    assert names(seen(polling=reading(used))) == []
    [unpolled] = found(seen(polling=reading(isolated=True)))
    assert unpolled.name == "port-unpolled"
    assert "core 1 polls only what was given to it by name" in unpolled.message
    [beside] = found(seen(polling=reading(PolledQueue("peer", 0, True, None), isolated=True)))
    assert "`ovs-vsctl remove Interface peer other_config pmd-rxq-affinity`" in beside.remedy
    assert "pmd-cpu-mask" in found(seen(polling=reading()))[0].remedy
    assert names(seen(polling=PollingReading((), 0))) == [("port-unpolled", "error")]
    assert names(seen(polling=reading(used, numa=1))) == [("port-numa-remote", "warning")]
    assert names(seen(polling=reading(used, unused))) == [("queues-unused", "note")]


@pytest.mark.parametrize(
    ("sight", "name"),
    [
        (lambda: seen(controllers=(SeenController("tcp:10.0.0.9:6653", False, "refused"),)), "controller-away"),
        (lambda: seen(controllers=(SeenController("tcp:10.0.0.9:6653", True),)), ""),
        (lambda: seen(controllers=(SeenController("ptcp:6634", False),)), ""),
        (lambda: seen(mirrors=(SeenMirror("m", False, frozenset({"mine"}), output="VLAN 5"),)), "mirror-foreign"),
        (lambda: seen(mirrors=(SeenMirror("m", False, frozenset({"mine"})),)), ""),  # it copies to nowhere
        (lambda: seen(mirrors=(SeenMirror("m", False, frozenset({"peer"})),)), ""),
        (lambda: seen(mirrors=(SeenMirror("m", True, everything=True),)), ""),
        (lambda: seen(mirrors=(SeenMirror("m", False, output="mine"),)), "mirror-output-taken"),
        (lambda: seen(mine=replace(MINE, spanning="listening"), spanning="stp"), "port-spanning-tree"),
        (lambda: seen(mine=replace(MINE, spanning="forwarding"), spanning="stp"), ""),
        (lambda: seen(learned=LearnedMacs(10, 10)), "mac-table-full"),
        (lambda: seen(learned=LearnedMacs(10, 0)), ""),
        (lambda: seen(PEER, learned=LearnedMacs(1, 10, {(0, MAC): "peer"})), "mac-elsewhere"),
        (lambda: seen(PEER, learned=LearnedMacs(1, 10, {(0, MAC): "mine"})), ""),
        (lambda: seen(PEER, learned=LearnedMacs(1, 10, {(0, MAC): "LOCAL"})), "mac-elsewhere"),
    ],
)
def test_what_of_a_bridge_is_a_cause(sight: Callable[[], AttachmentSight], name: str) -> None:
    """Each of these alone is found, and its opposite is not."""
    assert [each.name for each in found(sight())] == ([name] if name else [])


def test_a_question_that_was_not_answered_is_named() -> None:
    """What could not be asked of the bridge is told with the rest."""
    sight = seen(unasked=(("the flows of br0", "no answer in time"),))
    assert ("the flows of br0", "no answer in time") in sight.unasked
