"""A pod on a `system` port of a netdev bridge also reaches the node's own stack; with a guard it reaches the bridge alone."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from ipaddress import IPv4Address

import pytest

from tests.host.places import soon
from tests.lab.frames.taps import SECONDS, echoes, links, socket_in
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.switch import Switch, wait_until
from tests.lab.switch.veths import give, inside, veth
from userspace_cni.attachment.steps import Guard
from userspace_cni.host.pod_net.guards import GuardDriver, find_guarded
from userspace_cni.host.pod_net.neighbour_frames import AddressClaim, claim, question

STORE = "store-of-the-test"
NODE, POD, NEIGHBOUR, STRANGER = "10.9.0.254", "10.9.0.1", "10.9.0.2", "10.9.1.1"
LINK_LOCAL = "fe80::254"
PORT = 4000
EVERY_PROTOCOL = 3
NO_CHECKSUM = 11
"""SO_NO_CHECK: OVS completes no checksum that the kernel has left to a NIC."""
SHORTLY = 0.3
ALL = {"ARP", "UDP", "IPv6", "another VLAN"}
HOST_ENDS = ("uc-pod", "uc-neighbour", "uc-stranger")


@dataclass(frozen=True)
class Pods:
    """Network namespaces: the switch's, two pods on VLAN 100, and one on VLAN 200."""

    node: str
    pod: str
    neighbour: str
    stranger: str


@pytest.fixture
def pods(switch: Switch) -> Iterator[Pods]:
    """The bridge with the pods, and a node that forwards: it has an address on the bridge without a tag, and one on VLAN 200."""
    node = f"{switch.dir}/netns"
    tags = dict(zip(HOST_ENDS, ("tag=100", "tag=100", "tag=200"), strict=True))
    switch.vsctl("add-br", "br-test", "--", "set", "Bridge", "br-test", "datapath_type=netdev")
    for name, tag, address in (("to-node", "tag=[]", f"{NODE}/24"), ("to-stranger", "tag=200", "10.9.1.254/24")):
        switch.vsctl("add-port", "br-test", name, "--", "set", "Interface", name, "type=internal", "--", "set", "Port", name, tag)
        give(node, name, address)
    with ExitStack() as stack:
        made = Pods(node, *(stack.enter_context(netns()) for _ in HOST_ENDS))
        for name, path, address in zip(
            HOST_ENDS, (made.pod, made.neighbour, made.stranger), (POD, NEIGHBOUR, STRANGER), strict=True
        ):
            veth(node, name, path, "eth0", f"{address}/24")
            stack.callback(inside, node, "ip", "link", "del", name)
            switch.vsctl(
                "add-port", "br-test", name, "--", "set", "Interface", name, "type=system", "--", "set", "Port", name, tags[name]
            )
        give(node, HOST_ENDS[0], f"{LINK_LOCAL}/64")
        give(made.pod, "eth0", "fe80::1/64")
        inside(made.pod, "ip", "route", "add", "10.9.1.0/24", "via", NODE)
        inside(
            node, "sh", "-c", "cd /proc/sys/net/ipv4; echo 1 >ip_forward; for each in conf/*/rp_filter; do echo 0 >$each; done"
        )
        wait_until(lambda: echoes(made.pod, NEIGHBOUR), SECONDS, "the bridge carries the pods' frames")
        yield made


def answered(pods: Pods, seconds: float) -> bool:
    """Whether the node answers the pod's ARP request for its address."""
    mac = links(pods.pod)["eth0"]["address"]
    with socket_in(pods.pod, socket.AF_PACKET, socket.SOCK_RAW) as wire:
        wire.bind(("eth0", EVERY_PROTOCOL))
        wire.settimeout(seconds)
        wire.send(question(mac, IPv4Address(POD), IPv4Address(NODE)))
        with suppress(TimeoutError):
            while True:
                found = claim(wire.recv(2048))
                if found == AddressClaim(IPv4Address(NODE), links(pods.node)[HOST_ENDS[0]]["address"]):
                    return True
    return False


def arrives(pods: Pods, to: str, at: str, seconds: float, family: socket.AddressFamily = socket.AF_INET) -> bool:
    """Whether a datagram of the pod for the address reaches a socket in the namespace `to`."""
    with socket_in(to, family, socket.SOCK_DGRAM) as receiver, socket_in(pods.pod, family, socket.SOCK_DGRAM) as sender:
        receiver.bind(("", PORT))
        receiver.settimeout(seconds)
        scope = (0, links(pods.pod)["eth0"]["ifindex"]) if family == socket.AF_INET6 else ()
        sender.setsockopt(socket.SOL_SOCKET, NO_CHECKSUM, int(family == socket.AF_INET))
        sender.sendto(b"from the pod", (at, PORT, *scope))
        with suppress(TimeoutError):
            return receiver.recv(64) == b"from the pod"
    return False


def ways(pods: Pods, seconds: float) -> set[str]:
    """The ways by which the pod bypasses the bridge; each is awaited for so long."""
    return {
        way
        for way, open_ in {
            "ARP": answered(pods, seconds),
            "UDP": arrives(pods, pods.node, NODE, seconds),
            "IPv6": arrives(pods, pods.node, LINK_LOCAL, seconds, socket.AF_INET6),
            "another VLAN": arrives(pods, pods.stranger, STRANGER, seconds),
        }.items()
        if open_
    }


def test_the_hole_and_the_guard(pods: Pods) -> None:
    """Without a guard the node answers a pod of another VLAN, receives from it and forwards it into a third; with one it does
    not.

    Traffic over the bridge goes on.
    """
    assert ways(pods, SECONDS) == ALL
    driver, guard = GuardDriver(), Guard(HOST_ENDS[0], STORE, pods.node)
    driver.apply(guard, soon())
    assert ways(pods, SHORTLY) == set()
    assert echoes(pods.pod, NEIGHBOUR)
    assert find_guarded(pods.node, STORE) == {HOST_ENDS[0]: True}
    driver.undo(guard, soon())
    assert ways(pods, SECONDS) == ALL
