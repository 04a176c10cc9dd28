"""Breaks that show only when frames move: limits, an application that does not read, addresses that others use."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from contextlib import closing, suppress
from typing import Any

from tests.lab.breaking.breakable_node import BreakableNode, RunningPod
from tests.lab.breaking.table import breaks
from tests.lab.frames.taps import socket_in
from tests.lab.switch.switch import wait_until

BROADCAST = bytes.fromhex("ffffffffffff")
STRANGER = bytes.fromhex("020000005e01")
KIND = bytes.fromhex("88b5")
"""EtherType of local experiments."""
SENT = 200
_PAUSE_S = 0.005
"""Between two frames of a pod that keeps sending."""
TINY = {"ingressRate": 8000, "ingressBurst": 12000}


def mac_of(node: BreakableNode, pod: RunningPod) -> bytes:
    return bytes.fromhex(node.switch.interface(pod.port)["external_ids"]["attached-mac"].replace(":", ""))


def send(pod: RunningPod, *sources: bytes, to: bytes = BROADCAST) -> None:
    """Send a frame from each of these addresses out of a pod's kernel link."""
    with closing(socket_in(pod.netns, socket.AF_PACKET, socket.SOCK_RAW)) as link:
        link.bind(("net1", 0))
        for source in sources:
            with suppress(OSError):  # the kernel says so where a limit at the pod's end drops it
                link.send(to + source + KIND + bytes(100))


def flood(node: BreakableNode) -> None:
    """Another pod of the bridge sends broadcasts."""
    send(node.add("plain", "sender"), *[STRANGER] * SENT)
    node.switch.write_statistics()


def limited(node: BreakableNode, bandwidth: Mapping[str, int]) -> RunningPod:
    """A pod whose network limits it."""
    pod = node.prepare("app", "slow")
    pod.network = {**pod.network, "bandwidth": dict(bandwidth)}
    done = node.attach(pod)
    assert done.status == 0, done.stdout
    node.start(pod, "server")
    return pod


@breaks(
    "app",
    "application-not-reading",
    "is connected and does not take its frames",
    "in the moment of this look",
    "no limit has dropped these",
)
def break_not_reading(node: BreakableNode, pod: RunningPod) -> None:
    """The application is connected and gives the switch no buffers, while another pod sends."""
    sender, over = node.add("plain", "sender"), threading.Event()

    def keep_sending() -> None:
        while not over.wait(_PAUSE_S):
            send(sender, STRANGER)

    thread = threading.Thread(target=keep_sending)
    thread.start()
    node.end.callback(thread.join)
    node.end.callback(over.set)

    def counted() -> bool:
        return int(node.switch.interface(pod.port)["statistics"].get("ovs_tx_failure_drops", 0)) >= SENT

    wait_until(counted, 60, what="drops in OVSDB")


@breaks(
    "app",
    "limit-drops",
    "the limit to the pod of 8000 bit/s",
    "raise ingressRate and ingressBurst of key bandwidth in network app-net",
    asks="slow",
)
def break_limit(node: BreakableNode, pod: RunningPod) -> None:
    """A network has a limit that is far too low."""
    limited(node, TINY)
    flood(node)


@breaks(
    "plain",
    "limit-drops",
    "the limit from the pod of 8000 bit/s",
    "raise egressRate and egressBurst of key bandwidth in network plain-net",
    asks="slow",
)
def break_limit_at_the_pod(node: BreakableNode, pod: RunningPod) -> None:
    """A network limits what a pod sends by its kernel link, which the pod's own end does."""
    slow = node.prepare("plain", "slow")
    slow.network = {**slow.network, "bandwidth": {"egressRate": 8000, "egressBurst": 12000}}
    done = node.attach(slow)
    assert done.status == 0, done.stdout
    send(slow, *[STRANGER] * SENT)


@breaks("app", "limit-drops", "of 8000 bit/s", "another program has set it", "clear Port", "nothing reaches", mended=True)
def break_limit_by_hand(node: BreakableNode, pod: RunningPod) -> None:
    """Another program has limited the port."""
    qos = ("--id=@q", "create", "QoS", "type=egress-policer", "other_config:cir=1000", "other_config:cbs=1000")
    node.switch.vsctl("--", "set", "Port", pod.port, "qos=@q", "--", *qos)
    node.end.callback(node.switch.vsctl, "--if-exists", "clear", "Port", pod.port, "qos", "--", "--all", "destroy", "QoS")
    flood(node)


@breaks("app", "duplicate-mac", "is also that of pod default/app", "the one that has sent last", asks="twin")
def break_duplicate_mac(node: BreakableNode, pod: RunningPod) -> None:
    """Two pods of a namespace ask for the same MAC."""
    twin = node.prepare("app", "twin")
    mac = mac_of(node, pod).hex(":")
    done = node.live.run("ADD", twin.network, twin.netns, twin.container, CNI_ARGS=f"{twin.pod.args};MAC={mac}")
    assert done.status == 0, done.stdout


@breaks("app", "mac-elsewhere", "has learned its MAC", "at pod default/thief", "frames to the pod go there")
def break_mac_elsewhere(node: BreakableNode, pod: RunningPod) -> None:
    """Another pod sends with this pod's MAC."""
    send(node.add("plain", "thief"), mac_of(node, pod))


@breaks("app", "mac-table-full", "has learned 10 addresses, and can have 10", "flooded to every port", mended=True)
def break_mac_table(node: BreakableNode, pod: RunningPod) -> None:
    """The bridge can learn few addresses, and a pod uses more."""
    node.switch.vsctl("set", "Bridge", "br-test", "other_config:mac-table-size=10")
    sender = node.add("plain", "many")
    send(sender, *(STRANGER[:5] + bytes([number]) for number in range(40)))
    wait_until(lambda: "10/10" in node.switch.appctl("fdb/stats-show", "br-test"), what="the table full")


@breaks("plain", "gateway-away", "its gateway 10.57.0.1 is on no port of bridge br-test", "no uplink", asks="lost")
def break_gateway_away(node: BreakableNode, pod: RunningPod) -> None:
    """A network gives a default route, and its bridge has no uplink."""
    lost = node.prepare("plain", "lost")
    ipam: dict[str, Any] = {**node.live.host_local("10.57.0.0/24"), "routes": [{"dst": "0.0.0.0/0"}]}
    lost.network = {**lost.network, "name": "lost-net", "ipam": ipam}
    done = node.attach(lost)
    assert done.status == 0, done.stdout
