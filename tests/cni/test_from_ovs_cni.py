"""Networks of ovs-cni, converted as `lint` shows it, make the ports that ovs-cni would make."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cni.spec import succeeded, switch_of
from tests.lab.node.links import links
from tests.lab.node.node import Node
from userspace_cni.cni.ovs_cni_network import convert_network


@pytest.mark.parametrize(
    ("keys", "port"),
    [
        ({"vlan": 100, "mtu": 1400}, {"tag": 100, "trunks": [], "vlan_mode": []}),
        ({"vlan": 0}, {"tag": [], "trunks": [], "vlan_mode": "access"}),
        ({"trunk": [{"id": 42}, {"minID": 1000, "maxID": 1002}]}, {"tag": [], "trunks": [42, 1000, 1001, 1002], "vlan_mode": []}),
        ({}, {"tag": [], "trunks": [], "vlan_mode": []}),
    ],
)
def test_ports_of_converted_networks(node: Node, sandbox: str, keys: dict[str, Any], port: dict[str, Any]) -> None:
    """VLANs and MTU are those of the network; CHECK passes; DEL leaves nothing."""
    given = {"cniVersion": "1.0.0", "name": "net", "type": "ovs", "bridge": "br-test", "ipam": node.host_local(), **keys}
    network = convert_network(given).configuration
    network["host"]["engine"] = "ovs-dpdk"  # the datapath of the bridge here; tests/guest has the kernel's
    result = succeeded(node.run("ADD", network, sandbox))
    made = switch_of(node).port(result["interfaces"][0]["name"])
    assert {column: made[column] for column in port} == port
    assert links(sandbox)["net1"]["mtu"] == keys.get("mtu", 1500)
    succeeded(node.run("CHECK", {**network, "prevResult": result}, sandbox))
    succeeded(node.run("DEL", network, sandbox))
    assert node.leftovers() == {}
