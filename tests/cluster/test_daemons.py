"""Daemons of the node that die, deletions that do not wait, and a network that is removed before its pods."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.lab.cluster.cluster import LEFT_S, RUNNING_S, Cluster
from tests.lab.cluster.pods import attached_pod, deployment, network, pod
from tests.lab.switch.switch import wait_until

pytestmark = pytest.mark.timeout(600)
NETWORK = "dpdk-net"
SETTINGS = "/etc/userspace-cni/config.toml"
TICK_S = 2
PASSES_S = 3 * TICK_S
"""For what is removed in two passes: on a loaded machine a pass is late."""
PODS = [f"app-{number}" for number in range(5)]
MANY = 20


@pytest.fixture
def quick(clean: Cluster) -> Iterator[Cluster]:
    """The cluster with an agent that looks every TICK_S seconds for what is gone."""
    settings = clean.path(SETTINGS)
    settings.parent.mkdir(exist_ok=True)
    settings.write_text(f"tick_s = {TICK_S}\n")
    clean.roll_out()
    try:
        yield clean
    finally:
        settings.unlink()
        clean.roll_out()


def sandboxes(cluster: Cluster) -> list[str]:
    """The pods' sandboxes of which the agent has an attachment, with an entry for each attachment."""
    return [each["container"] for each in json.loads(cluster.agent("list", "--json"))]


def test_kubelet_and_containerd_killed_amid_adds_and_dels(clean: Cluster) -> None:
    """Both die while pods are made, and while they are deleted: all pods run with one port each; nothing is left."""
    clean.join(network(NETWORK))
    clean.apply(*(attached_pod(name) for name in PODS))
    wait_until(clean.node.ports, RUNNING_S, "the first port")
    clean.kill("kubelet", "containerd")
    clean.start_daemons()
    clean.wait_running(*PODS)
    wait_until(lambda: len(clean.node.ports()) == len(PODS), LEFT_S, "one port for each pod")
    # a record goes a moment after its port
    wait_until(lambda: len(sandboxes(clean)) == len(set(sandboxes(clean))) == len(PODS), LEFT_S, "one sandbox for each pod")
    clean.end_pods()
    wait_until(lambda: len(clean.node.ports()) < len(PODS), RUNNING_S, "the first port to go")
    clean.kill("kubelet", "containerd")
    clean.start_daemons()

    def none_of_ours() -> bool:
        clean.node.drop_forgotten()
        return not clean.node.leftovers()

    clean.wait(none_of_ours, "nothing left of ours")
    clean.leave_nothing()


def test_force_deletion(clean: Cluster) -> None:
    """Nothing is left of pods that are deleted by force, during their start or later, though the API server waited for no DEL."""
    clean.join(network(NETWORK))
    clean.apply(*(attached_pod(name) for name in PODS[:2]))
    clean.wait_running(PODS[0])
    clean.apply(attached_pod(PODS[2]))
    clean.delete("pod", *PODS[:3], "--grace-period=0", "--force")
    clean.wait(lambda: not clean.node.leftovers(), "nothing left on the node")


def test_network_removed_before_its_pods(quick: Cluster) -> None:
    """containerd sends no DEL for a network whose file is gone: the agent removes what is left after two looks.

    A namespace counts as gone only while another one exists beside its place: another pod's.
    """
    quick.apply(pod("other"))
    quick.wait_running("other")
    other = quick.node.leftovers()
    quick.join(network(NETWORK))
    quick.apply(attached_pod(PODS[0]))
    quick.wait_running(PODS[0])
    assert len(quick.node.ports()) == 1
    quick.node.join()
    quick.end_pods(PODS[0])
    quick.wait(lambda: quick.node.leftovers() == other, "the agent to collect the attachment", RUNNING_S + PASSES_S)


def test_twenty_pods_at_once(clean: Cluster) -> None:
    """A Deployment is scaled from 0 to 20 and back: each pod has one port and one address, and nothing is left."""
    clean.join(network(NETWORK))
    clean.apply(deployment("many", 0))
    clean.kubectl("scale", "deployment/many", f"--replicas={MANY}")
    try:
        clean.kubectl("rollout", "status", "deployment/many", "--timeout=120s")
        assert len(clean.node.ports()) == MANY
        assert len(set(sandboxes(clean))) == len(sandboxes(clean)) == MANY
        assert len(clean.node.leases(NETWORK)) == MANY
        clean.kubectl("scale", "deployment/many", "--replicas=0")
        clean.wait(lambda: not clean.node.leftovers(), "nothing left of twenty pods")
    finally:
        clean.delete("deployment", "many")
