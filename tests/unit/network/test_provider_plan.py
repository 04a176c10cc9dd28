"""The steps of an uplink from the result of a look, and what is refused by name; neither kernel nor switch is asked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from userspace_cni.attachment.records import Record, node_container
from userspace_cni.attachment.specs import KeepsLess
from userspace_cni.attachment.steps import (
    AddressMove,
    Internal,
    KeptAddress,
    KeptRoute,
    NodeBridge,
    OvsPort,
    PolledUplink,
    UplinkInterface,
    UplinkPort,
    node_marks,
)
from userspace_cni.base.errors import InvalidConfig, NameTaken, Unavailable, UserspaceError
from userspace_cni.base.provider_networks import Bond, ProviderNetwork
from userspace_cni.base.settings import Settings
from userspace_cni.base.vlans import Vlan
from userspace_cni.host.node_net.network_managers import Manager
from userspace_cni.host.node_net.nics import KernelBond, Nic, Upper
from userspace_cni.network.provider_specs import ProviderSite, choose_vlans, keep, may_move, refuse, steps_of
from userspace_cni.node.local_node import LocalNode
from userspace_cni.node.uplink_look import UplinkLook

MAC = "02:00:00:00:00:0a"
STORE = "s"
MARKS = node_marks("provider-network", "net1", STORE)
NET = ProviderNetwork("net1", "eth1", said_by="the test")
ADDRESS = KeptAddress("192.0.2.11", 24)
DEFAULT = KeptRoute("0.0.0.0/0", protocol=3, gateway="192.0.2.1")
SUB = replace(NET, move_addresses="yes", vlan_interfaces=("eth1.10",), vlans=(100,))


def nic(name: str = "eth1", **changes: Any) -> Nic:
    """A hardware NIC that is up and has no address."""
    return replace(Nic(name, 7, MAC, 1500, "", up=True, carrier=True, master=""), **changes)


def move(name: str = "eth1", target: str = "br-net1", **changes: Any) -> AddressMove:
    """The move of what such a NIC has."""
    return replace(AddressMove(name, 7, target, STORE, "boot"), **changes)


def seen(*links: Nic, **changes: Any) -> UplinkLook:
    return replace(UplinkLook({each.name: each for each in links or (nic(),)}), **changes)


def refusal(network: ProviderNetwork, look: UplinkLook, kind: type[UserspaceError] = InvalidConfig) -> str:
    with pytest.raises(kind) as refused:
        steps_of(network, look, STORE)
    return str(refused.value)


def test_a_kernel_nic() -> None:
    """The bridge has its MAC and MTU; what OVS will change of the NIC is recorded as it was."""
    bridge, uplink = steps_of(NET, seen(nic(mtu=1400, offloads=("gro",))), STORE)
    assert bridge == NodeBridge("br-net1", MAC, 1400, marks=MARKS)
    assert uplink == UplinkPort("br-net1", "eth1", (UplinkInterface("eth1", "system", index=7, offloads=("gro",)),), marks=MARKS)


def test_what_the_nic_had_is_known_from_the_first_look() -> None:
    """A later look sees what OVS has changed, and does not record it as the NIC's own."""
    network = replace(NET, mtu=9000)
    first = steps_of(network, seen(nic(offloads=("gro", "lro"))), STORE)
    again = steps_of(network, seen(nic(mtu=9000), former=first), STORE)
    assert again == first
    assert isinstance(first[1], UplinkPort)
    assert (first[1].mtu, first[1].interfaces[0].mtu) == (9000, 1500)


@pytest.mark.parametrize(("found", "asked", "former"), [(9000, 9000, 1500), (9000, 0, 1500), (1400, 9000, 1400), (1400, 0, None)])
def test_the_former_mtu_after_a_reboot(found: int, asked: int, former: int | None) -> None:
    """A NIC that has the MTU for which OVS was asked in an earlier boot had the one before that; one with another has its own."""
    earlier = steps_of(replace(NET, mtu=9000), seen(nic()), STORE)
    uplink = steps_of(replace(NET, mtu=asked), seen(nic(mtu=found), earlier=earlier), STORE)[1]
    assert isinstance(uplink, UplinkPort)
    assert (uplink.mtu, uplink.interfaces[0].mtu) == (asked or former or 0, former)


