"""The agent's DaemonSet as it is deployed, and pods with vhost-user interfaces, on a node with the real kubelet."""

from __future__ import annotations

import json
from typing import Any

from tests.lab.cluster.cluster import Cluster, is_ready
from tests.lab.cluster.control import NODE_NAME
from tests.lab.cluster.pods import dpdk_pod, forwarding
from tests.lab.kube.pods import CONFIGURATION_DATA
from tests.lab.switch.switch import wait_until

CONNECTED_S = 60.0
BRIDGE = "br-test"


def network(name: str, **host: Any) -> dict[str, Any]:
    """A network of ours, as a file of the node has it."""
    ipam = {"type": "host-local", "subnet": "10.56.217.0/24"}
    plugin = {"type": "userspace", "host": {"bridge": {"bridgeName": BRIDGE}, **host}, "ipam": ipam}
    return {"cniVersion": "1.0.0", "name": name, "plugins": [plugin]}


def port_of(cluster: Cluster, pod: str, ifname: str = "eth1") -> str:
    """The pod's port on the switch, as its note says."""
    entries = json.loads(cluster.pod(pod)["metadata"]["annotations"][CONFIGURATION_DATA])
    [entry] = [entry for entry in entries if entry["ifName"] == ifname]
    return f"{entry['containerId'][:12]}-{ifname}"


def await_link(cluster: Cluster, pod: str, port: str) -> None:
    """Wait until the pod's application is connected; AssertionError has what it printed."""
    try:
        wait_until(lambda: cluster.switch.interface(port).get("link_state") == "up", CONNECTED_S, f"{pod} connected")
    except AssertionError as error:
        raise AssertionError(f"{error}:\n{cluster.logs(pod)}") from error


def test_node_and_agent_are_ready(deployed: Cluster) -> None:
    """The manifest is applied as it is written; its pod becomes Ready, lacks nothing and reads nothing it may not."""
    assert is_ready(deployed.get("node", NODE_NAME))
    assert json.loads(deployed.agent("list", "--json")) == []
    metadata = deployed.agent_pod()["metadata"]
    log = deployed.logs(metadata["name"], metadata["namespace"], "agent")
    assert [line for line in log.splitlines() if "lacks" in line or "forbidden" in line.lower()] == []


def test_frames_from_pod_to_pod(clean: Cluster) -> None:
    """Two pods as in the guide: what the one's application sends arrives at the other's; deleted, they leave nothing."""
    with clean.networks(network("dpdk-net")):
        clean.apply(dpdk_pod("receiver", *forwarding("rxonly")))
        clean.wait_running("receiver")
        clean.apply(dpdk_pod("sender", *forwarding("txonly")))
        clean.wait_running("sender")
        ports = {name: port_of(clean, name) for name in ("receiver", "sender")}
        assert set(clean.switch.ports(BRIDGE)) == set(ports.values())
        for name, port in ports.items():
            await_link(clean, name, port)
        wait_until(
            lambda: clean.switch.interface(ports["receiver"])["statistics"].get("tx_packets"), what="frames to the receiver"
        )
