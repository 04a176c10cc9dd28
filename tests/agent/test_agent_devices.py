"""Devices of bridges, from the kubelet's side and the runtime's: the agent, a switch, and a kubelet that speaks its protocols."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.living import LiveNode, port_of
from tests.cni.spec import refused, succeeded, switch_of
from tests.lab.kube.kubelet import Kubelet
from tests.lab.kube.pods import Pod
from tests.lab.node.node import CONTAINER, mounts_below
from tests.lab.switch.switch import wait_until

RESOURCE = "userspace-cni.io/br-dev"
POD = Pod(name="app", namespace="blue")
MAPPED = "/var/lib/cni/usrspcni"


@pytest.fixture
def kubelet(live: LiveNode) -> Iterator[Kubelet]:
    """The node's kubelet; the agent offers three devices of each bridge, and an administrator made br-dev."""
    live.settings["USERSPACE_CNI_DEVICES_PER_BRIDGE"] = "3"
    switch_of(live).vsctl("add-br", "br-dev", "--", "set", "Bridge", "br-dev", "datapath_type=netdev")
    with Kubelet(live.kubelet) as kubelet:
        yield kubelet


def on(live: LiveNode, bridge: str = "br-dev", **keys: object) -> dict[str, object]:
    """A network of that bridge that says no mode."""
    return {**live.network(), "host": {"bridge": {"bridgeName": bridge}}, **keys}


def test_devices_of_a_bridge(live: LiveNode, kubelet: Kubelet, sandbox: str) -> None:
    """A pod with a device and no volume is attached in the device's directory, which its container has as a mount."""
    live.start()
    kubelet.await_health(RESOURCE, "Healthy")
    assert sorted(kubelet.offered(RESOURCE)) == ["br-dev-0", "br-dev-1", "br-dev-2"]
    answer = kubelet.give("blue/app", RESOURCE, "br-dev-1")
    [mount] = answer.mounts
    assert (mount.container_path, mount.host_path) == (f"{MAPPED}/br-dev-1", f"{live.directory}/run/devices/br-dev-1")
    assert not mount.read_only
    assert dict(answer.envs) == {"USERSPACE_CNI_DIRS_BR_DEV": f"{MAPPED}/br-dev-1"}
    succeeded(live.run("ADD", on(live), sandbox, CNI_ARGS=POD.args))
    interface = switch_of(live).interface(port_of())
    seen = Path(interface["options"]["vhost-server-path"]).parent
    assert (seen.stat().st_dev, seen.stat().st_mode & 0o7777) == (Path(mount.host_path).stat().st_dev, 0o777)
    [told] = [json.loads(path.read_text()) for path in Path(mount.host_path).iterdir()]
    assert told["config"]["vhost"] == {"mode": "server", "socketfile": port_of()}
    succeeded(live.run("DEL", on(live), sandbox, CNI_ARGS=POD.args))
    assert list(Path(mount.host_path).iterdir()) == []
    assert mounts_below(live.directory) == [mount.host_path]
