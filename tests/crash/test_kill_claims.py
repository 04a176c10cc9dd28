"""An agent that is killed at every effect of preparing and unpreparing a claim: the next calls finish it, and nothing is left.

A real agent and the kubelet's client: who calls again is the kubelet, as on a node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.agent.conftest import node_with_shim
from tests.crash.victims import apart, around
from tests.lab.dra.claiming_node import ClaimingNode, claiming
from tests.lab.dra.plugin_registry import KubeletError
from tests.lab.switch.switch import Switch
from userspace_cni.dra.device_names import DRIVER


def again(name: str) -> list[str]:
    """The point when it is passed for the second time: a device has a file for its container, and one for the runtime."""
    return [f"{each} again" for each in around(name)]


POINTS = {
    "prepare": [
        *around("writing applying", "writing holders", "claim-directory", "socket-file", "pod-mount", "port", "config-file"),
        *around("claim-file"),
        *again("claim-file"),
        *around("rest of port", "writing ready"),
    ],
    "unprepare": [
        *around("writing deleting"),
        *around("undo claim-file"),
        *again("undo claim-file"),
        *around("undo config-file", "undo port", "undo pod-mount", "undo socket-file", "undo claim-directory"),
        *around("writing holders", "dropping the record"),
    ],
}
PREPARING = apart(POINTS["prepare"])
UNPREPARING = apart(POINTS["unprepare"])


@pytest.fixture
def node(switch: Switch) -> Iterator[ClaimingNode]:
    """The node, whose agent does not run yet."""
    with node_with_shim(switch) as live, claiming(live) as made:
        yield made


def passed(node: ClaimingNode) -> list[str]:
    """The points since the last call of this."""
    points = node.live.passed.read_text().splitlines() if node.live.passed.exists() else []
    node.live.passed.unlink(missing_ok=True)
    return points


def killed(node: ClaimingNode, point: str, call: Callable[[], None]) -> None:
    """Start an agent that dies at this point of the kubelet's call."""
    node.live.start(until=point)
    node.kubelet.await_driver(DRIVER)
    with pytest.raises(KubeletError):
        call()
    node.live.await_death()


def test_all_points_are_known(node: ClaimingNode) -> None:
    """Prepare and unprepare of a claim with one device pass exactly the points at which the agent is killed below."""
    pod = node.pod()
    node.claim("c", pod)
    node.live.start(note=True)
    node.kubelet.await_driver(DRIVER)
    passed(node)
    node.kubelet.admit(pod, "c")
    assert passed(node) == POINTS["prepare"]
    node.live.kill()
    node.live.start(note=True)
    node.kubelet.await_driver(DRIVER)
    passed(node)
    node.kubelet.end(pod)
    assert passed(node) == POINTS["unprepare"]


@pytest.mark.parametrize("point", PREPARING)
def test_amid_prepare(node: ClaimingNode, point: str) -> None:
    """Killed there, the agent finishes when the kubelet asks again: one port, which is open, and its files."""
    pod = node.pod()
    node.claim("c", pod)
    killed(node, point, lambda: node.kubelet.prepare(pod, "c"))
    node.live.start()
    node.kubelet.admit(pod, "c")
    node.await_prepared(1)
    node.kubelet.end(pod)
    node.require_nothing_left()


@pytest.mark.parametrize("point", PREPARING[::3])
def test_amid_prepare_of_a_pod_that_is_gone(node: ClaimingNode, point: str) -> None:
    """Killed there, and the pod and its claim are deleted before the next agent is there: the kubelet unprepares once."""
    pod = node.pod()
    node.claim("c", pod)
    killed(node, point, lambda: node.kubelet.prepare(pod, "c"))
    node.scheduler.delete("c")
    node.api.remove_pod(pod.namespace, pod.name)
    node.live.start()
    node.kubelet.await_driver(DRIVER)
    node.kubelet.reconcile()
    node.require_nothing_left()


@pytest.mark.parametrize("point", UNPREPARING)
def test_amid_unprepare(node: ClaimingNode, point: str) -> None:
    """Killed there, the next agent finishes it, at the latest when the kubelet calls again, and nothing is left."""
    pod = node.pod()
    node.claim("c", pod)
    node.start()
    node.kubelet.admit(pod, "c")
    node.live.kill()
    killed(node, point, lambda: node.kubelet.unprepare(pod))
    node.live.start()
    node.kubelet.end(pod)
    node.require_nothing_left()
