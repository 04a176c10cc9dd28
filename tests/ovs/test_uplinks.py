"""Bridges and uplinks of the node's own on a real OVS-DPDK: kinds, refusals, changes, other programs' rows, faults."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from tests.lab.switch.kernel_links import Veths
from tests.lab.switch.switch import Switch, wait_until
from tests.ovs.conftest import STORE, attach, soon
from userspace_cni.attachment.steps import Internal, NodeBridge, OvsPort, SharedReads, UplinkInterface, UplinkPort, node_marks
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import NameTaken, SwitchRefused, Unavailable
from userspace_cni.host.node_net.switch_links import SwitchLinks
from userspace_cni.switch.node_bridges import NodeBridgeDriver
from userspace_cni.switch.ovsdb.put import Put
from userspace_cni.switch.ovsdb.rows.uplink_row import desired_uplink
from userspace_cni.switch.ports import PortDriver
from userspace_cni.switch.uplinks import UplinkDriver

BRIDGE = "br-net1"
NIC, SPARE = "n1", "n2"
MARKS = node_marks("provider-network", "net1", STORE)
MAC = "02:00:00:00:0a:01"

MakePort = Callable[..., OvsPort]


class Uplinks:
    """The drivers of bridge and uplink, of one process, on one switch."""

    def __init__(self, switch: Switch, ports: PortDriver, afxdp_max: int = 4) -> None:
        links = SwitchLinks(switch.netns)
        self.switch, self.ports = switch, ports
        self.bridges = NodeBridgeDriver(ports, lambda: STORE, links)
        self.uplinks = UplinkDriver(ports, lambda: STORE, lambda _: links, afxdp_max)

    def apply(self, *steps: NodeBridge | UplinkPort, deadline: Deadline | None = None) -> None:
        """Make the steps true, in order."""
        for step in steps:
            (self.bridges if isinstance(step, NodeBridge) else self.uplinks).apply(step, deadline or Deadline.after(60))  # type: ignore[arg-type]

    def undo(self, *steps: NodeBridge | UplinkPort) -> None:
        for step in reversed(steps):
            (self.bridges if isinstance(step, NodeBridge) else self.uplinks).undo(step, soon())  # type: ignore[arg-type]

    def drifts(self, *steps: NodeBridge | UplinkPort) -> list[str]:
        """The differences that CHECK reports."""
        found = [(self.bridges if isinstance(step, NodeBridge) else self.uplinks).check(step, soon()) for step in steps]  # type: ignore[arg-type]
        return [f"{drift.subject} {drift.field}".strip() for drifts in found for drift in drifts]

    def lost(self, step: NodeBridge | UplinkPort) -> bool:
        """Whether a long-lived driver says that it has to be made again."""
        driver = self.bridges if isinstance(step, NodeBridge) else self.uplinks
        return driver.is_lost(step, SharedReads(self.ports.list_of_kind("node", STORE)), soon())  # type: ignore[arg-type]


@pytest.fixture(params=[True, False], ids=["resident", "one call"])
def node(request: pytest.FixtureRequest, switch: Switch, veths: Veths, connect: Callable[..., PortDriver]) -> Uplinks:
    """Drivers that replicate all rows, and drivers that replicate only what a call needs."""
    return Uplinks(switch, connect(switch, links=veths, resident=request.param))


@pytest.fixture
def resident(switch: Switch, veths: Veths, connect: Callable[..., PortDriver]) -> Uplinks:
    return Uplinks(switch, connect(switch, links=veths, resident=True))


def bridge(**changes: Any) -> NodeBridge:
    return replace(NodeBridge(BRIDGE, mac=MAC, marks=MARKS), **changes)


def uplink(*interfaces: dict[str, Any], **changes: Any) -> UplinkPort:
    """The step of its uplink; a kernel NIC as `system` unless given otherwise."""
    given = tuple(UplinkInterface(**each) for each in interfaces or ({"name": NIC, "type": "system"},))
    return replace(UplinkPort(BRIDGE, given[0].name, given, marks=MARKS), **changes)


def everything(switch: Switch) -> str:
    """All rows that people and other programs may have, as they were written."""
    columns = {
        "Bridge": "name,ports,other_config,external_ids,datapath_type,fail_mode",
        "Port": "name,interfaces,tag,trunks,external_ids,bond_mode",
        "Interface": "name,type,options,external_ids,mtu_request,mac",
    }
    tables = {
        table: switch.vsctl("--no-wait", "--format=json", f"--columns={of}", "list", table) for table, of in columns.items()
    }
    return "\n".join(sorted(json.dumps(row) for text in tables.values() for row in json.loads(text)["data"]))


def test_a_bridge_comes_changes_and_goes(switch: Switch, node: Uplinks, veths: Veths) -> None:
    """The bridge has MAC, MTU, marks and its link when apply returns; it is changed in place, and undo leaves nothing."""
    node.apply(bridge(mtu=1400))
    row = switch.bridge(BRIDGE)
    assert (row["datapath_type"], row["fail_mode"], row["other_config"]) == ("netdev", [], {"hwaddr": MAC})
    assert row["external_ids"].items() >= MARKS.items()
    link = veths()[BRIDGE]
    assert (link.mac, link.mtu) == (MAC, 1400)
    assert node.drifts(bridge(mtu=1400)) == []
    other = bridge(mac="02:00:00:00:0a:02", mtu=1300)
    assert node.drifts(other) == [
        f"bridge {BRIDGE} {field}" for field in ("other_config:hwaddr", "mtu_request", "link's MAC", "link's MTU")
    ]
    node.apply(other)
    link = veths()[BRIDGE]
    assert (link.mac, link.mtu) == ("02:00:00:00:0a:02", 1300)
    assert switch.bridge(BRIDGE)["_uuid"] == row["_uuid"]
    node.apply(bridge(mac=""))
    assert (switch.bridge(BRIDGE)["other_config"], switch.interface(BRIDGE)["mtu_request"]) == ({}, [])
    node.undo(other)
    node.undo(other)
    assert (switch.bridges(), BRIDGE in veths()) == ([], False)


@pytest.mark.parametrize(
    "interface",
    [
        {"name": NIC, "type": "system"},
        {"name": NIC, "type": "afxdp"},
        {"name": "null", "type": "dpdk", "devargs": "net_null0"},
        {"name": "packet", "type": "dpdk", "devargs": f"net_af_packet0,iface={NIC}"},
    ],
    ids=lambda each: each["name"] if each["type"] == "dpdk" else each["type"],
)
def test_each_kind_is_opened_and_read_back(switch: Switch, resident: Uplinks, veths: Veths, interface: dict[str, Any]) -> None:
    """A NIC is opened as asked with its trunks; CHECK finds no difference; undo leaves bridge and NIC."""
    veths.add(NIC)
    step = uplink(interface, trunks=(100, 200), mtu=1500)
    resident.apply(bridge(), step)
    assert resident.drifts(bridge(), step) == []
    assert not resident.lost(step)
    row = switch.interface(step.name)
    assert (row["type"], row["ofport"] > 0, row["mtu"]) == (interface["type"], True, 1500)
    assert switch.port(step.name)["trunks"] == [0, 100, 200]
    assert row["external_ids"].get("ifindex") == (None if step.name == "null" else str(veths.index(NIC)))
    devices = {BRIDGE: (interface["devargs"],)} if interface["type"] == "dpdk" else {}
    assert resident.ports.read_hardware()[0] == devices
    resident.undo(step)
    assert (switch.ports(BRIDGE), switch.bridges()) == ([], [BRIDGE])
    assert veths.index(NIC)


def test_trunks_change_while_the_port_lives(switch: Switch, node: Uplinks, veths: Veths) -> None:
    """The port keeps its rows and number; without trunks it carries all VLANs."""
    veths.add(NIC)
    node.apply(bridge(), uplink(trunks=(100,)))
    before = switch.port(NIC)["_uuid"], switch.interface(NIC)["ofport"]
    node.apply(uplink(trunks=(100, 300)))
    assert switch.port(NIC)["trunks"] == [0, 100, 300]
    assert node.drifts(uplink(trunks=(100,))) == [f"uplink {NIC} trunks"]
    node.apply(uplink())
    assert switch.port(NIC)["trunks"] == []
    assert (switch.port(NIC)["_uuid"], switch.interface(NIC)["ofport"]) == before


def test_offloads_that_break_tcp_are_off_while_it_is_an_uplink(resident: Uplinks, veths: Veths) -> None:
    """GRO is off while the NIC is a system port, CHECK reports when it was turned on, and undo restores the former value."""
    veths.add(NIC)
    veths.run("ethtool", "-K", NIC, "gro", "on")
    links = SwitchLinks(resident.switch.netns)
    assert links.offloads(NIC) == ("gro",)
    step = uplink({"name": NIC, "type": "system", "offloads": links.offloads(NIC), "mtu": 1500}, mtu=1400)
    resident.apply(bridge(), step)
    assert (links.offloads(NIC), veths()[NIC].mtu) == ((), 1400)
    veths.run("ethtool", "-K", NIC, "gro", "on")
    assert resident.drifts(step) == [f"NIC {NIC} offloads"]
    resident.apply(step)
    assert links.offloads(NIC) == ()
    resident.undo(step)
    assert (links.offloads(NIC), veths()[NIC].mtu) == (("gro",), 1500)
    resident.undo(step)


@pytest.mark.parametrize("kind", ["system", "afxdp"])
def test_a_nic_made_anew_is_opened_anew(resident: Uplinks, veths: Veths, kind: str) -> None:
    """A new NIC under the same name is noticed, reported and opened again, in two transactions."""
    veths.add(NIC)
    step = uplink({"name": NIC, "type": kind})
    resident.apply(bridge(), step)
    veths.delete(NIC)
    assert resident.lost(step)
    with pytest.raises(SwitchRefused, match=f"there is no NIC {NIC}"):
        resident.apply(step)
    wait_until(lambda: veths.try_add(NIC), what="the name is free again")
    assert resident.lost(step)
    assert f"uplink {NIC} {NIC}" in resident.drifts(step)
    resident.apply(step)
    assert not resident.lost(step)
    wait_until(lambda: resident.drifts(step) == [], what="it is as it was")


def test_a_death_between_removing_and_adding_is_repaired(switch: Switch, resident: Uplinks, veths: Veths) -> None:
    """When the process dies after it removed the port of a new NIC, the port is
    lost; apply adds it, and undo finds nothing to delete.
    """
    veths.add(NIC)
    step = uplink(trunks=(5,))
    resident.apply(bridge(), step)

    def remove() -> None:
        session = resident.ports.client.require_session()
        command = Put(session, desired_uplink(step, MARKS, {NIC: 77}))
        session.transact([command], soon())
        assert (command.stale, switch.ports(BRIDGE)) == (True, [])

    remove()
    wait_until(lambda: resident.lost(step), what="it is lost")
    resident.apply(step)
    assert resident.drifts(bridge(), step) == []
    remove()
    resident.undo(bridge(), step)
    assert switch.bridges() == []


def test_a_nic_of_another_kind_is_opened_anew(switch: Switch, node: Uplinks, veths: Veths) -> None:
    """From system to afxdp, and back: the port is on the bridge with its new type."""
    veths.add(NIC)
    node.apply(bridge(), uplink())
    for kind in ("afxdp", "system"):
        step = uplink({"name": NIC, "type": kind})
        node.apply(step)
        assert switch.interface(NIC)["type"] == kind
        assert node.drifts(step) == []


def test_a_bond_changes_while_it_lives(switch: Switch, node: Uplinks, veths: Veths) -> None:
    """Mode, delay and members change in place; a missing member is reported, and a bond without any is refused."""
    for name in (NIC, SPARE):
        veths.add(name)
    members = [{"name": name, "type": "system"} for name in (NIC, SPARE)]
    step = uplink(*members, name="bond1", bond_mode="active-backup", updelay_ms=200)
    node.apply(bridge(), step)
    row = switch.port("bond1")
    assert (row["bond_mode"], row["bond_updelay"], len(row["interfaces"])) == ("active-backup", 200, 2)
    assert node.drifts(step) == []
    node.apply(replace(step, bond_mode="balance-slb", updelay_ms=0))
    assert (switch.port("bond1")["bond_mode"], switch.port("bond1")["bond_updelay"]) == ("balance-slb", 0)
    veths.delete(SPARE)
    veths.add(SPARE)
    kept = switch.interface(NIC)["_uuid"]
    node.apply(step)
    assert switch.interface(NIC)["_uuid"] == kept
    assert node.drifts(step) == []
    veths.delete(SPARE)
    node.apply(step)
    assert [drift for drift in node.drifts(step) if SPARE in drift]
    if node.ports.client.resident:
        assert not node.lost(step)
    single = uplink()
    node.apply(single)
    assert (switch.ports(BRIDGE), switch.port("bond1")) == ([NIC], {})
    node.undo(step)
    assert switch.ports(BRIDGE) == [NIC]
    veths.delete(NIC)
    with pytest.raises(SwitchRefused, match=f"there is no NIC {NIC}, {SPARE}"):
        node.apply(step)


def test_a_bond_of_devices(resident: Uplinks) -> None:
    """Devices of DPDK are bonded like NICs, and each of them is reported to the consumer that places pods near them."""
    devices = tuple(f"net_null{number}" for number in range(2))
    members = ({"name": f"up-{each}", "type": "dpdk", "devargs": each} for each in devices)
    step = uplink(*members, name="bond1", bond_mode="balance-tcp", lacp="active", rx_queues=2)
    resident.apply(bridge(), step)
    assert resident.drifts(step) == []
    assert sorted(resident.ports.read_hardware()[0][BRIDGE]) == sorted(devices)


def test_a_bond_carries_traffic_and_its_other_member_takes_over(switch: Switch, resident: Uplinks, veths: Veths) -> None:
    """A pod's frames pass an active-backup bond of two NICs to a bridge outside, and still do after the active one failed."""
    for name in (NIC, SPARE, "pod"):
        veths.add(name)
    outside, pod = "outside0", veths.pod_end("pod")
    with veths.namespace("out") as out, veths.namespace("in") as inside:
        veths.run("ip", "link", "set", veths.pod_end(NIC), "netns", out)
        veths.run("ip", "link", "set", veths.pod_end(SPARE), "netns", out)
        veths.run("ip", "link", "set", pod, "netns", inside)
        veths.inside(out, "ip", "link", "add", outside, "type", "bridge")
        for name in (NIC, SPARE):
            veths.inside(out, "ip", "link", "set", veths.pod_end(name), "master", outside, "up")
        veths.inside(out, "ip", "address", "add", "10.8.0.1/24", "dev", outside)
        veths.inside(out, "ip", "link", "set", outside, "up")
        veths.inside(inside, "ip", "address", "add", "10.8.0.2/24", "dev", pod)
        veths.inside(inside, "ip", "link", "set", pod, "up")
        step = uplink(*({"name": each, "type": "system"} for each in (NIC, SPARE)), name="bond1", bond_mode="active-backup")
        resident.apply(bridge(), step)
        switch.vsctl("add-port", BRIDGE, "pod")

        def answers() -> bool:
            return " 0% packet loss" in veths.inside(inside, "ping", "-c", "3", "-i", "0.02", "-W", "1", "10.8.0.1", check=False)

        wait_until(answers, what="the way through the bond")
        active = NIC if f"{NIC}: enabled\n  active" in switch.appctl("bond/show", "bond1") else SPARE
        veths.run("ip", "link", "set", active, "down")
        wait_until(answers, what="the way through the other member")
        assert resident.drifts(step) == []
        switch.vsctl("del-port", "pod")


