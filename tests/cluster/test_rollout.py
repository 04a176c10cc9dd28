"""The agent's DaemonSet is replaced while applications send, and while pods are made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.lab.cluster.cluster import RUNNING_S, Cluster
from tests.lab.cluster.pods import attached_pod, network, tap_pod
from tests.lab.cluster.traffic import pings
from tests.lab.switch.switch import wait_until

pytestmark = pytest.mark.timeout(600)


def is_gone(pod: Mapping[str, Any]) -> bool:
    """Whether the pod ends, or has ended."""
    return not pod or "deletionTimestamp" in pod["metadata"]


def test_rollout_loses_no_frame(clean: Cluster) -> None:
    """Every frame sent during a rollout is answered, and a pod that is made between two agents becomes Running."""
    clean.join(network("dpdk-net"))
    clean.apply(*(tap_pod(name, "eth1") for name in ("left", "right")))
    clean.wait_running("left", "right")
    for name in ("left", "right"):
        clean.wait_connected(name)
    former = clean.agent_pod()["metadata"]
    with pings(clean, "left", "right") as counted:
        clean.begin_roll_out()
        wait_until(lambda: is_gone(clean.pod(former["name"], former["namespace"])), RUNNING_S, "the gap")
        clean.apply(attached_pod("late"))
        clean.end_roll_out()
        clean.wait_running("late")
    assert clean.agent_pod()["metadata"]["name"] != former["name"]
    assert counted.sent > 0
    assert counted.answered == counted.sent
    assert len(clean.node.ports()) == 3
    clean.wait_as_made()
