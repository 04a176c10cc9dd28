"""A node's ResourceSlices in the API: written when something differs, mended when others delete them, back after an outage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.lab.kube.apiserver import ApiServer, Fault
from tests.lab.kube.resource_definitions import SLICES, WITHOUT_CAPACITY, WITHOUT_TAINTS, define_resources
from tests.lab.switch.switch import wait_until
from userspace_cni.base.back_off import BackOff
from userspace_cni.dra.slice_content import PoolBridge
from userspace_cni.dra.slice_keeper import SliceKeeper, SliceTimes, version_of
from userspace_cni.kube.list_watch import WatchTimes
from userspace_cni.kube.object_requests import Objects
from userspace_cni.kube.object_watch import ObjectWatch
from userspace_cni.kube.pod_requests import KubeClient
from userspace_cni.kube.resources import RESOURCE_SLICES

QUICK = SliceTimes(settle_s=0.0, apart_s=0.0, back_off=BackOff(0.02, 0.05))
BRIDGE = PoolBridge("br0", healthy=True, room=4, free=4)
NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
NAME = "n1-userspace-cni-0"
OLD = WITHOUT_CAPACITY | WITHOUT_TAINTS


class SlicedNode:
    """A node with these bridges, and the processes that keep its slices, one after the other."""

    def __init__(self, api: ApiServer, directory: Path) -> None:
        self.api = api
        self.bridges: Sequence[PoolBridge] | None = (BRIDGE,)
        self.health: dict[str, bool] = {}
        self.outcomes: list[str] = []
        self.rounds = 0
        self._session = KubeClient(api.kubeconfig(directory)).session
        self._begun: list[SliceKeeper | ObjectWatch] = []

    def process(self, times: SliceTimes = QUICK) -> SliceKeeper:
        keeper = SliceKeeper(Objects(self._session), "n1", self._look, self._hear, self.outcomes.append, times)
        watch = ObjectWatch(
            self._session,
            RESOURCE_SLICES,
            field_selector=f"metadata.name={keeper.name}",
            keep=version_of,
            on_change=lambda: keeper.note_watched(watch.objects()),
            times=WatchTimes(back_off=BackOff(0.02, 0.05)),
        )
        self._begun += [keeper, watch]
        keeper.start()
        watch.start()
        return keeper

    def _look(self) -> Sequence[PoolBridge] | None:
        self.rounds += 1
        return self.bridges

    def _hear(self, health: Any) -> None:
        self.health = dict(health)

    def change(self, *bridges: PoolBridge) -> None:
        """Have these bridges from now on; each process is told."""
        self.bridges = bridges
        for each in self._begun:
            if isinstance(each, SliceKeeper):
                each.ask()

    def slices(self) -> dict[str, dict[str, Any]]:
        """The slices that the server has, by name."""
        store = self.api.objects(SLICES)
        return {name: store.read("", name) for _, name in store.names()}

    def devices(self) -> list[str]:
        """The devices of the latest generation."""
        found = [each["spec"] for _, each in sorted(self.slices().items())]
        return [device["name"] for spec in found for device in spec["devices"]]

    def await_devices(self, *names: str) -> None:
        wait_until(lambda: self.devices() == list(names), what=f"slices with {names}")

    def stop(self) -> None:
        for each in self._begun:
            each.stop()
        self._begun.clear()


def serve(lacking: frozenset[str]) -> ApiServer:
    api = ApiServer()
    define_resources(api, lacking)
    api.add(NODE)
    return api


@pytest.fixture
def api(request: pytest.FixtureRequest) -> Iterator[ApiServer]:
    with serve(getattr(request, "param", frozenset())) as started:
        yield started


@pytest.fixture
def node(api: ApiServer, tmp_path: Path) -> Iterator[SlicedNode]:
    node = SlicedNode(api, tmp_path)
    yield node
    node.stop()


def writes(api: ApiServer) -> int:
    """How many requests wrote something, dry runs not counted."""
    return sum(each.method in ("PATCH", "DELETE", "POST", "PUT") and "dryRun" not in each.path for each in api.requests)


def test_a_slice_of_a_node(node: SlicedNode, api: ApiServer) -> None:
    """It belongs to the Node, and is written once; a change is another generation; at rest nothing is asked."""
    node.process()
    node.await_devices("br0")
    found = node.slices()[NAME]
    [owner] = found["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", "n1", api.objects("nodes").read("", "n1")["metadata"]["uid"])
    assert found["spec"]["pool"] == {"name": "n1", "generation": 1, "resourceSliceCount": 1}
    node.change(replace(BRIDGE, free=3))
    wait_until(lambda: node.slices()[NAME]["spec"]["pool"]["generation"] == 2)
    assert node.slices()[NAME]["spec"]["devices"][0]["capacity"]["ports"]["value"] == "3"
    node.change(replace(BRIDGE, free=3))
    before = node.rounds
    wait_until(lambda: node.rounds > before)
    assert writes(api) == 2
    assert node.outcomes == ["written", "written"]


@pytest.mark.parametrize(
    ("api", "alive", "dead"),
    [
        (frozenset(), ["br0"], ["br0"]),
        (WITHOUT_TAINTS, ["br0"], []),
        (WITHOUT_CAPACITY, ["br0-0", "br0-1"], ["br0-0", "br0-1"]),
        (OLD, ["br0-0", "br0-1"], []),
    ],
    indirect=["api"],
)
def test_what_the_server_lacks(node: SlicedNode, alive: list[str], dead: list[str]) -> None:
    """Nothing is published in a form that the server would change; a dead switch is tainted or withdrawn, and comes back."""
    bridge = replace(BRIDGE, room=2, free=2)
    node.change(bridge)
    node.process()
    node.await_devices(*alive)
    assert node.slices()[NAME]["spec"]["pool"]["generation"] == 1
    node.change(replace(bridge, healthy=False))
    wait_until(lambda: node.slices()[NAME]["spec"]["pool"]["generation"] == 2)
    assert node.devices() == dead
    assert all(device["taints"] for device in node.slices()[NAME]["spec"]["devices"])
    wait_until(lambda: node.health == dict.fromkeys(alive, False))
    node.change(bridge)
    wait_until(lambda: node.slices()[NAME]["spec"]["pool"]["generation"] == 3)
    assert node.devices() == alive
    assert not any("taints" in device for device in node.slices()[NAME]["spec"]["devices"])


def test_a_kubelet_that_wipes(node: SlicedNode, api: ApiServer) -> None:
    """A kubelet that starts deletes the slices of its node: they come back."""
    node.process()
    node.await_devices("br0")
    before = api.objects(SLICES).read("", NAME)["metadata"]["uid"]
    api.objects(SLICES).remove("", NAME)
    wait_until(lambda: NAME in node.slices() and node.slices()[NAME]["metadata"]["uid"] != before)
    node.await_devices("br0")


def test_the_next_process_writes_nothing(node: SlicedNode, api: ApiServer) -> None:
    """Where the slices are as they should be, a new agent only reads; what changed meanwhile is another generation."""
    node.process()
    node.await_devices("br0")
    node.stop()
    before = writes(api)
    keeper = node.process()
    wait_until(lambda: keeper.devices == 1)
    assert writes(api) == before
    node.stop()
    node.bridges = (BRIDGE, replace(BRIDGE, name="br1"))
    node.process()
    node.await_devices("br0", "br1")
    assert node.slices()[NAME]["spec"]["pool"]["generation"] == 2


@pytest.mark.parametrize("api", [OLD], indirect=True)
def test_slices_come_and_go(node: SlicedNode, api: ApiServer) -> None:
    """All slices of a pool have one generation and tell their number; what is no longer needed is deleted, also what a process
    that died has left."""
    node.change(replace(BRIDGE, room=300, free=300))
    node.process()
    wait_until(lambda: len(node.devices()) == 300)
    pools = [each["spec"]["pool"] for each in node.slices().values()]
    assert pools == [{"name": "n1", "generation": 1, "resourceSliceCount": 3}] * 3
    node.change(replace(BRIDGE, room=200, free=200))
    wait_until(lambda: len(node.slices()) == 2)
    node.stop()
    [first, *_] = node.slices().values()
    spec = {**first["spec"], "pool": {"name": "n1", "generation": 3, "resourceSliceCount": 1}}
    api.add({**first, "spec": spec})
    node.bridges = (replace(BRIDGE, room=1, free=1),)
    node.process()
    wait_until(lambda: list(node.slices()) == [NAME])
    node.await_devices("br0-0")
    assert node.slices()[NAME]["spec"]["pool"]["generation"] == 4


def test_unknown_bridges(node: SlicedNode, api: ApiServer) -> None:
    """While the bridges are not known, what the former agent has published stays."""
    node.process()
    node.await_devices("br0")
    node.stop()
    node.bridges = None
    before, rounds = writes(api), node.rounds
    node.process()
    wait_until(lambda: node.rounds > rounds)
    assert node.devices() == ["br0"]
    assert writes(api) == before


def test_another_node_of_that_name(node: SlicedNode, api: ApiServer) -> None:
    """Where the Node was made anew, the slices are its own then: else they would be collected with the former one."""
    node.process()
    node.await_devices("br0")
    node.stop()
    api.objects("nodes").remove("", "n1")
    uid = api.add(NODE)["metadata"]["uid"]
    node.process()
    wait_until(lambda: node.slices()[NAME]["metadata"]["ownerReferences"][0]["uid"] == uid)


@pytest.mark.parametrize("status", [403, 500])
def test_refused_for_a_while(node: SlicedNode, api: ApiServer, status: int) -> None:
    """It is said and tried again; the slices are there once the server takes them."""
    api.faults = [Fault("PATCH", status=status, about="/resourceslices")]
    keeper = node.process()
    wait_until(lambda: keeper.problem)
    assert str(status) in keeper.problem
    api.faults = []
    node.await_devices("br0")
    wait_until(lambda: not keeper.problem)


def test_a_server_before_1_34(tmp_path: Path) -> None:
    """What is missing is named, and nothing else happens."""
    with ApiServer() as api:
        api.add(NODE)
        node = SlicedNode(api, tmp_path)
        keeper = node.process()
        wait_until(lambda: keeper.problem)
        assert "Kubernetes 1.34" in keeper.problem
        node.stop()
