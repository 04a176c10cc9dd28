"""A NIC's addresses move to the bridge and back, and the node answers all the time."""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tests.host.places import in_child
from tests.lab.network.outside import LOST_MAX, Wire, traffic, wired
from tests.lab.network.uplink import ASKING, BRIDGE, V4, V6, Uplink, current, has, planned, small_uplink, uplink
from tests.lab.node.links import links
from tests.lab.switch.switch import Switch, wait_until
from tests.ovs.conftest import soon
from userspace_cni.attachment.drift import Absent
from userspace_cni.attachment.steps import KeptAddress, SharedReads
from userspace_cni.base.errors import StepFailed, Unavailable
from userspace_cni.host.node_net.address_moves import AddressMoveDriver
from userspace_cni.host.node_net.nics import look, merge_changes
from userspace_cni.linux.netlink import DUMP, Answer, Message, NetlinkConnection

NFNL_SUBSYS_NFTABLES = 10
OF_ANOTHER_BOOT = KeptAddress("192.0.2.99", 24)
ROUTES = (
    ("default", "via", "192.0.2.1", "metric", "50", "mtu", "1400", "src", V4),
    ("default", "via", "192.0.2.2", "metric", "90", "onlink"),
    ("198.51.100.0/24", "via", "192.0.2.1", "table", "1000", "proto", "42"),
    ("203.0.113.0/24", "nexthop", "via", "192.0.2.1", "dev", "nic0", "weight", "2", "nexthop", "via", "192.0.2.2", "dev", "nic0"),
    ("default", "via", "2001:db8::1", "metric", "70", "pref", "high"),
    ("2001:db8:5::/64", "via", "fe80::1"),
)


@pytest.fixture
def wire(switch: Switch) -> Iterator[Wire]:
    """A NIC with addresses of both families, secondary and labelled ones, and routes of many kinds."""
    with wired(switch.netns, (f"{V4}/24", f"{V6}/64"), ("192.0.2.1/24", "2001:db8::1/64", "fe80::1/64")) as made:
        for argv in (
            ("192.0.2.12/24", "brd", "+", "label", "nic0:1"),
            ("10.3.0.1", "peer", "10.3.0.2/32"),
            ("10.4.0.1/24", "noprefixroute", "metric", "100"),
            ("10.5.0.1/24", "metric", "100"),
            ("2001:db8::12/64", "preferred_lft", "0"),
            ("2001:db8:2::1/64", "home", "nodad"),
        ):
            made.on_node("ip", "address", "add", *argv, "dev", "nic0")
        for route in ROUTES:
            family = "-6" if ":" in " ".join(route) else "-4"
            made.on_node("ip", family, "route", "add", *route, *(() if "nexthop" in route else ("dev", "nic0")))
        wait_until(lambda: "tentative" not in made.on_node("ip", "-6", "address", "show", "dev", "nic0"))
        yield made


@pytest.fixture
def plugged(wire: Wire, switch: Switch) -> Iterator[Uplink]:
    with uplink(wire, switch) as made:
        yield made


def test_there_and_back(plugged: Uplink, switch: Switch) -> None:
    """Everything moves and comes back exactly as it was; no ping is lost for long, and no stream breaks."""
    driver, before = AddressMoveDriver(), plugged.kernel_has()
    step = planned(switch)
    assert step.next_hops
    with traffic(plugged.wire, V4, V6) as noticed:
        driver.apply(step, soon())
        assert driver.check(step, soon()) == []
        assert not driver.is_lost(step, SharedReads(), soon())
        nic = look("nic0", switch.netns)
        assert nic
        assert (nic.addresses, nic.routes) == ((), ())
        assert current(switch, step) == step
        driver.apply(step, soon())
        driver.undo(step, soon())
        driver.undo(step, soon())
    assert plugged.kernel_has() == before
    for each in noticed.values():
        assert not each.broken
        assert each.received == each.sent_bytes
        assert each.lost_in_a_row < LOST_MAX


@pytest.fixture
def small(switch: Switch) -> Iterator[Uplink]:
    """A NIC on its bridge, with an address of each family and a default route."""
    with small_uplink(switch) as made:
        yield made