def test_vlans() -> None:
    """Frames without a tag pass always; VLANs of sub-interfaces do with the others."""
    found = steps_of(replace(NET, vlans=(200, 100)), seen(), STORE)
    assert isinstance(found[1], UplinkPort)
    assert found[1].trunks == (0, 100, 200)
    found = steps_of(SUB, sub_interfaces(), STORE)
    assert isinstance(found[1], UplinkPort)
    assert found[1].trunks == (0, 10, 100)


TAGGING = "bond0.100"


@pytest.mark.parametrize(
    "interface",
    [{"interface": TAGGING}, {"interface": f"vdev:net_af_packet0,iface={TAGGING}"}, {"bond": Bond(("eth1", TAGGING))}],
)
def test_a_vlans_link_carries_frames_without_a_tag_alone(interface: dict[str, Any]) -> None:
    """It puts its own tag on all that it sends: VLANs by it are refused, and none is let pass to it."""
    network = replace(NET, **{"interface": "", **interface})
    look = seen(nic(), nic(TAGGING, index=8, kind="vlan", tag=100))
    for plain in (network, replace(network, vlans=(0,))):
        uplink = steps_of(plain, look, STORE)[1]
        assert isinstance(uplink, UplinkPort)
        assert uplink.trunks == (0,)
    for vlans in ((100,), (0, 200, 100)):
        why = refusal(replace(network, vlans=vlans), look)
        assert f"{TAGGING} is the link of VLAN 100, and is to carry VLANs 100" in why
        assert "tagged twice" in why


def test_a_link_of_another_tag_carries_vlans() -> None:
    """A VLAN's link without a tag of 802.1Q, as one of 802.1ad, is there for tags within its own."""
    uplink = steps_of(replace(NET, vlans=(100,)), seen(nic(kind="vlan")), STORE)[1]
    assert isinstance(uplink, UplinkPort)
    assert uplink.trunks == (0, 100)


def trunk(network: ProviderNetwork, *trunks: tuple[int, ...]) -> tuple[int, ...]:
    """What the uplink is to carry of a network whose record has these trunks: of one UplinkPort each."""
    return choose_vlans(network, [UplinkPort("br-net1", "eth1", (), trunks=each) for each in trunks])


def test_vlans_of_objects_that_are_all_known() -> None:
    """The trunk has what they name. If the last one is gone, only untagged frames pass, also after the next look.

    All VLANs pass only if it was never less.
    """
    some, none = (replace(NET, vlans=vlans, vlans_by="objects") for vlans in ((100,), ()))
    assert trunk(some) == trunk(some, ()) == trunk(some, (0, 100, 200)) == (100,)
    assert trunk(none) == trunk(none, ()) == ()
    assert trunk(none, (0, 100, 200)) == trunk(none, (0,)) == (0,)
    assert trunk(none, (), (0, 100)) == (0,), "amid a change from all to some"


def test_vlans_of_objects_that_may_be_more() -> None:
    """While some may be unknown nothing is removed from the uplink or opened; a new network waits until they are known."""
    some, none = (replace(NET, vlans=vlans, vlans_by="some objects") for vlans in ((100,), ()))
    assert trunk(some, (0, 100, 200)) == (0, 100, 200)
    assert trunk(none, (0, 100, 200)) == (0, 100, 200)
    assert trunk(some) == trunk(some, ()) == (100,)
    assert trunk(none, ()) == ()
    with pytest.raises(Unavailable, match="is not known yet"):
        trunk(none)


def test_vlans_of_the_settings() -> None:
    """A spec that says them itself is as it says, whatever the uplink carried."""
    assert trunk(NET, (0, 100)) == ()
    assert trunk(replace(NET, vlans=(7,)), (0, 100)) == (7,)


def sub_interfaces(**changes: Any) -> UplinkLook:
    """A NIC with a VLAN sub-interface, and their moves."""
    upper = nic("eth1.10", kind="vlan", addresses=(ADDRESS,))
    moves = {"eth1": move(), "eth1.10": move("eth1.10", "net1.10", addresses=(ADDRESS,), cut=False)}
    return seen(nic(uppers=(Upper("eth1.10", "vlan", 10),)), upper, moves=moves, **changes)


