"""Claims of devices: the kubelet has an agent make their ports before there is a container, and undo them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.living import LiveNode
from tests.cni.spec import switch_of
from tests.lab.dra.claiming_node import ClaimingNode, claiming
from tests.lab.dra.plugin_registry import KubeletError
from tests.lab.switch.switch import wait_until


@pytest.fixture
def node(live: LiveNode) -> Iterator[ClaimingNode]:
    with claiming(live) as made:
        yield made


def cdi_files(node: ClaimingNode) -> dict[str, dict[str, Any]]:
    return {path.name: json.loads(path.read_text()) for path in Path(node.live.environ["USERSPACE_CNI_CDI_DIR"]).glob("*.json")}


def test_prepared_and_unprepared(node: ClaimingNode) -> None:
    """A claim is a port whose socket's directory a CDI file gives to containers; when it is unprepared nothing is left."""
    node.start()
    pod = node.pod()
    uid = node.claim("one", pod)
    node.kubelet.prepare(pod, "one")
    [port] = node.ports()
    row = switch_of(node.live).interface(port)
    assert row["external_ids"]["container-id"] == f"_{uid}"
    assert row["external_ids"]["pod-name"] == "app"
    [spec] = cdi_files(node).values()
    [device] = spec["devices"]
    assert node.kubelet.cdi_devices(pod) == [f"{spec['kind']}={device['name']}"]
    mount = device["containerEdits"]["mounts"][0]
    assert Path(mount["hostPath"]).is_mount()
    assert row["options"]["vhost-server-path"].endswith(f"/{port}")
    node.kubelet.unprepare(pod)
    assert node.ports() == []
    node.require_nothing_left()


def test_asked_again(node: ClaimingNode) -> None:
    """A claim that is there is left as it is: for the same kubelet, and another one, and another agent."""
    node.start()
    pod = node.pod()
    node.claim("one", pod)
    node.kubelet.prepare(pod, "one")
    [port] = node.ports()
    row, answer = switch_of(node.live).interface(port), node.kubelet.cdi_devices(pod)
    node.kubelet.restart()
    node.kubelet.await_driver("userspace-cni.io")
    node.kubelet.prepare(pod, "one")
    node.live.kill()
    node.start()
    node.kubelet.restart()
    node.kubelet.await_driver("userspace-cni.io")
    node.kubelet.prepare(pod, "one")
    assert node.kubelet.called("NodePrepareResources") == 3
    assert (switch_of(node.live).interface(port)["_uuid"], node.kubelet.cdi_devices(pod)) == (row["_uuid"], answer)
    node.kubelet.unprepare(pod)
    node.require_nothing_left()


def test_two_consumers(node: ClaimingNode) -> None:
    """A vhost-user socket has one peer: a claim of two pods is refused, with what to do, and nothing is made."""
    node.start()
    pod, other = node.pod(), node.pod("other")
    node.claim("one", pod)
    node.scheduler.reserve("one", pod, other)
    with pytest.raises(KubeletError, match=r"reserved for 2 pods .*ResourceClaimTemplate"):
        node.kubelet.prepare(pod, "one")
    assert node.ports() == []


def test_lost_cdi_file(node: ClaimingNode) -> None:
    """A CDI file that is lost is made again before the kubelet asks, and a container can be started again."""
    node.start()
    pod = node.pod()
    node.claim("one", pod)
    node.kubelet.prepare(pod, "one")
    before = cdi_files(node)
    for name in before:
        (Path(node.live.environ["USERSPACE_CNI_CDI_DIR"]) / name).unlink()
    wait_until(lambda: cdi_files(node) == before, what="the CDI file to be there again")
    node.kubelet.unprepare(pod)
    node.require_nothing_left()
