"""What of a kernel link, the node's uplinks and a logical port counts as a cause, and what does not."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass, field, replace
from ipaddress import ip_address, ip_interface, ip_network
from pathlib import Path
from typing import Any

import pytest

from userspace_cni.attachment.drift import Absent, Drift
from userspace_cni.attachment.port_now import PortNow
from userspace_cni.attachment.records import Record
from userspace_cni.attachment.steps import HostEnd, Link, LogicalPort, OvsPort, Shaper
from userspace_cni.base.findings import Finding
from userspace_cni.base.routing import Inside, PodLink, PodRoute
from userspace_cni.base.seen_bridge import SeenBridge, SeenPort
from userspace_cni.diagnosis.why.attachment_sight import AttachmentSight, ChassisSight, Findings, SwitchSight, Unasked
from userspace_cni.diagnosis.why.causes import arrange
from userspace_cni.diagnosis.why.link_causes import judge_link, judge_shaper
from userspace_cni.diagnosis.why.ovn_causes import judge_ovn
from userspace_cni.diagnosis.why.traffic_sight import TrafficSight
from userspace_cni.diagnosis.why.uplink_causes import judge_specs
from userspace_cni.node.seen_link import SeenLink
from userspace_cni.node.seen_specs import SeenSpec
from userspace_cni.ovn.seen_logical_port import NorthboundPort, PortBinding

HOST = "uc0123456789ab"
LINK = Link(
    host=HOST,
    host_mac="02:00:00:00:00:0b",
    alias="ours",
    name="net1",
    mac="02:00:00:00:00:0a",
    mtu=1500,
    netns="/ns",
    netns_inode=7,
    addresses=("10.1.0.2/24", "fd01::2/64"),
    routes=({"dst": "0.0.0.0/0", "gw": "10.1.0.1"}, {"dst": "::/0", "gw": "fd01::1"}),
)
PORT = OvsPort("br0", HOST, HostEnd("system", 1500))


def route(dst: str, dev: str, via: str = "", metric: int = 0) -> PodRoute:
    return PodRoute(ip_network(dst), ip_address(via) if via else None, dev, metric, 4)


OWN = (
    route("0.0.0.0/0", "net1", "10.1.0.1"),
    route("10.1.0.0/24", "net1"),
    route("fd01::/64", "net1", metric=256),
    route("::/0", "net1", "fd01::1", 1024),
)
END = PodLink("net1", 4, up=True, addresses=tuple(map(ip_interface, LINK.addresses)))
SOUND = SeenLink(
    HOST, host_up=True, end="net1", end_up=True, carrier=True, inside=Inside({"net1": END}, OWN), duplicates={}, silent=()
)


@dataclass(frozen=True)
class KnownPort:
    """The port, by its name as OVN has installed it or not."""

    name: str = HOST
    bridge: str = "br0"
    interface_type: str = "system"
    link_state: str = "up"
    status: dict[str, str] = field(default_factory=dict)
    error: str = ""
    installed: str = ""
    now: PortNow = field(default_factory=PortNow)


def sight(link: SeenLink | Unasked | None = SOUND, *, step: Link = LINK, port: OvsPort = PORT, **facts: Any) -> AttachmentSight:
    record = Record("ready", "net", "c" * 64, "net1", "/ns", pod_namespace="default", pod_name="web", steps=(step, port))
    facts.setdefault("switch", SwitchSight("alive", ports={HOST: KnownPort()}))
    return AttachmentSight(record, link=link, **facts)


def names(found: Findings) -> list[str]:
    return [each.name for each in found if each.severity != "good"]


def with_routes(*others: PodRoute, first: bool = False) -> SeenLink:
    """The sound link with routes of other programs, after its own or before them."""
    routes = (*others, *OWN) if first else (*OWN, *others)
    return replace(SOUND, inside=Inside({"net1": END, "eth0": PodLink("eth0", 2, up=True)}, routes))


def test_a_sound_link_is_well() -> None:
    """It is named among what was looked at, and nothing else is said."""
    assert [(each.name, each.severity) for each in judge_link(sight())] == [("link", "good")]


@pytest.mark.parametrize(
    ("others", "first", "overridden"),
    [
        ((route("10.1.0.128/25", "eth0"),), False, ["10.1.0.0/24"]),
        ((route("10.1.0.0/24", "eth0", metric=100),), False, []),
        ((route("10.1.0.0/24", "eth0"),), True, ["10.1.0.0/24"]),
        ((route("0.0.0.0/0", "eth0", "10.9.0.1"),), True, ["0.0.0.0/0"]),
        ((route("0.0.0.0/0", "eth0", "10.9.0.1", 10),), False, []),
        ((route("::/0", "eth0", "fe80::1", 100),), False, ["::/0"]),
        ((route("::/0", "eth0", "fe80::1", 2048),), False, []),
        ((route("10.9.0.0/16", "eth0"), route("10.244.0.0/16", "eth0")), False, []),
    ],
)
def test_which_routes_override(others: tuple[PodRoute, ...], first: bool, overridden: list[str]) -> None:
    """A longer prefix within a network of the interface, or the same one with precedence; not what is more particular than the
    default route."""
    found = [each for each in judge_link(sight(with_routes(*others, first=first))) if each.name == "route-overridden"]
    assert [each.message.split(" by net1")[0].rpartition(" ")[2] for each in found] == overridden


def test_what_a_pod_calls_its_links_is_no_command(tmp_path: Path) -> None:
    """A person runs the commands of a remedy: a name that the pod, or its annotation, has chosen is one word in them."""
    for name, text in (("nsenter", 'shift; exec "$@"'), ("reboot", f"touch {tmp_path}/rebooted"), ("ip", ""), ("ethtool", "")):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    for name in ("sysctl", "tc", "kubectl", "ovs-appctl", "userspace-cni"):
        (tmp_path / name).symlink_to(tmp_path / "ip")
    evil = "$(reboot);reboot"
    end = replace(END, name=evil, addresses=())
    link = replace(SOUND, end=evil, end_up=False, offload=True, without_ipv6=True, rp_filter=1, reverse_path_drops=1)
    inside = Inside({evil: end}, (route("10.1.0.128/25", ";reboot;"),))
    found = list(judge_link(sight(replace(link, inside=inside))))
    asked = replace(LINK, name="$(reboot);a")
    found += judge_link(sight(replace(SOUND, end="eth7", end_up=False), step=asked))
    limit = Drift(f"interface {asked.name}", "limit from the pod", 1000, Absent())
    found += judge_shaper(sight(step=asked, drifts={Shaper.kind: [limit]}))
    assert {"pod-end-renamed", "limit-missing"} < {each.name for each in found}
    commands = [command for each in found for command in re.findall("`([^`]+)`", each.remedy)]
    assert len(commands) >= 8
    for command in commands:
        subprocess.run(["/bin/sh", "-c", command], env={"PATH": f"{tmp_path}:/bin:/usr/bin"}, check=False)
        assert not (tmp_path / "rebooted").exists(), command


def test_a_second_default_route_that_the_network_asks_for_is_no_fault() -> None:
    """Its priority says that it is to be second."""
    step = replace(LINK, routes=({"dst": "0.0.0.0/0", "gw": "10.1.0.1", "priority": 50},))
    routes = (route("0.0.0.0/0", "eth0", "10.9.0.1"), route("0.0.0.0/0", "net1", "10.1.0.1", 50), *OWN[1:])
    assert names(judge_link(sight(replace(SOUND, inside=Inside({"net1": END}, routes)), step=step))) == []


@pytest.mark.parametrize(
    ("link", "found"),
    [
        (replace(SOUND, foreign="theirs"), "host-end-foreign"),
        (replace(SOUND, gone="it is another namespace by now", end=""), "namespace-gone"),
        (replace(SOUND, end="", taken=True), "pod-end-moved"),
        (replace(SOUND, failed=("fd01::2",)), "address-failed"),
        (replace(SOUND, rules=("100: from all lookup 77",)), "policy-rules"),
        (replace(SOUND, rp_filter=1, reverse_path_drops=3), "rp-filter"),
    ],
)
def test_each_state_has_its_name(link: SeenLink, found: str) -> None:
    """One state is one finding, and no other."""
    assert names(judge_link(sight(link))) == [found]


def test_what_is_no_fault_of_a_link() -> None:
    """Offload where the kernel's datapath completes checksums, rp_filter that has dropped nothing, or is loose."""
    for link, port in (
        (replace(SOUND, offload=True), replace(PORT, datapath="system")),
        (replace(SOUND, rp_filter=1), PORT),
        (replace(SOUND, rp_filter=2, reverse_path_drops=3), PORT),
        (replace(SOUND, duplicates=None, silent=None), PORT),
    ):
        assert names(judge_link(sight(link, port=port))) == []


