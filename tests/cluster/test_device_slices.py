"""A node's ResourceSlice on a real API server, which has slices as a custom resource, with the rights of overlays/dra."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.cluster.test_device_plugin import SETTINGS, restart_agent
from tests.lab.cluster.cluster import Cluster
from tests.lab.kube.daemonset import CLUSTER
from tests.lab.kube.resource_definitions import SLICES, resource_definitions

pytestmark = pytest.mark.timeout(600)  # the first test of a run starts the cluster
BRIDGE = "br-dev"
COMPONENT = CLUSTER / "overlays" / "dra" / "component"
ROOM = 5


def slices(cluster: Cluster) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(cluster.kubectl("get", "resourceslices", "--output=json"))["items"]
    return found


def room(cluster: Cluster) -> str:
    """How many ports claims may have on the bridge, as the scheduler sees it; "" for none."""
    devices = [device for each in slices(cluster) for device in each["spec"]["devices"]]
    return next((str(each["capacity"]["ports"]["value"]) for each in devices if each["name"] == BRIDGE), "")


@pytest.fixture
def driving(clean: Cluster) -> Iterator[Cluster]:
    """The cluster, whose agent offers an administrator's bridge by ResourceSlices."""
    objects = [yaml.safe_load((COMPONENT / f"{name}.yaml").read_text()) for name in ("cluster-role", "cluster-role-binding")]
    settings = clean.path(SETTINGS)
    before = settings.read_text() if settings.exists() else ""
    [definition] = [each for each in resource_definitions() if each["metadata"]["name"] == SLICES]
    # this server does not know all fields of a definition
    clean.kubectl("apply", "--validate=false", "--filename=-", told=json.dumps(definition))
    clean.kubectl("wait", "--for=condition=Established", "crd", SLICES, "--timeout=60s")
    clean.apply(*objects)
    settings.write_text(f"{before}devices_per_bridge = {ROOM}\nports_per_bridge = {ROOM}\ndra = true\n")
    clean.switch.vsctl("add-br", BRIDGE, "--", "set", "Bridge", BRIDGE, "datapath_type=netdev")
    try:
        restart_agent(clean)
        yield clean
    finally:
        settings.write_text(before)
        clean.switch.vsctl("del-br", BRIDGE)
        restart_agent(clean)
        clean.delete(*(f"{each['kind']}/{each['metadata']['name']}" for each in objects))
        clean.delete("crd", SLICES)


def test_a_slice_of_the_node(driving: Cluster) -> None:
    """The Node owns the slice, and one that is deleted, as by a kubelet that starts, comes back."""
    driving.wait(lambda: room(driving) == str(ROOM), "a slice with all of the room")
    [found] = slices(driving)
    [owner] = found["metadata"]["ownerReferences"]
    assert owner["uid"] == driving.node_object()["metadata"]["uid"]
    driving.delete("resourceslice", found["metadata"]["name"])
    driving.wait(lambda: room(driving) == str(ROOM), "the slice again")
    assert slices(driving)[0]["metadata"]["uid"] != found["metadata"]["uid"]
