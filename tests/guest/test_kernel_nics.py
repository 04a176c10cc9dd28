"""NICs of the kernel as uplinks: its bonds, its VLANs, and a NIC that is pulled out."""

from __future__ import annotations

import pytest

from tests.lab.hardware.full_guest import NICS, FullGuest
from tests.lab.hardware.guest_node import OUTSIDE, GuestNode, bonded_provider, provider, veth_network

K0, K1 = (each for each in NICS if not each.polled)
LACP = "802.3ad"
_BRIDGED = """
ip -n outside link add wire type bridge
for end in o-k0 o-k1; do ip -n outside link set $end master wire; done
ip -n outside link set wire up
ip -n outside address add 192.0.2.1/24 dev wire
"""


_AGGREGATED = """
ip -n outside link add wire type bond mode 802.3ad miimon 100 lacp_rate fast
for end in o-k0 o-k1; do
    nsenter --net=/run/netns/outside ethtool -s $end speed 1000 duplex full
    ip -n outside link set $end down; ip -n outside link set $end master wire
done
ip -n outside link set wire up
ip -n outside address add 192.0.2.1/24 dev wire
"""
"""A virtio NIC reports no speed, and the kernel's bond runs LACP only with a known speed and full duplex."""


def bonded(guest: FullGuest, mode: str) -> None:
    """Make bond0 of both NICs, with an address; both wires lead to one switch beyond."""
    guest.shell(f"""
ip link add bond0 type bond mode {mode} miimon 100 {"lacp_rate fast" if mode == LACP else ""}
for nic in k0 k1; do ip link set $nic down; ip link set $nic master bond0; done
ip address add 192.0.2.11/24 dev bond0
ip link set bond0 up
{_AGGREGATED if mode == LACP else _BRIDGED}
""")


def await_lacp(guest: FullGuest) -> None:
    """Wait until the bond beyond the wires has both in one group, and has heard a partner."""

    def agreed() -> bool:
        told = guest.do("nsenter", f"--net={OUTSIDE}", "cat", "/proc/net/bonding/wire")
        return "Number of ports: 2" in told and "Partner Mac Address: 00:00:00:00:00:00" not in told

    guest.until(agreed, "both wires to be in one group of LACP")


@pytest.mark.parametrize("mode", ["balance-alb", "balance-tlb"])
def test_a_bond_that_changes_source_addresses_is_refused(guest: FullGuest, node: GuestNode, mode: str) -> None:
    """A bond in a mode that sends pods' frames with its NICs' MAC addresses is refused by name, and so is its VLAN's link."""
    bonded(guest, mode)
    guest.shell("ip link add link bond0 name bond0.10 type vlan id 10; ip link set bond0.10 up")
    told = node.has(provider("bond0", move_addresses="true") + provider("bond0.10", "net2"))
    for name in ("net1", "net2"):
        assert not told[name]["ready"]
        assert f"a bond of the kernel in mode {mode}" in told[name]["problem"], told
    assert guest.do("ovs-vsctl", "list-br") == ""
    assert node.reaches("192.0.2.11")


@pytest.mark.parametrize("mode", ["active-backup", LACP])
def test_a_bond_of_the_kernel_carries_pods_and_the_node(guest: FullGuest, node: GuestNode, mode: str) -> None:
    """Its addresses move to the bridge; the node and a pod are reached, also when the wire of a NIC is cut, and move back."""
    bonded(guest, mode)
    if mode == LACP:
        await_lacp(guest)
    told = node.has(provider("bond0", move_addresses="true"))
    assert told["net1"]["ready"], told
    assert "192.0.2.11/24" in guest.do("ip", "-brief", "address", "show", "br-net1")
    network = veth_network("br-net1", "192.0.2.100/24")
    node.add("pod", network)
    assert node.reaches("192.0.2.11")
    assert node.reaches("192.0.2.100")
    active = guest.do("cat", "/sys/class/net/bond0/bonding/active_slave").strip()
    guest.cut(K1 if active == "k1" else K0)
    assert node.reaches("192.0.2.100")
    assert node.reaches("192.0.2.11")
    node.delete("pod", network)
    assert node.has("") == {}
    assert "192.0.2.11/24" in guest.do("ip", "-brief", "address", "show", "bond0")


def test_ovs_bonds_nics_with_a_partner_by_lacp(guest: FullGuest, node: GuestNode) -> None:
    """In balance-tcp, with a bond of the kernel beyond, both wires are in one group; a pod is reached, also by one wire alone."""
    guest.shell(_AGGREGATED)
    told = node.has(bonded_provider(("k0", "k1"), "balance-tcp", "active"))
    assert told["net1"]["ready"], told
    await_lacp(guest)
    node.add("pod", veth_network("br-net1", "192.0.2.100/24"))
    assert node.reaches("192.0.2.100")
    assert guest.do("ovs-appctl", "lacp/show").count("current attached") == 2
    guest.cut(K0)
    assert node.reaches("192.0.2.100")


