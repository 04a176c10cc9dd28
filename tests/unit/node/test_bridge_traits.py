"""What a bridge's uplinks carry, as its rows say it."""

from __future__ import annotations

from userspace_cni.base.switch_bridges import SwitchBridge, SwitchBridgePort, SwitchInterface
from userspace_cni.base.vlans import Vlan
from userspace_cni.node.bridge_traits import BridgeTraits, traits_of


def port(name: str, kind: str, mtu: int = 0, vlan: Vlan | None = None, owner: str = "") -> SwitchBridgePort:
    return SwitchBridgePort(name, vlan or Vlan(), (SwitchInterface(name, kind, mtu=mtu),), owner)


def traits(*ports: SwitchBridgePort) -> BridgeTraits:
    own = port("br0", "internal", 1500)
    return traits_of(SwitchBridge("br0", "netdev", "another", (own, *ports)))


def test_uplinks() -> None:
    """The smallest MTU and all VLANs of the NICs; neither ports of pods nor tunnels count."""
    first, second = port("p0", "dpdk", 9000, Vlan(trunks=(10, 11, 12))), port("p1", "dpdk", 1500, Vlan(20), "node")
    others = (
        port("v0", "dpdkvhostuserclient", 1400, owner="claim"),
        port("t0", "vxlan"),
        port("h0", "system", 1300, owner="pod"),
    )
    assert traits(first, second, *others) == BridgeTraits("netdev", 1500, "10-12,20")


def test_an_uplink_with_all_vlans() -> None:
    """Where one carries all, nothing is to be said of VLANs."""
    assert traits(port("p0", "dpdk", 9000), port("p1", "dpdk", vlan=Vlan(20))) == BridgeTraits("netdev", 9000, "")


def test_a_bridge_without_uplink() -> None:
    """Nothing is known of its MTU, and it carries what its pods send."""
    assert traits(port("v0", "dpdkvhostuserclient", 1400, owner="pod")) == BridgeTraits("netdev")