def test_what_others_have_is_refused_and_stays(switch: Switch, node: Uplinks, veths: Veths, port: MakePort) -> None:
    """A bridge, port or NIC of an administrator, of pods or of another spec is refused by name and stays byte for byte."""
    for name in (NIC, SPARE):
        veths.add(name)
    switch.vsctl("add-br", "br-admin", "--", "set", "Bridge", "br-admin", "datapath_type=netdev")
    switch.vsctl("add-port", "br-admin", SPARE, "--", "set", "Interface", SPARE, "type=system", "external_ids:note=mine")
    switch.vsctl("add-port", "br-admin", "bonded", "--", "set", "Interface", "bonded", "type=internal")
    attach(node.ports, port(), soon())
    other = bridge(marks=node_marks("provider-network", "net2", STORE), name="br-net2", mac="")
    node.apply(bridge(), other)
    before = everything(switch)
    for refused, words in (
        (bridge(name="br-admin"), "br-admin exists and belongs to an owner that does not mark its rows"),
        (bridge(name="br-test"), "br-test exists and belongs to userspace-cni"),
        (bridge(name="br-net2"), "br-net2 exists and belongs to userspace-cni: provider-network net2"),
        (bridge(marks=MARKS | {"store": "another"}), f"{BRIDGE} exists and belongs to .* store {STORE}"),
        (bridge(name=SPARE), f"bridge {SPARE} cannot be made: a port has its name"),
        (uplink({"name": SPARE, "type": "system"}), f"port {SPARE} exists and belongs to an owner"),
        (uplink({"name": SPARE, "type": "system"}, name="mine"), f"interface {SPARE} is port {SPARE} on bridge br-admin, which"),
        (uplink(name="bonded"), "port bonded exists"),
        (uplink(bridge="br-admin"), "bridge br-admin belongs to"),
        (uplink(bridge="br-net2"), "bridge br-net2 belongs to userspace-cni: provider-network net2"),
    ):
        with pytest.raises(NameTaken, match=words) as error:
            node.apply(refused)
        assert not set(error.value.details.split()) & {"del-br", "del-port"}, "the advice cuts off what is in use"
        if isinstance(refused, UplinkPort) or refused.name != BRIDGE:
            node.undo(refused)
    assert everything(switch) == before
    with pytest.raises(Unavailable, match="there is no bridge br-none"):
        node.apply(uplink(bridge="br-none"))
    switch.vsctl("--no-wait", "add-br", "br-bare")  # of the kernel's datapath, which a newer ovs-vsctl would wait for and refuse
    with pytest.raises(NameTaken) as bare:
        node.apply(bridge(name="br-bare"))
    assert "nothing is on it: another name, or ovs-vsctl del-br br-bare" in bare.value.details


