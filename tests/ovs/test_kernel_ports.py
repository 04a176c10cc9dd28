"""Kernel links as ports: how OVS opens them, on which bridges, and what happens when the link goes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.lab.switch.kernel_links import Veths
from tests.lab.switch.switch import Switch, wait_until
from tests.ovs.conftest import LINK, attach, kernel_port, soon
from userspace_cni.attachment.drift import Absent
from userspace_cni.attachment.steps import OvsPort, SharedReads
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import NotServing, SwitchRefused
from userspace_cni.base.limits import Limits, Rate
from userspace_cni.base.port_kinds import KernelPort
from userspace_cni.switch.ovsdb.put import Put
from userspace_cni.switch.ovsdb.rows.port_row import desired_port
from userspace_cni.switch.ports import PortDriver

KINDS: tuple[KernelPort, ...] = ("system", "afxdp", "af_packet", "af_xdp")


@pytest.fixture
def driver(switch: Switch, veths: Veths, connect: Callable[..., PortDriver]) -> PortDriver:
    """A driver that sees these links, in a long-lived process."""
    return connect(switch, links=veths, afxdp_max=9, resident=True)


def remove(driver: PortDriver, step: OvsPort) -> None:
    """Do the first of the two transactions for a link that was made anew."""
    session = driver.client.require_session()
    command = Put(session, desired_port(step, {**driver.list_owned()[LINK], "ifindex": "77"}))
    session.transact([command], soon())
    assert command.stale


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_opened_and_read_back(switch: Switch, driver: PortDriver, veths: Veths, kind: KernelPort) -> None:
    """The host end is opened as asked, CHECK finds no difference, the link's index is recorded, and undo leaves the link."""
    veths.add(LINK)
    step = kernel_port(kind)
    attach(driver, step, soon())
    assert driver.check(step, soon()) == []
    interface = switch.interface(LINK)
    assert interface["type"] == step.interface.type
    assert interface["external_ids"]["ifindex"] == str(veths.index(LINK))
    driver.undo(step, soon())
    assert switch.bridges() == []
    assert veths.index(LINK)


@pytest.mark.parametrize("kind", KINDS)
def test_a_link_made_anew_is_noticed_and_healed(driver: PortDriver, veths: Veths, kind: KernelPort) -> None:
    """A port whose link is gone is lost, and check says so; once there is a new link of the name, apply opens that."""
    veths.add(LINK)
    step = kernel_port(kind)
    attach(driver, step, soon())
    assert not driver.is_lost(step, SharedReads(driver.list_owned()), soon())
    before = veths.index(LINK)
    veths.delete(LINK)
    assert driver.is_lost(step, SharedReads(driver.list_owned()), soon())
    [gone] = [drift for drift in driver.check(step, soon()) if drift.field == "link"]
    assert gone.found == Absent("no link of that name")
    wait_until(lambda: veths.try_add(LINK), what="the name is free again")
    assert driver.is_lost(step, SharedReads(driver.list_owned()), soon())
    [anew] = [drift for drift in driver.check(step, soon()) if drift.field == "link"]
    assert str(before) in str(anew.expected)
    assert str(veths.index(LINK)) in str(anew.found)
    attach(driver, step, soon())
    assert not driver.is_lost(step, SharedReads(driver.list_owned()), soon())
    wait_until(lambda: driver.check(step, soon()) == [], what="the port is as it was")


def test_a_death_between_removing_and_adding_is_repaired(switch: Switch, driver: PortDriver, veths: Veths) -> None:
    """When the process dies after it removed the port of a new link, the port is
    lost; apply adds it, and undo finds only its bridge.
    """
    veths.add(LINK)
    step = replace(kernel_port(), limits=Limits(to_pod=Rate(1_000_000, 100_000)))
    attach(driver, step, soon())
    remove(driver, step)
    assert (switch.ports("br-test"), switch.rows("QoS"), switch.bridges()) == ([], [], ["br-test"])
    wait_until(lambda: driver.is_lost(step, SharedReads(driver.list_owned()), soon()), what="it is lost")
    attach(driver, step, soon())
    assert driver.check(step, soon()) == []
    remove(driver, step)
    driver.undo(step, soon())
    assert (switch.bridges(), switch.rows("QoS")) == ([], [])


def test_without_its_link_a_port_is_not_made(switch: Switch, driver: PortDriver) -> None:
    """ADD for a missing link is refused with its name and writes no row."""
    with pytest.raises(SwitchRefused, match=f"port {LINK}: there is no link of that name"):
        driver.apply(kernel_port(), soon())
    assert switch.bridges() == []


def test_a_bridge_of_the_other_datapath_is_refused(switch: Switch, driver: PortDriver, veths: Veths) -> None:
    """A port of the kernel's datapath cannot be on a netdev bridge, nor the other way round."""
    veths.add(LINK)
    switch.vsctl("add-br", "br-test", "--", "set", "Bridge", "br-test", "datapath_type=netdev")
    with pytest.raises(SwitchRefused, match=r"br-test has datapath_type netdev, .* needs system") as bare:
        driver.apply(replace(kernel_port(), datapath="system"), soon())
    assert "ovs-vsctl set Bridge br-test datapath_type=system" in bare.value.details
    switch.vsctl("add-port", "br-test", "others", "--", "set", "Interface", "others", "type=internal")
    with pytest.raises(SwitchRefused) as used:
        driver.apply(replace(kernel_port(), datapath="system"), soon())
    assert "another bridge: a change would cut off what is on it, for it has 1 port (" in used.value.details
    assert "datapath_type=" not in used.value.details
    switch.vsctl("del-port", "others")
    switch.vsctl("--no-wait", "set", "Bridge", "br-test", "datapath_type=system")
    with pytest.raises(SwitchRefused, match=r"br-test has datapath_type system, .* needs netdev"):
        driver.apply(kernel_port(), soon())
    assert switch.ports("br-test") == []


