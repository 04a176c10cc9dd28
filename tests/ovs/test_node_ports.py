"""Ports of the node itself, like a gateway's: OVS makes their links, their rows belong to a spec, and the kernel limits them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.lab.switch.kernel_links import Veths
from tests.lab.switch.switch import Switch, wait_until
from tests.ovs.conftest import STORE, attach, kernel_port, soon
from userspace_cni.attachment.steps import Internal, OvsPort, SharedReads, node_marks
from userspace_cni.base.errors import NameTaken, SwitchRefused
from userspace_cni.base.limits import Limits, Rate
from userspace_cni.base.vlans import Vlan
from userspace_cni.host.node_net.switch_links import SwitchLinks
from userspace_cni.switch.interfaces import map_interfaces_to_bridges
from userspace_cni.switch.ports import PortDriver

GATEWAY = "gw0"
MAC = "02:00:00:00:0b:01"
MBIT = 1_000_000
PORT = "5301"
RATE = Rate(20 * MBIT, 2 * MBIT)


@pytest.fixture(params=[True, False], ids=["resident", "one call"])
def driver(request: pytest.FixtureRequest, switch: Switch, connect: Callable[..., PortDriver]) -> PortDriver:
    """A driver that replicates all rows, and one that replicates only what a call needs; both see the switch's links."""
    return connect(switch, links=SwitchLinks(switch.netns), resident=request.param)


@pytest.fixture
def resident(switch: Switch, connect: Callable[..., PortDriver]) -> PortDriver:
    return connect(switch, links=SwitchLinks(switch.netns), resident=True)


def gateway(name: str = "", **changes: Any) -> OvsPort:
    marks = node_marks("gateway", name or GATEWAY, STORE)
    return replace(OvsPort("br-test", name or GATEWAY, Internal(MAC, 1400), marks=marks), **changes)


def fields(driver: PortDriver, step: OvsPort) -> list[str]:
    """The fields that differ according to CHECK."""
    return [drift.field for drift in driver.check(step, soon())]


def test_a_port_comes_changes_and_goes(switch: Switch, driver: PortDriver, veths: Veths) -> None:
    """Its link has MAC and MTU when apply returns, is changed in place, and is removed with the bridge that was made for it."""
    step = gateway(vlan=Vlan(tag=7))
    attach(driver, step, soon())
    assert (veths()[GATEWAY].mac, veths()[GATEWAY].mtu, switch.port(GATEWAY)["tag"]) == (MAC, 1400, 7)
    assert switch.interface(GATEWAY)["external_ids"].items() >= step.marks.items()
    assert driver.check(step, soon()) == []
    other = gateway(interface=Internal("02:00:00:00:0b:02", 1300))
    assert fields(driver, other) == ["tag", "mtu_request", "mac", "MTU", "MAC of the link", "MTU of the link"]
    number = switch.interface(GATEWAY)["ofport"]
    attach(driver, other, soon())
    assert (veths()[GATEWAY].mac, veths()[GATEWAY].mtu) == ("02:00:00:00:0b:02", 1300)
    assert switch.interface(GATEWAY)["ofport"] == number
    driver.undo(other, soon())
    driver.undo(other, soon())
    assert switch.bridges() == []
    wait_until(lambda: GATEWAY not in veths(), what="its link has gone")


def test_a_bridge_of_pods_goes_with_its_last_port(switch: Switch, driver: PortDriver, port: Callable[..., OvsPort]) -> None:
    """A gateway keeps the bridge that was made for pods and removes it if it is the last; pods do the same for a gateway's."""
    attach(driver, port(), soon())
    attach(driver, gateway(), soon())
    driver.undo(port(), soon())
    assert switch.ports("br-test") == [GATEWAY]
    driver.undo(gateway(), soon())
    assert switch.bridges() == []
    attach(driver, gateway(), soon())
    attach(driver, port(), soon())
    driver.undo(gateway(), soon())
    assert switch.ports("br-test") == [port().name]