def test_who_has_an_address_of_the_pod() -> None:
    """A pod of this node is called by its name; one whose record has the address is told as that; of others the MAC is told."""
    theirs = SeenPort("theirs", "system", mac="02:00:00:00:00:0c", pod="default/twin")
    twin = Record(
        "ready", "net", "d" * 64, "net1", "/ns", pod_namespace="default", pod_name="twin", steps=(replace(PORT, mac=theirs.mac),)
    )
    given = {"interfaces": [{"name": "net1", "sandbox": "/ns"}], "ips": [{"address": "10.1.0.2/16", "interface": 0}]}
    here = TrafficSight(SeenBridge("br0", (theirs,)), SeenPort(HOST, "system"), others=(twin,))
    recorded = replace(here, others=(replace(twin, result=given),))
    twice = replace(SOUND, duplicates={"10.1.0.2": theirs.mac})
    [found] = judge_link(sight(twice, traffic=here))
    assert found.message == "pod default/twin on this node (MAC 02:00:00:00:00:0c) answers for the pod's address 10.1.0.2"
    assert "take 10.1.0.2 from pod default/twin" in found.remedy
    assert names(judge_link(sight(twice, traffic=recorded))) == []
    [far] = judge_link(sight(replace(twice, duplicates={"10.1.0.2": "02:00:00:00:00:0d"}), traffic=recorded))
    assert "another machine (MAC 02:00:00:00:00:0d) answers" in far.message
    assert "`ovs-appctl fdb/show br0`" in far.remedy
    [failed] = judge_link(sight(replace(SOUND, failed=("fd01::2",), duplicates={"fd01::2": theirs.mac}), traffic=here))
    assert (failed.name, "pod default/twin on this node" in failed.message) == ("address-failed", True)


