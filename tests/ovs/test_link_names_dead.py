"""Links of bridges while the switch hangs, dies or restarts: none is left, and no other program's is touched."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.lab.switch.switch import Switch, wait_until
from tests.lab.switch.taps import add_tap, delete_link, tap
from tests.ovs.conftest import STORE, attach, soon
from userspace_cni.attachment.steps import Internal, NodeBridge, OvsPort, node_marks
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import Unavailable
from userspace_cni.host.node_net.switch_links import SwitchLinks
from userspace_cni.host.node_net.switch_taps import ALIAS
from userspace_cni.switch.node_bridges import NodeBridgeDriver
from userspace_cni.switch.ports import PortDriver

BRIDGE = "br-test"
OWN = "br-own"
"""The name of a bridge of the node's own."""


@pytest.fixture(params=[True, False], ids=["resident", "one call"])
def driver(request: pytest.FixtureRequest, own_switch: Switch, connect: Callable[..., PortDriver]) -> PortDriver:
    """A driver that replicates all rows, and one that replicates only what a call needs."""
    return connect(own_switch, links=SwitchLinks(own_switch.netns), resident=request.param)


def own_bridge(switch: Switch, driver: PortDriver) -> tuple[NodeBridgeDriver, NodeBridge]:
    """The driver of the node's own bridges, and one of them."""
    marks = node_marks("provider-network", "net1", STORE)
    return NodeBridgeDriver(driver, lambda: STORE, SwitchLinks(switch.netns)), NodeBridge(OWN, marks=marks)


def gateway() -> OvsPort:
    return OvsPort(BRIDGE, "gw0", Internal("02:00:00:00:0b:01", 1400), marks=node_marks("gateway", "gw0", STORE))


def test_rows_that_a_silent_switch_has_never_seen(own_switch: Switch, driver: PortDriver, port: Callable[..., OvsPort]) -> None:
    """When rows are added and deleted while ovs-vswitchd hangs, the links that were made for it are deleted with them."""
    bridges, own = own_bridge(own_switch, driver)
    driver.read_abilities(soon())
    own_switch.pause_vswitchd()
    try:
        for step, name in ((port(), BRIDGE), (gateway(), "gw0")):
            driver.apply(step, soon())
            assert tap(own_switch.netns, name)["alias"] == ALIAS
        for step in (gateway(), port()):
            driver.undo(step, soon())
        with pytest.raises(Unavailable):
            bridges.apply(own, Deadline.after(1))
        bridges.undo(own, soon())
        found = {name: tap(own_switch.netns, name) for name in (BRIDGE, "gw0", OWN)}
    finally:
        own_switch.resume_vswitchd()
    assert list(found.values()) == [{}, {}, {}]


def test_links_that_the_switch_made_itself(own_switch: Switch, driver: PortDriver, port: Callable[..., OvsPort]) -> None:
    """Links that the switch made itself after a boot are deleted with their rows, also when the switch is dead by then."""
    bridges, own = own_bridge(own_switch, driver)
    bridges.apply(own, soon())
    steps = [port(), gateway()]
    for step in steps:
        attach(driver, step, soon())
    names = (BRIDGE, "gw0", OWN)
    own_switch.kill_vswitchd()
    for name in names:
        delete_link(own_switch.netns, name)
    own_switch.restart_vswitchd()
    wait_until(lambda: all(tap(own_switch.netns, name) for name in names), what="the links are there")
    assert bridges.check(own, soon()) == []
    own_switch.kill_vswitchd()
    for step in reversed(steps):
        driver.undo(step, soon())
    bridges.undo(own, soon())
    assert [tap(own_switch.netns, name) for name in names] == [{}, {}, {}]


def test_a_foreign_link_in_the_place_of_one_that_the_switch_made(
    own_switch: Switch, driver: PortDriver, port: Callable[..., OvsPort]
) -> None:
    """A tap of another program that has replaced such a link stays as it is."""
    attach(driver, port(), soon())
    own_switch.kill_vswitchd()
    delete_link(own_switch.netns, BRIDGE)
    own_switch.restart_vswitchd()
    own_switch.kill_vswitchd()
    delete_link(own_switch.netns, BRIDGE)
    before = add_tap(own_switch.netns, BRIDGE)
    driver.undo(port(), soon())
    assert tap(own_switch.netns, BRIDGE) == before


def test_a_namespace_that_cannot_be_read_any_more(
    own_switch: Switch, driver: PortDriver, connect: Callable[..., PortDriver], port: Callable[..., OvsPort]
) -> None:
    """When links cannot be listed, undo deletes the rows and ovs-vswitchd its link: DEL of a pod succeeds all the same."""
    attach(driver, port(), soon())
    blind = connect(own_switch, links=SwitchLinks("/run/netns/there-is-none"))
    for _ in range(2):
        blind.undo(port(), soon())
    assert own_switch.bridges() == []
    wait_until(lambda: not tap(own_switch.netns, BRIDGE), what="its link has gone")


def test_a_switch_that_dies_between_rows_and_opening(
    own_switch: Switch, driver: PortDriver, port: Callable[..., OvsPort]
) -> None:
    """The next ovs-vswitchd opens the link that was made for the dead one."""
    driver.read_abilities(soon())
    own_switch.pause_vswitchd()
    rest = driver.apply(port(), soon())
    made = tap(own_switch.netns, BRIDGE)
    own_switch.kill_vswitchd()
    own_switch.restart_vswitchd()
    rest()
    found = tap(own_switch.netns, BRIDGE)
    assert (found["index"], found["alias"]) == (made["index"], ALIAS)
    assert own_switch.interface(BRIDGE)["ofport"] == 65534
    driver.undo(port(), soon())
    wait_until(lambda: not tap(own_switch.netns, BRIDGE), what="its link has gone")


def test_a_bridge_that_was_deleted_by_hand(own_switch: Switch, driver: PortDriver, port: Callable[..., OvsPort]) -> None:
    """A bridge that was deleted by hand is made again, repeatedly, also when the switch was dead meanwhile."""
    for dead in (False, True, False, False, False):
        attach(driver, port(), soon())
        if dead:
            own_switch.kill_vswitchd()
        own_switch.vsctl("--no-wait", "del-br", BRIDGE)
        if dead:
            own_switch.restart_vswitchd()
    attach(driver, port(), soon())
    assert driver.check(port(), soon()) == []
    assert tap(own_switch.netns, BRIDGE)["alias"] == ALIAS


def test_a_bridge_that_an_administrator_makes_at_the_same_moment(
    own_switch: Switch, driver: PortDriver, port: Callable[..., OvsPort]
) -> None:
    """The administrator's bridge opens the link that was made for ours; it remains the administrator's and stays."""
    driver.read_abilities(soon())
    assert SwitchLinks(own_switch.netns).take(BRIDGE)
    own_switch.vsctl("add-br", BRIDGE, "--", "set", "Bridge", BRIDGE, "datapath_type=netdev")
    attach(driver, port(), soon())
    driver.undo(port(), soon())
    assert own_switch.interface(BRIDGE)["ofport"] == 65534
    own_switch.vsctl("del-br", BRIDGE)
    assert tap(own_switch.netns, BRIDGE) == {}
