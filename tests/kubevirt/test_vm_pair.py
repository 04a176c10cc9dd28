"""Two VMs on OVS-DPDK, each defined by the sidecar and started by a libvirt of its own, at ports that the plugin made."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.lab.guests.guest import Nic, command_line
from tests.lab.guests.libvirt_domain import SHAPES, Vm
from tests.lab.guests.libvirt_vm import Launched, node_for_vms
from tests.lab.node.node import Node
from tests.lab.switch.switch import Switch

pytestmark = pytest.mark.timeout(600)  # the first one may have to make libvirt's tree and the guest

OVERRIDE = {"USERSPACE_CNI_KUBEVIRT_MTU": "override"}
ADDRESSES = ("10.9.0.1", "10.9.0.2")
JUMBO = 8000


@pytest.fixture
def node(switch: Switch) -> Iterator[Node]:
    with node_for_vms(switch) as node:
        yield node


@pytest.fixture
def pair(node: Node, tree: Path) -> Iterator[list[Launched]]:
    """Two launcher pods at ports of 9000 bytes."""
    with (
        Launched(node, tree, "one", mtu=9000, sidecar=OVERRIDE) as one,
        Launched(node, tree, "other", mtu=9000, sidecar=OVERRIDE) as other,
    ):
        yield [one, other]


def running(pair: list[Launched]) -> list[Vm]:
    """VMs with hugepages and without, booted; each pings the other all the time, also with large packets."""
    vms = [
        Vm(
            launched.name,
            memory=SHAPES[shape],
            boot=command_line(Nic(launched.mac(), f"{mine}/24"), ping=(others,), big=JUMBO),
        )
        for launched, shape, mine, others in zip(pair, ("hugepages", "plain"), ADDRESSES, ADDRESSES[::-1], strict=True)
    ]
    for launched, vm in zip(pair, vms, strict=True):
        launched.define(vm)
    with ThreadPoolExecutor(len(pair)) as pool:
        list(pool.map(Launched.boot, pair, vms))
    return vms


def test_two_vms_ping_each_other_also_after_a_restart_of_the_switch(node: Node, pair: list[Launched], switch: Switch) -> None:
    """Small and jumbo pings are answered both ways, also after a restart of ovs-vswitchd; DEL leaves nothing."""
    vms = running(pair)
    assert [launched.compute.state(vm.domain) for launched, vm in zip(pair, vms, strict=True)] == ["running", "running"]
    for launched, vm in zip(pair, vms, strict=True):
        launched.pings(vm, "PING", "PING-BIG")
    switch.restart_vswitchd()
    for launched, vm in zip(pair, vms, strict=True):
        launched.pings(vm, "PING", "PING-BIG")
        assert launched.console(vm).count("GUEST ready") == 1
    for launched, vm in zip(pair, vms, strict=True):
        launched.compute.destroy(vm.domain)
        launched.detach()
    assert [launched.port() for launched in pair] == [{}, {}]
    assert node.leftovers() == {}