def killed_after(sends: int, work: Callable[[], object]) -> bool:
    """Do the work in a child process that is killed after it sent so many changing batches; whether it was killed."""
    real = NetlinkConnection.exchange

    def deadly(self: NetlinkConnection, *messages: Message) -> list[Answer]:
        nonlocal sends
        answers = real(self, *messages)
        if not any(message.flags & DUMP == DUMP or message.type in ASKING for message in messages):
            sends -= 1
            if sends == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return answers

    def patched() -> None:
        NetlinkConnection.exchange = deadly  # type: ignore[method-assign]
        work()

    status = in_child(patched)
    assert status in {0, signal.SIGKILL}
    return status != 0


@pytest.mark.parametrize("onward", [True, False], ids=["completed", "reverted"])
@pytest.mark.parametrize("what", ["apply", "amend", "undo"])
def test_killed_at_each_point(small: Uplink, switch: Switch, what: str, onward: bool) -> None:
    """When a move is killed after any of its effects, the node still answers.

    The next apply completes the move, and undo reverts it.
    """
    driver, step = AddressMoveDriver(), planned(switch)
    before = small.kernel_has()
    points = 0
    while True:
        steps = [step]
        if what != "apply":
            driver.apply(step, soon())
        if what == "amend":
            small.wire.on_node("ip", "address", "add", "192.0.2.77/24", "dev", "nic0")
            steps.append(merge_changes(step, look("nic0", switch.netns), look(BRIDGE, switch.netns)))
            assert len(steps[1].addresses) == len(step.addresses) + 1
        work = driver.undo if what == "undo" else driver.apply
        killed = killed_after(points + 1, lambda work=work, last=steps[-1]: work(last, soon()))  # type: ignore[misc]
        assert all(small.wire.answers(each) for each in (V4, V6)), f"killed after {points + 1} of {what}"
        if onward:
            driver.apply(steps[-1], soon())
            assert driver.check(steps[-1], soon()) == []
            assert all(small.wire.answers(each) for each in (V4, V6))
        driver.undo(steps[-1], soon())
        if what == "amend":
            assert "192.0.2.77/24" in has("nic0", switch)
            small.wire.on_node("ip", "address", "delete", "192.0.2.77/24", "dev", "nic0")
        assert small.kernel_has() == before
        if not killed:
            break
        points += 1
    assert points >= 3


def test_no_next_hop_answers(small: Uplink, switch: Switch) -> None:
    """A bridge over which no next hop answers gets no address.

    One that loses its connection during the trial gives all of them back.
    """
    driver, step, before = AddressMoveDriver(), planned(switch), small.kernel_has()
    switch.vsctl("set", "Port", "nic0", "tag=7")
    with pytest.raises(StepFailed, match=r"no answer from the next hop 192.0.2.1; nothing was moved"):
        driver.apply(step, soon())
    assert small.kernel_has() == before
    # as after a death before the last question: the addresses are there, and nothing passes
    small.wire.on_node("ip", "address", "add", f"{V4}/24", "dev", BRIDGE, "noprefixroute")
    with pytest.raises(StepFailed, match=r"no answer from the next hop 192.0.2.1; they are on the NIC again"):
        driver.apply(step, soon())
    assert small.kernel_has() == before
    assert small.wire.answers(V4)