def test_what_the_switch_cannot_open_is_refused(switch: Switch, node: Uplinks, veths: Veths) -> None:
    """A missing NIC or device, an MTU that the NIC cannot have, too many afxdp ports: refused with the reason.

    Nothing is left.
    """
    veths.add(NIC)
    node.apply(bridge())
    packet = {"name": "packet", "type": "dpdk", "devargs": f"net_af_packet0,iface={NIC}"}
    bad = {"name": "bad", "type": "dpdk", "devargs": "0000:ff:1f.7"}
    for step, words in (
        (uplink({"name": "none", "type": "afxdp"}), "there is no NIC none"),
        (uplink(bad), "ovs-vswitchd has not opened it: bad: Error attaching device '0000:ff:1f.7'"),
        (uplink(mtu=65536), f"{NIC} has MTU 1500, not 65536"),
        (uplink(packet, mtu=9000), "ovs-vswitchd has not opened it: packet: .*Invalid argument"),
        (uplink({"name": f"{NIC}-with-a-long-name", "type": "system"}), "there is no NIC n1-with-a-long-name"),
        (uplink({"name": NIC, "type": "internal"}), "type 'internal'"),
        (uplink(rx_queues=2), f"{NIC} is opened as system, which has one queue"),
    ):
        with pytest.raises(SwitchRefused, match=words):
            node.apply(step)
        node.undo(step)
    few = Uplinks(switch, node.ports, afxdp_max=0)
    for before in ([], [NIC]):
        with pytest.raises(SwitchRefused, match="the switch has 0 ports of type afxdp"):
            few.apply(uplink({"name": NIC, "type": "afxdp"}))
        assert (switch.ports(BRIDGE), node.drifts(bridge())) == (before, [])
        node.apply(uplink())


