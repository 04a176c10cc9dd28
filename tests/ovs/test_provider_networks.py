"""Provider networks on a real OVS-DPDK: what a spec makes of a NIC, what it refuses, and what happens on failures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.lab.network.kept import KeptNode, kept
from tests.lab.network.outside import BEYOND, LOST_MAX, NIC, Wire, traffic, wired
from tests.lab.switch.switch import Switch, wait_until
from tests.lab.switch.veths import inside, veth
from userspace_cni.attachment.specs import undo
from userspace_cni.attachment.steps import StillTaken
from userspace_cni.base.provider_networks import Bond, ProviderNetwork
from userspace_cni.linux import boot
from userspace_cni.network.spec_list import PROVIDER_NETWORK
from userspace_cni.node import local_node

NODE, OUTSIDE = "192.0.2.11", "192.0.2.1"
NET = ProviderNetwork("net1", NIC, said_by="the test")
MOVED = replace(NET, move_addresses="primary")
POLLED = replace(MOVED, port="afxdp")


@pytest.fixture
def wire(switch: Switch) -> Iterator[Wire]:
    """The node's NIC with an address, and a network beyond it."""
    with wired(switch.netns) as made:
        yield made


@pytest.fixture
def site(switch: Switch) -> Iterator[KeptNode]:
    """A node whose specs are reconciled."""
    with TemporaryDirectory(prefix="uc-") as directory, kept(switch, Path(directory)) as made:
        yield made


def where(wire: Wire, address: str = NODE) -> list[str]:
    found = json.loads(wire.on_node("ip", "-json", "address"))
    return [link["ifname"] for link in found for each in link["addr_info"] if each["local"] == address]


def kernel(wire: Wire) -> str:
    """Addresses and routes of the node's NIC, as ip(8) shows them, without counters and what IPv6 configures by itself."""
    said = wire.on_node("ip", "-d", "address", "show", "dev", NIC) + wire.on_node("ip", "-d", "route", "show", "table", "all")
    passing = ("valid_lft", "promiscuity", "fe80:", "multicast ff00:")
    return "\n".join(line for line in said.splitlines() if not any(each in line for each in passing))


def mtu(wire: Wire) -> int:
    found: int = json.loads(wire.on_node("ip", "-json", "link", "show", NIC))[0]["mtu"]
    return found


def queues(switch: Switch) -> int:
    """The number of queues by which the switch receives from the NIC."""
    return switch.appctl("dpif-netdev/pmd-rxq-show").count(f"port: {NIC} ")


def test_an_uplink_and_back(wire: Wire, site: KeptNode, switch: Switch) -> None:
    """Bridge and port have the NIC's MAC and MTU; the node still answers at the NIC; after the undo everything is as before."""
    before = kernel(wire)
    site.met(NET)
    assert (switch.bridges(), switch.ports("br-net1")) == (["br-net1"], [NIC])
    link = json.loads(wire.on_node("ip", "-json", "link", "show", NIC))[0]
    bridge = json.loads(wire.on_node("ip", "-json", "link", "show", "br-net1"))[0]
    assert (bridge["address"], bridge["mtu"]) == (link["address"], link["mtu"])
    assert site.drifts() == []
    assert where(wire) == [NIC]
    assert wire.answers(NODE)
    site.met(NET)
    site.met(replace(NET, vlans=(100, 200)))
    assert switch.port(NIC)["trunks"] == [0, 100, 200]
    site.met()
    assert switch.bridges() == []
    assert kernel(wire) == before


def test_addresses_move_under_traffic(wire: Wire, site: KeptNode, switch: Switch) -> None:
    """The node's addresses and default route move there and back; no answer is missed for long and no stream breaks."""
    wire.on_node("ip", "route", "add", "default", "via", OUTSIDE)
    before = kernel(wire)
    with traffic(wire, NODE) as noticed:
        site.met(MOVED)
        assert where(wire) == ["br-net1"]
        assert site.drifts() == []
        site.met(MOVED)
        site.met()
    assert (where(wire), kernel(wire)) == ([NIC], before)
    assert noticed[NODE].broken == ""
    assert noticed[NODE].lost_in_a_row < LOST_MAX