def test_it_is_no_pods_and_no_other_specs(switch: Switch, resident: PortDriver, veths: Veths) -> None:
    """Lists, sweeps and counters of pods' ports do not see it; a pod, another spec and another store cannot take it."""
    attach(resident, gateway(limits=Limits(to_pod=RATE)), soon())
    assert (resident.list_owned(), resident.list_marked(soon()), resident.read_counters(soon())) == ({}, [], [])
    assert set(resident.list_of_kind("node", STORE)) == {GATEWAY}
    assert (resident.list_of_kind("node", "another"), resident.sweep_limits(soon())) == ({}, 0)
    veths.add("k1")
    strangers = [
        replace(kernel_port(), name=GATEWAY, interface=Internal()),
        gateway(marks=node_marks("gateway", "gw1", STORE)),
        gateway(marks=node_marks("gateway", GATEWAY, "another")),
    ]
    for stranger in strangers:
        with pytest.raises(NameTaken, match=f"port {GATEWAY} exists and belongs to userspace-cni: gateway {GATEWAY}, store"):
            attach(resident, stranger, soon())
        resident.undo(stranger, soon())
    assert switch.ports("br-test") == [GATEWAY]
    assert resident.check(gateway(limits=Limits(to_pod=RATE)), soon()) == []


def test_which_bridge_has_an_interface_is_told(switch: Switch, driver: PortDriver) -> None:
    """The bridge of an interface is found for ports, members of a bond, and bridges' local ports."""
    attach(driver, gateway(), soon())
    switch.vsctl("--no-wait", "add-br", "br-own", "--", "add-bond", "br-own", "bond0", "eth7", "eth8")
    expected = {GATEWAY: "br-test", "br-test": "br-test"} | dict.fromkeys(("br-own", "eth7", "eth8"), "br-own")
    # a session that is kept hears of another program's rows a moment after that program does
    wait_until(lambda: map_interfaces_to_bridges(driver.client, soon()) == expected, what="all of them")


def test_a_link_that_was_deleted_is_made_again(switch: Switch, resident: PortDriver, veths: Veths) -> None:
    """ovs-vswitchd never makes a deleted link again: the port is lost, CHECK says so, and apply makes port and link anew."""
    attach(resident, gateway(), soon())
    assert not resident.is_lost(gateway(), SharedReads(resident.list_of_kind("node", STORE)), soon())
    veths.delete(GATEWAY)
    assert resident.is_lost(gateway(), SharedReads(resident.list_of_kind("node", STORE)), soon())
    assert "link" in fields(resident, gateway())
    attach(resident, gateway(), soon())
    assert veths()[GATEWAY].mac == MAC
    assert not resident.is_lost(gateway(), SharedReads(resident.list_of_kind("node", STORE)), soon())
    assert fields(resident, gateway()) == []


def test_it_outlives_ovs_vswitchd(own_switch: Switch, connect: Callable[..., PortDriver]) -> None:
    """Its link stays while ovs-vswitchd is dead, and is used by the next one, with its limit."""
    driver, veths = connect(own_switch, links=SwitchLinks(own_switch.netns), resident=True), Veths(own_switch)
    step = gateway(limits=Limits(to_pod=RATE))
    attach(driver, step, soon())
    index = veths.index(GATEWAY)
    own_switch.kill_vswitchd()
    assert veths.index(GATEWAY) == index
    assert not driver.is_lost(step, SharedReads(driver.list_of_kind("node", STORE)), soon())
    own_switch.restart_vswitchd()
    wait_until(lambda: driver.check(step, soon()) == [], what="it is as it was")
    assert veths.index(GATEWAY) == index