def test_a_nic_that_is_pulled_out_is_noticed(guest: FullGuest, node: GuestNode) -> None:
    """The kernel tells the agent between two passes that the uplink is gone, and the agent opens the NIC that is put back.

    Then an older and a new pod reach the wire by it.
    """
    node.outside("ip", "address", "add", "192.0.2.1/24", "dev", "o-k0")
    assert node.has(provider("k0"))["net1"]["ready"]
    node.add("before", veth_network("br-net1", "192.0.2.100/24"))
    assert node.reaches("192.0.2.100")
    guest.pull_out(K0)
    guest.until(lambda: not node.ready(), "the agent to notice")
    assert "k0" in node.statuses()["net1"]["problem"]
    guest.put_back(K0)
    guest.until(node.ready, "the agent to have the NIC again")
    node.add("after", veth_network("br-net1", "192.0.2.101/24"))
    assert node.reaches("192.0.2.101")
    assert node.reaches("192.0.2.100")


def test_addresses_of_a_vlans_link_move_with_the_nics(guest: FullGuest, node: GuestNode) -> None:
    """A named VLAN link's address moves to a port of the bridge; a pod of another VLAN is reached in its own."""
    guest.shell(_VLANS)
    guest.shell("ip address add 198.51.100.11/24 dev k0; ip link set k0 up")
    guest.shell("ip link add link k0 name k0.10 type vlan id 10; ip address add 192.0.2.11/24 dev k0.10; ip link set k0.10 up")
    told = node.has(provider("k0", move_addresses="true", vlan_interfaces='["k0.10"]'))
    assert told["net1"]["ready"], told
    assert "192.0.2.11/24" in guest.do("ip", "-brief", "address", "show", "net1.10")
    assert node.reaches("192.0.2.11")
    network = veth_network("br-net1", "203.0.113.100/24", vlanId=20)
    node.add("pod", network)
    assert node.reaches("203.0.113.100")
    node.delete("pod", network)
    assert node.has("") == {}
    assert "192.0.2.11/24" in guest.do("ip", "-brief", "address", "show", "k0.10")
    assert node.reaches("192.0.2.11")


def test_a_vlans_link_as_uplink_never_tags_twice(guest: FullGuest, node: GuestNode) -> None:
    """It carries untagged frames, in its own VLAN; VLANs are refused, and a pod's tagged frames do not leave the node."""
    guest.shell(_VLANS)
    guest.shell("ip link set k0 up; ip link add link k0 name k0.10 type vlan id 10; ip link set k0.10 up")
    refused = node.has(provider("k0.10", vlans="[20]"))
    assert "would be tagged twice" in refused["net1"]["problem"]
    told = node.has(provider("k0.10"))
    assert told["net1"]["ready"], told
    node.add("tagged", veth_network("br-net1", "203.0.113.100/24", vlanId=20))
    node.add("pod", veth_network("br-net1", "192.0.2.100/24"))
    guest.shell(f"nsenter --net={OUTSIDE} tcpdump -Z root -n -e -l -i o-k0 >/run/frames 2>/run/tcpdump </dev/null &")
    guest.until(lambda: "listening on" in guest.do("cat", "/run/tcpdump"), "tcpdump to listen")
    lost = ("ping", "-n", "-q", "-c", "1", "-w", "2", "203.0.113.1")
    assert guest.run("nsenter", "--net=/run/netns/tagged", *lost).code == 1
    assert node.reaches("192.0.2.1", "pod")
    frames = guest.until(
        lambda: [line for line in guest.do("cat", "/run/frames").splitlines() if "192.0.2.100" in line], "frames"
    )
    assert all("vlan 10" in line for line in frames), frames
    sent = [line for line in guest.do("cat", "/run/frames").splitlines() if f"{K0.peer_mac} >" not in line]
    assert not [line for line in sent if "vlan 20" in line]


def test_a_link_of_802_1ad_carries_vlans_within_its_own(guest: FullGuest, node: GuestNode) -> None:
    """As an uplink it carries VLANs, with both tags on the wire, beside frames with its own tag alone."""
    guest.shell("""
ip link set k0 up; ip link add link k0 name k0.s type vlan proto 802.1ad id 10; ip link set k0.s up
ip -n outside link add link o-k0 name o-s type vlan proto 802.1ad id 10; ip -n outside link set o-s up
ip -n outside link add link o-s name o-c type vlan id 20; ip -n outside link set o-c up
ip -n outside address add 192.0.2.1/24 dev o-s
ip -n outside address add 203.0.113.1/24 dev o-c
""")
    told = node.has(provider("k0.s", vlans="[20]"))
    assert told["net1"]["ready"], told
    node.add("pod", veth_network("br-net1", "192.0.2.100/24"))
    node.add("tagged", veth_network("br-net1", "203.0.113.100/24", vlanId=20))
    assert node.reaches("192.0.2.100")
    assert node.reaches("203.0.113.100")


_VLANS = """
for id in 10 20; do ip -n outside link add link o-k0 name o-k0.$id type vlan id $id; ip -n outside link set o-k0.$id up; done
ip -n outside address add 192.0.2.1/24 dev o-k0.10
ip -n outside address add 203.0.113.1/24 dev o-k0.20
"""
