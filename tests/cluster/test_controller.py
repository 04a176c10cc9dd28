"""The controller as it is deployed, in a cluster of one node: without root, with
nothing to write to, and with only the rights that it uses.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab.cluster.cluster import NAMESPACE, Cluster
from tests.lab.kube.cluster_objects import node, ours, spec, state
from userspace_cni.kube.resources import LEASES, PROVIDER_NETWORKS, SUBNETS, VLANS, ApiResource

pytestmark = pytest.mark.timeout(600)  # the first test of a run starts the cluster


@pytest.fixture
def objects(deployed: Cluster) -> Iterator[list[dict[str, Any]]]:
    """Objects that people write and that a node without a kubelet reports; they are deleted at the end, with the controller."""
    desired = [
        ours("ProviderNetwork", "net1", defaultInterface="eth9"),
        ours("Vlan", "v100", id=100, provider="net1"),
        ours("Subnet", "pods", cidrBlock="10.77.0.0/16", perNodePrefix=24, vlan="v100"),
    ]
    reported = [{key: value for key, value in node("elsewhere").items() if key != "status"}, state("elsewhere", [spec()])]
    deployed.apply(*desired, *reported)
    yield desired
    for each in reversed([*desired, *reported]):
        deployed.kubectl("delete", "--ignore-not-found", "-f", "-", told=json.dumps(each))
    deployed.end_controller()


def test_the_deployed_controller_writes_statuses(deployed: Cluster, objects: list[dict[str, Any]]) -> None:
    """Both replicas are Ready and one leads; when its pod is deleted, it has released the Lease and the other leads."""
    deployed.deploy_controller()

    def found(resource: ApiResource, name: str) -> dict[str, Any]:
        status: dict[str, Any] = deployed.control.look(resource.path(name)).get("status", {})
        return status

    deployed.wait(lambda: found(PROVIDER_NETWORKS, "net1").get("readyNodes") == ["elsewhere"], "the sum of a provider network")
    # each status is a write of its own, and written again when the next object is seen
    vlan = deployed.wait(lambda: (status := found(VLANS, "v100")).get("subnets") == ["pods"] and status, "the sum of a VLAN")
    assert vlan["conflict"] is False
    assert [(each["type"], each["status"]) for each in vlan["conditions"]] == [("Ready", "True")]
    ranges = deployed.wait(lambda: found(SUBNETS, "pods").get("nodeRanges"), "the ranges of a subnet")
    assert [each["node"] for each in ranges] == ["elsewhere"]
    deployed.kubectl("-n", NAMESPACE, "rollout", "status", "deployment/userspace-cni-controller", "--timeout=120s")
    leader = holder(deployed)
    deployed.kubectl("-n", NAMESPACE, "delete", "pod", leader.rpartition("_")[0], "--wait=false")
    deployed.wait(lambda: holder(deployed) not in ("", leader), "another leader")
    assert (
        json.loads(deployed.kubectl("-n", NAMESPACE, "get", "lease", "-o", "json"))["items"][0]["spec"]["leaseTransitions"] == 1
    )


def holder(cluster: Cluster) -> str:
    lease = cluster.control.look(LEASES.within(NAMESPACE).path("userspace-cni-controller"))
    return str(lease["spec"].get("holderIdentity", ""))