def test_a_link_that_could_not_be_seen() -> None:
    """Then its differences from what ADD made are told as they are, and the question as one that could not be asked."""
    drifts = {Link.kind: [Drift("interface net1", "mtu", 1500, 1300, "ip -d link")]}
    away = sight(Unasked("no thread can be started"), drifts=drifts)
    assert names(judge_link(away)) == ["link-differs"]
    assert ("the kernel link", "no thread can be started") in away.unasked
    assert names(judge_link(sight(drifts=drifts))) == ["link-mtu-changed"]


def test_a_cause_hides_what_follows_from_it() -> None:
    """Without the host end there is neither the pod's end nor an address, and the switch has a link open that is gone."""
    gone = SeenLink()
    others = [Finding(name, "error", "", "") for name in ("link-replaced", "gateway-silent")]
    found = [*judge_link(sight(gone)), *others]
    assert [each.name for each in arrange("web", found).causes] == ["host-end-missing"]


def test_a_bond_with_one_interface_left_is_a_warning() -> None:
    """Frames pass by the other one; of a single uplink it is the cause."""
    bond = SeenSpec("provider-network", "net1", {"nic0": "without a link", "nic1": "up"})
    [found] = judge_specs(sight(specs=(bond,)))
    assert (found.name, found.severity, "the bond carries frames" in found.why) == ("uplink-without-link", "warning", True)
    single = SeenSpec("provider-network", "net1", {"nic0": "missing"}, problem="there is no NIC nic0")
    found_names = [each.name for each in arrange("web", judge_specs(sight(specs=(single,)))).causes]
    assert found_names == ["uplink-missing"]


LOGICAL = replace(PORT, logical=LogicalPort("default_web", "uid-1"))
FAULT = Finding("logical-port-unknown", "error", "default_web", "chassis n1 knows no such logical port", "ovn-nbctl")
DEAD = Finding("ovn-controller-dead", "error", "default_web", "ovn-controller does not answer", "systemctl")


@pytest.mark.parametrize(
    ("facts", "installed", "found"),
    [
        ({"chassis": ChassisSight(("n1",))}, "default_web", []),
        ({"chassis": ChassisSight(("n1",), (FAULT,))}, "default_web", []),
        ({"chassis": ChassisSight(("n1",), (FAULT,))}, "", ["logical-port-unknown"]),
        ({"chassis": ChassisSight(("n1",), (DEAD,))}, "default_web", ["ovn-controller-dead"]),
        ({"chassis": ChassisSight(("n1",), (FAULT,)), "logical": NorthboundPort(is_there=False)}, "", ["logical-port-missing"]),
        (
            {"chassis": ChassisSight(("n1", "host1")), "logical": NorthboundPort(is_there=True, requested="x,host1")},
            "default_web",
            [],
        ),
        ({"chassis": ChassisSight(("n1",)), "binding": PortBinding(is_there=True, chassis="n2")}, "", ["logical-port-elsewhere"]),
        ({"chassis": Unasked("it is away")}, "", ["logical-port-not-installed"]),
        ({}, "default_web", []),
    ],
)
def test_what_a_logical_port_lacks(facts: dict[str, Any], installed: str, found: list[str]) -> None:
    """What a database shows comes before the words of the chassis; a port that is installed is told of a dead ovn-controller."""
    switch = SwitchSight("alive", ports={HOST: KnownPort(installed=installed)})
    assert names(judge_ovn(sight(port=LOGICAL, switch=switch, **facts))) == found
