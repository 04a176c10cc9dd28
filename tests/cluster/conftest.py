"""A cluster of one node: Kubernetes 1.20 from Debian's source, containerd, OVS-DPDK, and the agent's DaemonSet as it is deployed.

For who writes tests here:

- `cluster` (tests/lab/cluster/cluster.py) is Ready and has no agent; `deployed` has the agent's DaemonSet, Ready too. They are
  there once per run: a test leaves them as it found them. `clean` is `deployed` for one test: at its end all pods of the
  namespace default are deleted, and what is left of them on the node (ports, mounts, records, leases, namespaces) is a failure.
- Pods come from tests/lab/cluster/pods.py: `pod(name, *command)` and, for DPDK, `dpdk_pod(name, *forwarding("rxonly"))`. Every
  pod has eth0 on a bridge. `clean.join(network("dpdk-net"), …)` gives those made from then on eth1 and so on; the end of the test
  takes that back. There is no Multus: the node's networks are every pod's, so each pod then needs a place for its sockets.
- `attached_pod` and `deployment` (pods.py) need neither hugepages nor an application; `tap_pod` and `pings` (traffic.py) count
  frames between two pods. `cluster.roll_out()`, `kill`, `reboot` and the like are what happens to nodes; a boot has its own id.
- There is no registry. The images are the agent's, and tests/lab/runtimes/images.IMAGE: busybox, and with the volumes of
  `dpdk_pod` this machine's /usr and this checkout. kubectl is Debian 13's, 1.32.
- `tap_pod(name, "eth1", …)` needs no DPDK: the agent's image makes a kernel link of each interface.
- `cluster.kill_container(…)` is SIGKILL, and waits for the next one; `cluster.wait_frames(…)` reads what testpmd prints.
- Wait with `cluster.wait(…)` for what kubectl, ovs-vsctl or a command in a pod is asked: it leaves the machine time to answer.
- `cluster.switch` speaks to the node's switch by ovs-vsctl, `cluster.path("/etc/…")` opens a file of the node, and
  `cluster.node_shell(…)` runs a command on it. Process ids in the node's files are those of its own namespace.
- `python -m tests.lab.cluster.cluster` starts a cluster to look at, and prints how to speak to it. Its daemons' logs are in
  `cluster.top`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.cluster.cluster import Cluster, one_cluster
from tests.lab.frames.testpmd import MEMORY_MIB

APPLICATIONS = 3
"""How many of a test's pods can have hugepages at the same time."""


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with one_cluster(APPLICATIONS * MEMORY_MIB // 2) as made:
        yield made


@pytest.fixture(scope="session")
def deployed(cluster: Cluster) -> Cluster:
    """The same with the agent, which is Ready."""
    cluster.deploy()
    return cluster


@pytest.fixture
def clean(deployed: Cluster) -> Iterator[Cluster]:
    """The same; at the end nothing of the test's pods may be left."""
    yield deployed
    deployed.leave_nothing()
