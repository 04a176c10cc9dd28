"""The agent's ResourceSlices: bridges of the switch, tainted while it is dead, with the room that devices of pods leave."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.agent.living import LiveNode
from tests.cni.spec import switch_of
from tests.lab.kube.apiserver import ApiServer
from tests.lab.kube.kubelet import Kubelet
from tests.lab.kube.resource_definitions import SLICES, define_resources
from tests.lab.switch.switch import Switch, wait_until

BRIDGE = "br-dev"
RESOURCE = f"userspace-cni.io/{BRIDGE}"
NAME = "n1-userspace-cni-0"


@pytest.fixture(scope="module")
def switch() -> Iterator[Switch]:
    with Switch() as started:
        yield started


@pytest.fixture
def api(live: LiveNode) -> Iterator[ApiServer]:
    """A server that knows the node, whose agent is a driver of devices, but not started yet."""
    with ApiServer() as started:
        define_resources(started)
        started.add({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
        live.follow(started)
        live.settings |= {"USERSPACE_CNI_DRA": "true", "USERSPACE_CNI_PORTS_PER_BRIDGE": "2"}
        switch_of(live).vsctl("add-br", BRIDGE, "--", "set", "Bridge", BRIDGE, "datapath_type=netdev")
        yield started


def devices(api: ApiServer) -> dict[str, dict[str, Any]]:
    """The devices of the node's slice, by name."""
    store = api.objects(SLICES)
    found = store.read("", NAME)["spec"]["devices"] if ("", NAME) in store.names() else ()
    return {each["name"]: each for each in found}


def room(api: ApiServer) -> str:
    """How many ports claims may have on the bridge, as the scheduler sees it; "" for none."""
    return str(devices(api).get(BRIDGE, {}).get("capacity", {}).get("ports", {}).get("value", ""))


def test_slices_follow_the_switch(live: LiveNode, api: ApiServer) -> None:
    """A bridge is a device, tainted while ovs-vswitchd is dead, and gone with the bridge; the agent's end takes nothing away."""
    switch = switch_of(live)
    live.start()
    wait_until(lambda: list(devices(api)) == [BRIDGE], what="a slice")
    [device] = devices(api).values()
    said = {name: next(iter(value.values())) for name, value in device["attributes"].items()}
    multus = {"k8s.cni.cncf.io/deviceID": BRIDGE, "k8s.cni.cncf.io/resourceName": RESOURCE}
    assert said.items() >= {"bridge": BRIDGE, "datapath": "netdev", **multus}.items()
    live.await_metric(1, "slice_devices")
    switch.kill_vswitchd()
    wait_until(lambda: "taints" in devices(api)[BRIDGE], what="a taint")
    switch.restart_vswitchd()
    wait_until(lambda: "taints" not in devices(api)[BRIDGE], what="no taint")
    switch.vsctl("del-br", BRIDGE)
    wait_until(lambda: devices(api) == {}, what="no devices")
    live.await_metric(4, "slice_writes_total", outcome="written")
    assert live.end() == 0
    assert ("", NAME) in api.objects(SLICES).names()


def test_devices_of_pods_leave_less(live: LiveNode, api: ApiServer) -> None:
    """A device that the kubelet gave to a pod is one port less for claims, until its pod is gone."""
    live.settings["USERSPACE_CNI_DEVICES_PER_BRIDGE"] = "2"
    with Kubelet(live.kubelet) as kubelet:
        live.start()
        wait_until(lambda: room(api) == "2", what="room for two")
        kubelet.await_health(RESOURCE, "Healthy")
        kubelet.give("blue/app", RESOURCE, f"{BRIDGE}-1")
        wait_until(lambda: room(api) == "1", what="room for one")
        kubelet.pods.clear()
        wait_until(lambda: room(api) == "2", what="room for two again")
