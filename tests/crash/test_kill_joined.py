"""ADD and DEL of an interface that joins a claim's port, killed at every point: the claim keeps all, and nothing else is left."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.agent.conftest import node_with_shim
from tests.crash.victims import apart, around
from tests.lab.dra.claiming_node import BRIDGE, ClaimingNode, claiming
from tests.lab.kube.pods import Pod
from tests.lab.node.inside import Trip, answer, killed_at
from tests.lab.switch.switch import Switch
from userspace_cni.cni.call import CniAnswer
from userspace_cni.dra.device_names import DRIVER

POINTS = {
    "ADD": around(
        "writing pending",
        "lease",
        "writing applying",
        "writing holders",
        "joined-port",
        "device-info",
        "config-file",
        "writing ready",
    ),
    "DEL": around(
        "writing deleting",
        "undo config-file",
        "undo device-info",
        "writing holders",
        "undo lease",
        "dropping the record",
    ),
}


@dataclass(frozen=True)
class _Joining:
    """A pod with a prepared claim, on a node whose agent does not run, and its network. `had`: what the node had before."""

    node: ClaimingNode
    netns: str
    pod: Pod
    had: dict[str, Any] = field(default_factory=dict)

    def variables(self, verb: str) -> dict[str, str]:
        """Of a call without an account of the API server: the pod is told by a file, which is in the claim's directory."""
        variables = self.node.live.variables(verb, self.netns, CNI_ARGS=self.pod.args)
        return {name: value for name, value in variables.items() if name != "USERSPACE_CNI_KUBECONFIG"}

    @property
    def network(self) -> bytes:
        live = self.node.live
        info = {"CNIDeviceInfoFile": f"{live.device_info}/cni/net1"}
        network = live.network("1.0.0", ipam=live.host_local(), runtimeConfig=info, deviceID=BRIDGE)
        return json.dumps({**network, "host": {}}).encode()

    def call(self, verb: str, watch: Trip | None = None) -> CniAnswer:
        return answer(self.variables(verb), self.network, watch or Trip())

    def look(self) -> dict[str, Any]:
        """What there is on the node, with the claim's port and files."""
        live = self.node.live
        files = sorted(str(path.relative_to(live.directory)) for path in live.device_info.rglob("*") if path.is_file())
        return {**live.leftovers(), "port": self.node.port(), "device info": files}

    def require_as_before(self, point: str) -> None:
        assert (point, self.look()) == (point, self.had)


@pytest.fixture
def joining(switch: Switch, sandbox: str) -> Iterator[_Joining]:
    with node_with_shim(switch) as live, claiming(live) as node:
        node.start()
        pod = node.pod()
        node.claim("c", pod)
        node.kubelet.admit(pod, "c")
        live.kill()
        made = _Joining(node, sandbox, pod)
        made.had.update(made.look())
        yield made
        live.start()
        node.kubelet.await_driver(DRIVER)
        node.kubelet.end(pod)
        node.require_nothing_left()


def kill(joining: _Joining, verb: str, points: Sequence[str]) -> Iterator[str]:
    for point in points:
        assert killed_at(joining.variables(verb), joining.network, point), point
        yield point


def test_all_points_are_known(joining: _Joining) -> None:
    """ADD and DEL pass exactly the points at which they are killed below."""
    for verb, points in POINTS.items():
        watch = Trip()
        assert joining.call(verb, watch).code == 0
        assert watch.passed == points
    joining.require_as_before("DEL")


def test_amid_add(joining: _Joining) -> None:
    """Killed there, DEL removes what ADD has left; the claim's port, directory and files stay as they are."""
    for point in kill(joining, "ADD", apart(POINTS["ADD"])):
        assert joining.call("DEL") == CniAnswer(0, b""), point
        joining.require_as_before(point)


def test_amid_add_that_is_called_again(joining: _Joining) -> None:
    """Killed there, the next ADD of the interface joins the port; an ADD that was complete is not made twice."""
    for point in kill(joining, "ADD", POINTS["ADD"][:-1:4]):
        assert joining.call("ADD").code == 0, point
        assert joining.call("DEL").code == 0, point
        joining.require_as_before(point)


def test_amid_add_and_no_del(joining: _Joining) -> None:
    """Killed there, with no call to come, the agent removes what is left of the interface, and nothing of the claim."""
    live = joining.node.live
    for point in kill(joining, "ADD", ["after joined-port", "after config-file"]):
        live.start()
        live.reconcile()
        joining.require_as_before(point)
        live.kill()


def test_amid_del(joining: _Joining) -> None:
    """Killed there, the next DEL finishes it."""
    for point in apart(POINTS["DEL"]):
        assert joining.call("ADD").code == 0, point
        assert killed_at(joining.variables("DEL"), joining.network, point), point
        assert joining.call("DEL") == CniAnswer(0, b""), point
        joining.require_as_before(point)
