"""Names of bridges and ports beside the kernel's links: another program's link is never used, changed or deleted."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.lab.node.links import inside
from tests.lab.node.links import links as lab_links
from tests.lab.switch.kernel_links import Veths
from tests.lab.switch.switch import Switch, wait_until
from tests.lab.switch.taps import add_tap, delete_link, tap
from tests.ovs.conftest import STORE, attach, kernel_port, soon
from userspace_cni.attachment.steps import Internal, NodeBridge, OvsPort, node_marks
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import LinkNameTaken, Unavailable
from userspace_cni.fastpath.tap import Tap
from userspace_cni.host.netlink import link_messages as links_of_the_kernel
from userspace_cni.host.netlink.link_messages import set_alias
from userspace_cni.host.node_net.switch_links import SwitchLinks
from userspace_cni.host.node_net.switch_taps import ALIAS
from userspace_cni.linux.netlink import Message
from userspace_cni.ovsdb.client import Session
from userspace_cni.switch.link_names import LinkNames
from userspace_cni.switch.node_bridges import NodeBridgeDriver
from userspace_cni.switch.ovsdb.put import Put
from userspace_cni.switch.ovsdb.rows.marks import marks_of
from userspace_cni.switch.ovsdb.rows.port_row import desired_port
from userspace_cni.switch.ovsdb.switch_database import open_vswitch
from userspace_cni.switch.ports import PortDriver
from userspace_cni.switch.read_back import ReadBack

BRIDGE = "br-test"
TAKEN = "vpn0"
"""The name of another program's tap."""


@pytest.fixture(params=[True, False], ids=["resident", "one call"])
def driver(request: pytest.FixtureRequest, switch: Switch, connect: Callable[..., PortDriver]) -> PortDriver:
    """A driver that replicates all rows, and one that replicates only what a call needs; both see the switch's links."""
    return connect(switch, links=SwitchLinks(switch.netns), resident=request.param)


@pytest.fixture(autouse=True)
def links(switch: Switch) -> Iterator[None]:
    """Removes the bridges and links of a test, and waits for the switch to do so."""
    yield
    for bridge in switch.bridges():
        switch.vsctl("del-br", bridge)
    for name in (TAKEN, BRIDGE, "nic0", "gw0"):
        delete_link(switch.netns, name)


def gateway(**changes: object) -> OvsPort:
    marks = node_marks("gateway", "gw0", STORE)
    return replace(OvsPort(BRIDGE, "gw0", Internal("02:00:00:00:0b:01", 1400), marks=marks), **changes)  # type: ignore[arg-type]


def node_bridge(switch: Switch, driver: PortDriver) -> NodeBridgeDriver:
    return NodeBridgeDriver(driver, lambda: STORE, SwitchLinks(switch.netns))


OWN_BRIDGE = NodeBridge(TAKEN, marks=node_marks("provider-network", "net1", STORE))

Step = Callable[[Callable[..., OvsPort]], OvsPort]
STEPS: dict[str, Step] = {
    "bridge of a client port": lambda port: port(bridge=TAKEN),
    "bridge of a server port": lambda port: port(bridge=TAKEN, interface_type="dpdkvhostuser", server_path=""),
    "bridge of a kernel port": lambda _: replace(kernel_port("system", "nic0"), bridge=TAKEN),
    "bridge of an internal port": lambda _: gateway(bridge=TAKEN),
    "client port": lambda port: port(name=TAKEN),
    "server port": lambda port: port(name=TAKEN, interface_type="dpdkvhostuser", server_path=""),
    "internal port": lambda _: gateway(name=TAKEN),
}


@pytest.mark.parametrize("kind", STEPS)
def test_a_tap_of_another_program_is_never_taken_over(
    switch: Switch, driver: PortDriver, veths: Veths, port: Callable[..., OvsPort], kind: str
) -> None:
    """A bridge or port of any kind cannot have its name: no row is written, and undo leaves the tap unchanged."""
    veths.add("nic0")
    before = add_tap(switch.netns, TAKEN)
    step = STEPS[kind](port)
    with pytest.raises(LinkNameTaken, match=TAKEN):
        driver.apply(step, soon())
    assert switch.bridges() == []
    driver.undo(step, soon())
    assert tap(switch.netns, TAKEN) == before
    delete_link(switch.netns, TAKEN)
    attach(driver, step, soon())
    assert driver.check(step, soon()) == []
    driver.undo(step, soon())
    wait_until(lambda: not tap(switch.netns, TAKEN), what="the link that OVS had has gone")


