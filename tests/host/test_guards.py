"""A chain of its own drops the frames that arrive at a host end; it is made and removed without any other."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from itertools import count

import pytest

from tests.host.places import UNUSED_ID, in_child, looping, soon
from tests.lab.frames.taps import echoes
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.veths import give, inside, veth
from userspace_cni.attachment.steps import Guard, SharedReads
from userspace_cni.base.errors import Unavailable
from userspace_cni.host.netlink import nftables_messages as nftables
from userspace_cni.host.netlink.netns import open_netns
from userspace_cni.host.pod_net.guards import GuardDriver, find_guarded, table_of
from userspace_cni.host.pod_net.ingress_drops import why_unsupported
from userspace_cni.linux.netlink import CREATE, NETFILTER, Message, NetlinkConnection

STORE = "0123abcd"
TABLE = table_of(STORE)
NEW_RULE = 6
DORMANT = 1


@pytest.fixture
def pod() -> Iterator[str]:
    """A second namespace; `sandbox` stands for the switch's."""
    with netns() as path:
        yield path


@pytest.fixture
def guard(sandbox: str) -> Guard:
    return Guard("ucveth0", STORE, sandbox)


def changed(switch_netns: str, *changes: Message) -> None:
    """Change the rules of the namespace in one transaction."""
    with open_netns(switch_netns) as entered, entered.do(lambda: NetlinkConnection(NETFILTER)) as kernel:
        kernel.send(*nftables.batch(*changes))


def names(switch_netns: str) -> set[str]:
    """The names of the host ends that have a chain."""
    return set(find_guarded(switch_netns, STORE))


def has_table(switch_netns: str) -> bool:
    with open_netns(switch_netns) as entered, entered.do(lambda: NetlinkConnection(NETFILTER)) as kernel:
        return kernel.exchange(nftables.get_table(TABLE))[0].error is None


def test_made_before_its_link(guard: Guard, pod: str) -> None:
    """The guard of a missing link works from the link's first frame on, also when the link is made anew."""
    host, driver = guard.switch_netns, GuardDriver()
    assert driver.apply(guard, soon()) is None
    for _ in ("made", "made anew"):
        veth(host, guard.link, pod, "eth0", "10.9.0.1/24")
        give(host, guard.link, "10.9.0.254/24")
        assert not echoes(pod, "10.9.0.254", seconds=0.2)
        assert driver.check(guard, soon()) == []
        inside(host, "ip", "link", "del", guard.link)
    assert driver.check(guard, soon()) == []
    veth(host, guard.link, pod, "eth0", "10.9.0.1/24")
    give(host, guard.link, "10.9.0.254/24")
    driver.undo(guard, soon())
    assert echoes(pod, "10.9.0.254")


def emptied(guard: Guard) -> None:
    """Remove the chain, as `nft flush ruleset` does."""
    changed(guard.switch_netns, nftables.delete_chain(TABLE, guard.link))


def opened_to_all(guard: Guard) -> None:
    """Make it let everything pass."""
    changed(guard.switch_netns, nftables.new_chain(TABLE, guard.link, guard.link, nftables.ACCEPT))


def widened(guard: Guard) -> None:
    """Make it drop what arrives at another link, too."""
    changed(guard.switch_netns, nftables.new_chain(TABLE, guard.link, "another", nftables.DROP))


def asleep(guard: Guard) -> None:
    """Make its table dormant."""
    table = nftables.new_table(TABLE)
    changed(guard.switch_netns, Message(table.type, table.flags, table.payload[:-1] + bytes([DORMANT])))


def ruled(guard: Guard) -> None:
    like = nftables.flush_chain(TABLE, guard.link)
    changed(guard.switch_netns, Message(like.type & ~0xFF | NEW_RULE, CREATE, like.payload))


@pytest.mark.parametrize(
    ("spoil", "field", "lost"),
    [(emptied, "", True), (asleep, "hook", True), (opened_to_all, "policy", False), (ruled, "rules", False)],
)
def test_another_program_changed_it(guard: Guard, spoil: Callable[[Guard], None], field: str, lost: bool) -> None:
    """CHECK names what differs; a chain that is gone, or is not called, counts as lost; ADD and reconciliation repair each."""
    driver = GuardDriver()
    driver.apply(guard, soon())
    assert find_guarded(guard.switch_netns, STORE) == {guard.link: True}
    spoil(guard)
    (drift,) = driver.check(guard, soon())
    assert (drift.subject, drift.field) == (f"guard of {guard.link}", field)
    assert TABLE in drift.details
    assert driver.is_lost(guard, SharedReads(), soon()) is lost
    assert find_guarded(guard.switch_netns, STORE).get(guard.link, False) is False
    driver.apply(guard, soon())
    assert driver.check(guard, soon()) == []
    assert not driver.is_lost(guard, SharedReads(), soon())