def test_given_back_while_the_switch_is_dead(wire: Wire, site: KeptNode, switch: Switch) -> None:
    """When ovs-vswitchd, and then OVSDB, is away for long, the NIC gets its addresses back; they move again when it runs."""
    site.met(MOVED)
    switch.kill_vswitchd()
    try:
        switch.stop_ovsdb()
        site.gone_s = 9.0
        assert where(wire) == ["br-net1"]
        site.gone_s = 11.0
        site.reconcile(MOVED)
        assert where(wire) == [NIC]
        assert wire.answers(NODE)
        assert "ovs-vswitchd has been gone" in site.problem(MOVED)
        assert where(wire) == [NIC]
        site.gone_s = 0.5  # it was there for a moment: nothing moves to a bridge that is dead
        assert site.problem(MOVED)
        assert where(wire) == [NIC]
    finally:
        switch.restart_ovsdb()
        switch.restart_vswitchd()
    site.gone_s = 0.0
    wait_until(lambda: where(wire) == ["br-net1"] or not site.reconcile(MOVED), what="they have moved again")
    assert wire.answers(NODE)
    assert site.drifts() == []


def test_given_back_while_no_bridge_is_served(wire: Wire, site: KeptNode, switch: Switch) -> None:
    """ovs-vswitchd lives, but without ovsdb-server its bridge's link carries nothing: after long the NIC has its addresses again.
    They move again once the bridge is served, and not before."""
    site.met(MOVED)
    wait_until(lambda: site.node.switch.service(["br-net1", "br-none"]) == "alive", what="the bridge is served")
    switch.stop_ovsdb()
    try:
        wait_until(lambda: site.node.switch.service(["br-net1"]) == "silent", what="the bridge is not served")
        assert site.node.switch.vswitchd() == "alive"
        site.unserved_s = 9.0
        site.reconcile(MOVED)
        assert where(wire) == ["br-net1"]
        site.unserved_s = 11.0
        site.reconcile(MOVED)
        assert (where(wire), wire.answers(NODE)) == ([NIC], True)
        assert "without ovsdb-server" in site.problem(MOVED)
    finally:
        switch.restart_ovsdb()
    site.unserved_s = 0.0
    wait_until(lambda: where(wire) == ["br-net1"] or not site.reconcile(MOVED), what="they have moved again")
    assert wire.answers(NODE)
    wait_until(lambda: site.node.switch.service(["br-net1"]) == "alive", what="the bridge is served again")
    site.met(MOVED)
    assert site.drifts() == []


def test_a_polled_nic_stays_the_switchs_without_a_database(wire: Wire, site: KeptNode, switch: Switch) -> None:
    """ovs-vswitchd has the NIC's frames by AF_XDP as long as it lives: nothing is given back, for nothing would answer there."""
    site.met(POLLED)
    switch.stop_ovsdb()
    try:
        wait_until(lambda: site.node.switch.service(["br-net1"]) == "silent", what="the bridge is not served")
        site.unserved_s = 11.0
        site.reconcile(POLLED)
        site.reconcile(complete=False)
        assert where(wire) == ["br-net1"]
        switch.kill_vswitchd()
        site.gone_s = 11.0
        site.reconcile(complete=False)
        assert (where(wire), wire.answers(NODE)) == ([NIC], True)
    finally:
        switch.restart_ovsdb()
        switch.restart_vswitchd()
    site.gone_s = site.unserved_s = 0.0
    wait_until(lambda: not site.reconcile(POLLED)[0].problem and switch.interface(NIC)["type"] == "afxdp", what="polled again")
    assert (where(wire), wire.answers(NODE), site.drifts()) == (["br-net1"], True, [])