def test_a_kind_that_the_switch_lacks_is_refused(switch: Switch, resident: Uplinks, veths: Veths) -> None:
    """A kind that this ovs-vswitchd is built without, and DPDK that does not run, are refused before anything is written."""
    veths.add(NIC)
    resident.apply(bridge())
    types, null = switch.rows("Open_vSwitch")[0]["iface_types"], {"name": "null", "type": "dpdk", "devargs": "net_null0"}
    switch.pause_vswitchd()
    try:
        switch.vsctl("--no-wait", "set", "Open_vSwitch", ".", "iface_types=dpdk,internal,system", "dpdk_initialized=false")
        wait_until(lambda: not resident.ports.dpdk, what="the replica knows")
        with pytest.raises(SwitchRefused, match=f"{NIC} cannot be opened as afxdp: ovs-vswitchd is built without it"):
            resident.apply(uplink({"name": NIC, "type": "afxdp"}))
        with pytest.raises(SwitchRefused, match="null cannot be opened: ovs-vswitchd runs without DPDK"):
            resident.apply(uplink(null))
        assert switch.ports(BRIDGE) == []
    finally:
        switch.vsctl("--no-wait", "set", "Open_vSwitch", ".", f"iface_types={','.join(types)}", "dpdk_initialized=true")
        switch.resume_vswitchd()


