"""While addresses move, what other programs add is not lost, and what they remove does not come back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.lab.network.outside import Wire
from tests.lab.network.uplink import ASKING, BRIDGE, V4, V6, Uplink, current, has, planned, small_uplink
from tests.lab.switch.switch import Switch
from tests.lab.switch.veths import veth
from tests.ovs.conftest import soon
from userspace_cni.attachment.steps import KeptAddress
from userspace_cni.base.errors import Unavailable
from userspace_cni.host.netlink.kept_messages import DELETE_ADDRESS, new_address
from userspace_cni.host.netlink.netns import open_switch_netns
from userspace_cni.host.node_net.address_moves import AddressMoveDriver
from userspace_cni.host.node_net.nics import look
from userspace_cni.linux.netlink import DUMP, ROUTE, Answer, Message, NetlinkConnection

PROMOTING = "promote_secondaries"
FIRST_ADDED, LAST_ADDED = 100, 250


@pytest.fixture
def small(switch: Switch) -> Iterator[Uplink]:
    """A NIC on its bridge, with an address of each family and a default route."""
    with small_uplink(switch) as made:
        yield made


class Other:
    """Another program, which gives a link of the node addresses in the same network as one that is moving away."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._numbers = iter(range(FIRST_ADDED, LAST_ADDED))
        self.added: list[str] = []

    def promoting(self) -> list[str]:
        """The sysctl `promote_secondaries` of both links."""
        return [self._wire.on_node("cat", f"/proc/sys/net/ipv4/conf/{each}/{PROMOTING}").strip() for each in ("nic0", BRIDGE)]

    def add(self, link: str, kernel: NetlinkConnection) -> None:
        """Give the link another address."""
        nic = look(link, self._wire.node)
        assert nic
        address = f"192.0.2.{next(self._numbers)}"
        kernel.send(new_address(KeptAddress(address, 24), nic.index, link))
        self.added.append(f"{address}/24")

    def add_some(self, link: str, kernel: NetlinkConnection) -> None:
        """Give the link twelve more addresses."""
        for _ in range(12):
            self.add(link, kernel)

    @contextmanager
    def amid(self, link: str, patch: pytest.MonkeyPatch) -> Iterator[None]:
        """During the move it adds one address before each change that is sent to the kernel, and one after it."""
        real = NetlinkConnection.exchange

        def interrupted(changing: NetlinkConnection, *messages: Message) -> list[Answer]:
            if any(message.flags & DUMP == DUMP or message.type in ASKING for message in messages):
                return real(changing, *messages)
            with patch.context() as quiet:
                quiet.setattr(NetlinkConnection, "exchange", real)
                self.add(link, kernel)
                answers = real(changing, *messages)
                self.add(link, kernel)
            return answers

        with (
            open_switch_netns(self._wire.node) as netns,
            netns.do(lambda: NetlinkConnection(ROUTE)) as kernel,
            patch.context() as patched,
        ):
            patched.setattr(NetlinkConnection, "exchange", interrupted)
            yield


def everywhere(switch: Switch) -> list[str]:
    """The permanent addresses of both links."""
    return sorted([*has("nic0", switch), *has(BRIDGE, switch)])


def test_what_is_added_amid_a_move_stays(small: Uplink, switch: Switch, monkeypatch: pytest.MonkeyPatch) -> None:
    """An added address, even in the network of a moving one, stays at the NIC and moves next.

    On the way back it goes there, too.
    """
    driver, step, other = AddressMoveDriver(), planned(switch), Other(small.wire)
    before = other.promoting()
    with other.amid("nic0", monkeypatch):
        driver.apply(step, soon())
    assert len(other.added) > 4
    assert everywhere(switch) == sorted([f"{V4}/24", f"{V6}/64", *other.added])
    step = current(switch, step)
    driver.apply(step, soon())
    assert (has("nic0", switch), has(BRIDGE, switch)) == ([], sorted([f"{V4}/24", f"{V6}/64", *other.added]))
    moved_there = len(other.added)
    monkeypatch.setattr("userspace_cni.host.node_net.address_moves._ROUNDS", 1)
    with other.amid(BRIDGE, monkeypatch), pytest.raises(Unavailable, match="as fast as they are taken off"):
        driver.undo(step, soon())
    assert len(other.added) > moved_there + 4
    assert everywhere(switch) == sorted([f"{V4}/24", f"{V6}/64", *other.added])
    monkeypatch.setattr("userspace_cni.host.node_net.address_moves._ROUNDS", 2)
    driver.undo(step, soon())
    assert (has(BRIDGE, switch), has("nic0", switch)) == ([], sorted([f"{V4}/24", f"{V6}/64", *other.added]))
    assert other.promoting() == before == ["0", "0"]


