"""Breaks of what lies around a pod's port: the node's own uplinks and gateways, Route objects, and the network's definition."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

from tests.lab.breaking.breakable_node import BRIDGE, NODE, BreakableNode, RunningPod
from tests.lab.breaking.table import breaks
from tests.lab.kube.cluster_objects import node as api_node
from tests.lab.kube.definitions import define_all, multus_definition
from tests.lab.network.outside import Wire, wired
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.switch import wait_until
from tests.lab.switch.veths import inside, veth

PROVIDER = '[[provider_network]]\nname = "net1"\ninterface = "nic0"\n\n[[rule]]\nnamespaces = ["*"]\nbridges = ["br-*"]\n'
GATEWAY = f'[[gateway]]\nbridge = "{BRIDGE}"\naddresses = ["10.56.0.1/24"]\n'
NETWORKS = "k8s.v1.cni.cncf.io/networks"
DEFINITION = "network-attachment-definitions.k8s.cni.cncf.io"


def _restart(node: BreakableNode, text: str = "", **settings: str) -> None:
    """The agent with these settings, in a file and in variables."""
    file = node.live.directory / "network.toml"
    file.write_text(text)
    node.live.settings |= {"USERSPACE_CNI_CONFIG": str(file)}
    node.live.settings |= {f"USERSPACE_CNI_{name}": value for name, value in settings.items()}
    node.live.end()
    node.live.start()


def _specs(node: BreakableNode) -> dict[str, dict[str, Any]]:
    _, page = node.live.page("/api/v1/network")
    return {each["name"]: each for each in page["specs"]}


def _on_provider(node: BreakableNode) -> Wire:
    """A pod "uplinked" on the bridge of a provider network, whose NIC is wired."""
    wire = node.end.enter_context(wired(node.switch.netns, nic_addresses=()))
    node.end.callback(lambda: node.switch.vsctl("--if-exists", "del-br", "br-net1"))
    _restart(node, PROVIDER)
    wait_until(lambda: _specs(node).get("net1", {}).get("ready"), what="the provider network")
    pod = node.prepare("plain", "uplinked")
    network = json.loads(json.dumps(pod.network))
    network["host"]["bridge"]["bridgeName"] = "br-net1"
    pod.network = network
    done = node.attach(pod)
    assert done.status == 0, done.stdout
    return wire


@breaks("plain", "uplink-without-link", "uplink nic0 of provider network net1", "has no link", asks="uplinked")
def break_cable_pulled(node: BreakableNode, pod: RunningPod) -> None:
    """The cable of the node's uplink was pulled, or the port of the other switch was shut."""
    _on_provider(node).on_outside("ip", "link", "set", "out0", "down")


@breaks("plain", "uplink-down", "uplink nic0 of provider network net1", "is down", asks="uplinked")
def break_uplink_down(node: BreakableNode, pod: RunningPod) -> None:
    """A network manager has set the node's uplink down, and no agent runs."""
    wire = _on_provider(node)
    node.kill_agent()
    wire.on_node("ip", "link", "set", "nic0", "down")


@breaks("plain", "uplink-missing", "uplink nic0 of provider network net1", "is gone from the node", asks="uplinked")
def break_nic_gone(node: BreakableNode, pod: RunningPod) -> None:
    """The NIC of the node's uplink is gone, as after a failure of the card."""
    _on_provider(node).on_node("ip", "link", "delete", "nic0")


@breaks("plain", "provider-network-not-ready", "provider network net1 of the pod's bridge", "nic7", asks="uplinked")
def break_settings_name_another_nic(node: BreakableNode, pod: RunningPod) -> None:
    """After a change of the settings the provider network asks for a NIC that the node does not have."""
    _on_provider(node)
    (node.live.directory / "network.toml").write_text(PROVIDER.replace("nic0", "nic7"))
    os.kill(node.live.pid, signal.SIGHUP)


@breaks("plain", "gateway-not-held", f"gateway {BRIDGE}-gw of the pod's bridge")
def break_gateway_refused(node: BreakableNode, pod: RunningPod) -> None:
    """The node cannot have its gateway on the bridge: another program's link has the name."""
    beyond = node.end.enter_context(netns())
    veth(node.switch.netns, f"{BRIDGE}-gw", beyond, "far0")
    node.end.callback(inside, node.switch.netns, "ip", "link", "delete", f"{BRIDGE}-gw")
    _restart(node, GATEWAY)


@breaks("plain", "gateway-lacks", f"gateway {BRIDGE}-gw", "ip_forward")
def break_forwarding_off(node: BreakableNode, pod: RunningPod) -> None:
    """The node does not forward: ip_forward is off, as after a hardening of sysctls."""
    inside(node.switch.netns, "sysctl", "-q", "-w", "net.ipv4.ip_forward=0")
    _restart(node, GATEWAY)
    node.end.callback(node.command, "uninstall", "--force", f"--bin-dir={node.live.bin}")
    node.end.callback(lambda: (node.live.directory / "network.toml").write_text(""))