def test_nor_by_a_bridge_of_the_nodes_own(switch: Switch, driver: PortDriver) -> None:
    """A provider network's bridge cannot have its name, either."""
    before = add_tap(switch.netns, TAKEN)
    bridges = node_bridge(switch, driver)
    with pytest.raises(LinkNameTaken, match=TAKEN):
        bridges.apply(OWN_BRIDGE, soon())
    bridges.undo(OWN_BRIDGE, soon())
    assert (switch.bridges(), tap(switch.netns, TAKEN)) == ([], before)
    delete_link(switch.netns, TAKEN)
    bridges.apply(OWN_BRIDGE, soon())
    assert tap(switch.netns, TAKEN)["alias"] == ALIAS
    bridges.undo(OWN_BRIDGE, soon())
    wait_until(lambda: not tap(switch.netns, TAKEN), what="its link has gone")


@pytest.mark.parametrize("name", ["lo", "nic0", "other-name", "ovs-netdev", "ovs-system", "genev_sys_6081", "vxlan_sys_4789"])
def test_no_link_of_any_kind_lends_its_name(
    switch: Switch, driver: PortDriver, veths: Veths, port: Callable[..., OvsPort], name: str
) -> None:
    """A bridge cannot have the name of a NIC, of lo, an alternative name, or one that OVS reserves."""
    veths.add("nic0")
    before = add_tap(switch.netns, TAKEN)
    inside(switch.netns, "ip", "link", "property", "add", "dev", TAKEN, "altname", "other-name")
    with pytest.raises(LinkNameTaken, match=name):
        driver.apply(port(bridge=name), soon())
    assert (switch.bridges(), tap(switch.netns, TAKEN)) == ([], before)


def test_a_bridge_that_ovsdb_has_is_no_conflict(switch: Switch, driver: PortDriver, port: Callable[..., OvsPort]) -> None:
    """An administrator's bridge and its link are used, and stay; a bridge of ours serves a second port."""
    switch.vsctl("add-br", BRIDGE, "--", "set", "Bridge", BRIDGE, "datapath_type=netdev")
    own = tap(switch.netns, BRIDGE)
    driver.require_free((BRIDGE,), soon())
    for number in (1, 2):
        attach(driver, port(number), soon())
    for number in (1, 2):
        driver.undo(port(number), soon())
    assert (switch.bridges(), tap(switch.netns, BRIDGE)) == ([BRIDGE], own)


def test_where_the_namespace_cannot_be_read_no_name_is_free(
    switch: Switch, connect: Callable[..., PortDriver], port: Callable[..., OvsPort]
) -> None:
    """When the links cannot be listed, the call is Unavailable and writes no row."""
    for path in ("/run/netns/there-is-none", "/proc/self/ns/ipc"):
        driver = connect(switch, links=SwitchLinks(path))
        with pytest.raises(Unavailable, match="switch_netns"):
            driver.require_free((BRIDGE,), soon())
        with pytest.raises(Unavailable, match="switch_netns"):
            driver.apply(port(), soon())
    assert switch.bridges() == []


def test_from_the_look_until_the_switch_opens_it_the_name_is_held(
    switch: Switch, driver: PortDriver, port: Callable[..., OvsPort]
) -> None:
    """Until the switch opens it, a link of ours reserves the name, so that no other program can make one.

    The switch opens that link.
    """
    switch.pause_vswitchd()
    try:
        rest = driver.apply(port(), soon())
        reserved = tap(switch.netns, BRIDGE)
        with pytest.raises(AssertionError, match="busy"):
            add_tap(switch.netns, BRIDGE)
    finally:
        switch.resume_vswitchd()
    rest()
    opened = tap(switch.netns, BRIDGE)
    assert (opened["index"], opened["alias"]) == (reserved["index"], ALIAS)
    assert switch.interface(BRIDGE)["ofport"] == 65534
    driver.undo(port(), soon())
    wait_until(lambda: not tap(switch.netns, BRIDGE), what="its link has gone")