def test_what_is_added_within_a_batch_stays(small: Uplink, switch: Switch) -> None:
    """Another program adds twelve addresses during each of many moves there and back: none is lost."""
    driver, step, other = AddressMoveDriver(), planned(switch), Other(small.wire)
    with open_switch_netns(switch.netns) as netns, netns.do(lambda: NetlinkConnection(ROUTE)) as kernel:
        for work, link in ((driver.apply, "nic0"), (driver.undo, BRIDGE)) * 6:
            thread = threading.Thread(target=other.add_some, args=(link, kernel))
            thread.start()
            work(current(switch, step), soon())
            thread.join(60)
            assert set(everywhere(switch)) >= set(other.added)
    driver.undo(current(switch, step), soon())
    assert has("nic0", switch) == sorted([f"{V4}/24", f"{V6}/64", *other.added])
    assert other.promoting() == ["0", "0"]


@pytest.mark.parametrize("removed_from", ["nic0", BRIDGE])
def test_what_is_removed_amid_a_move_is_gone(
    small: Uplink, switch: Switch, monkeypatch: pytest.MonkeyPatch, removed_from: str
) -> None:
    """An address that is removed after the move was planned, or after the other link has it, does not come back."""
    driver, real = AddressMoveDriver(), NetlinkConnection.exchange
    for address in ("192.0.2.77/24", "192.0.2.78/24", "192.0.2.79/24"):
        small.wire.on_node("ip", "address", "add", address, "dev", "nic0")
    step = planned(switch)
    if removed_from == BRIDGE:
        driver.apply(step, soon())
        small.wire.on_node("ip", "address", "delete", "192.0.2.77/24", "dev", BRIDGE)
        driver.apply(step, soon())
        assert "192.0.2.77/24" not in has(BRIDGE, switch)
    else:
        small.wire.on_node("ip", "address", "delete", "192.0.2.77/24", "dev", "nic0")

    def removing(self: NetlinkConnection, *messages: Message) -> list[Answer]:
        if any(message.type == DELETE_ADDRESS for message in messages):
            monkeypatch.setattr(NetlinkConnection, "exchange", real)
            small.wire.on_node("ip", "address", "delete", "192.0.2.78/24", "dev", removed_from)
        return real(self, *messages)

    monkeypatch.setattr(NetlinkConnection, "exchange", removing)
    (driver.undo if removed_from == BRIDGE else driver.apply)(step, soon())
    assert everywhere(switch) == sorted([f"{V4}/24", f"{V6}/64", "192.0.2.79/24"])


def test_a_nic_that_vanished_and_comes_back(small: Uplink, switch: Switch, capfd: pytest.CaptureFixture[str]) -> None:
    """Its addresses stay on the bridge and go back when it exists again; the log names them each time they move."""
    driver, step = AddressMoveDriver(), planned(switch)
    driver.apply(step, soon())
    wire = small.wire
    wire.on_node("ip", "link", "delete", "nic0")
    for _ in range(2):
        with pytest.raises(Unavailable, match=rf"no NIC nic0 .*{V4}/24, {V6}/64.* {BRIDGE} stays"):
            driver.undo(step, soon())
        assert has(BRIDGE, switch) == sorted([f"{V4}/24", f"{V6}/64"])
    veth(switch.netns, "nic0", wire.outside, wire.beyond, "192.0.2.1/24")
    driver.undo(step, soon())
    assert (has(BRIDGE, switch), has("nic0", switch)) == ([], sorted([f"{V4}/24", f"{V6}/64"]))
    told = [line for line in capfd.readouterr().err.splitlines() if f"{V4}/24, {V6}/64" in line]
    assert [("moved to the bridge" in line, "gone back to the NIC" in line) for line in told] == [(True, False), (False, True)]
    assert all("nic0" in line and BRIDGE in line for line in told)
    wire.on_node("ip", "link", "delete", "nic0")
    driver.undo(step, soon())