def test_a_bridge_with_ports_of_others_stays(switch: Switch, node: Uplinks, veths: Veths, port: MakePort) -> None:
    """Undo names the ports for which the bridge stays: a pod's, a gateway's, an administrator's; without them it is removed."""
    veths.add(NIC)
    pods = replace(port(), bridge=BRIDGE, foreign_bridge=True)
    node.apply(bridge(), uplink())
    gateway = OvsPort(BRIDGE, "gw", Internal(), marks=node_marks("gateway", "gw", STORE))
    for each in (pods, gateway):
        attach(node.ports, each, soon())
    switch.vsctl("add-port", BRIDGE, "theirs", "--", "set", "Interface", "theirs", "type=internal")
    node.undo(uplink())
    with pytest.raises(Unavailable, match=rf"bridge {BRIDGE} stays while others have ports on it: {pods.name}, gw, theirs"):
        node.undo(bridge())
    switch.vsctl("del-port", "theirs")
    for each in (pods, gateway):
        node.ports.undo(each, soon())
    assert switch.bridges() == [BRIDGE]
    node.undo(bridge())
    assert switch.bridges() == []


def test_a_pods_port_needs_to_know_that_the_bridge_is_the_nodes(node: Uplinks, port: MakePort) -> None:
    """A port that was planned before the node's bridge existed is not put on it, because no rule was asked."""
    node.apply(bridge())
    with pytest.raises(Unavailable, match=f"{BRIDGE} belongs to userspace-cni: provider-network net1"):
        attach(node.ports, replace(port(), bridge=BRIDGE), soon())
    assert node.ports.reach(port().name, BRIDGE, soon())
    attach(node.ports, replace(port(), bridge=BRIDGE, foreign_bridge=True), soon())


