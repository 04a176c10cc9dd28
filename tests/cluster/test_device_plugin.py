"""Devices of a bridge with the real kubelet: pods that land where the bridge is, and need no volume for their sockets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.lab.cluster.cluster import Cluster
from tests.lab.cluster.pods import dpdk_pod, forwarding, network
from tests.lab.kube.pods import MAPPED_DIR

pytestmark = pytest.mark.timeout(600)  # the first test of a run starts the cluster
BRIDGE = "br-dev"
RESOURCE = f"userspace-cni.io/{BRIDGE}"
ABSENT = "userspace-cni.io/br-absent"
COUNT, OF_A_POD = 5, 2
SETTINGS = "/etc/userspace-cni/config.toml"
DEVICES = "/run/userspace-cni/devices"


def allocatable(cluster: Cluster) -> str:
    """How many devices the node has to give, as the scheduler sees it."""
    return str(cluster.node_object()["status"]["allocatable"].get(RESOURCE, ""))


def wait_allocatable(cluster: Cluster, count: int) -> None:
    """Wait until the node has so many."""
    cluster.wait(lambda: allocatable(cluster) == str(count), f"{count} devices")


def end_agent(cluster: Cluster) -> None:
    """Delete the agent's pod; the DaemonSet makes the next one."""
    metadata = cluster.agent_pod()["metadata"]
    cluster.delete("pod", metadata["name"], f"--namespace={metadata['namespace']}")


def serves(pod: Mapping[str, Any]) -> bool:
    """Whether the agent in this pod has begun to serve; without a switch it is not Ready."""
    return any(each.get("started") for each in pod.get("status", {}).get("containerStatuses", ()))


def restart_agent(cluster: Cluster) -> None:
    """The same, and the next one is Ready."""
    end_agent(cluster)
    cluster.wait_agent()


@pytest.fixture
def offered(clean: Cluster) -> Iterator[Cluster]:
    """The cluster, whose agent offers devices of an administrator's bridge, on which both networks of its pods are."""
    settings = clean.path(SETTINGS)
    before = settings.read_text() if settings.exists() else ""
    settings.write_text(f"{before}devices_per_bridge = {COUNT}\n")
    clean.switch.vsctl("add-br", BRIDGE, "--", "set", "Bridge", BRIDGE, "datapath_type=netdev")
    try:
        restart_agent(clean)
        wait_allocatable(clean, COUNT)
        clean.join(*(network(name, bridge={"bridgeName": BRIDGE}) for name in ("left", "right")))
        yield clean
        clean.leave_nothing()
    finally:
        settings.write_text(before)
        clean.switch.vsctl("del-br", BRIDGE)
        restart_agent(clean)
        clean.node_shell("sh", "-c", f"umount --lazy {DEVICES}/*")


def with_devices(name: str, *command: str, resource: str = RESOURCE, **context: Any) -> dict[str, Any]:
    """A DPDK pod that asks for a device for each of its interfaces, and has no volume for sockets."""
    pod = dpdk_pod(name, *command, **context)
    [container] = pod["spec"]["containers"]
    container["volumeMounts"] = [mount for mount in container["volumeMounts"] if mount["name"] != "shared-dir"]
    container["resources"]["limits"][resource] = str(OF_A_POD)
    pod["spec"]["volumes"] = [volume for volume in pod["spec"]["volumes"] if volume["name"] != "shared-dir"]
    return pod


def test_frames_between_devices(offered: Cluster) -> None:
    """Pods with two devices each exchange frames, one not as root.

    Also after restarts of switch, kubelet, agent and container.
    """
    command = forwarding("flowgen", expect=OF_A_POD)
    offered.apply(with_devices("first", *command), with_devices("elsewhere", *command, resource=ABSENT))
    offered.wait_running("first")
    offered.wait_frames("first", OF_A_POD)
    offered.wait(lambda: any(f"Insufficient {ABSENT}" in each for each in offered.events("elsewhere")), "no such bridge")

    offered.switch.kill_vswitchd()
    wait_allocatable(offered, 0)
    offered.restart_kubelet()
    end_agent(offered)
    offered.await_agent(serves, "the next agent")  # the last one would offer devices that go with it
    offered.switch.restart_vswitchd()
    wait_allocatable(offered, COUNT)
    offered.apply(with_devices("second", *command, runAsUser=1000))
    offered.wait_running("second")
    for name in ("first", "second"):
        offered.wait_frames(name, OF_A_POD)

    places = offered.exec("second", "sh", "-c", "echo $USERSPACE_CNI_DIRS_BR_DEV").strip().split(":")
    assert len(set(places)) == OF_A_POD
    assert all(place.startswith(f"{MAPPED_DIR}/{BRIDGE}-") for place in places)
    sockets = {name for place in places for name in offered.exec("second", "ls", place).split()}
    assert {offered.port_of("second", ifname) for ifname in ("eth1", "eth2")} <= sockets
    offered.apply(with_devices("third", *command))
    offered.wait(lambda: any(f"Insufficient {RESOURCE}" in each for each in offered.events("third")), "no room")
    offered.kill_container("first", "app")
    offered.wait_frames("first", OF_A_POD)
    with offered.paused("first", "app"), offered.paused("second", "app"):
        offered.wait_as_made()
