"""DPDK applications in pods: several networks, without root, and killed."""

from __future__ import annotations

import pytest

from tests.lab.cluster.cluster import Cluster
from tests.lab.cluster.pods import dpdk_pod, forwarding, network

pytestmark = pytest.mark.timeout(600)  # the first test of a run starts the cluster
USER = 1000
UNPRIVILEGED = {
    "runAsUser": USER,
    "runAsGroup": USER,
    "runAsNonRoot": True,
    "readOnlyRootFilesystem": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
}


def test_without_root_on_two_networks_and_killed(clean: Cluster) -> None:
    """An application without root has a client-mode and a server-mode interface.

    After it was killed it starts again with both.
    """
    client = network("client")
    server = network("server", vhost={"mode": "server", "user": str(USER), "socketmode": "0660"})
    clean.join(client, server)
    clean.apply(dpdk_pod("app", *forwarding("flowgen", expect=2), **UNPRIVILEGED))
    clean.wait_running("app")
    clean.wait_frames("app", 2)
    assert clean.exec("app", "cat", "/proc/1/status").count(f"\nUid:\t{USER}\t") == 1
    clean.kill_container("app", "app")
    clean.wait_frames("app", 2)
    clean.wait_as_made()
    assert "dead" not in clean.agent("list")