@pytest.mark.parametrize("network", [MOVED, POLLED], ids=["system", "afxdp"])
@pytest.mark.parametrize("how", ["unknown", "refused"])
def test_given_back_without_a_spec(wire: Wire, site: KeptNode, switch: Switch, how: str, network: ProviderNetwork) -> None:
    """While a spec is unknown or refused, what it has stays, but no address stays on a dead bridge.

    A daemon that is started afterwards does not take the frames of a NIC that has its addresses back.
    """

    def reconcile() -> None:
        for _ in range(2):
            site.refuse(network, "another one has it") if how == "refused" else site.reconcile(complete=False)

    site.met(network)
    reconcile()
    assert where(wire) == ["br-net1"]
    switch.kill_vswitchd()
    try:
        site.gone_s = 11.0
        reconcile()
        assert where(wire) == [NIC]
        assert wire.answers(NODE)
    finally:
        site.gone_s = 0.0
        switch.restart_vswitchd()
    assert (switch.ports("br-net1"), switch.interface(NIC)["type"], wire.answers(NODE)) == ([NIC], "system", True)


def test_a_restart_of_the_switch_keeps_what_moved(wire: Wire, site: KeptNode, switch: Switch) -> None:
    """A short absence moves nothing: the bridge keeps the addresses, and answers once the daemon runs."""
    site.met(MOVED)
    switch.kill_vswitchd()
    site.reconcile(MOVED)
    assert where(wire) == ["br-net1"]
    switch.restart_vswitchd()
    wait_until(lambda: wire.answers(NODE), what="the node answers again")
    wait_until(lambda: not site.reconcile(MOVED)[0].problem, what="the spec is met")
    assert site.drifts() == []


def test_what_others_change_meanwhile(wire: Wire, site: KeptNode) -> None:
    """An address added at the NIC moves, too; one removed from the bridge stays removed; both hold after the way back."""
    site.met(MOVED)
    wire.on_node("ip", "address", "add", "192.0.2.12/24", "dev", NIC)
    wire.on_node("ip", "address", "add", "192.0.2.13/24", "dev", "br-net1")
    site.met(MOVED)
    assert where(wire, "192.0.2.12") == ["br-net1"]
    assert wire.answers("192.0.2.12")
    wire.on_node("ip", "address", "delete", "192.0.2.12/24", "dev", "br-net1")
    site.met(MOVED)
    assert where(wire, "192.0.2.12") == []
    site.met()
    assert {each: where(wire, each) for each in (NODE, "192.0.2.12", "192.0.2.13")} == {
        NODE: [NIC],
        "192.0.2.12": [],
        "192.0.2.13": [NIC],
    }


