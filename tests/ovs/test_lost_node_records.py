"""Rows of the node's own whose record was lost, on a real OVS-DPDK, are recorded again from what is found, and can be undone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.lab.network.kept import SOURCE, KeptNode, kept
from tests.lab.network.outside import NIC, Wire, wired
from tests.lab.switch.switch import Switch, wait_until
from tests.ovs.test_provider_networks import MOVED, NET, NODE, POLLED, where
from userspace_cni.attachment.records import node_container, record_key
from userspace_cni.attachment.specs import UNKNOWN, undo
from userspace_cni.attachment.steps import EVERYTHING, Internal, MirrorOutput, OvsPort, Step, Steps, node_marks
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.provider_networks import ProviderNetwork
from userspace_cni.network.spec_list import GATEWAY, MIRROR, PROVIDER_NETWORK

OTHER_NIC, OTHER = "nic1", "198.51.100.11"


@pytest.fixture
def wire(switch: Switch) -> Iterator[Wire]:
    """The node's NIC with an address, and a network beyond it."""
    with wired(switch.netns) as made:
        yield made


@contextmanager
def a_node(switch: Switch) -> Iterator[KeptNode]:
    """A node with a state directory of its own."""
    with TemporaryDirectory(prefix="uc-") as directory, kept(switch, Path(directory)) as made:
        yield made


@pytest.fixture
def site(switch: Switch) -> Iterator[KeptNode]:
    """A node whose specs are reconciled."""
    with a_node(switch) as made:
        yield made


def lose(site: KeptNode, how: str = "removed") -> None:
    """Remove or corrupt the record of every spec."""
    for path in (site.directory / "state" / "node").glob("*.json"):
        path.write_text("{") if how == "corrupted" else path.unlink()
    assert site.records() == []


def tables(wire: Wire) -> str:
    """All nftables rules of the node's kernel."""
    return wire.on_node("nft", "list", "ruleset")


@pytest.mark.parametrize("how", ["corrupted", "removed"])
@pytest.mark.parametrize("network", [MOVED, POLLED], ids=["system", "afxdp"])
def test_the_spec_stands(wire: Wire, site: KeptNode, switch: Switch, network: ProviderNetwork, how: str) -> None:
    """With the spec still there, the addresses stay at the bridge, a new record
    names them, and with it they go back with their routes.
    """
    routes = wire.on_node("ip", "route")
    site.met(network)
    opened = switch.interface(NIC)["ofport"]
    lose(site, how)
    site.met(network)
    assert (where(wire), wire.answers(NODE), site.drifts()) == (["br-net1"], True, [])
    assert (switch.interface(NIC)["ofport"], switch.interface(NIC)["type"]) == (opened, network.port)
    [record] = site.records()
    [move] = record.moves
    assert ([each.shown for each in move.addresses], record.network) == ([f"{NODE}/24"], SOURCE)
    site.met()
    assert (where(wire), wire.answers(NODE), switch.bridges(), tables(wire)) == ([NIC], True, [], "")
    assert wire.on_node("ip", "route") == routes


@pytest.mark.parametrize("network", [NET, MOVED, POLLED], ids=["unmoved", "system", "afxdp"])
def test_the_spec_has_gone(wire: Wire, site: KeptNode, switch: Switch, network: ProviderNetwork) -> None:
    """Nothing is removed while a source is not completely known.

    Then the addresses go back to their NIC, and the rows are deleted.
    """
    before, place = (where(wire), tables(wire)), [NIC] if network is NET else ["br-net1"]
    site.met(network)
    lose(site)
    for _ in range(2):
        [status] = site.reconcile(complete=False)
        assert (status.problem, status.source) == ("", UNKNOWN)
        assert (where(wire), wire.answers(NODE), switch.ports("br-net1")) == (place, True, [NIC])
    assert site.reconcile() == ()
    assert (where(wire), tables(wire)) == before
    assert (wire.answers(NODE), switch.bridges(), site.records()) == (True, [], [])


@pytest.mark.parametrize("network", [MOVED, POLLED], ids=["system", "afxdp"])
@pytest.mark.parametrize("stands", [True, False], ids=["stands", "has gone"])
def test_the_rules_are_flushed_too(wire: Wire, site: KeptNode, switch: Switch, network: ProviderNetwork, stands: bool) -> None:
    """When an administrator has flushed nftables as well, the NIC's row says that its addresses have moved.

    While the spec stands, they stay at the bridge, and the next round cuts the NIC off again. They go back with the spec.
    """
    before = where(wire), tables(wire)
    site.met(network)
    lose(site)
    wire.on_node("nft", "flush", "ruleset")
    if stands:
        site.met(network)
        assert (where(wire), wire.answers(NODE)) == (["br-net1"], True)
        site.met(network)
        assert (where(wire), wire.answers(NODE), site.drifts()) == (["br-net1"], True, [])
    site.met()
    assert (where(wire), tables(wire)) == before
    assert (wire.answers(NODE), switch.bridges(), site.records()) == (True, [], [])