def test_sub_interfaces_move_before_the_nic() -> None:
    """Each becomes an internal port with its tag and MAC; the NIC's move, which cuts the stack off, is the last."""
    _, _, port, *moves = steps_of(SUB, sub_interfaces(), STORE)
    assert port == OvsPort("br-net1", "net1.10", Internal(MAC, 1500), Vlan(10), marks=MARKS, foreign_bridge=True)
    assert [(each.nic, each.bridge, each.cut) for each in moves if isinstance(each, AddressMove)] == [
        ("eth1.10", "net1.10", False),
        ("eth1", "br-net1", True),
    ]


def test_devices_of_dpdk() -> None:
    """They have no kernel link, so the bridge has OVS's own MAC and MTU; names are ours."""
    bridge, uplink = steps_of(replace(NET, interface="pci:0000:3b:00.0", mtu=9000, rx_queues=2), UplinkLook(), STORE)
    assert bridge == NodeBridge("br-net1", "", 9000, marks=MARKS)
    wanted = UplinkInterface("up-net1", "dpdk", devargs="0000:3b:00.0")
    assert uplink == UplinkPort("br-net1", "up-net1", (wanted,), mtu=9000, rx_queues=2, marks=MARKS)
    bonded = replace(NET, interface="", bond=Bond(("eth1", "vdev:net_null0"), "balance-slb", "active", 100))
    _, port = steps_of(bonded, seen(), STORE)
    assert isinstance(port, UplinkPort)
    assert [each.name for each in port.interfaces] == ["eth1", "up-net1-1"]
    assert (port.name, port.bond_mode, port.lacp, port.updelay_ms) == ("up-net1", "balance-slb", "active", 100)


def test_a_bond_without_one_of_its_nics() -> None:
    """It is made of the NICs that exist; without any it is not made."""
    bonded = replace(NET, interface="", bond=Bond(("eth1", "eth2")))
    _, port = steps_of(bonded, seen(), STORE)
    assert isinstance(port, UplinkPort)
    assert [each.name for each in port.interfaces] == ["eth1", "eth2"]
    assert "there is no NIC eth1, eth2" in refusal(bonded, UplinkLook(), Unavailable)
    _, other = steps_of(replace(bonded, bond=Bond(("eth1", "eth3"))), seen(), STORE)
    assert other.thing != port.thing  # a member that leaves gets its settings back


def test_devices_that_are_away() -> None:
    """A bond's port is made without them; if all are away the port is removed and the bridge stays."""
    devices = ("pci:0000:3b:00.0", "pci:0000:3c:00.0")
    bonded = replace(NET, interface="", bond=Bond(devices))
    whole = steps_of(bonded, UplinkLook(), STORE)
    bridge, port = steps_of(bonded, UplinkLook(away={devices[0]: "it is out"}, former=whole), STORE)
    assert isinstance(port, UplinkPort)
    assert [each.name for each in port.present] == ["up-net1-1"]
    assert port.devices == {"0000:3b:00.0": False, "0000:3c:00.0": True}
    assert port.thing == whole[1].thing  # what is there carries on
    away = UplinkLook(away=dict.fromkeys(devices, "it is out"))
    with pytest.raises(KeepsLess, match="it is out") as told:
        steps_of(bonded, replace(away, former=(bridge, port)), STORE)
    assert told.value.steps == (bridge,)
    for former in ((), (bridge,), steps_of(replace(NET, interface="pci:0000:99:00.0"), UplinkLook(), STORE)):
        with pytest.raises(Unavailable) as refused:
            steps_of(bonded, replace(away, former=former), STORE)
        assert not isinstance(refused.value, KeepsLess)


def test_a_kernel_nic_and_a_device_that_are_both_gone() -> None:
    """The port of their bond is removed, so that DPDK releases the device; while one of them is there, it carries on."""
    device = "pci:0000:3b:00.0"
    bonded = replace(NET, interface="", bond=Bond(("eth1", device)))
    away = {device: "it is out"}
    alone = [steps_of(bonded, look, STORE)[1] for look in (UplinkLook(), seen(away=away))]
    assert [[each.name for each in port.present] for port in alone if isinstance(port, UplinkPort)] == [
        ["eth1", "up-net1-1"],
        ["eth1"],
    ]
    bridge, port = steps_of(bonded, seen(), STORE)
    with pytest.raises(KeepsLess, match="there is no NIC eth1 on this node; it is out") as told:
        steps_of(bonded, UplinkLook(away=away, former=(bridge, port)), STORE)
    assert told.value.steps == (bridge,)


