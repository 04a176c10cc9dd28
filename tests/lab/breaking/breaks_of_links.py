"""Breaks of a kernel link: its two ends, its guard and its limit, and what the pod has made of addresses and routes."""

from __future__ import annotations

import json
from typing import Any

from tests.lab.breaking.breakable_node import BreakableNode, RunningPod
from tests.lab.breaking.breaks_of_bridges import add_uplink
from tests.lab.breaking.table import breaks
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.switch import wait_until
from tests.lab.switch.veths import give, inside, veth
from userspace_cni.attachment.steps.pod_link import host_end

GATEWAY = "10.56.0.1"


def _host_end(pod: RunningPod) -> str:
    return host_end(pod.container, "net1")


def _on_host(node: BreakableNode, *argv: str) -> None:
    inside(node.switch.netns, *argv)


def _address(pod: RunningPod) -> str:
    """With its prefix length."""
    [link] = json.loads(inside(pod.netns, "ip", "-json", "-4", "address", "show", "net1"))
    [found] = link["addr_info"]
    return f"{found['local']}/{found['prefixlen']}"


def _routed(node: BreakableNode, name: str, **keys: Any) -> RunningPod:
    """Another pod, whose network has these keys, too; "routes" are those of its IPAM."""
    pod = node.prepare("plain", name)
    network = json.loads(json.dumps(pod.network)) | {key: value for key, value in keys.items() if key != "routes"}
    network["ipam"] |= {"routes": keys["routes"]} if "routes" in keys else {}
    pod.network = network
    done = node.attach(pod)
    assert done.status == 0, done.stdout
    return pod


@breaks("plain", "checksum-offload", "checksum offload is on", "ping works and TCP never connects")
def break_checksum_offload(node: BreakableNode, pod: RunningPod) -> None:
    """A program of the pod has turned checksum offload on again."""
    inside(pod.netns, "ethtool", "-K", "net1", "tx", "on")


@breaks("plain", "guard-missing", "nftables chain", "is gone", "past the VLAN")
def break_nftables_flushed(node: BreakableNode, pod: RunningPod) -> None:
    """A firewall has flushed all tables of nftables, and no agent runs."""
    node.kill_agent()
    _on_host(node, "nft", "flush", "ruleset")


@breaks("plain", "host-end-down", "host end", "is down", "start the agent first, ", "on the node, ")
def break_host_end_down(node: BreakableNode, pod: RunningPod) -> None:
    """An administrator has set the host end down, and no agent runs."""
    node.kill_agent()
    _on_host(node, "ip", "link", "set", _host_end(pod), "down")


@breaks("plain", "host-end-missing", "is gone from where ovs-vswitchd opens its ports")
def break_host_end_deleted(node: BreakableNode, pod: RunningPod) -> None:
    """An administrator has deleted the host end, and with it the pod's; no agent runs."""
    node.kill_agent()
    _on_host(node, "ip", "link", "delete", _host_end(pod))


@breaks("plain", "host-end-renamed", "is called eth7 now")
def break_host_end_renamed(node: BreakableNode, pod: RunningPod) -> None:
    """udev or a person has given the host end another name, and no agent runs."""
    node.kill_agent()
    for argv in (("down",), ("name", "eth7")):
        _on_host(node, "ip", "link", "set", _host_end(pod), *argv)
    _on_host(node, "ip", "link", "set", "eth7", "up")


@breaks("plain", "pod-end-down", "the pod's end net1 is down", "delete the pod (`kubectl -n default delete pod plain`)")
def break_pod_end_down(node: BreakableNode, pod: RunningPod) -> None:
    """A program of the pod has set its interface down."""
    inside(pod.netns, "ip", "link", "set", "net1", "down")


@breaks("plain", "pod-end-renamed", "the pod's end net1 is called lan0 now")
def break_pod_end_renamed(node: BreakableNode, pod: RunningPod) -> None:
    """A program of the pod has given its interface another name."""
    for argv in (("net1", "down"), ("net1", "name", "lan0"), ("lan0", "up")):
        inside(pod.netns, "ip", "link", "set", *argv)


@breaks("plain", "pod-end-moved", "has moved it")
def break_pod_end_moved(node: BreakableNode, pod: RunningPod) -> None:
    """A container in the pod has moved the interface into a network namespace of its own."""
    other = node.end.enter_context(netns())
    inside(pod.netns, "ip", "link", "set", "net1", "netns", other)


@breaks("plain", "link-mtu-changed", "mtu: expected 1500, found 1300")
def break_pod_end_mtu(node: BreakableNode, pod: RunningPod) -> None:
    """A program of the pod has changed the MTU of its interface."""
    inside(pod.netns, "ip", "link", "set", "net1", "mtu", "1300")


@breaks("plain", "address-missing", "does not have 10.56.0.", "something in the pod has taken it away")
def break_address_taken_away(node: BreakableNode, pod: RunningPod) -> None:
    """A program of the pod has removed its address."""
    inside(pod.netns, "ip", "address", "flush", "dev", "net1")


