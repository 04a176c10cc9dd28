"""Changes that other programs make to the node's own bridges, uplinks and gateways are reverted, the first time at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.cni.spec import switch_of
from tests.lab.network.gateways import GATEWAY, kept
from tests.lab.network.kept import KeptNode
from tests.lab.network.kept import kept as node_kept
from tests.lab.network.outside import NIC, Wire, wired
from tests.lab.node.node import Node
from tests.lab.switch.switch import Switch, wait_until
from tests.ovs.conftest import soon
from userspace_cni.attachment.steps import OvsPort
from userspace_cni.base.limits import Limits, Rate
from userspace_cni.base.provider_networks import ProviderNetwork

NET = ProviderNetwork("net1", NIC, vlans=(100, 200), mtu=1400, said_by="the test")
BRIDGE = "br-net1"
UPLINK = {
    "trunks": ("clear", "Port", NIC, "trunks"),
    "tag": ("set", "Port", NIC, "tag=7"),
    "mtu_request": ("clear", "Interface", NIC, "mtu_request"),
    "hwaddr": ("set", "Bridge", BRIDGE, 'other_config:hwaddr="02:00:00:00:00:09"'),
    "no hwaddr": ("remove", "Bridge", BRIDGE, "other_config", "hwaddr"),
    "MTU of the bridge": ("clear", "Interface", BRIDGE, "mtu_request"),
    "mark": ("set", "Interface", NIC, "external_ids:spec=another"),
}
DESIRED = replace(GATEWAY, vlan=7, mtu=1300, masquerade=False, limits=Limits(to_pod=Rate(20_000_000, 2_000_000)))
PORT = GATEWAY.port
WRITTEN = {
    "tag": ("set", "Port", PORT, "tag=9"),
    "no tag": ("clear", "Port", PORT, "tag"),
    "mac": ("set", "Interface", PORT, 'mac="02:00:00:00:00:09"'),
    "mtu_request": ("clear", "Interface", PORT, "mtu_request"),
    "limit": ("clear", "Port", PORT, "qos"),
}


@pytest.fixture
def wire(switch: Switch) -> Iterator[Wire]:
    with wired(switch.netns) as made:
        yield made


@pytest.fixture
def site(switch: Switch) -> Iterator[KeptNode]:
    """A node whose specs are reconciled."""
    with TemporaryDirectory(prefix="uc-") as directory, node_kept(switch, Path(directory)) as made:
        yield made


@pytest.mark.parametrize("what", UPLINK)
def test_an_uplink(site: KeptNode, wire: Wire, switch: Switch, what: str) -> None:
    """The next round reverts each value; after a second change the spec reports it, and the value is left alone for a while."""
    assert wire.nic == NIC
    site.met(NET)
    assert site.drifts() == []
    switch.vsctl(*UPLINK[what])
    wait_until(site.drifts, what="check to tell")
    site.met(NET)
    wait_until(lambda: site.drifts() == [], what="what was put back to be in force")
    switch.vsctl(*UPLINK[what])
    wait_until(site.drifts, what="check to tell again")
    assert "changed again" in site.problem(NET)
    assert site.drifts() != []
    assert "changed again" in site.problem(NET)


def test_offloads_of_a_nic(site: KeptNode, wire: Wire) -> None:
    """When a person turns on the NIC's GRO, whose merged frames OVS drops, it is turned off again."""
    site.met(NET)
    wire.on_node("ethtool", "-K", NIC, "gro", "on")
    assert site.drifts() == [f"NIC {NIC} offloads"]
    site.met(NET)
    assert site.drifts() == []


@pytest.mark.parametrize("what", WRITTEN)
def test_a_gateway(node: Node, what: str) -> None:
    """The next round reverts each value of its port, also at the link."""
    switch = switch_of(node)
    with kept(node, switch.netns) as made:
        assert made.keep(DESIRED) == {PORT: ""}
        [step] = [
            step for record in made.local.store.journal.node_records() for step in record.steps if isinstance(step, OvsPort)
        ]

        def drifts() -> list[str]:
            return [drift.field for drift in made.local.switch.ports.check(step, soon())]

        assert drifts() == []
        switch.vsctl(*WRITTEN[what])
        wait_until(drifts, what="check to tell")
        assert made.keep(DESIRED) == {PORT: ""}
        wait_until(lambda: drifts() == [], what="what was put back to be in force")
        switch.vsctl(*WRITTEN[what])
        wait_until(drifts, what="check to tell again")
        assert "changed again" in made.keep(DESIRED)[PORT]