def test_a_kernel_without_chains(small: Uplink, switch: Switch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernel cannot cut the NIC off nothing moves; a move that needs no cut works without chains, there and back."""
    real = NetlinkConnection.exchange

    def without(self: NetlinkConnection, *messages: Message) -> list[Answer]:
        if any(message.type >> 8 == NFNL_SUBSYS_NFTABLES or message.silent for message in messages):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(self, *messages)

    monkeypatch.setattr(NetlinkConnection, "exchange", without)
    driver, step, before = AddressMoveDriver(), planned(switch), small.kernel_has()
    with pytest.raises(StepFailed, match="nothing was moved"):
        driver.apply(step, soon())
    assert small.kernel_has() == before
    uncut = planned(switch, cut=False)
    driver.apply(uncut, soon())
    assert not driver.is_lost(uncut, SharedReads(), soon())
    driver.undo(uncut, soon())
    assert has("nic0", switch) == sorted([f"{V4}/24", f"{V6}/64"])


def test_a_nic_that_is_down(small: Uplink, switch: Switch) -> None:
    """A NIC that was set down gets everything back, too: it is set up first, because the kernel accepts no routes otherwise."""
    driver, step = AddressMoveDriver(), planned(switch)
    driver.apply(step, soon())
    small.wire.on_node("ip", "link", "set", "nic0", "down")
    driver.undo(step, soon())
    assert has("nic0", switch) == sorted([f"{V4}/24", f"{V6}/64"])
    assert "default via 192.0.2.1 dev nic0" in small.wire.on_node("ip", "route")


def test_what_others_change_is_followed(small: Uplink, switch: Switch) -> None:
    """Addresses added at the NIC move, too; those added at the bridge go back with the rest; removed ones stay removed."""
    driver, step = AddressMoveDriver(), planned(switch)
    driver.apply(step, soon())
    small.wire.on_node("ip", "address", "add", "192.0.2.77/24", "dev", "nic0")
    more = current(switch, step)
    assert driver.is_lost(more, SharedReads(), soon())
    driver.apply(more, soon())
    assert not driver.is_lost(more, SharedReads(), soon())
    assert has("nic0", switch) == []
    assert small.wire.answers("192.0.2.77")
    small.wire.on_node("ip", "address", "add", "192.0.2.88/24", "dev", BRIDGE)
    small.wire.on_node("ip", "route", "add", "198.51.100.0/24", "via", "192.0.2.1", "dev", BRIDGE)
    small.wire.on_node("ip", "address", "delete", "192.0.2.77/24", "dev", BRIDGE)
    assert not driver.is_lost(more, SharedReads(), soon())
    assert {drift.found for drift in driver.check(more, soon())} == {Absent()}
    last = current(switch, more)
    assert {each.address for each in last.addresses} == {V4, V6, "192.0.2.88"}
    assert last.next_hops == step.next_hops
    driver.undo(last, soon())
    assert has("nic0", switch) == sorted([f"{V4}/24", f"{V6}/64", "192.0.2.88/24"])
    assert "198.51.100.0/24 via 192.0.2.1 dev nic0" in small.wire.on_node("ip", "route")
    assert all(small.wire.answers(each) for each in (V4, V6, "192.0.2.88"))


def test_the_bridge_lost_it_all(small: Uplink, switch: Switch) -> None:
    """A bridge whose link was set down has lost routes and IPv6 addresses: they are still recorded, and are made again."""
    driver, step = AddressMoveDriver(), planned(switch)
    driver.apply(step, soon())
    small.wire.on_node("ip", "link", "set", BRIDGE, "down")
    assert current(switch, step) == step
    assert driver.is_lost(step, SharedReads(), soon())
    assert {drift.field for drift in driver.check(step, soon())} == {f"link {BRIDGE}"}
    driver.apply(step, soon())
    assert driver.check(step, soon()) == []
    assert all(small.wire.answers(each) for each in (V4, V6))


def test_the_cut_is_lost(small: Uplink, switch: Switch) -> None:
    """Without the cut the node answers twice: the move counts as lost, and is repaired."""
    driver, step = AddressMoveDriver(), planned(switch)
    driver.apply(step, soon())
    small.wire.on_node("nft", "flush", "ruleset")
    assert driver.is_lost(step, SharedReads(), soon())
    driver.apply(step, soon())
    assert driver.check(step, soon()) == []
    with traffic(small.wire, V4, streams=False) as noticed:
        assert small.wire.answers(V4)
    assert noticed[V4].duplicates == 0


def test_another_boot(small: Uplink, switch: Switch) -> None:
    """With a record of another boot, only what is found on the bridge goes back: no address comes from the record."""
    driver, step, before = AddressMoveDriver(), planned(switch), small.kernel_has()
    driver.apply(step, soon())
    former = replace(step, boot_id="00000000-0000-4000-8000-000000000000", addresses=(*step.addresses, OF_ANOTHER_BOOT))
    with pytest.raises(StepFailed, match="another boot"):
        driver.apply(former, soon())
    driver.undo(former, soon())
    assert has("nic0", switch) == sorted([f"{V4}/24", f"{V6}/64"])
    assert all(small.wire.answers(each) for each in (V4, V6))
    assert small.kernel_has()["rules"] == before["rules"]
    # the bridge's own link is gone, as after a boot: nothing is found, and nothing is given
    driver.undo(step, soon())
    small.wire.on_node("ip", "address", "flush", "dev", "nic0", "scope", "global")
    driver.undo(former, soon())
    assert has("nic0", switch) == []


def test_the_bridge_is_gone(small: Uplink, switch: Switch) -> None:
    """When another program deletes the bridge, and the addresses with it, the NIC gets them all from the record."""
    driver, step = AddressMoveDriver(), planned(switch)
    driver.apply(step, soon())
    switch.vsctl("del-br", BRIDGE)
    assert driver.is_lost(step, SharedReads(), soon())
    with pytest.raises(Unavailable, match=f"there is no link {BRIDGE}"):
        driver.apply(step, soon())
    driver.undo(step, soon())
    assert has("nic0", switch) == sorted([f"{V4}/24", f"{V6}/64"])
    assert all(small.wire.answers(each) for each in (V4, V6))
    assert "default via 192.0.2.1 dev nic0" in small.wire.on_node("ip", "route")


def test_afxdp_needs_no_cut(switch: Switch) -> None:
    """AF_XDP receives the frames before the stack does: the move has no cut, and nothing arrives twice.

    The node answers only while port and addresses move together: answers of the NIC's neighbours do not reach the NIC's stack.
    """
    with wired(switch.netns) as wire:
        wire.on_node("ip", "route", "add", "default", "via", "192.0.2.1")
        driver, step = AddressMoveDriver(), planned(switch, cut=False)
        assert step.next_hops
        with uplink(wire, switch, port="afxdp") as made:
            driver.apply(step, soon())
            assert driver.check(step, soon()) == []
            assert made.kernel_has()["rules"] == ""
            assert wire.answers(V4)
            with traffic(wire, V4, streams=False) as noticed:
                assert wire.answers(V4)
            assert noticed[V4].duplicates == 0
            driver.undo(step, soon())
            switch.vsctl("del-port", BRIDGE, "nic0")
            assert wire.answers(V4)
            assert has("nic0", switch) == [f"{V4}/24"]


def test_a_link_upon_the_nic(small: Uplink, switch: Switch) -> None:
    """The address of a link on top of the NIC, like a VLAN sub-interface, moves to an internal port of its own, and back."""
    wire, driver = small.wire, AddressMoveDriver()
    wire.on_outside("ip", "address", "add", "203.0.113.1/24", "dev", wire.beyond)
    wire.on_node("ip", "link", "add", "nic0.10", "link", "nic0", "type", "macvlan", "mode", "bridge")
    wire.on_node("ip", "address", "add", "203.0.113.11/24", "dev", "nic0.10")
    wire.on_node("ip", "link", "set", "nic0.10", "up")
    nic = look("nic0", switch.netns)
    assert nic
    assert [(upper.name, upper.kind) for upper in nic.uppers] == [("nic0.10", "macvlan")]
    mac = json.dumps(links(wire.node)["nic0.10"]["address"])
    switch.vsctl("add-port", BRIDGE, "net1.10", "--", "set", "Interface", "net1.10", "type=internal", f"mac={mac}")
    wait_until(lambda: links(wire.node).get("net1.10", {}).get("address") == json.loads(mac), what="the internal port")
    steps = [planned(switch, name="nic0.10", bridge="net1.10"), planned(switch)]
    with traffic(wire, V4, "203.0.113.11") as noticed:
        for step in steps:
            driver.apply(step, soon())
            assert driver.check(step, soon()) == []
        assert wire.answers("203.0.113.11")
        for step in steps[::-1]:
            driver.undo(step, soon())
            assert wire.answers("203.0.113.11")
    assert not any(each.broken for each in noticed.values())
    assert has("nic0.10", switch) == ["203.0.113.11/24"]
    assert has("nic0", switch) == sorted([f"{V4}/24", f"{V6}/64"])


def test_a_dead_switch(own_switch: Switch) -> None:
    """While ovs-vswitchd is dead the addresses can be given back, and they move again when it runs; no stream breaks."""
    with wired(own_switch.netns) as wire, uplink(wire, own_switch):
        wire.on_node("ip", "route", "add", "default", "via", "192.0.2.1")
        driver, step = AddressMoveDriver(), planned(own_switch)
        with traffic(wire, V4) as noticed:
            driver.apply(step, soon())
            assert wire.answers(V4)
            own_switch.kill_vswitchd()
            assert not wire.answers(V4, 1.0)
            driver.undo(step, soon())
            assert wire.answers(V4)
            own_switch.restart_vswitchd()
            driver.apply(step, soon())
            assert wire.answers(V4)
            assert driver.check(step, soon()) == []
        assert not noticed[V4].broken
        assert noticed[V4].received == noticed[V4].sent_bytes
