"""A missing request for hugepages is reported only when the pod's spec proves it, from the watch as from the server's answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.lab.kube.apiserver import ApiServer
from userspace_cni.base.deadline import Deadline
from userspace_cni.kube.pod_requests import KubeClient
from userspace_cni.kube.watch import PodWatch

PAGES = {"resources": {"limits": {"hugepages-2Mi": "64Mi", "cpu": 1}}}
LACKING: dict[str, dict[str, Any]] = {
    "plain": {"containers": [{"name": "app"}]},
    "memory": {"containers": [{"name": "app", "resources": {"limits": {"memory": "1Gi"}}}]},
    "other-volume": {
        "volumes": [{"name": "m", "emptyDir": {"medium": "Memory"}}, {"name": "s", "hostPath": {"path": "/srv"}}],
        "containers": [{"name": "app", "command": ["testpmd", "--in-memory"]}],
    },
}
SERVED: dict[str, dict[str, Any]] = {
    "asked": {"containers": [{"name": "a"}, {"name": "app", **PAGES}]},
    "asked-beside": {"initContainers": [{"name": "side", **PAGES, "volumeMounts": [{}]}], "containers": [{"name": "app"}]},
    "asked-by-the-pod": {**PAGES, "containers": [{"name": "app"}]},
    "of-the-host": {"volumes": [{"name": "h", "hostPath": {"path": "/dev/hugepages"}}], "containers": [{"name": "app"}]},
    "all-devices": {"volumes": [{"name": "d", "hostPath": {"path": "/dev/"}}], "containers": [{"name": "app"}]},
    "without": {"containers": [{"name": "app", "command": ["sh", "-c"], "args": ["exec testpmd --no-huge -m 512"]}]},
    "tap": {"containers": [{"name": "app", "command": ["userspace-cni", "tap"]}]},
    "tap-of-the-image": {"containers": [{"name": "app", "args": ["tap", "--pid", "1"]}]},
    "unknown": {},
}


@pytest.mark.parametrize("name", [*LACKING, *SERVED])
def test_hugepages(tmp_path: Path, name: str) -> None:
    """Nothing is reported with a request, a hostPath that may be a mount of hugepages, or a command that needs none."""
    spec = {**(LACKING.get(name) or SERVED.get(name) or {}), "nodeName": "n1"}
    with ApiServer() as api:
        api.add_pod({"metadata": {"name": name, "uid": "u-1"}, "spec": spec})
        client = KubeClient(api.kubeconfig(tmp_path))
        watch = PodWatch(client.session, "n1")
        watch.start()
        try:
            assert watch.wait_synced(Deadline.after(60))
            seen = watch.view("default", name, "u-1")
        finally:
            watch.stop()
        answered = client.get_pod("default", name, Deadline.after(60))
    assert seen == answered
    assert answered is not None
    assert answered.lacks_hugepages == (name in LACKING)
