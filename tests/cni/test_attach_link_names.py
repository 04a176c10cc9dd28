"""Names that a tenant chooses for a bridge or an interface: a name that a link of the node already has is refused."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cni.spec import records, refused, scripted, succeeded, switch_of
from tests.lab.kube.pods import Pod
from tests.lab.node.links import inside
from tests.lab.node.node import Node
from tests.lab.switch.taps import add_tap, delete_link, tap

ENTRIES = pytest.mark.parametrize("node", ["process", "agent"], indirect=True)
TAKEN = "vpn0"
"""The name of another program's tap."""
KINDS: dict[str, dict[str, Any]] = {
    "client": {"iftype": "vhostuser", "vhost": {"mode": "client"}},
    "server": {"iftype": "vhostuser", "vhost": {"mode": "server"}},
    "veth": {"iftype": "veth"},
}


@pytest.fixture(autouse=True)
def links(node: Node) -> Iterator[None]:
    yield
    for name in (TAKEN, "t1-e0", "nic0"):
        delete_link(switch_of(node).netns, name)


def network(node: Node, bridge: str, kind: str = "client", **keys: Any) -> dict[str, Any]:
    """A network whose tenant chose that bridge."""
    return node.network(host={"engine": "ovs-dpdk", "bridge": {"bridgeName": bridge}, **KINDS[kind]}, **keys)


@ENTRIES
@pytest.mark.parametrize("kind", KINDS)
def test_a_bridge_that_is_called_like_an_idle_tap(node: Node, sandbox: str, kind: str) -> None:
    """ADD is refused with 7 before any effect, and neither that nor DEL changes the tap."""
    netns, pod = switch_of(node).netns, Pod()
    before = add_tap(netns, TAKEN)
    refused(node.run("ADD", network(node, TAKEN, kind), sandbox, CNI_ARGS=pod.args), 7, TAKEN, "ip link delete")
    assert (records(node), node.leftovers(), tap(netns, TAKEN)) == ([], {}, before)
    succeeded(node.run("DEL", network(node, TAKEN, kind), sandbox, CNI_ARGS=pod.args))
    assert tap(netns, TAKEN) == before


@ENTRIES
@pytest.mark.parametrize("bridge", ["lo", "nic0", "ovs-netdev", "ovs-system", "vxlan_sys_4789"])
def test_a_bridge_that_is_called_like_any_link(node: Node, sandbox: str, bridge: str) -> None:
    """A NIC, lo and what Open vSwitch keeps for itself are refused with 7; nothing is left."""
    inside(switch_of(node).netns, "ip", "link", "add", "nic0", "type", "veth", "peer", "name", "nic0p")
    refused(node.run("ADD", network(node, bridge), sandbox, CNI_ARGS=Pod().args), 7, bridge)
    assert (records(node), node.leftovers()) == ([], {})


@ENTRIES
def test_an_interface_whose_port_is_called_like_a_link(node: Node, sandbox: str) -> None:
    """The name of a port is made of the container's and the interface's, which a pod chooses: it is checked like the bridge's."""
    netns = switch_of(node).netns
    before = add_tap(netns, "t1-e0")
    refused(node.run("ADD", network(node, "br-test"), sandbox, container="t1", ifname="e0"), 7, "t1-e0")
    assert (records(node), node.leftovers(), tap(netns, "t1-e0")) == ([], {}, before)


@pytest.mark.parametrize("kind", KINDS)
def test_a_namespace_that_cannot_be_read(node: Node, sandbox: str, kind: str) -> None:
    """If the node's links cannot be listed, ADD answers "try again"; no name counts as free."""
    node.settings["USERSPACE_CNI_SWITCH_NETNS"] = "/run/netns/there-is-none"
    refused(node.run("ADD", network(node, "br-test", kind), sandbox, CNI_ARGS=Pod().args), 11, "switch_netns")
    del node.settings["USERSPACE_CNI_SWITCH_NETNS"]
    assert (records(node), node.leftovers()) == ([], {})


@ENTRIES
def test_a_tap_that_comes_while_addresses_are_asked_for(node: Node, sandbox: str) -> None:
    """A tap that another program makes after the name was checked, but before
    the rows, makes ADD refuse with 7 and undo everything.
    """
    delegate, netns = scripted(node), switch_of(node).netns
    maker = node.bin / "tapmaker"
    make = f"nsenter --net={netns} {shutil.which('ip')} tuntap add dev {TAKEN} mode tap"
    maker.write_text(f'#!/bin/sh\n[ "$CNI_COMMAND" != ADD ] || {make} || exit 1\nexec {node.bin}/{delegate.name}\n')
    maker.chmod(0o755)
    refused(node.run("ADD", network(node, TAKEN, ipam={"type": maker.name}), sandbox, CNI_ARGS=Pod().args), 7, TAKEN)
    assert (records(node), node.leftovers()) == ([], {})
    assert [verb for verb in delegate.commands() if verb != "VERSION"] == ["ADD", "DEL"]
    found = tap(netns, TAKEN)
    assert (found["alias"], found["persist"], found["flags"]) == ("", True, ["BROADCAST", "MULTICAST"])
