"""A change of an address or a link of the node is reported at once; a change of another link is not."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from tests.host.places import descriptors, eventually
from tests.lab.network.outside import NIC, Wire, wired
from userspace_cni.host.netlink import listening
from userspace_cni.host.node_net.address_watch import AddressWatch
from userspace_cni.linux.netlink import NetlinkConnection


@pytest.fixture
def wire(sandbox: str) -> Iterator[Wire]:
    """A NIC in a namespace of its own."""
    with wired(sandbox) as made:
        yield made


def test_each_change_is_told(wire: Wire) -> None:
    """Addresses of both families, and a link that is set down, deleted or made anew, are reported.

    Other links are not. Nothing stays open.
    """
    before, told = descriptors(), []
    watch = AddressWatch(lambda: {NIC}, lambda: told.append(1), wire.node)
    watch.start()
    eventually(lambda: bool(told))
    for change in (
        ("ip", "address", "add", "192.0.2.12/24", "dev", NIC),
        ("ip", "address", "delete", "192.0.2.12/24", "dev", NIC),
        ("ip", "address", "add", "2001:db8::1/64", "dev", NIC, "nodad"),
        ("ip", "link", "set", NIC, "down"),
        ("ip", "link", "delete", NIC),
        ("ip", "link", "add", NIC, "type", "veth", "peer", "name", "other"),
        ("ip", "address", "add", "192.0.2.13/24", "dev", NIC),
    ):
        told.clear()
        wire.on_node(*change)
        eventually(lambda: bool(told))
    watch.stop()
    assert not watch.alive
    assert descriptors() <= before


def test_other_links_are_not_told(wire: Wire) -> None:
    """Changes of lo, and of a link that is not watched, cause no look."""
    told: list[int] = []
    watch = AddressWatch(lambda: {"watched"}, lambda: told.append(1), wire.node)
    watch.start()
    eventually(lambda: bool(told))
    wire.on_node("ip", "address", "add", "192.0.2.12/24", "dev", NIC)
    wire.on_node("ip", "address", "add", "127.0.0.2/8", "dev", "lo")
    assert told == [1]
    wire.on_node("ip", "link", "add", "watched", "type", "veth", "peer", "name", "other")
    eventually(lambda: len(told) > 1)
    watch.stop()


def test_a_namespace_that_is_not_there() -> None:
    """Without the switch's namespace nothing is reported, and the watch ends at once."""
    told: list[int] = []
    watch = AddressWatch(lambda: {NIC}, lambda: told.append(1), "/nonexistent/netns")
    watch.start()
    watch.stop()
    assert told == []


def test_more_notices_than_were_taken(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """When notices were lost, everything may have changed: that is reported, and the watch goes on without a pause."""
    told: list[int] = []
    real, lost = NetlinkConnection.read_notices, [OSError(errno.ENOBUFS, "lost")]

    def noticed(self: NetlinkConnection) -> list[tuple[int, bytes]]:
        found = real(self)
        if lost:
            raise lost.pop()
        return found

    monkeypatch.setattr(NetlinkConnection, "read_notices", noticed)
    monkeypatch.setattr(listening, "AGAIN_S", 3600.0)
    watch = AddressWatch(lambda: {"none"}, lambda: told.append(1), wire.node)
    watch.start()
    eventually(lambda: told == [1])
    wire.on_node("ip", "address", "add", "192.0.2.12/24", "dev", NIC)
    eventually(lambda: told == [1, 1])
    watch.stop()


def test_links_that_end(wire: Wire) -> None:
    """A link that is set down, renamed or deleted is reported by its name, watched or not; others are not."""
    ended: list[str] = []
    began: list[int] = []
    watch = AddressWatch(set, lambda: began.append(1), wire.node, ended=ended.append)
    watch.start()
    eventually(lambda: bool(began))
    wire.on_node("ip", "link", "add", "one", "type", "veth", "peer", "name", "other")
    wire.on_node("ip", "link", "set", "one", "up")
    eventually(lambda: "other" in ended)  # both are made down
    ended.clear()
    wire.on_node("ip", "link", "set", "one", "mtu", "1400")
    wire.on_node("ip", "address", "add", "192.0.2.12/24", "dev", "one")
    for change, told in (
        (("ip", "link", "set", "one", "down"), "one"),
        (("ip", "link", "set", "one", "name", "two"), "one"),
        (("ip", "link", "delete", "two"), "two"),
    ):
        wire.on_node(*change)
        eventually(lambda: told in ended)  # noqa: B023 - called at once
        ended.clear()
    watch.stop()


def test_routes_and_rules_of_ours(wire: Wire) -> None:
    """The removal of one of ours is reported; the kernel does not even send those of others."""
    told: list[int] = []
    watch = AddressWatch(set, lambda: told.append(1), wire.node)
    watch.start()
    eventually(lambda: bool(told))
    for family, net, via in (("-4", "198.51.100.0/24", "192.0.2.1"), ("-6", "2001:db8:9::/64", "2001:db8::9")):
        if family == "-6":
            wire.on_node("ip", "address", "add", "2001:db8::1/64", "dev", NIC, "nodad")
        told.clear()
        wire.on_node("ip", family, "route", "add", net, "via", via, "proto", "148")
        wire.on_node("ip", family, "route", "delete", net)
        wire.on_node("ip", family, "rule", "add", "from", net, "table", "7", "priority", "77", "protocol", "148")
        wire.on_node("ip", family, "rule", "delete", "priority", "77")
        wire.on_node("ip", family, "route", "add", net, "via", via, "proto", "149")
        wire.on_node("ip", family, "rule", "add", "from", net, "table", "7", "priority", "77", "protocol", "149")
        assert told == []
        wire.on_node("ip", family, "route", "delete", net)
        eventually(lambda: bool(told))
        told.clear()
        wire.on_node("ip", family, "rule", "delete", "priority", "77")
        eventually(lambda: bool(told))
    watch.stop()
