"""The leader of a cluster of northbound databases is lost amid ADDs: the controller goes on with its successor."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.lab.kube.apiserver import ApiServer
from tests.lab.kube.cluster_objects import node
from tests.lab.ovn.cluster import Cluster
from tests.lab.ovn.two_chassis import LONGEST_GAP
from tests.lab.switch.switch import wait_until
from tests.ovn.test_two_chassis import WATCHED, Record
from userspace_cni.base.root import HERE
from userspace_cni.base.settings import Settings
from userspace_cni.controller.controller_metrics import ControllerMetrics
from userspace_cni.controller.port_service import PodPortKeeper, read_task
from userspace_cni.kube.kubeconfig import KubeconfigBounds
from userspace_cni.kube.pod_requests import Clients

PODS = 60
LOST_AT = 20


@dataclass(frozen=True)
class Kept:
    """A cluster of databases, and the API server whose pods get logical ports there."""

    cluster: Cluster
    api: ApiServer


@pytest.fixture
def kept() -> Iterator[Kept]:
    """With one node, and a controller that leads."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="ul-")))
        cluster = stack.enter_context(Cluster(directory))
        cluster.ctl("ls-add", "n1", "--", "set", "Logical_Switch", "n1", "other_config:subnet=192.168.1.0/24")
        api = stack.enter_context(ApiServer())
        api.add(node("n1"))
        session = Clients(KubeconfigBounds.of(Settings()), HERE, api.kubeconfig(directory)).of("").session
        task = read_task(Settings(ovn_nb=cluster.remote))
        keeper = PodPortKeeper(session, task, lambda: True, ControllerMetrics(lambda: True, {}), watch_times=WATCHED)
        keeper.start()
        stack.callback(keeper.stop)
        yield Kept(cluster, api)


@pytest.mark.parametrize("how", ["killed", "silent"])
def test_a_leader_is_lost_amid_adds(kept: Kept, how: str, record_property: Callable[[str, object], None]) -> None:
    """Each pod gets its port, with an address of its own, the first ones keep theirs, and the longest gap is told."""
    record: Record = record_property
    lose = {"killed": kept.cluster.kill, "silent": kept.cluster.silence}[how]
    done = []
    for number in range(PODS):
        kept.api.add_pod({"metadata": {"name": f"p{number}"}, "spec": {"nodeName": "n1"}, "status": {"phase": "Running"}})
        if number == LOST_AT:
            lose(kept.cluster.leader)
        wait_until(lambda number=number: "ovn" in kept.api.annotations("default", f"p{number}"), what=f"pod {number}")  # type: ignore[misc]
        done.append(time.monotonic())
    record(f"a leader of the northbound databases, {how}: {LONGEST_GAP}", round(1000 * max(map(float.__sub__, done[1:], done))))
    notes = {kept.api.annotations("default", f"p{number}")["ovn"] for number in range(PODS)}
    assert len(notes) == PODS
    listed = kept.cluster.ctl("--bare", "--columns=name", "list", "Logical_Switch_Port").split()
    assert sorted(listed) == sorted(f"default_p{number}" for number in range(PODS))