def test_what_a_killed_call_reserved_is_deleted(switch: Switch, driver: PortDriver, port: Callable[..., OvsPort]) -> None:
    """A call that died between link and rows leaves a link, of a bridge or an internal port, which undo finds and deletes."""
    known = SwitchLinks(switch.netns)
    assert known.take(BRIDGE)
    assert not known.take(BRIDGE)
    driver.undo(port(), soon())
    assert tap(switch.netns, BRIDGE) == {}
    assert known.take("gw0")
    driver.undo(gateway(), soon())
    assert tap(switch.netns, "gw0") == {}


def test_what_a_killed_call_reserved_is_used_by_the_next(
    switch: Switch, driver: PortDriver, port: Callable[..., OvsPort]
) -> None:
    """The next attachment uses the link that a killed call left."""
    known = SwitchLinks(switch.netns)
    assert known.take(BRIDGE)
    index = tap(switch.netns, BRIDGE)["index"]
    attach(driver, port(), soon())
    assert tap(switch.netns, BRIDGE)["index"] == index
    assert switch.interface(BRIDGE)["ofport"] == 65534


def test_a_dead_switch_leaves_no_link(
    own_switch: Switch, connect: Callable[..., PortDriver], port: Callable[..., OvsPort]
) -> None:
    """While ovs-vswitchd is dead, undo itself deletes the link of the bridge, but not another program's link of that name."""
    driver = connect(own_switch, links=SwitchLinks(own_switch.netns), resident=True)
    for foreign in (False, True):
        attach(driver, port(), soon())
        own_switch.kill_vswitchd()
        before = {}
        if foreign:
            delete_link(own_switch.netns, BRIDGE)
            before = add_tap(own_switch.netns, BRIDGE)
        driver.undo(port(), soon())
        assert (own_switch.bridges(), tap(own_switch.netns, BRIDGE)) == ([], before)
        own_switch.restart_vswitchd()
        assert tap(own_switch.netns, BRIDGE) == before


def test_a_link_that_the_switch_does_not_open(switch: Switch, driver: PortDriver, port: Callable[..., OvsPort]) -> None:
    """When the switch cannot open the link that was made for it, that link is deleted, and the switch makes its own."""
    for step, name in ((port(), BRIDGE), (gateway(), "gw0")):
        add_tap(switch.netns, name, "multi_queue")  # which OVS cannot open
        inside(switch.netns, "ip", "link", "set", name, "alias", ALIAS)
        attach(driver, step, soon())
        assert switch.interface(name)["ofport"] > 0
        assert tap(switch.netns, name)["alias"] == ALIAS
    for step in (gateway(), port()):
        driver.undo(step, soon())
    assert switch.bridges() == []
    wait_until(lambda: not tap(switch.netns, BRIDGE) and not tap(switch.netns, "gw0"), what="their links have gone")


def test_a_namespace_that_is_not_the_switchs(
    switch: Switch, connect: Callable[..., PortDriver], veths: Veths, port: Callable[..., OvsPort]
) -> None:
    """With a wrong switch_netns the bridge is made all the same, and no link is left in that namespace."""
    with veths.namespace("another") as process:
        path = f"/proc/{process}/ns/net"
        assert Path(path).exists()
        driver = connect(switch, links=SwitchLinks(path))
        attach(driver, port(), soon())
        assert tap(path, BRIDGE) == {}
        assert tap(switch.netns, BRIDGE)["alias"] == ""


def test_many_at_once_on_a_bridge_that_is_not_there(switch: Switch, driver: PortDriver, port: Callable[..., OvsPort]) -> None:
    """Attachments at once that need the same missing bridge all succeed, repeatedly."""
    steps = [port(number) for number in range(1, 9)]
    with ThreadPoolExecutor(len(steps)) as threads:
        for _ in range(5):
            list(threads.map(lambda step: attach(driver, step, Deadline.after(60)), steps))
            # the switch makes it anew after a call has returned, where it had not opened the one that was made for it
            wait_until(lambda: tap(switch.netns, BRIDGE).get("alias") == ALIAS, what="the bridge's link")
            list(threads.map(lambda step: driver.undo(step, Deadline.after(60)), steps))
            assert switch.bridges() == []
    wait_until(lambda: not tap(switch.netns, BRIDGE), what="its link has gone")


