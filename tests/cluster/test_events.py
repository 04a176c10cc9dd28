"""What `kubectl describe pod` says about a network that cannot work, or not as it was written."""

from __future__ import annotations

import pytest

from tests.lab.cluster.cluster import Cluster
from tests.lab.cluster.pods import network, pod, tap_pod

pytestmark = pytest.mark.timeout(600)  # the first test of a run starts the cluster
REFUSAL = "FailedCreatePodSandBox"
"""The kubelet's own reason: one event for each attempt."""


def attempts(cluster: Cluster, pod_name: str) -> int:
    """How often the kubelet tried in vain to make a sandbox for the pod."""
    return sum(int(event["count"]) for event in cluster.reasoned(pod_name, REFUSAL))


def test_a_pod_without_a_volume_and_a_key_that_has_no_effect(clean: Cluster) -> None:
    """A refused pod, and one with an ignored key, have one Event each, however often the kubelet tries.

    With a volume the pod runs.
    """
    clean.join(network("dpdk-net", colour="blue"))
    clean.apply(pod("bare"), tap_pod("painted", "eth1"))
    clean.wait_running("painted")
    [told] = clean.wait(lambda: clean.reasoned("painted", "KeyIgnored"), "the event of a key")
    assert told["type"] == "Warning"
    assert "'host.colour' is unknown and ignored" in told["message"]

    clean.wait(lambda: attempts(clean, "bare") > 1, "a second attempt of the kubelet")
    [refused] = clean.reasoned("bare", "VolumeMissing")
    assert refused["message"].startswith("eth1: ")
    described = clean.kubectl("describe", "pod", "bare")
    assert "VolumeMissing  " in described
    assert "shared-dir" in described
    assert clean.pod("bare")["status"]["phase"] == "Pending"

    clean.delete("pod", "bare", "--force", "--grace-period=0")  # nothing of it was made that its end could wait for
    clean.apply(tap_pod("bare", "eth1"))
    clean.wait_running("bare")
    uid = clean.pod("bare")["metadata"]["uid"]
    assert [event for event in clean.reasoned("bare", "VolumeMissing") if event["involvedObject"]["uid"] == uid] == []
