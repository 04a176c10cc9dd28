"""Bridges of the kernel's datapath, netem on both datapaths, and frames of vhost-user ports."""

from __future__ import annotations

import json

import pytest
import yaml

from tests.lab.hardware.full_guest import FullGuest
from tests.lab.hardware.guest_node import GuestNode, veth_network
from tests.lab.pages import ROOT, blocks

LATENCY_MS = 80
ENGINES = ("ovs", "ovs-dpdk")


def test_pods_on_a_bridge_of_the_kernel(guest: FullGuest, node: GuestNode) -> None:
    """Two pods reach each other by flows of the kernel's datapath; CHECK passes; the bridge is removed with the last one."""
    networks = {f"pod{n}": veth_network("br-k", f"192.0.2.{n}/24", engine="ovs") for n in (1, 2)}
    results = {pod: node.add(pod, network) for pod, network in networks.items()}
    assert guest.do("ovs-vsctl", "get", "Bridge", "br-k", "datapath_type") == "system\n"
    assert node.reaches("192.0.2.1", "pod2")
    assert "eth_type(0x0800)" in guest.do("ovs-appctl", "dpctl/dump-flows", "system@ovs-system")
    for pod, network in networks.items():
        assert node.ask("CHECK", pod, network | {"prevResult": results[pod]}) == {}
        node.delete(pod, network)
    assert guest.do("ovs-vsctl", "list-br") == ""


@pytest.mark.parametrize("engine", ENGINES)
def test_a_worse_line_towards_a_pod(guest: FullGuest, node: GuestNode, engine: str) -> None:
    """On either datapath an answer takes at least the latency of the pod's network; the latency ends with the pod."""
    networks = {f"pod{n}": veth_network("br-x", f"192.0.2.{n}/24", engine=engine) for n in (1, 2)}
    networks["pod1"]["netem"] = {"latency_ms": LATENCY_MS}
    for pod, network in networks.items():
        node.add(pod, network)
    assert node.reaches("192.0.2.1", "pod2")
    told = guest.do("nsenter", "--net=/run/netns/pod2", "ping", "-n", "-q", "-c", "2", "-i", "0.2", "192.0.2.1")
    fastest = float(told.rpartition("=")[2].partition("/")[0])
    assert fastest >= LATENCY_MS, told
    assert "netem" in guest.do("tc", "qdisc", "show")
    node.delete("pod1", networks["pod1"])
    assert "netem" not in guest.do("tc", "qdisc", "show")


def test_frames_of_vhost_user_ports(guest: FullGuest) -> None:
    """Frames of our own go from one vhost-user port of the switch to another, and back."""
    guest.shell("ovs-vsctl add-br br0 -- set Bridge br0 datapath_type=netdev")
    told = json.loads(guest.do("python3", "-m", "userspace_cni", "ping", "--bridge", "br0", "--count", "20", "--json"))
    assert told["nanoseconds"]["min"] > 0, told


def test_a_network_that_came_from_ovs_cni(guest: FullGuest, node: GuestNode) -> None:
    """The example of the page about ovs-cni, on an administrator's bridge: the port has its VLAN, and DEL leaves the bridge."""
    page = ROOT / "docs" / "from-ovs-cni.md"
    [_, block, *_] = (each.text for each in blocks(page) if "NetworkAttachmentDefinition" in each.text)
    network = json.loads(yaml.safe_load(block)["spec"]["config"])
    guest.shell("ovs-vsctl add-br br1")
    result = node.add("pod1", network)
    assert guest.do("ovs-vsctl", "get", "Port", result["interfaces"][0]["name"], "tag") == "100\n"
    assert node.ask("CHECK", "pod1", network | {"prevResult": result}) == {}
    node.delete("pod1", network)
    assert guest.do("ovs-vsctl", "list-ports", "br1") == ""