def _with_route(node: BreakableNode, pod: RunningPod, *, on: bool) -> None:
    file = node.live.directory / "cr-config.json"
    file.write_text(json.dumps([{"route": "172.16.0.0/16", "dev": "net1"}]))
    define_all(node.api)
    node.api.add(api_node(NODE, "192.0.2.11"))
    _restart(node, ROUTES=str(on).lower(), ROUTES_FILE=str(file))


@breaks(
    "plain", "pod-route-missing", "172.16.0.0/16 dev net1", "for which Route 'cr-config' asks", "is in its place", "`kill -HUP "
)
def break_pod_route_replaced(node: BreakableNode, pod: RunningPod) -> None:
    """A program of the pod has put another route in the place of one of the Route resource's."""
    _with_route(node, pod, on=True)
    wait_until(lambda: "172.16.0.0/16" in inside(pod.netns, "ip", "route"), what="the route")
    beyond = node.end.enter_context(netns())
    veth(beyond, "far0", pod.netns, "vpn0", "10.8.0.2/24")
    inside(pod.netns, "ip", "route", "replace", "172.16.0.0/16", "dev", "vpn0")


@breaks("plain", "routes-off", "Route cr-config asks for routes in this pod", "are off on this node")
def break_routes_off(node: BreakableNode, pod: RunningPod) -> None:
    """A route is asked for in the pod, and the agent of its node does not keep routes."""
    _with_route(node, pod, on=False)


def define(node: BreakableNode, pod: RunningPod) -> dict[str, Any]:
    """The definition by which the pod has asked for its interface, in the API, as it was at its ADD."""
    made = {
        "apiVersion": "k8s.cni.cncf.io/v1",
        "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": "blue", "namespace": "default"},
        "spec": {"config": json.dumps(pod.network)},
    }
    node.api.define(multus_definition())
    node.api.add(made, "default")
    node.api.change("default", pod.name, {"metadata": {"annotations": {NETWORKS: "blue"}}})
    well = node.command("why", pod.name)
    assert "network definition default/blue" in well.stdout, well.stdout
    return made


@breaks("plain", "definition-changed", "default/blue has changed since the pod's ADD", "tag 100")
def break_definition_changed(node: BreakableNode, pod: RunningPod) -> None:
    """The author of the network has given it a VLAN after the pod was attached."""
    made = define(node, pod)
    network = json.loads(made["spec"]["config"])
    network["host"]["bridge"]["vlanId"] = 100
    node.api.add({**made, "spec": {"config": json.dumps(network)}}, "default")


@breaks("plain", "definition-deleted", "default/blue, by which the pod asked for this interface, was deleted")
def break_definition_deleted(node: BreakableNode, pod: RunningPod) -> None:
    """The network definition was deleted after the pod was attached."""
    define(node, pod)
    node.api.objects(DEFINITION).remove("default", "blue")


@breaks("plain", "definition-refused", "is refused now", "brigde")
def break_definition_misspelt(node: BreakableNode, pod: RunningPod) -> None:
    """The author of the network has misspelt a key after the pod was attached."""
    made = define(node, pod)
    network = json.loads(made["spec"]["config"])
    network["host"]["brigde"] = {}
    node.api.add({**made, "spec": {"config": json.dumps(network)}}, "default")


def _ask_for(node: BreakableNode, pod: RunningPod, rate: str) -> None:
    """The pod's annotation asks for this limit towards it."""
    asked = json.dumps({"net1": {"ingressRate": rate}})
    node.api.change("default", pod.name, {"metadata": {"annotations": {"userspace/bandwidth": asked}}})


@breaks("plain", "annotation-refused", "is refused, and the port keeps what it had", "fast", "plain userspace/bandwidth=VALUE`")
def break_annotation_that_is_no_number(node: BreakableNode, pod: RunningPod) -> None:
    """The pod's author has written a limit into its annotations that is no number, after it was attached."""
    _ask_for(node, pod, "fast")


@breaks("plain", "agent-dead", "ask for the limit to the pod 30000000 bit/s", "where it has none", "that is not applied")
def break_annotation_without_an_agent(node: BreakableNode, pod: RunningPod) -> None:
    """The pod's author asks for a limit, and no agent runs that could set it."""
    node.kill_agent()
    _ask_for(node, pod, "30M")


@breaks("plain", "add-refused", "(code 11)", "has no annotation", asks="late")
def break_addresses_never_noted(node: BreakableNode, pod: RunningPod) -> None:
    """The network's addresses are in the pod's annotations, and the controller that writes them does not run."""
    late = node.prepare("plain", "late")
    network = {key: value for key, value in late.network.items() if key != "ipam"}
    late.network = {**network, "addresses": "annotations"}
    _restart(node, DEADLINE_S="8", KUBEOVN_ANNOTATIONS="true")
    assert node.attach(late).code == 11


@breaks("plain", "add-refused", "(code 7)", "fast", asks="greedy")
def break_limit_that_is_no_number(node: BreakableNode, pod: RunningPod) -> None:
    """The pod's author has written a limit that is no number: its ADD is refused."""
    greedy = node.prepare("plain", "greedy")
    _ask_for(node, greedy, "fast")
    assert node.attach(greedy).code == 7