def test_a_link_that_another_call_deletes_before_it_is_kept(
    switch: Switch, driver: PortDriver, port: Callable[..., OvsPort], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that deletes a bridge may delete the link that was just made for the next bridge of the name: it is made again."""
    known, keep = SwitchLinks(switch.netns), Tap.keep
    deleted: list[bool] = []

    def keep_late(self: Tap) -> None:
        if not deleted:
            deleted.append(known.let_go(BRIDGE, 0))
        keep(self)

    monkeypatch.setattr(Tap, "keep", keep_late)
    attach(driver, port(), soon())
    assert deleted == [True]
    assert (tap(switch.netns, BRIDGE)["alias"], switch.interface(BRIDGE)["ofport"]) == (ALIAS, 65534)


def test_a_process_without_the_device_of_taps(switch: Switch) -> None:
    """Without /dev/net/tun no name is reserved by a link: the rows are written all the same."""
    call = (
        f"from userspace_cni.host.node_net.switch_links import SwitchLinks; print(SwitchLinks({switch.netns!r}).take({TAKEN!r}))"
    )
    hidden = 'mount -t tmpfs none /dev/net && exec "$0" -c "$1"'
    argv = ["unshare", "--mount", "sh", "-c", hidden, sys.executable, call]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, tap(switch.netns, TAKEN)) == (0, "True\n", {}), done.stderr


def test_no_row_is_written_for_a_name_that_is_not_taken(switch: Switch, driver: PortDriver, port: Callable[..., OvsPort]) -> None:
    """The transaction itself checks which names it adds: it does not add a
    bridge that vanished after the first look, unreserved.
    """
    session = Session(switch.ovsdb, open_vswitch(), frozenset(), soon())
    try:
        command = Put(session, desired_port(port(), marks_of(port(), STORE)))
        session.transact([command], soon())
        assert command.unheld == {BRIDGE, port().name}
        assert switch.bridges() == []
        attach(driver, port(), soon())
        command = Put(session, desired_port(port(2), marks_of(port(2), STORE)), held=frozenset({port(2).name}))
        session.transact([command], soon())
        assert (command.unheld, sorted(switch.ports(BRIDGE))) == (frozenset(), [port(1).name, port(2).name])
    finally:
        session.close()


def test_the_link_of_a_bridge_that_another_caller_has_made_meanwhile(
    switch: Switch, connect: Callable[..., PortDriver], port: Callable[..., OvsPort]
) -> None:
    """When another call made the bridge after this call looked, its link
    without an alias is recognised, and the bridge is used.
    """
    driver = connect(switch, links=SwitchLinks(switch.netns), resident=True)
    switch.vsctl("add-br", BRIDGE, "--", "set", "Bridge", BRIDGE, "datapath_type=netdev")
    driver.connect(soon())
    session = driver.client.require_session()
    wait_until(lambda: BRIDGE in session.index.bridge_marks, what="the replica has the bridge")
    held = LinkNames(SwitchLinks(switch.netns), ReadBack(driver.daemon))
    held.hold(BRIDGE, session, soon(), gets_tap=True)
    attach(driver, port(), soon())
    driver.undo(port(), soon())
    assert (switch.bridges(), tap(switch.netns, BRIDGE)["alias"]) == ([BRIDGE], "")


def test_a_caller_that_is_stopped_while_it_takes_the_name(
    switch: Switch, driver: PortDriver, port: Callable[..., OvsPort], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link that another call has made and not yet marked does not count as foreign, however long that call is stopped."""
    stopped, go_on, known = threading.Event(), threading.Event(), SwitchLinks(switch.netns)
    before = lab_links(switch.netns).keys() - {BRIDGE}

    def mark(name: str, alias: str) -> Message:
        stopped.set()
        assert go_on.wait(60)
        return set_alias(name, alias)

    driver.read_abilities(soon())
    with ThreadPoolExecutor(1) as thread:
        with monkeypatch.context() as patch:
            patch.setattr(links_of_the_kernel, "set_alias", mark)
            other = thread.submit(known.take, BRIDGE)
            assert stopped.wait(60)
        try:
            attach(driver, port(), soon())
        finally:
            go_on.set()
        assert other.result() is False
    assert (tap(switch.netns, BRIDGE)["alias"], switch.interface(BRIDGE)["ofport"]) == (ALIAS, 65534)
    driver.undo(port(), soon())
    wait_until(lambda: lab_links(switch.netns).keys() <= before, what="no link is left of it")
