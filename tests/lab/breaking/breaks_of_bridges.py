"""Breaks of a bridge and of a port's neighbours there: VLANs, MTUs, addresses, flows, controllers, threads."""

from __future__ import annotations

import subprocess
from typing import Any

from tests.lab.breaking.breakable_node import BRIDGE, BreakableNode, RunningPod
from tests.lab.breaking.table import breaks
from tests.lab.node.links import inside
from tests.lab.switch.switch import wait_until

ROW = "external_ids:owner=another"


def neighbour(node: BreakableNode, name: str, **host: Any) -> RunningPod:
    """A second pod on the bridge, whose network has these keys in `host`; its application is connected."""
    pod = node.prepare("app", name)
    network = dict(pod.network)
    network["host"] = {**network["host"], **host}
    pod.network = network
    done = node.attach(pod)
    assert done.status == 0, done.stdout
    node.start(pod, "server")
    return pod


def vlan(number: int) -> dict[str, Any]:
    """The key of a network whose ports have this VLAN."""
    return {"bridge": {"bridgeName": BRIDGE, "vlanId": number}}


def openflow(node: BreakableNode, command: str, *words: str) -> None:
    """A command of ovs-ofctl at the bridge."""
    place = f"unix:{node.switch.rundir}/{BRIDGE}.mgmt"
    subprocess.run(["ovs-ofctl", command, place, *words], check=True, capture_output=True)


def number_of(node: BreakableNode, pod: RunningPod) -> str:
    return str(node.switch.interface(pod.port)["ofport"])


def add_uplink(node: BreakableNode, mtu: int = 1500) -> None:
    """Give the bridge a NIC, `wire`, at whose other end nothing answers."""
    inside(node.switch.netns, "ip", "link", "add", "wire", "mtu", str(mtu), "type", "veth", "peer", "name", "far")
    node.end.callback(inside, node.switch.netns, "ip", "link", "delete", "wire")
    node.switch.vsctl("add-port", BRIDGE, "wire")
    node.end.callback(node.switch.vsctl, "--if-exists", "del-port", "wire")


@breaks("app", "vlan-changed", "the record has no VLAN tag, the switch has 200", "another VLAN", "set it back", mended=True)
def break_vlan_by_hand(node: BreakableNode, pod: RunningPod) -> None:
    """The agent is down, and another program has given the port a VLAN."""
    node.kill_agent()
    node.switch.vsctl("set", "Port", pod.port, "tag=200")


@breaks(
    "app",
    "vlan-alone",
    "no other port of bridge br-test has VLAN 777",
    "the other ports have VLAN 100 (pod default/peer ",
    asks="stray",
)
def break_vlan_of_nobody(node: BreakableNode, pod: RunningPod) -> None:
    """A network has a VLAN that no other port of its bridge has."""
    neighbour(node, "peer", **vlan(100))
    neighbour(node, "stray", **vlan(777))


@breaks("app", "mtu-unlike", "the pod's MTU is 9000", "pod default/app", "1500", "longer than 1500", asks="jumbo")
def break_mtu_unlike(node: BreakableNode, pod: RunningPod) -> None:
    """A network has a larger MTU than the others on its bridge."""
    neighbour(node, "jumbo", mtu=9000)


@breaks("app", "mtu-unlike", "uplink wire 1400", "longer than 1400")
def break_mtu_of_the_uplink(node: BreakableNode, pod: RunningPod) -> None:
    """The bridge's uplink has a smaller MTU than its pods."""
    add_uplink(node, 1400)


@breaks("app", "mirror-foreign", "mirror spy of another program", "every frame of the bridge", mended=True)
def break_foreign_mirror(node: BreakableNode, pod: RunningPod) -> None:
    """Another program has made a mirror of the bridge."""
    words = ["add-port", BRIDGE, "spy-out", "--", "set", "Interface", "spy-out", "type=internal"]
    words += ["--", "--id=@o", "get", "Port", "spy-out"]
    words += ["--", "--id=@m", "create", "Mirror", "name=spy", "select_all=true", "output_port=@o"]
    node.switch.vsctl(*words, "--", "set", "Bridge", BRIDGE, "mirrors=@m")
    node.end.callback(node.switch.vsctl, "--if-exists", "del-port", "spy-out")


@breaks("app", "mirror-output-taken", "mirror wrong of another program sends its copies to this port", "reserves", mended=True)
def break_mirror_output(node: BreakableNode, pod: RunningPod) -> None:
    """The agent is down, and another program has chosen the pod's port as the output of its mirror."""
    node.kill_agent()
    words = ["--id=@o", "get", "Port", pod.port, "--", "--id=@m", "create", "Mirror", "name=wrong", "output_port=@o"]
    node.switch.vsctl("--", *words, "--", "set", "Bridge", BRIDGE, "mirrors=@m")


