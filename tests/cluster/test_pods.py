"""The agent's DaemonSet as it is deployed, and pods with vhost-user interfaces, on a node with the real kubelet."""

from __future__ import annotations

import json

import pytest

from tests.lab.cluster.cluster import Cluster, is_ready
from tests.lab.cluster.pods import BRIDGE, dpdk_pod, forwarding, network

pytestmark = pytest.mark.timeout(600)  # the first test of a run starts the cluster


def test_node_and_agent_are_ready(deployed: Cluster) -> None:
    """The manifest is applied unchanged: its pod becomes Ready, lacks nothing, and is refused nothing."""
    assert is_ready(deployed.node_object())
    assert json.loads(deployed.agent("list", "--json")) == []
    metadata = deployed.agent_pod()["metadata"]
    log = deployed.logs(metadata["name"], metadata["namespace"], "agent")
    assert [line for line in log.splitlines() if "lacks" in line or "forbidden" in line.lower()] == []


def test_frames_from_pod_to_pod(clean: Cluster) -> None:
    """Frames of one pod's application arrive at the other's, with pods as in the guide; deleted, they leave nothing."""
    clean.join(network("dpdk-net"))
    clean.apply(*(dpdk_pod(name, *forwarding(mode)) for name, mode in (("receiver", "rxonly"), ("sender", "txonly"))))
    clean.wait_running("receiver", "sender")
    for name in ("receiver", "sender"):
        clean.wait_connected(name)
    ports = [clean.port_of(name) for name in ("receiver", "sender")]
    assert sorted(clean.switch.ports(BRIDGE)) == sorted(ports)
    receiver = ports[0]

    def received() -> int:
        clean.switch.write_statistics()
        return int(clean.switch.interface(receiver)["statistics"].get("tx_packets", 0))

    clean.wait(received, "frames to the receiver")
    clean.wait_as_made()