def test_settings_of_the_nic(wire: Wire, site: KeptNode, switch: Switch) -> None:
    """The row of its port tells its MTU and offloads from before: they are restored, whether the spec stands or has gone."""
    wire.on_node("ethtool", "-K", NIC, "gro", "on")
    before = settings(wire)
    assert "generic-receive-offload: on" in before
    small = replace(MOVED, mtu=1400)
    for onward in ((small,), ()):
        site.met(small)
        assert settings(wire) != before
        [recorded] = Steps(site.records()[0].steps).uplinks
        lose(site)
        site.met(*onward)
        assert [record.uplinks for record in site.records()] == [(recorded,)] * len(onward)
        site.met()
        assert settings(wire) == before
        assert wire.answers(NODE)


def settings(wire: Wire) -> list[str]:
    """MTU and offloads of the NIC that OVS has changed."""
    shown = [
        *wire.on_node("ethtool", "-k", NIC).splitlines(),
        *wire.on_node("ip", "link", "show", NIC).partition(" qdisc")[0].split(),
    ]
    return [each for each in shown if each.startswith("generic-receive-offload") or each.isdigit()]


@pytest.mark.parametrize("network", [MOVED, POLLED], ids=["system", "afxdp"])
@pytest.mark.parametrize("stands", [True, False], ids=["stands", "has gone"])
def test_killed_while_it_is_recorded_again(
    wire: Wire, site: KeptNode, switch: Switch, network: ProviderNetwork, stands: bool
) -> None:
    """kill -9 before and after each write and each effect: the node answers, and the next round goes on as if nothing had been
    lost."""
    before, died = (where(wire), tables(wire)), []
    wanted = (network,) if stands else ()
    for points in range(1, 60):
        site.met(network)
        lose(site)
        died.append(site.killed(points, *wanted))
        assert wire.answers(NODE), f"killed {died[-1]}"
        site.met(*wanted)
        assert (where(wire), site.drifts()) == (["br-net1"] if stands else [NIC], []), f"killed {died[-1]}"
        assert wire.answers(NODE), f"killed {died[-1]}, and then reconciled"
        if not died[-1]:
            break
    assert died[:2] == ["before writing ready", "after writing ready"]
    site.met()
    assert (where(wire), tables(wire), switch.bridges(), site.records()) == (*before, [], [])


def test_an_address_that_a_person_gave_the_bridge_is_no_move(wire: Wire, site: KeptNode) -> None:
    """When no addresses were to move, the new record has no move, whatever address a person gave the bridge."""
    site.met(NET)
    wire.on_node("ip", "address", "add", "203.0.113.1/24", "dev", "br-net1")
    lose(site)
    site.met(NET)
    assert (where(wire), where(wire, "203.0.113.1")) == ([NIC], ["br-net1"])
    assert [step.kind for step in site.records()[0].steps] == ["node-bridge", "uplink-port"]


def test_what_a_person_has_written_into_the_rows(wire: Wire, site: KeptNode, switch: Switch) -> None:
    """A text where a number belongs, and a bridge without its marks: the addresses go back, and the rows that have the marks."""
    site.met(POLLED)
    lose(site)
    switch.vsctl("set", "Interface", NIC, "options:n_rxq=many")
    site.met(POLLED)
    lose(site)
    switch.vsctl("set", "Interface", NIC, "options:n_rxq=many", "--", "clear", "Bridge", "br-net1", "external_ids")
    assert site.reconcile() == ()
    assert (where(wire), wire.answers(NODE), switch.ports("br-net1"), tables(wire)) == ([NIC], True, [], "")
    switch.vsctl("del-br", "br-net1")


def test_given_back_by_the_next_record(wire: Wire, site: KeptNode, switch: Switch) -> None:
    """When ovs-vswitchd dies after the record was lost, and the spec is unknown, the NIC gets its address back."""
    site.met(MOVED)
    lose(site)
    site.reconcile(complete=False)
    switch.kill_vswitchd()
    try:
        site.gone_s = 11.0
        site.reconcile(complete=False)
        assert (where(wire), wire.answers(NODE)) == ([NIC], True)
    finally:
        switch.restart_vswitchd()
        site.gone_s = 0.0