def test_rows_of_the_node_are_no_pods(switch: Switch, resident: Uplinks, veths: Veths, port: MakePort) -> None:
    """Sweeps, GC, lists and counters of pods' ports see neither bridge nor uplink."""
    veths.add(NIC)
    resident.apply(bridge(), uplink())
    ports = resident.ports
    assert (ports.list_owned(), ports.list_marked(soon()), ports.read_counters(soon())) == ({}, [], [])
    assert [each.ours for each in ports.list_ports()] == [False]
    assert set(ports.list_of_kind("node", STORE)) == {NIC}
    assert resident.drifts(bridge(), uplink()) == []


def test_two_sessions_at_once_make_one(switch: Switch, veths: Veths, connect: Callable[..., PortDriver]) -> None:
    """Four drivers make bridge and uplink once, and all may delete them.

    No lock of a node attachment separates them here: a driver that meets another while the bridge is made fails and tries again.
    """

    def made(node: Uplinks) -> bool:
        try:
            node.apply(bridge(), uplink(), deadline=Deadline.after(60))
        except (SwitchRefused, Unavailable):
            return False
        return True

    veths.add(NIC)
    nodes = [Uplinks(switch, connect(switch, links=veths, resident=number % 2 == 0)) for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda each: wait_until(lambda: made(each)), nodes))
    assert (switch.bridges(), switch.ports(BRIDGE)) == ([BRIDGE], [NIC])
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda each: each.undo(bridge(), uplink()), nodes))
    assert switch.bridges() == []


