"""A node's pool: what switch, kubelet and claims say of a bridge, put together; and when it has to be looked at anew."""

from __future__ import annotations

from dataclasses import replace

import pytest

from userspace_cni.base.errors import Unavailable
from userspace_cni.base.switch_bridges import SwitchBridge, SwitchBridgePort, SwitchInterface
from userspace_cni.base.vlans import Vlan
from userspace_cni.dra import node_pool
from userspace_cni.dra.node_pool import NodePool
from userspace_cni.dra.slice_content import PoolBridge
from userspace_cni.node import bridge_room
from userspace_cni.node.bridge_room import BridgeRoom, ClaimedPort
from userspace_cni.node.devices import OfferedBridge

RESOURCE = "userspace-cni.io/br0"
UPLINK = SwitchBridgePort("p0", Vlan(trunks=(10, 11)), (SwitchInterface("p0", "dpdk", mtu=9000),))
BRIDGE = PoolBridge("br0", healthy=True, room=4, free=4, resource=RESOURCE, datapath="netdev", numa=1, mtu=9000, vlans="10-11")


class PooledNode:
    """A node with one bridge, whose kubelet gives devices of it to pods."""

    def __init__(self) -> None:
        self.offered: tuple[OfferedBridge, ...] | None = (OfferedBridge("br0", healthy=True, numa=1),)
        self.rows: tuple[SwitchBridge, ...] | None = (SwitchBridge("br0", "netdev", "another", (UPLINK,)),)
        self.given: dict[str, tuple[str, ...]] | None = {}
        self.claims: list[ClaimedPort] = []
        self.room = BridgeRoom(4, lambda: self.claims, self._ask)
        self.pool = NodePool(lambda: self.offered, self._list, self.room)

    def _ask(self) -> dict[str, tuple[str, ...]]:
        if self.given is None:
            raise Unavailable("the kubelet does not answer")
        return self.given

    def _list(self) -> tuple[SwitchBridge, ...]:
        if self.rows is None:
            raise Unavailable("no session with OVSDB")
        return self.rows


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> PooledNode:
    """Nothing is believed for longer than a moment."""
    monkeypatch.setattr(bridge_room, "GIVEN_S", 0.0)
    monkeypatch.setattr(node_pool, "TRAITS_S", 0.0)
    return PooledNode()


def test_a_bridge(node: PooledNode) -> None:
    """Its room, less what pods have of it; the devices of claims; what its uplinks carry."""
    assert node.pool.read() == [BRIDGE]
    node.given, node.claims = {RESOURCE: ("br0-0",)}, [ClaimedPort("a", "br0", "br0"), ClaimedPort("b", "br0", "br0")]
    assert node.pool.read() == [replace(BRIDGE, free=3, claimed=("br0", "br0"))]
    node.given = {RESOURCE: tuple(f"br0-{number}" for number in range(6))}
    assert node.pool.read() == [replace(BRIDGE, free=0, claimed=("br0", "br0"))]


def test_what_is_not_known(node: PooledNode) -> None:
    """Without bridges, or the kubelet's first word, there is no pool; later words and rows that are missing change nothing."""
    node.given = None
    with pytest.raises(Unavailable):
        node.pool.read()
    node.given = {RESOURCE: ("br0-0",)}
    assert node.pool.read() == [replace(BRIDGE, free=3)]
    node.rows = None
    assert node.pool.read() == [replace(BRIDGE, free=3)]
    node.offered = None
    assert node.pool.read() is None


def test_what_has_changed(node: PooledNode) -> None:
    """Another health, a claim, and a device that the kubelet is just giving away: each is told once."""
    assert node.pool.has_changed()
    node.pool.read()
    assert [node.pool.has_changed() for _ in range(3)] == [True, False, False]  # the kubelet's word has come
    node.offered = (OfferedBridge("br0", healthy=False, numa=1),)
    assert [node.pool.has_changed() for _ in range(2)] == [True, False]
    node.claims = [ClaimedPort("a", "br0", "br0")]
    node.room.forget_claims()
    assert [node.pool.has_changed() for _ in range(2)] == [True, False]
    node.room.give("br0", ["br0-2"])
    assert [node.pool.has_changed() for _ in range(2)] == [True, False]
