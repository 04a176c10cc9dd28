"""Devices of a bridge with the real kubelet: pods that land where the bridge is, and need no volume for their sockets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab.cluster.cluster import RUNNING_S, Cluster, is_ready
from tests.lab.cluster.control import NODE_NAME
from tests.lab.cluster.pods import dpdk_pod, forwarding, network
from tests.lab.kube.pods import MAPPED_DIR
from tests.lab.switch.switch import wait_until

pytestmark = pytest.mark.timeout(600)  # the first test of a run starts the cluster
BRIDGE = "br-dev"
RESOURCE = f"userspace-cni.io/{BRIDGE}"
SETTINGS = "/etc/userspace-cni/config.toml"
DEVICES = "/run/userspace-cni/devices"


def allocatable(cluster: Cluster) -> str:
    """How many devices the node has to give, as the scheduler sees it."""
    return str(cluster.get("node", NODE_NAME)["status"]["allocatable"].get(RESOURCE, ""))


def restart_agent(cluster: Cluster) -> None:
    """Have another pod of the DaemonSet, Ready."""
    metadata = cluster.agent_pod()["metadata"]
    cluster.delete("pod", metadata["name"], f"--namespace={metadata['namespace']}")
    wait_until(lambda: is_ready(cluster.agent_pod()), RUNNING_S, "the agent Ready")


@pytest.fixture
def offered(clean: Cluster) -> Iterator[Cluster]:
    """The cluster, whose agent offers three devices of an administrator's bridge, on which the network of its pods is."""
    settings = clean.path(SETTINGS)
    before = settings.read_text() if settings.exists() else ""
    settings.write_text(f"{before}devices_per_bridge = 3\n")
    clean.switch.vsctl("add-br", BRIDGE, "--", "set", "Bridge", BRIDGE, "datapath_type=netdev")
    try:
        restart_agent(clean)
        wait_until(lambda: allocatable(clean) == "3", RUNNING_S, "the devices")
        clean.join(network("dpdk-net", bridge={"bridgeName": BRIDGE}))
        yield clean
        clean.leave_nothing()
    finally:
        settings.write_text(before)
        clean.switch.vsctl("del-br", BRIDGE)
        restart_agent(clean)
        clean.node_shell("sh", "-c", f"umount --lazy {DEVICES}/*")


def with_device(name: str, *command: str, **context: Any) -> dict[str, Any]:
    """A DPDK pod that asks for a device, and has no volume for sockets."""
    pod = dpdk_pod(name, *command, **context)
    [container] = pod["spec"]["containers"]
    container["volumeMounts"] = [mount for mount in container["volumeMounts"] if mount["name"] != "shared-dir"]
    container["resources"]["limits"][RESOURCE] = "1"
    pod["spec"]["volumes"] = [volume for volume in pod["spec"]["volumes"] if volume["name"] != "shared-dir"]
    return pod


def test_frames_between_devices(offered: Cluster) -> None:
    """Pods with a device each exchange frames, one as another user than root; kubelet, agent and container come and go."""
    for name, mode, context in (("receiver", "rxonly", {}), ("sender", "txonly", {"runAsUser": 1000})):
        offered.apply(with_device(name, *forwarding(mode), **context))
        offered.wait_running(name)
        offered.wait_connected(name)
    port = offered.port_of("receiver")
    wait_until(lambda: offered.switch.interface(port)["statistics"].get("tx_packets"), 60, "frames to the receiver")
    [place] = offered.exec("sender", "sh", "-c", "echo $USERSPACE_CNI_DIRS_BR_DEV").split()
    assert place.startswith(f"{MAPPED_DIR}/{BRIDGE}-")
    assert offered.port_of("sender") in offered.exec("sender", "ls", place)
    assert offered.agent("check") == ""
    too_many = with_device("many")
    too_many["spec"]["containers"][0]["resources"]["limits"][RESOURCE] = "2"
    offered.apply(too_many)
    wait_until(lambda: any(f"Insufficient {RESOURCE}" in each for each in offered.events("many")), RUNNING_S, "no room")
    offered.restart_kubelet()
    restart_agent(offered)
    wait_until(lambda: allocatable(offered) == "3", RUNNING_S, "the devices again")
    offered.exec("receiver", "sh", "-c", "kill -TERM 1")
    wait_until(lambda: offered.pod("receiver")["status"]["containerStatuses"][0]["restartCount"], RUNNING_S, "a restart")
    offered.wait_running("receiver")
    offered.wait_connected("receiver")