def test_a_limit_from_the_node_is_kept(switch: Switch, resident: PortDriver, veths: Veths) -> None:
    """The node offers three times the limit, and the limit arrives at the pod."""
    veths.add("k1")
    pod = veths.pod_end("k1")
    with veths.namespace("pod") as inside:
        veths.run("ip", "link", "set", pod, "netns", inside)
        veths.inside(inside, "ethtool", "-K", pod, "tx", "off")
        veths.inside(inside, "ip", "address", "add", "10.9.0.2/24", "dev", pod)
        veths.inside(inside, "ip", "link", "set", pod, "up")
        attach(resident, gateway(limits=Limits(to_pod=RATE)), soon())
        switch.vsctl("add-port", "br-test", "k1", "--", "set", "Interface", "k1", "type=system")
        veths.run("ip", "address", "add", "10.9.0.1/24", "dev", GATEWAY)
        veths.run("ip", "link", "set", GATEWAY, "up")
        # the node's own stack hears k1, too, and would answer for the address itself
        veths.inside(inside, "ip", "neighbour", "replace", "10.9.0.1", "lladdr", MAC, "dev", pod)
        server = subprocess.Popen(
            ["nsenter", f"--net=/proc/{inside}/ns/net", "iperf3", "-s", "-p", PORT], stdout=subprocess.DEVNULL
        )
        wait_until(lambda: f":{PORT}" in veths.inside(inside, "ss", "-ltn"), what="iperf3 listens")
        try:
            # other work on the machine may take from one measurement what would have arrived
            wait_until(lambda: abs(arriving(veths) / RATE.rate - 1) < 0.15, what=f"{RATE} arrives")
        finally:
            server.kill()
            server.wait()
        switch.vsctl("del-port", "k1")  # before its link goes: a later one of that name would be no change to ovs-vswitchd


def arriving(veths: Veths) -> float:
    """Bit/s of UDP that arrive at the pod while the node offers three times the limit."""
    rate = str(3 * RATE.rate)
    client = ["iperf3", "-c", "10.9.0.2", "-p", PORT, "-u", "-b", rate, "-l", "1300", "-t", "2", "-O", "1", "-J"]
    answer = json.loads(veths.run(*client))
    assert "error" not in answer, answer["error"]
    return float(answer["end"]["sum_received"]["bits_per_second"])


def test_a_limit_from_the_node_comes_changes_and_goes(switch: Switch, driver: PortDriver) -> None:
    """It is in force when apply returns, keeps its row when it changes, and CHECK reports a different one."""
    attach(driver, gateway(limits=Limits(to_pod=RATE)), soon())
    [row] = switch.rows("QoS")
    assert (row["type"], row["external_ids"]["spec"]) == ("linux-htb", f"gateway {GATEWAY}")
    other = Limits(to_pod=Rate(40 * MBIT, 4 * MBIT))
    attach(driver, gateway(limits=other), soon())
    assert [each["_uuid"] for each in switch.rows("QoS")] == [row["_uuid"]]
    assert fields(driver, gateway(limits=other)) == []
    assert "limit from the node" in fields(driver, gateway(limits=Limits(to_pod=Rate(MBIT, MBIT))))
    attach(driver, gateway(), soon())
    assert (switch.rows("QoS"), switch.rows("Queue")) == ([], [])
    attach(driver, gateway(limits=Limits(to_pod=RATE)), soon())
    driver.undo(gateway(), soon())
    assert switch.rows("QoS") == []


def test_a_limit_to_the_node_needs_the_kernels_police(switch: Switch, driver: PortDriver) -> None:
    """OVSDB accepts the columns and ovs-vswitchd only logs: whether the kernel
    polices is read back, and the limit refused if not.
    """
    step = gateway(limits=Limits(from_pod=RATE))
    rest = driver.apply(step, soon())
    assert switch.interface(GATEWAY)["ingress_policing_rate"] == RATE.rate // 1000
    if SwitchLinks(switch.netns).polices(GATEWAY):
        rest()
        assert driver.check(step, soon()) == []
    else:
        with pytest.raises(
            SwitchRefused, match=r"has set none, not policing at 20000 kbit/s; .*modprobe cls_matchall act_police"
        ):
            rest()
        assert fields(driver, step) == ["limit to the node"]
    driver.undo(step, soon())
    assert switch.bridges() == []