@breaks(
    "plain",
    "duplicate-address",
    "address 10.56.0.2 is also that of default/plain/net1",
    "networks twin-net and plain-net both give out 10.56.0.0/24",
    asks="twin",
)
def break_duplicate_address(node: BreakableNode, pod: RunningPod) -> None:
    """Two networks give out the same addresses on one bridge."""
    twin = node.prepare("plain", "twin")
    network = dict(twin.network)
    network["name"] = "twin-net"
    twin.network = network
    done = node.attach(twin)
    assert done.status == 0, done.stdout


@breaks("plain", "duplicate-address", "address 10.56.0.2 is also that of the node's own link on bridge br-test")
def break_address_of_the_node(node: BreakableNode, pod: RunningPod) -> None:
    """An administrator has given the bridge's own link an address that a pod has."""
    inside(node.switch.netns, "ip", "address", "add", "10.56.0.2/24", "dev", BRIDGE)


@breaks("app", "flows-drop", "a flow of bridge br-test drops what the pod sends", "in_port=", "priority 100")
def break_drop_flow(node: BreakableNode, pod: RunningPod) -> None:
    """Another program has added a flow that drops the frames of the port."""
    openflow(node, "add-flow", f"in_port={number_of(node, pod)},priority=100,actions=drop")


@breaks("app", "flows-none", "no flow of bridge br-test matches what the pod sends", "secure", mended=True)
def break_no_flows(node: BreakableNode, pod: RunningPod) -> None:
    """The bridge was made secure, and no controller writes flows."""
    node.switch.vsctl("set-fail-mode", BRIDGE, "secure")
    openflow(node, "del-flows")


@breaks("app", "controller-away", "the OpenFlow controller tcp:127.0.0.1:1, which is not connected", mended=True)
def break_controller_away(node: BreakableNode, pod: RunningPod) -> None:
    """The bridge has a controller that was not started."""
    node.switch.vsctl("set-controller", BRIDGE, "tcp:127.0.0.1:1")


@breaks("app", "port-no-flood", "OpenFlow has set port", "no-flood", "no broadcast", mended=True)
def break_no_flood(node: BreakableNode, pod: RunningPod) -> None:
    """An administrator has forbidden the port by ovs-ofctl mod-port to get broadcasts."""
    openflow(node, "mod-port", number_of(node, pod), "no-flood")


@breaks("app", "port-no-receive", "OpenFlow has set port", "drops all that the pod sends", mended=True)
def break_no_receive(node: BreakableNode, pod: RunningPod) -> None:
    """An administrator has forbidden the port by ovs-ofctl mod-port to receive."""
    openflow(node, "mod-port", number_of(node, pod), "no-receive")


@breaks("app", "port-down", "OpenFlow has set port", "down", "carries no frame", mended=True)
def break_port_down(node: BreakableNode, pod: RunningPod) -> None:
    """An administrator has set the port down by ovs-ofctl mod-port."""
    openflow(node, "mod-port", number_of(node, pod), "down")


@breaks("app", "port-spanning-tree", "spanning tree (STP) of bridge br-test has its port", "forwards no frame", mended=True)
def break_spanning_tree(node: BreakableNode, pod: RunningPod) -> None:
    """An administrator has turned on the spanning tree, and the port listens for half a minute."""
    node.switch.vsctl("set", "Bridge", BRIDGE, "stp_enable=true")


@breaks("app", "port-spanning-tree", "spanning tree (RSTP) of bridge br-test has its port", mended=True)
def break_rapid_spanning_tree(node: BreakableNode, pod: RunningPod) -> None:
    """An administrator has turned on the rapid spanning tree."""
    node.switch.vsctl("set", "Bridge", BRIDGE, "rstp_enable=true")


@breaks(
    "app",
    "port-unpolled",
    "no thread of the switch polls port",
    "only what was given to it by name",
    "pmd-rxq-affinity",
    mended=True,
)
def break_unpolled(node: BreakableNode, pod: RunningPod) -> None:
    """An administrator has given the only polling core to another port."""
    peer = neighbour(node, "greedy")
    options = ("pmd-rxq-assign", "pmd-rxq-isolate")
    node.end.callback(node.switch.vsctl, "remove", "Open_vSwitch", ".", "other_config", *options)
    core = node.switch.appctl("dpif-netdev/pmd-rxq-show").partition("core_id ")[2].partition(":")[0]
    node.switch.vsctl("set", "Interface", peer.port, f"other_config:pmd-rxq-affinity=0:{core}")
    wait_until(lambda: "isolated : true" in node.switch.appctl("dpif-netdev/pmd-rxq-show"), what="the core isolated")
