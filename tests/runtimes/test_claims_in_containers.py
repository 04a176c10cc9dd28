"""Containers with claimed devices on containerd 2.1: what the driver answers becomes directories and files in them, by CDI."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.agent.conftest import node_with_shim
from tests.lab.dra.claimed_containers import ClaimedContainers
from tests.lab.dra.claiming_node import BRIDGE, ClaimingNode, claiming
from tests.lab.kube.pods import MAPPED_DIR
from tests.lab.lanes.callers import callers
from tests.lab.lanes.table import lane
from tests.lab.runtimes.containerd import Containerd
from tests.lab.runtimes.containerd_host import runtime_host
from tests.lab.switch.switch import Switch, wait_until
from tests.runtimes.seen import conflist, debian_bridge

NEWEST = "forky"
"""The release whose containerd hands devices of CDI to containers: this machine's own does not."""


@pytest.fixture
def node(switch: Switch) -> Iterator[ClaimingNode]:
    with node_with_shim(switch) as live, claiming(live) as made:
        made.start()
        yield made


@pytest.fixture
def containers(node: ClaimingNode, machine_as_it_was: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClaimedContainers]:
    monkeypatch.setenv("PATH", f"{callers(lane(NEWEST))}:{os.environ['PATH']}")
    with runtime_host(node.live) as host, Containerd(host, node.live.cdi) as containerd:
        yield ClaimedContainers(node.kubelet, containerd.start(conflist(debian_bridge(node.live))))


def test_frames_between_claims(node: ClaimingNode, containers: ClaimedContainers) -> None:
    """Containers of two pods exchange frames at the ports of their claims, of which their own files tell."""
    pods = [node.pod(name) for name in ("asks", "answers")]
    for pod in pods:
        node.claim(f"of-{pod.name}", pod)
    with ThreadPoolExecutor(2) as threads:
        started = list(threads.map(lambda pod: containers.sync(pod, f"of-{pod.name}"), pods))
        told = list(threads.map(containers.frames, started, ("ask", "answer")))
    assert [json.loads(each) for each in told] == [{"ports": 1, "well": [True]}] * 2
    for pod in pods:
        containers.end(pod)
    node.require_nothing_left()


def test_what_a_container_is_given(node: ClaimingNode, containers: ClaimedContainers) -> None:
    """A container has the directories of the requests that it uses, and of no other claim; it can make sockets in them."""
    pod, other = node.pod("app"), node.pod("other")
    node.claim("two", pod, BRIDGE, BRIDGE)
    node.claim("of-other", other)
    first, second = containers.sync(pod, "two"), containers.sync(other, "of-other")
    seen = [containers.cri.run_in(each, "/bin/ls", MAPPED_DIR).split() for each in (first, second)]
    assert (len(seen[0]), len(seen[1]), set(seen[0]) & set(seen[1])) == (2, 1, set())
    variables = dict(line.split("=", 1) for line in containers.cri.run_in(first, "/usr/bin/env").splitlines())
    [told] = [value for name, value in variables.items() if name.startswith("USERSPACE_CNI_DIRS_")]
    assert told.split(":") == [f"{MAPPED_DIR}/{each}" for each in seen[0]]
    containers.cri.run_in(first, "/usr/bin/touch", f"{MAPPED_DIR}/{seen[0][0]}/made")
    for each in (pod, other):
        containers.end(each)
    node.require_nothing_left()


def test_a_container_after_its_file_was_lost(node: ClaimingNode, containers: ClaimedContainers) -> None:
    """The runtime starts a pod's next container although /var/run/cdi was emptied; the kubelet does not call the driver again."""
    pod = node.pod()
    node.claim("c", pod)
    containers.cri.end(containers.sync(pod, "c"))
    files = node.cdi_files()
    shutil.rmtree(node.live.cdi)
    wait_until(lambda: node.cdi_files() == files, what="the files to be there again")
    again = containers.sync(pod, "c")
    assert len(containers.cri.run_in(again, "/bin/ls", MAPPED_DIR).split()) == 1
    assert node.kubelet.called("NodePrepareResources") == 1
    containers.end(pod)
    node.require_nothing_left()


def test_a_pod_after_a_reboot(node: ClaimingNode, containers: ClaimedContainers) -> None:
    """The pod gets a new sandbox and its claim again, under the same names."""
    pod = node.pod()
    node.claim("c", pod)
    containers.sync(pod, "c")
    told = node.kubelet.cdi_devices(pod)
    sandbox = containers.sandboxes.pop(pod.uid)
    containers.cri.stop(sandbox)
    containers.cri.remove(sandbox)
    node.reboot()
    node.live.start()
    node.kubelet.start()
    again = containers.sync(pod, "c")
    assert node.kubelet.cdi_devices(pod) == told
    assert len(containers.cri.run_in(again, "/bin/ls", MAPPED_DIR).split()) == 1
    node.await_prepared(1)
    containers.end(pod)
    node.require_nothing_left()