def test_what_may_come_yet() -> None:
    """A missing NIC, and everything that a device lacks, is reported and looked for again."""
    assert "there is no NIC eth1" in refusal(NET, UplinkLook(), Unavailable)
    lacking = ("it is bound to driver ixgbe", "the node has no huge pages")
    assert "; ".join(lacking) in refusal(replace(NET, interface="pci:0000:3b:00.0"), UplinkLook(lacking=lacking), Unavailable)


def test_what_others_have() -> None:
    """A NIC of a bond or a Linux bridge, or of another bridge of OVS, is named with who has it."""
    assert "enslaved to bond0" in refusal(NET, seen(nic(master="bond0")), NameTaken)
    assert "a port of bridge br-ex already" in refusal(NET, seen(on_bridge={"eth1": "br-ex"}), NameTaken)
    had = steps_of(NET, seen(), STORE)
    steps_of(replace(NET, name="net2"), seen(on_bridge={"eth1": "br-net1"}, former=had), STORE)
    steps_of(NET, seen(on_bridge={"eth1": "br-net1"}), STORE)


@pytest.mark.parametrize("mode", ["balance-alb", "balance-tlb"])
@pytest.mark.parametrize(
    "interface",
    [{"interface": "bond0"}, {"interface": "vdev:net_af_packet0,iface=bond0"}, {"bond": Bond(("eth1", "bond0"))}],
)
def test_a_bond_that_sends_with_other_macs(interface: dict[str, Any], mode: str) -> None:
    """It is refused by its mode, however OVS would open it, and so is what is made upon it."""
    network = replace(NET, **{"interface": "", **interface})
    link = nic("bond0", index=8, kind="bond", bond=KernelBond("bond0", mode))
    assert f"NIC bond0 is a bond of the kernel in mode {mode}" in refusal(network, seen(nic(), link))
    upon = nic("eth1", kind="vlan", tag=100, bond=link.bond)
    assert f"NIC eth1 is made upon bond0, a bond of the kernel in mode {mode}" in refusal(NET, seen(upon))


@pytest.mark.parametrize("mode", ["balance-rr", "active-backup", "balance-xor", "broadcast", "802.3ad", ""])
def test_a_bond_that_keeps_macs(mode: str) -> None:
    """In another mode, or one that is not known, a bond is an uplink as any NIC."""
    _, uplink = steps_of(replace(NET, interface="bond0"), seen(nic("bond0", kind="bond", bond=KernelBond("bond0", mode))), STORE)
    assert isinstance(uplink, UplinkPort)
    assert uplink.name == "bond0"


def test_no_ethernet() -> None:
    """A link without a hardware address cannot be an uplink."""
    assert "lo has no hardware address" in refusal(replace(NET, interface="lo"), seen(nic("lo", mac="00:00:00:00:00:00")))


def test_a_nic_is_polled_when_its_addresses_have_left() -> None:
    """Its port is opened as system, and as afxdp after the move; one whose addresses do not move is opened as afxdp at once."""
    network = replace(NET, port="afxdp", rx_queues=2)
    [_, uplink] = steps_of(network, seen(nic()), STORE)
    assert isinstance(uplink, UplinkPort)
    assert (uplink.interfaces[0].type, uplink.rx_queues) == ("afxdp", 2)
    moved = seen(nic(offloads=("gro",)), moves={"eth1": move(addresses=(ADDRESS,))})
    [_, uplink, left, polled] = steps_of(replace(network, move_addresses="yes"), moved, STORE)
    assert isinstance(uplink, UplinkPort)
    assert isinstance(polled, PolledUplink)
    assert uplink.interfaces == (UplinkInterface("eth1", "system", polled="later", index=7, offloads=("gro",), moves=True),)
    assert left == moved.moves["eth1"]
    assert polled.interfaces == (UplinkInterface("eth1", "afxdp", polled="now", index=7),)
    assert (uplink.rx_queues, polled.rx_queues, polled.thing) == (0, 2, uplink.thing)