@pytest.fixture
def boots(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The boots of the node, whose last one is the present."""
    found = ["first"]
    monkeypatch.setattr(local_node, "cache", lambda asked: asked)  # a node asks once for the boot in which it lives
    monkeypatch.setattr(boot, "boot_id", lambda: found[-1])
    return found


def test_after_a_reboot(wire: Wire, switch: Switch, boots: list[str]) -> None:
    """Kernel state is gone but rows are not: the NIC's present addresses move, and none from the record."""
    with TemporaryDirectory(prefix="uc-") as directory, kept(switch, Path(directory)) as site:
        site.met(MOVED)
        boots.append("second")
        # as the node's network manager sets it up, with a tap that ovs-vswitchd has made anew
        wire.on_node("ip", "address", "flush", "dev", "br-net1")
        wire.on_node("nft", "flush", "ruleset")
        wire.on_node("ip", "address", "add", "192.0.2.14/24", "dev", NIC)
        assert wire.answers("192.0.2.14")
        site.met(MOVED)
        assert (where(wire, NODE), where(wire, "192.0.2.14")) == ([], ["br-net1"])
        assert wire.answers("192.0.2.14")
        site.met()
        assert (where(wire, NODE), where(wire, "192.0.2.14")) == ([], [NIC])


@pytest.mark.parametrize("after", [(), (NET,)], ids=["has gone", "asks for none"])
def test_the_mtu_after_a_reboot(wire: Wire, switch: Switch, boots: list[str], after: tuple[ProviderNetwork, ...]) -> None:
    """ovs-vswitchd gives the NIC the MTU of its row before the first look of a boot: it is not taken for the NIC's own."""
    small = replace(NET, mtu=1400)
    with TemporaryDirectory(prefix="uc-") as directory, kept(switch, Path(directory)) as site:
        before = mtu(wire)
        site.met(small)
        boots.append("second")
        assert mtu(wire) == small.mtu != before
        site.met(small)
        site.met(*after)
        assert mtu(wire) == before


CHANGES = {
    "apply": ((), (MOVED,)),
    "amend": ((MOVED,), (replace(MOVED, vlans=(100,), mtu=1400),)),
    "give up moving": ((replace(NET, move_addresses="yes"),), (NET,)),
    "undo": ((MOVED,), ()),
    "apply polled": ((), (POLLED,)),
    "begin to poll": ((MOVED,), (POLLED,)),
    "undo polled": ((POLLED,), ()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_killed_at_each_point(wire: Wire, site: KeptNode, switch: Switch, change: str) -> None:
    """After kill -9 at any write or effect the node answers, and the next round completes or reverts the move."""
    first, last = CHANGES[change]
    before, died = kernel(wire), []
    for points in range(2, 60, 2):  # what is before one is after another
        site.met(*first)
        died.append(site.killed(points, *last))
        assert wire.answers(NODE), f"killed {died[-1]}"
        onward = last if points % 4 else first
        site.met(*onward)
        assert site.drifts() == [], f"killed {died[-1]}"
        assert wire.answers(NODE), f"killed {died[-1]}, and then reconciled"
        if not died[-1]:
            break
    assert len(died) > 3
    site.met()
    assert kernel(wire).splitlines() == before.splitlines()
    assert (switch.bridges(), site.records()) == ([], [])


def test_killed_while_it_gives_back(wire: Wire, site: KeptNode, switch: Switch) -> None:
    """With ovs-vswitchd dead, the agent dies while it gives addresses back:
    the next agent ends with them on the NIC, each time.
    """
    died = []
    for points in range(2, 60, 2):
        wait_until(lambda: not site.reconcile(MOVED)[0].problem and where(wire) == ["br-net1"], what="they have moved")
        switch.kill_vswitchd()
        try:
            site.gone_s = 11.0
            died.append(site.killed(points, MOVED))
            site.reconcile(MOVED)
            assert where(wire) == [NIC], f"killed {died[-1]}"
            assert wire.answers(NODE), f"killed {died[-1]}"
        finally:
            site.gone_s = 0.0
            switch.restart_vswitchd()
        if not died[-1]:
            break
    assert len(died) > 2
    wait_until(lambda: not site.reconcile(MOVED)[0].problem and where(wire) == ["br-net1"], what="they have moved")
    assert site.drifts() == []


def test_killed_while_the_switch_is_dead_amid_the_first_move(wire: Wire, site: KeptNode, switch: Switch) -> None:
    """Agent and switch die during the first move: what needs no switch is undone, and the move is made when the switch runs."""
    for points in (8, 10):
        site.met()
        died = site.killed(points, MOVED)
        switch.kill_vswitchd()
        try:
            site.gone_s = 11.0
            site.reconcile(MOVED)
            assert where(wire) == [NIC], f"killed {died}"
            assert wire.answers(NODE), f"killed {died}"
        finally:
            site.gone_s = 0.0
            switch.restart_vswitchd()
    wait_until(lambda: not site.reconcile(MOVED)[0].problem, what="the spec is met")
    assert where(wire) == ["br-net1"]


def test_a_nic_by_af_xdp(wire: Wire, site: KeptNode, switch: Switch) -> None:
    """It is refused if its addresses are to stay; moved, they answer at the bridge and come back; a connection survives."""
    assert "has addresses (192.0.2.11/24)" in site.problem(replace(NET, port="afxdp"))
    before = kernel(wire)
    with traffic(wire, NODE) as noticed:
        site.met(POLLED)
        assert (where(wire), switch.interface(NIC)["type"], site.drifts()) == (["br-net1"], "afxdp", [])
        assert (switch.interface(NIC)["options"], queues(switch)) == ({"n_rxq": "2"}, 2)
        site.met(replace(POLLED, rx_queues=2))
        for wrong in (1, 3):
            assert f"receives by 2, and {wrong} would be polled" in site.problem(replace(POLLED, rx_queues=wrong))
        site.met(POLLED)
        site.met(MOVED)
        assert (switch.interface(NIC)["type"], switch.interface(NIC)["options"], site.drifts()) == ("system", {}, [])
        site.met(POLLED)
        site.met()
    assert (kernel(wire), wire.answers(NODE)) == (before, True)
    # how many pings are lost meanwhile is ovs-vswitchd's: nothing passes while it changes the NIC's program and opens its queues
    assert noticed[NODE].broken == ""


def test_a_polled_nic_without_a_switch(wire: Wire, site: KeptNode, switch: Switch) -> None:
    """When ovs-vswitchd dies, the NIC gets its addresses back, and the next daemon leaves its frames alone; the agent moves and
    polls again.

    A type that was changed by hand is set again, and the port of a NIC that was made anew is opened again.
    """
    site.met(POLLED)
    switch.kill_vswitchd()
    try:
        site.gone_s = 11.0
        site.reconcile(POLLED)
        assert (where(wire), wire.answers(NODE)) == ([NIC], True)
        site.reconcile(POLLED)
        assert switch.interface(NIC)["type"] == "system"
    finally:
        switch.restart_vswitchd()
        site.gone_s = 0.0
    assert wire.answers(NODE)
    wait_until(lambda: not site.reconcile(POLLED)[0].problem and switch.interface(NIC)["type"] == "afxdp", what="polled again")
    assert (where(wire), wire.answers(NODE), site.drifts()) == (["br-net1"], True, [])
    switch.vsctl("set", "Interface", NIC, "type=system")
    assert sorted(site.drifts()) == [f"uplink {NIC} {NIC} options", f"uplink {NIC} {NIC} type"]
    site.met(POLLED)
    assert (switch.interface(NIC)["type"], wire.answers(NODE)) == ("afxdp", True)
    wire.on_node("ip", "link", "delete", NIC)
    veth(switch.netns, NIC, wire.outside, BEYOND, f"{OUTSIDE}/24")
    wait_until(lambda: not site.reconcile(POLLED)[0].problem, what="the spec is met")
    wait_until(lambda: wire.answers(NODE), what="the node answers through the new NIC")
    assert (switch.interface(NIC)["type"], site.drifts()) == ("afxdp", [])


def test_a_polled_nic_without_a_database(wire: Wire, site: KeptNode, switch: Switch) -> None:
    """The spec is removed while OVSDB is away and ovs-vswitchd has the NIC's frames: the addresses stay at the bridge.

    There they answer as soon as OVSDB is back, and the status says what is awaited. They go back once the daemon has ended, or
    opens the NIC as system.
    """
    for is_killed in (True, False):
        site.met(POLLED)
        switch.stop_ovsdb()
        try:
            [status] = site.reconcile()
            assert f"ovs-vswitchd may have the frames of {NIC} by AF_XDP still" in status.problem
            assert where(wire) == ["br-net1"]
            with pytest.raises(StillTaken):  # a person gives up what has no NIC, and no more
                undo(PROVIDER_NETWORK, POLLED.name, site.node, force=True)
            assert where(wire) == ["br-net1"]
            if is_killed:
                switch.kill_vswitchd()
                site.reconcile()
                assert (where(wire), wire.answers(NODE)) == ([NIC], True)
        finally:
            switch.restart_ovsdb()
            if is_killed:
                switch.restart_vswitchd()
        assert is_killed or wire.answers(NODE)
        wait_until(lambda: not site.reconcile(), what="it is undone")
        assert (where(wire), wire.answers(NODE), switch.bridges()) == ([NIC], True, [])


def test_a_polled_nic_whose_row_cannot_be_written(wire: Wire, site: KeptNode, switch: Switch) -> None:
    """The spec goes while ovsdb-server refuses what is written, and while the port has lost its marks: the addresses stay at the
    bridge, where they answer. They go back when the NIC is no longer polled, also where a person has changed that."""
    site.met(POLLED)
    with switch.read_only():
        [status] = site.reconcile()
        assert f"may have the frames of {NIC} by AF_XDP still" in status.problem
        assert (where(wire), wire.answers(NODE)) == (["br-net1"], True)
    switch.vsctl("clear", "Port", NIC, "external_ids")
    [status] = site.reconcile()
    assert "belongs to an owner that does not mark its rows" in status.problem
    assert (where(wire), wire.answers(NODE)) == (["br-net1"], True)
    switch.vsctl("set", "Interface", NIC, "type=system", "--", "remove", "Interface", NIC, "options", "n_rxq")
    [status] = site.reconcile()
    assert f"bridge br-net1 stays while others have ports on it: {NIC}" in status.problem
    assert (where(wire), wire.answers(NODE)) == ([NIC], True)
    switch.vsctl("del-port", NIC)
    assert site.reconcile() == ()


def test_killed_while_a_polled_nic_waits_for_the_switch(wire: Wire, site: KeptNode, switch: Switch) -> None:
    """The spec goes while OVSDB is away, and the process that undoes it dies at each point: the addresses stay at the bridge as
    long as ovs-vswitchd has the NIC's frames, and answer there when OVSDB is back."""
    site.met(POLLED)
    switch.stop_ovsdb()
    try:
        died = [site.killed(1), site.killed(2)]
        assert site.reconcile()  # the next ones find that it was begun
        for points in range(1, 60):
            died.append(site.killed(points))
            [status] = site.reconcile()
            assert f"ovs-vswitchd may have the frames of {NIC} by AF_XDP still" in status.problem, f"killed {died[-1]}"
            assert where(wire) == ["br-net1"], f"killed {died[-1]}"
            if not died[-1]:
                break
        assert died == ["before writing deleting", "after writing deleting", "before undo polled-uplink", ""]
    finally:
        switch.restart_ovsdb()
    assert wire.answers(NODE)
    wait_until(lambda: not site.reconcile(), what="it is undone")
    assert (where(wire), wire.answers(NODE), switch.bridges(), site.records()) == ([NIC], True, [], [])


def test_killed_when_a_polled_nic_has_waited(wire: Wire, site: KeptNode, switch: Switch) -> None:
    """ovs-vswitchd, for which the undo has waited, has ended: the process that gives the addresses back dies at each point, and
    the next one ends with them on the NIC."""
    died = []
    for points in range(2, 60, 2):
        site.met(POLLED)
        switch.stop_ovsdb()
        try:
            assert site.reconcile()
            switch.kill_vswitchd()
            died.append(site.killed(points))
            site.reconcile()
            assert (where(wire), wire.answers(NODE)) == ([NIC], True), f"killed {died[-1]}"
        finally:
            switch.restart_ovsdb()
            switch.restart_vswitchd()
        wait_until(lambda: not site.reconcile(), what="it is undone")
        assert (where(wire), wire.answers(NODE), switch.bridges()) == ([NIC], True, []), f"killed {died[-1]}"
        if not died[-1]:
            break
    assert len(died) > 2


def test_a_bond_and_virtual_devices(wire: Wire, site: KeptNode, switch: Switch) -> None:
    """Several NICs are one port. DPDK opens a NIC without addresses, and one that leads nowhere, by a virtual device."""
    with wired(switch.netns, (), (), nic="nic1", beyond="out1"):
        bonded = ProviderNetwork("net2", bond=Bond((NIC, "nic1"), updelay_ms=100))
        site.met(bonded)
        assert (switch.ports("br-net2"), switch.port("up-net2")["bond_mode"]) == (["up-net2"], "active-backup")
        site.met(ProviderNetwork("net3", "vdev:net_af_packet7,iface=nic1"), ProviderNetwork("net4", "vdev:net_null7", mtu=1400))
        assert (switch.ports("br-net3"), switch.ports("br-net4")) == (["up-net3"], ["up-net4"])
        assert site.drifts() == []
        site.met()
        assert switch.bridges() == []


def test_what_is_refused(wire: Wire, site: KeptNode, switch: Switch) -> None:
    """A NIC that is missing, enslaved, on another bridge, or primary without permission is refused, and nothing is changed."""
    inside(switch.netns, "ip", "link", "add", "lb0", "type", "bridge")
    switch.vsctl("add-br", "br-ex", "--", "set", "Bridge", "br-ex", "datapath_type=netdev", "--", "add-port", "br-ex", NIC)
    try:
        assert "there is no NIC nope" in site.problem(replace(NET, interface="nope"))
        assert "no PCI device 0000:ff:1f.7" in site.problem(replace(NET, interface="pci:0000:ff:1f.7"))
        assert "a port of bridge br-ex already" in site.problem(NET)
        switch.vsctl("del-br", "br-ex")
        wire.on_node("ip", "link", "set", NIC, "master", "lb0")
        assert "enslaved to lb0" in site.problem(NET)
        wire.on_node("ip", "link", "set", NIC, "nomaster")
        wire.on_node("ip", "route", "add", "default", "via", OUTSIDE)
        assert "has a default route" in site.problem(replace(NET, move_addresses="yes"))
        wire.on_node("ip", "address", "add", "192.0.2.30/24", "dev", NIC, "valid_lft", "3600", "preferred_lft", "1800")
        assert "192.0.2.30/24" in site.problem(MOVED)
        wire.on_node("ip", "address", "delete", "192.0.2.30/24", "dev", NIC)
        switch.vsctl("add-br", "br-net1", "--", "set", "Bridge", "br-net1", "datapath_type=netdev")
        assert "br-net1" in site.problem(MOVED)
        assert (site.records(), where(wire), switch.ports("br-net1")) == ([], [NIC], [])
    finally:
        inside(switch.netns, "ip", "link", "delete", "lb0")
        for bridge in switch.bridges():
            switch.vsctl("del-br", bridge)


def test_a_nic_that_is_made_anew(wire: Wire, site: KeptNode, switch: Switch) -> None:
    """Its port is opened anew, the bridge has its MAC, and moved addresses stay at the bridge and are cut from the new NIC."""
    site.met(MOVED)
    wire.on_node("ip", "link", "delete", NIC)
    assert f"there is no NIC {NIC}" in site.problem(MOVED)
    assert where(wire) == ["br-net1"]
    veth(switch.netns, NIC, wire.outside, BEYOND, f"{OUTSIDE}/24")
    wait_until(lambda: not site.reconcile(MOVED)[0].problem, what="the spec is met")
    wait_until(lambda: wire.answers(NODE), what="the node answers through the new NIC")
    assert site.drifts() == []
    assert json.loads(wire.on_node("ip", "-json", "link", "show", NIC))[0]["address"] == bridge_mac(wire)
    site.met()
    assert where(wire) == [NIC]
    assert wire.answers(NODE)


def test_the_spec_goes_while_the_nic_is_absent(wire: Wire, site: KeptNode, switch: Switch) -> None:
    """The bridge keeps the addresses, which are nowhere else, whenever the process dies.

    It is undone when the NIC is back, or when a person gives it up.
    """
    before = kernel(wire)
    site.met(MOVED)
    wire.on_node("ip", "link", "delete", NIC)
    died: list[str] = []
    while not died or died[-1]:
        died.append(site.killed(2 * len(died) + 2))
        [status] = site.reconcile()
        assert (status.desired, f"no NIC {NIC} to which {NODE}/24" in status.problem) == (False, True)
        assert (where(wire), switch.ports("br-net1")) == (["br-net1"], [NIC])
        assert "no NIC" in site.problem(MOVED)
        assert where(wire) == ["br-net1"]
    assert len(died) > 1
    veth(switch.netns, NIC, wire.outside, BEYOND, f"{OUTSIDE}/24")
    wait_until(lambda: not site.reconcile(), what="it is undone")
    assert (where(wire), switch.bridges(), wire.answers(NODE)) == ([NIC], [], True)
    assert len(kernel(wire).splitlines()) == len(before.splitlines())
    site.met(MOVED)
    wire.on_node("ip", "link", "delete", NIC)
    assert site.reconcile()
    undo(PROVIDER_NETWORK, MOVED.name, site.node, force=True)
    assert (switch.bridges(), site.records()) == ([], [])
    wait_until(lambda: not where(wire), what="ovs-vswitchd has closed the local link")


def bridge_mac(wire: Wire) -> str:
    """The MAC of the bridge's own link."""
    mac: str = json.loads(wire.on_node("ip", "-json", "link", "show", "br-net1"))[0]["address"]
    return mac