def test_they_outlive_ovs_vswitchd(own_switch: Switch, connect: Callable[..., PortDriver]) -> None:
    """After ovs-vswitchd was killed the rows stay, CHECK names it, nothing is
    lost, undo works, and the next one opens everything.
    """
    veths = Veths(own_switch)
    for name in (NIC, SPARE):
        veths.add(name)
    node = Uplinks(own_switch, connect(own_switch, links=veths, resident=True))
    spare = uplink({"name": SPARE, "type": "afxdp"})
    node.apply(bridge(), uplink(), spare)
    own_switch.kill_vswitchd()
    assert "uplink n1" in node.drifts(uplink())
    assert not any(node.lost(step) for step in (bridge(), uplink(), spare))
    node.undo(spare)
    assert own_switch.ports(BRIDGE) == [NIC]
    with pytest.raises(Unavailable, match="ovs-vswitchd is dead"):
        node.apply(spare)
    own_switch.restart_vswitchd()
    node.ports.watch_liveness()
    wait_until(lambda: node.drifts(bridge(), uplink()) == [], what="all is open again")
    node.apply(spare)
    assert not any(node.lost(step) for step in (bridge(), uplink(), spare))


def test_a_lost_one_is_made_again(switch: Switch, resident: Uplinks, veths: Veths) -> None:
    """When another program deleted bridge or port, the driver says so, and apply makes it again."""
    veths.add(NIC)
    resident.apply(bridge(), uplink())
    switch.vsctl("del-port", NIC)
    wait_until(lambda: resident.lost(uplink()), what="the port is lost")
    assert not resident.lost(bridge())
    resident.apply(uplink())
    switch.vsctl("del-br", BRIDGE)
    wait_until(lambda: resident.lost(uplink()) and resident.lost(bridge()), what="both are lost")
    assert resident.drifts(bridge(), uplink()) == [f"bridge {BRIDGE}", f"bridge {BRIDGE} link", f"uplink {NIC}"]
    resident.apply(bridge(), uplink())
    assert resident.drifts(bridge(), uplink()) == []
