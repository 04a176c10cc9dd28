"""The documented command that removes everything from a cluster and its nodes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess, run

import pytest

from tests.lab.cluster.cluster import LEFT_S, RUNNING_S, Cluster
from tests.lab.cluster.pods import attached_pod, network
from tests.lab.runtimes.dockerfile import ROOT
from tests.lab.switch.switch import wait_until

pytestmark = pytest.mark.timeout(600)
NETWORK = "dpdk-net"
UNINSTALL = ROOT / "deploy" / "cluster" / "uninstall.sh"
OURS = ("/opt/cni/bin/userspace", "/var/lib/cni/userspace", "/run/userspace-cni", "/var/lib/vhost_sockets")
"""What an agent and the containers before it put on a node."""


@pytest.fixture
def removable(clean: Cluster) -> Iterator[Cluster]:
    """The cluster, whose agent is deployed again at the end."""
    try:
        yield clean
    finally:
        clean.deploy()


def uninstall(cluster: Cluster, directory: Path) -> CompletedProcess[str]:
    """Run the command as an administrator does, whose kubectl reaches the cluster; it says itself what it waits for too long."""
    kubectl = directory / "kubectl"
    kubectl.write_text(cluster.control.kubectl_script())
    kubectl.chmod(0o755)
    environ = {**os.environ, "PATH": f"{directory}:{os.environ['PATH']}"}
    argv = ["bash", str(UNINSTALL), "--timeout", f"{RUNNING_S:.0f}"]
    return run(argv, env=environ, capture_output=True, text=True, timeout=2 * RUNNING_S, check=False)


def test_uninstall_leaves_a_clean_node_and_install_works_again(removable: Cluster, tmp_path: Path) -> None:
    """With a pod attached it names that and changes nothing; then it leaves nothing of ours, and a new installation works."""
    removable.join(network(NETWORK))
    removable.apply(attached_pod("app"))
    removable.wait_running("app")
    [port] = removable.node.ports()
    refused = uninstall(removable, tmp_path)
    assert refused.returncode == 1
    assert "default/app" in refused.stdout + refused.stderr
    assert "nothing was changed" in refused.stderr
    assert removable.node.ports() == [port]
    removable.wait_agent()
    with removable.node.pods_removed():
        removable.delete("pod", "app", "--grace-period=1")
        removable.node.join()
        wait_until(lambda: not removable.node.leftovers(), LEFT_S, "nothing left of the pod")
        done = uninstall(removable, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [path for path in OURS if removable.path(path).exists()] == []
    assert removable.get("namespace", "userspace-cni") == {}
    assert [each for kind in ("clusterrole", "clusterrolebinding") for each in removable.get(kind, "userspace-cni")] == []
    removable.deploy()
    removable.join(network(NETWORK))
    removable.apply(attached_pod("app"))
    removable.wait_running("app")
    assert len(removable.node.ports()) == 1