def test_a_second_link_in_the_chain(guard: Guard) -> None:
    """A chain that also drops another link's frames is a drift."""
    driver = GuardDriver()
    driver.apply(guard, soon())
    widened(guard)
    (drift,) = driver.check(guard, soon())
    assert (drift.field, drift.expected) == ("device", guard.link)
    assert not driver.is_lost(guard, SharedReads(), soon())


def test_nothing_is_left_and_nothing_else_is_touched(guard: Guard) -> None:
    """The table is removed with its last chain; another installation's stays, and an undo without a chain succeeds."""
    driver, other = GuardDriver(), Guard("ucveth1", STORE, guard.switch_netns)
    foreign = Guard(guard.link, "another", guard.switch_netns)
    for each in (guard, other, foreign):
        driver.apply(each, soon())
        driver.apply(each, soon())
    driver.undo(guard, soon())
    assert names(guard.switch_netns) == {other.link}
    for _ in ("once", "again"):
        driver.undo(other, soon())
        assert not has_table(guard.switch_netns)
    assert find_guarded(guard.switch_netns, "another") == {guard.link: True}


def test_processes_at_once_lose_none(guard: Guard) -> None:
    """Twenty guards stay while one process makes and removes another one, and a second process does so in its own table."""
    driver = GuardDriver()
    wanted = {f"ucveth{number}" for number in range(20)}

    def made_and_removed(store: str) -> None:
        driver.apply(Guard("ucother", store, guard.switch_netns), soon())
        driver.undo(Guard("ucother", store, guard.switch_netns), soon())

    with looping(lambda: made_and_removed(STORE)), looping(lambda: made_and_removed("another")):
        for name in sorted(wanted):
            made_and_removed(STORE)  # so that the table is about to go now and then
            driver.apply(Guard(name, STORE, guard.switch_netns), soon())
        assert names(guard.switch_netns) >= wanted
    driver.undo(Guard("ucother", STORE, guard.switch_netns), soon())
    assert find_guarded(guard.switch_netns, STORE) == dict.fromkeys(wanted, True)


def killed_at(number: int, work: Callable[[], object]) -> bool:
    """Do `work` in a child that is killed after its `number`th exchange with the kernel; whether it got that far."""

    def patched() -> None:
        real, passed = NetlinkConnection.exchange, count(1)

        def deadly(self: NetlinkConnection, *messages: Message) -> object:
            answers = real(self, *messages)
            if next(passed) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return answers

        NetlinkConnection.exchange = deadly  # type: ignore[assignment, method-assign]
        work()

    status = in_child(patched)
    assert status in {0, signal.SIGKILL}
    return status == signal.SIGKILL


def test_killed(guard: Guard) -> None:
    """After a kill behind any exchange of `apply` or `undo`, a repetition works, and nothing is left after `undo`."""
    driver = GuardDriver()
    for number in count(1):
        applied = killed_at(number, lambda: driver.apply(guard, soon()))
        driver.apply(guard, soon())
        assert driver.check(guard, soon()) == []
        undone = killed_at(number, lambda: driver.undo(guard, soon()))
        driver.undo(guard, soon())
        assert not has_table(guard.switch_netns)
        if not applied and not undone:
            break
    assert number > 3


def test_supported(sandbox: str) -> None:
    """A kernel with these tables is recognised, and keeps nothing of the test; a process without rights is told what it lacks."""
    assert why_unsupported(sandbox) == ""
    with open_netns(sandbox) as entered, entered.do(lambda: NetlinkConnection(NETFILTER)) as kernel:
        assert kernel.ask(nftables.get_chains()) == []

    def without_rights() -> None:
        os.setresuid(UNUSED_ID, UNUSED_ID, UNUSED_ID)
        assert "CAP_NET_ADMIN" in why_unsupported("")

    assert in_child(without_rights) == 0


def test_no_namespace(guard: Guard) -> None:
    """If the switch's namespace is missing, the error names it and the setting."""
    with pytest.raises(Unavailable, match="switch_netns '/nowhere/netns'"):
        GuardDriver().apply(Guard(guard.link, STORE, "/nowhere/netns"), soon())