def test_what_leaves_a_dead_switch(tmp_path: Path) -> None:
    """Moved addresses go back first, by the kernel alone; then the port stops being polled, which OVSDB has to be told.

    Bridge and port stay.
    """
    node = LocalNode(Settings(state_dir=str(tmp_path)), {})
    look = seen(moves={"eth1": move(addresses=(ADDRESS,), boot_id=node.store.boot_id())})
    bridge, uplink, moved, polled = steps_of(replace(NET, port="afxdp", move_addresses="yes"), look, STORE)
    all_of_it = Record("ready", "s", node_container("provider-network"), "net1", boot_id=node.store.boot_id())
    for plan in (keep(ProviderSite(node, lambda: 60.0)), refuse("why", ProviderSite(node, lambda: 60.0))):
        assert plan(replace(all_of_it, steps=(bridge, uplink, moved, polled))) == (bridge, uplink, polled)
        assert plan(replace(all_of_it, steps=(bridge, uplink, polled))) == (bridge, uplink)
    assert keep(ProviderSite(node, lambda: 60.0))(replace(all_of_it, steps=(bridge, uplink))) == (bridge, uplink)
    lives = replace(all_of_it, steps=(bridge, uplink, moved, polled))
    assert keep(ProviderSite(node))(lives) == lives.steps


def test_what_leaves_a_switch_without_a_database(tmp_path: Path) -> None:
    """Addresses on a bridge that is not served go back to a NIC that the node's stack hears, not to one whose frames the living
    ovs-vswitchd has by AF_XDP."""
    node = LocalNode(Settings(state_dir=str(tmp_path)), {})
    site = ProviderSite(node, unserved_s=lambda: 60.0)
    look = seen(moves={"eth1": move(addresses=(ADDRESS,), boot_id=node.store.boot_id())})
    bridge, uplink, moved, polled = steps_of(replace(NET, port="afxdp", move_addresses="yes"), look, STORE)
    record = Record("ready", "s", node_container("provider-network"), "net1", boot_id=node.store.boot_id())
    heard, taken = replace(record, steps=(bridge, uplink, moved)), replace(record, steps=(bridge, uplink, moved, polled))
    assert keep(site)(heard) == refuse("why", site)(heard) == (bridge, uplink)
    assert keep(site)(taken) == taken.steps
    with pytest.raises(InvalidConfig, match="why"):
        refuse("why", site)(taken)
    assert (site.cut_off_s(heard), site.cut_off_s(taken), site.cut_off_s(None)) == (60.0, 0.0, 60.0)


def test_where_addresses_may_move() -> None:
    """To a bridge that is made before them, or is served and has the port open; none moves to one that carries nothing."""
    moves = {"eth1": move(addresses=(ADDRESS,))}
    wanted = steps_of(replace(NET, move_addresses="yes"), seen(moves=moves), STORE)
    made = wanted[:2]
    assert may_move(wanted, seen(moves=moves))
    assert may_move(wanted, seen(moves=moves, former=made))
    assert not may_move(wanted, seen(moves=moves, former=made, is_open=False))
    assert may_move(wanted, seen(moves=moves, former=wanted, is_served=False, switch_lives=False)), "they are there"
    for lacking in ({"switch_lives": False}, {"is_served": False}):
        with pytest.raises(Unavailable, match="eth1 keeps its addresses"):
            may_move(wanted, seen(moves=moves, former=made, **lacking))


@pytest.mark.parametrize("port", ["system", "afxdp"])
def test_the_primary_nic_has_to_be_told(port: Any) -> None:
    """Neither the default route nor the node's own address moves without permission, whether it has moved before or not."""
    network = replace(NET, port=port)
    for look in (
        seen(nic(routes=(DEFAULT,))),
        seen(nic(learned=("default via fe80::1",))),
        seen(nic(addresses=(ADDRESS,)), node_addresses=frozenset({"192.0.2.11"})),
    ):
        for asked in (network, replace(network, move_addresses="yes")):
            assert '"primary"' in refusal(asked, look)
    moved = seen(moves={"eth1": move(addresses=(ADDRESS,), routes=(DEFAULT,))})
    assert "has a default route" in refusal(replace(network, move_addresses="yes"), moved)
    assert moved.moves["eth1"] in steps_of(replace(network, move_addresses="primary"), moved, STORE)


def test_the_nodes_own_address_has_to_be_known_before_a_move() -> None:
    """A new move waits until it is known; an existing one, and one that may take the primary NIC's, do not."""
    moving, look = replace(NET, move_addresses="yes"), seen(moves={"eth1": move(addresses=(ADDRESS,))}, node_addresses=None)
    assert "not known yet" in refusal(moving, look, Unavailable)
    assert steps_of(replace(moving, move_addresses="primary"), look, STORE)[-1] == look.moves["eth1"]
    assert steps_of(moving, replace(look, former=(look.moves["eth1"],)), STORE)[-1] == look.moves["eth1"]