def test_a_datapath_that_the_kernel_lacks_is_an_error(switch: Switch, driver: PortDriver, veths: Veths) -> None:
    """A bridge of datapath_type system is made with its rows; where the kernel has no such datapath, ADD says so."""
    veths.add(LINK)
    step = replace(kernel_port(), datapath="system")
    rest = driver.apply(step, soon())
    assert switch.bridge("br-test")["datapath_type"] == "system"
    assert switch.interface(LINK)["type"] == "system"
    if Path("/sys/module/openvswitch").exists():
        rest()
        assert driver.check(step, soon()) == []
    else:
        with pytest.raises(SwitchRefused, match=r"has made no bridge br-test with datapath_type system; .*modprobe openvswitch"):
            rest()
    driver.undo(step, soon())
    assert switch.bridges() == []


def test_the_switch_says_what_it_can_do(driver: PortDriver) -> None:
    """The kinds of port that this switch opens are supported; afxdp and vdevs are not, on the kernel's datapath."""
    able = driver.read_abilities(soon())
    assert [able.why_unable(kind, "netdev") for kind in KINDS] == [""] * len(KINDS)
    assert able.why_unable("system", "system") == ""
    assert "opens links as system, not as afxdp" in able.why_unable("afxdp", "system")
    assert "no afxdp" in replace(able, interface_types=frozenset({"dpdk"})).why_unable("afxdp", "netdev")
    assert replace(able, dpdk=False).why_unable("af_xdp", "netdev") == "ovs-vswitchd runs without DPDK"


@pytest.mark.parametrize("anew", [False, True], ids=["new port", "port of a former link"])
def test_a_link_that_is_down_is_set_up(driver: PortDriver, veths: Veths, *, anew: bool) -> None:
    """The link is set up after its port is open: when ovs-vswitchd closes a
    former link of the name, it restores that one's flags.
    """
    veths.add(LINK)
    if anew:
        attach(driver, kernel_port(), soon())
        veths.delete(LINK)
        veths.add(LINK)
    veths.run("ip", "link", "set", LINK, "down")
    attach(driver, kernel_port(), soon())
    assert veths()[LINK].up


def test_ports_without_dpdk_are_served_without_it(connect: Callable[..., PortDriver]) -> None:
    """STATUS of a network of kernel ports checks the bridge's datapath, and not DPDK."""
    with Switch(huge=False) as switch:
        driver = connect(switch)
        switch.vsctl("--no-wait", "add-br", "br-test")
        driver.require_serving("br-test", soon(), datapath="system", needs_dpdk=False)
        with pytest.raises(NotServing, match=r"datapath_type system; netdev is needed"):
            driver.require_serving("br-test", soon(), needs_dpdk=False)


def test_the_memory_of_afxdp_ports_has_a_bound(switch: Switch, veths: Veths, connect: Callable[..., PortDriver]) -> None:
    """A port beyond afxdp_max is refused with the reason; a deleted one makes room."""
    driver = connect(switch, links=veths, afxdp_max=1)
    for name in ("k1", "k2"):
        veths.add(name)
    attach(driver, kernel_port("afxdp", "k1"), soon())
    with pytest.raises(SwitchRefused, match=r"port k2: the switch has 1 ports of type afxdp.*afxdp_max"):
        driver.apply(kernel_port("afxdp", "k2"), soon())
    attach(driver, kernel_port("afxdp", "k1"), soon())
    driver.undo(kernel_port("afxdp", "k1"), soon())
    attach(driver, kernel_port("afxdp", "k2"), soon())


def test_the_bound_holds_for_many_at_once(switch: Switch, veths: Veths, connect: Callable[..., PortDriver]) -> None:
    """Of six ports that two sessions add at once, in any grouping, as many are made as the bound allows."""
    drivers = [connect(switch, links=veths, afxdp_max=2, resident=which) for which in (True, False)]
    steps = [kernel_port("afxdp", f"k{number}") for number in range(6)]
    for step in steps:
        veths.add(step.name)

    def added(number: int) -> bool:
        try:
            attach(drivers[number % 2], steps[number], Deadline.after(60))
        except SwitchRefused:
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(added, range(6))) == 2
    assert len(switch.rows("Interface", "type=afxdp")) == 2


def test_after_a_restart_of_ovs_vswitchd_nothing_is_healed(own_switch: Switch, connect: Callable[..., PortDriver]) -> None:
    """After a kill of ovs-vswitchd, ports of all kinds are open again, are not lost, and keep their rows."""
    veths = Veths(own_switch)
    driver = connect(own_switch, links=veths, afxdp_max=9, resident=True)
    steps = [kernel_port(kind, f"k{number}") for number, kind in enumerate(KINDS)]
    for step in steps:
        veths.add(step.name)
        attach(driver, step, soon())
    own_switch.kill_vswitchd()
    own_switch.restart_vswitchd()
    driver.watch_liveness()
    wait_until(lambda: not any(driver.check(step, soon()) for step in steps), what="all are open")
    for step in steps:
        assert not driver.is_lost(step, SharedReads(driver.list_owned()), soon())