def test_the_spec_names_another_nic_by_now(wire: Wire, site: KeptNode, switch: Switch) -> None:
    """When the spec names another NIC by now, each NIC gets its own addresses."""
    with wired(switch.netns, (f"{OTHER}/24",), ("198.51.100.1/24",), nic=OTHER_NIC, beyond="out1") as other:
        site.met(MOVED)
        lose(site)
        site.met(replace(MOVED, interface=OTHER_NIC))
        assert (where(wire), where(wire, OTHER)) == ([NIC], ["br-net1"])
        assert (wire.answers(NODE), other.answers(OTHER), switch.ports("br-net1")) == (True, True, [OTHER_NIC])
        site.met()
        assert (where(wire), where(wire, OTHER)) == ([NIC], [OTHER_NIC])


def test_an_older_record_is_back(wire: Wire, site: KeptNode, switch: Switch) -> None:
    """A state directory from a backup names one of two uplinks: the other is found by its rows."""
    with wired(switch.netns, (f"{OTHER}/24",), ("198.51.100.1/24",), nic=OTHER_NIC, beyond="out1"):
        second = replace(MOVED, name="net2", bridge="br-net2", interface=OTHER_NIC)
        site.met(MOVED, second)
        next((site.directory / "state" / "node").glob("*net2.json")).unlink()
        site.met(MOVED)
        assert (where(wire), where(wire, OTHER), switch.bridges()) == (["br-net1"], [OTHER_NIC], ["br-net1"])


def test_another_installation_is_left_alone(wire: Wire, site: KeptNode, switch: Switch) -> None:
    """Rows of another state directory on the same switch are left alone: their record may be there."""
    with a_node(switch) as another:
        site.met(MOVED)
        lose(site)
        another.met()
        assert (another.records(), where(wire), switch.ports("br-net1")) == ([], ["br-net1"], [NIC])
        undo(PROVIDER_NETWORK, MOVED.name, another.node)
        assert "belongs to userspace-cni: provider-network net1" in another.problem(NET)
        assert (where(wire), switch.ports("br-net1")) == (["br-net1"], [NIC])
        site.met()
        assert (where(wire), switch.bridges()) == ([NIC], [])


def test_what_another_process_works_on_is_left_alone(wire: Wire, site: KeptNode, switch: Switch) -> None:
    """While another process holds the attachment's lock, its record may still be written: the rows are left alone."""
    site.met(MOVED)
    lose(site)
    lock = site.node.store.journal.try_turn_lock(record_key(node_container(PROVIDER_NETWORK), "net1"))
    assert lock
    with lock:
        assert site.reconcile() == ()
        assert (site.records(), where(wire), switch.ports("br-net1")) == ([], ["br-net1"], [NIC])
    assert site.reconcile() == ()
    assert (site.records(), where(wire), switch.bridges()) == ([], [NIC], [])


def test_mirrors_and_gateways(site: KeptNode, switch: Switch) -> None:
    """A mirror with its own output, a mirror with another program's port, and a gateway's port are removed.

    The bridge and that port stay.
    """
    switch.vsctl("add-br", "br0", "--", "set", "Bridge", "br0", "datapath_type=netdev")
    switch.vsctl("add-port", "br0", "theirs", "--", "set", "Interface", "theirs", "type=internal")
    store = site.node.store.journal.identity()
    steps: tuple[Step, ...] = (
        OvsPort(
            "br0", "out", Internal(), marks=node_marks(MIRROR, "a on br0", store), foreign_bridge=True, mirror_outputs=("a",)
        ),
        MirrorOutput("br0", "theirs", "b", EVERYTHING, node_marks(MIRROR, "b on br0", store)),
        OvsPort("br0", "gw0", Internal(), marks=node_marks(GATEWAY, "gw0", store), foreign_bridge=True),
    )
    try:
        for step in steps:
            if rest := site.node.driver(step).apply(step, Deadline.after(60)):
                rest()
        assert sorted(each["name"] for each in switch.rows("Mirror")) == ["a", "b"]
        assert [each.source for each in site.reconcile(complete=False)] == [UNKNOWN] * 3
        assert len(Steps(tuple(step for record in site.records() for step in record.steps)).ports) == 2
        assert site.drifts() == []
        assert site.reconcile() == ()
        assert (switch.rows("Mirror"), switch.ports("br0")) == ([], ["theirs"])
    finally:
        wait_until(lambda: not site.reconcile(), what="they are undone")
        switch.vsctl("del-br", "br0")