def test_addresses_that_do_not_move() -> None:
    """If OVS gets copies of frames they can stay; if OVS takes the frames away, they would be unreachable."""
    look = seen(nic(addresses=(ADDRESS,)))
    assert len(steps_of(NET, look, STORE)) == 2
    assert "has addresses (192.0.2.11/24)" in refusal(replace(NET, port="afxdp"), look)
    assert "has addresses" in refusal(replace(NET, interface="vdev:net_af_xdp0,iface=eth1"), look)
    assert "has addresses" in refusal(replace(NET, interface="pci:0000:3b:00.0"), replace(look, device_links=("eth1",)))


@pytest.mark.parametrize(
    ("has", "named"),
    [
        ({"passing": ("192.0.2.30/24",)}, "addresses that expire: 192.0.2.30/24"),
        ({"learned": ("2001:db8::/64",)}, "routes that a router has announced: 2001:db8::/64"),
        ({"stuck": ("198.51.100.0/24: a nexthop object",)}, "routes that cannot be moved: 198.51.100.0/24: a nexthop object"),
        ({"uppers": (Upper("eth1.10", "vlan", 10), Upper("mv0", "macvlan"))}, "eth1.10, mv0 are made upon NIC eth1"),
    ],
)
def test_what_cannot_move(has: dict[str, Any], named: str) -> None:
    """Nothing moves unless everything can move and come back."""
    look = seen(nic(**has), moves={"eth1": move()})
    assert named in refusal(replace(NET, move_addresses="yes"), look)
    assert len(steps_of(NET, replace(look, moves={}), STORE)) == 2


def test_what_else_configures_the_nic() -> None:
    """A program that would restore addresses is named, with the way to make it leave the NIC alone.

    Without a move it does not matter.
    """
    look = seen(moves={"eth1": move()}, managers={"eth1": (Manager("NetworkManager", "nmcli device set eth1 managed no"),)})
    said = refusal(replace(NET, move_addresses="yes"), look)
    assert "configured by NetworkManager" in said
    assert "nmcli device set eth1 managed no" in said
    assert len(steps_of(NET, replace(look, moves={}), STORE)) == 2


def test_sub_interfaces_that_are_none() -> None:
    """They have to be VLAN sub-interfaces of this NIC, of one VLAN each."""
    other = seen(nic(), nic("eth1.10"), moves={"eth1": move()})
    assert "eth1.10 is not a VLAN sub-interface of eth1" in refusal(SUB, other)
    twice = seen(
        nic(uppers=(Upper("eth1.10", "vlan", 10), Upper("ten", "vlan", 10))),
        nic("eth1.10"),
        nic("ten"),
        moves={"eth1": move()},
    )
    assert "of one VLAN, 10" in refusal(replace(SUB, vlan_interfaces=("eth1.10", "ten")), twice)
    assert "there is no NIC eth1.10" in refusal(SUB, seen(), Unavailable)


def queues(network: ProviderNetwork, *links: Nic) -> int:
    """How many its port polls, 0 for one."""
    [port] = (step for step in steps_of(network, seen(*links), STORE) if isinstance(step, UplinkPort))
    return port.rx_queues


def test_queues_that_af_xdp_polls() -> None:
    """All queues by which the NIC receives are polled, because frames of the others would be lost. Unknown: as the spec says."""
    network, bond = replace(NET, port="afxdp"), Bond(("eth1", "eth2"))
    polled = {0: 0, 1: 0, 2: 2, 16: 16}
    assert {each: queues(network, nic(rx_queues=each)) for each in polled} == polled
    assert (queues(replace(network, rx_queues=3), nic()), queues(NET, nic(rx_queues=4))) == (3, 0)
    for asked, has in ((3, 2), (1, 2)):
        assert f"by {has}, and {asked} would" in refusal(replace(network, rx_queues=asked), seen(nic(rx_queues=has)))
    assert "OVS polls 16 of afxdp at most" in refusal(network, seen(nic(rx_queues=17)))
    both = nic(rx_queues=2), nic("eth2", rx_queues=4)
    assert "eth2 receives by 4, and 2 would be polled" in refusal(replace(network, interface="", bond=bond), seen(*both))