@breaks("plain", "address-missing", "IPv6 is off at it", asks="dual")
def break_ipv6_turned_off(node: BreakableNode, pod: RunningPod) -> None:
    """A program of the pod has turned IPv6 off."""
    ranges = [[{"subnet": "10.57.0.0/24"}], [{"subnet": "fd57::/64"}]]
    dual = _routed(node, "dual", ipam={**pod.network["ipam"], "ranges": ranges})
    inside(dual.netns, "sysctl", "-q", "-w", "net.ipv6.conf.net1.disable_ipv6=1")


@breaks("plain", "address-failed", "pod default/plain on this node (MAC", "was found to have it (dadfailed)", asks="dual")
def break_ipv6_address_of_another(node: BreakableNode, pod: RunningPod) -> None:
    """Another machine has the IPv6 address, which the pod has set anew with duplicate address detection."""
    ranges = [[{"subnet": "fd57::/64"}]]
    dual = _routed(node, "dual", ipam={**pod.network["ipam"], "ranges": ranges})
    [link] = json.loads(inside(dual.netns, "ip", "-json", "-6", "address", "show", "net1", "scope", "global"))
    address = f"{link['addr_info'][0]['local']}/64"
    give(pod.netns, "net1", address)
    inside(dual.netns, "sysctl", "-q", "-w", "net.ipv6.conf.net1.accept_dad=1")
    inside(dual.netns, "ip", "address", "delete", address, "dev", "net1")
    inside(dual.netns, "ip", "address", "add", address, "dev", "net1")
    inside(pod.netns, "ip", "link", "set", "net1", "up")
    wait_until(
        lambda: "dadfailed" in inside(dual.netns, "ip", "-6", "address", "show", "net1"),
        what="the kernel to find the other machine",
    )


@breaks("plain", "route-missing", "the pod lacks the route 10.99.0.0/16", asks="routed")
def break_route_removed(node: BreakableNode, pod: RunningPod) -> None:
    """A program of the pod has removed a route of its network."""
    routed = _routed(node, "routed", routes=[{"dst": "10.99.0.0/16", "gw": GATEWAY}])
    give(pod.netns, "net1", f"{GATEWAY}/24")
    inside(routed.netns, "ip", "route", "delete", "10.99.0.0/16")


@breaks("plain", "route-overridden", "overrides the way to 10.56.0.0/24", "10.56.0.128/25 dev vpn0")
def break_network_overridden(node: BreakableNode, pod: RunningPod) -> None:
    """A VPN client in the pod has a more specific route into the network."""
    beyond = node.end.enter_context(netns())
    veth(beyond, "far0", pod.netns, "vpn0", "10.8.0.2/24")
    inside(pod.netns, "ip", "route", "add", "10.56.0.128/25", "dev", "vpn0")


@breaks(
    "plain", "address-duplicate", "pod default/twin on this node (MAC", "answers for the pod's address", "from pod default/twin"
)
def break_address_given_twice(node: BreakableNode, pod: RunningPod) -> None:
    """Another pod of the network has the same address, as two IPAM plugins may give it."""
    twin = node.add("plain", "twin")
    give(twin.netns, "net1", _address(pod))


@breaks("plain", "gateway-silent", f"the next hop {GATEWAY} of the pod's routes", "does not answer", asks="routed")
def break_gateway_silent(node: BreakableNode, pod: RunningPod) -> None:
    """The router of the network is away, or in another VLAN."""
    add_uplink(node)
    _routed(node, "routed", routes=[{"dst": "0.0.0.0/0", "gw": GATEWAY}])


@breaks("plain", "rp-filter", "rp_filter is strict", "would leave by another interface")
def break_rp_filter(node: BreakableNode, pod: RunningPod) -> None:
    """Packets come to the pod from a network to which it has no route by this interface."""
    peer = node.add("plain", "peer")
    give(peer.netns, "net1", "192.0.2.7/32")
    inside(pod.netns, "sysctl", "-q", "-w", "net.ipv4.conf.net1.rp_filter=1")
    address = _address(pod).partition("/")[0]
    inside(peer.netns, "ip", "route", "replace", f"{address}/32", "dev", "net1", "src", "192.0.2.7")
    [link] = json.loads(inside(pod.netns, "ip", "-json", "link", "show", "net1"))
    inside(
        peer.netns, "ip", "neighbour", "replace", address, "lladdr", link["address"], "dev", "net1"
    )  # it answers no ARP either
    made = "from socket import *; s = socket(AF_INET, SOCK_DGRAM); "
    inside(peer.netns, "python3", "-c", f"{made}s.bind(('192.0.2.7', 0)); s.sendto(b'', ('{address}', 9))")


@breaks(
    "plain", "limit-missing", "limit for what leaves the pod by net1 is not in force", "start the agent first, ", asks="limited"
)
def break_limit_removed(node: BreakableNode, pod: RunningPod) -> None:
    """A program of the pod has removed the limit of what it sends, and no agent runs."""
    limited = _routed(node, "limited", bandwidth={"egressRate": 10_000_000})
    node.kill_agent()
    inside(limited.netns, "tc", "qdisc", "delete", "dev", "net1", "root")
