"""Pods as the API server and the runtime know them, for networks with a `kubeconfig`."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.lab.kube.apiserver import ApiServer

MAPPED_DIR = "/var/lib/cni/usrspcni"
CONFIGURATION_DATA = "userspace/configuration-data"


@dataclass(frozen=True)
class Pod:
    """One pod; `volume` is the source of its volume `shared-dir` in the spec, {} for no such volume.

    `host_ports`: which TCP port of the node leads to which of the pod. `host_network`: it has the node's network, which only a
    runtime is told.
    """

    name: str = "app"
    namespace: str = "default"
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    volume: Mapping[str, Any] = field(default_factory=dict)
    mount_path: str = MAPPED_DIR
    host_ports: Mapping[int, int] = field(default_factory=dict)
    host_network: bool = False

    @property
    def args(self) -> str:
        """CNI_ARGS as containerd makes them."""
        names = f"K8S_POD_NAMESPACE={self.namespace};K8S_POD_NAME={self.name};K8S_POD_UID={self.uid}"
        return f"IgnoreUnknown=1;{names}"

    def manifest(self) -> dict[str, Any]:
        """The pod as the API server has it."""
        volumes = [{"name": "shared-dir", **self.volume}] if self.volume else []
        mounts = [{"name": "shared-dir", "mountPath": self.mount_path}] if self.volume else []
        container = {"name": "app", "image": "dpdk", "volumeMounts": mounts}
        return {
            "metadata": {"name": self.name, "namespace": self.namespace, "uid": self.uid},
            "spec": {"volumes": volumes, "containers": [container]},
            "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]},
        }

    def create(self, api: ApiServer) -> None:
        api.add_pod(self.manifest())

    def annotations(self, api: ApiServer) -> dict[str, str]:
        return api.annotations(self.namespace, self.name)

    def entries(self, api: ApiServer) -> list[dict[str, Any]]:
        """The entries of `userspace/configuration-data`."""
        entries: list[dict[str, Any]] = json.loads(self.annotations(api)[CONFIGURATION_DATA])
        return entries


def downward_file(annotations: Mapping[str, str]) -> str:
    """The downward-API file that the kubelet makes of annotations: quoted as Go does it, which for ASCII is as JSON does it."""
    return "\n".join(f"{key}={json.dumps(value)}" for key, value in sorted(annotations.items()))


@contextmanager
def busy_kubelet(api: ApiServer, namespace: str = "default", name: str = "app") -> Iterator[None]:
    """During the block the kubelet changes the pod's status again and again."""
    stopped = threading.Event()

    def change() -> None:
        count = 0
        while not stopped.wait(0.2):  # a slower writer would never find the pod unchanged
            count += 1
            api.change(namespace, name, {"status": {"observed": count}})

    kubelet = threading.Thread(target=change)
    kubelet.start()
    try:
        yield
    finally:
        stopped.set()
        kubelet.join()


def at_once(calls: Iterable[Callable[[], object]]) -> None:
    """Run all calls at the same time, each in its own thread. Raises the error of the first that failed."""
    started = list(calls)
    with ThreadPoolExecutor(len(started)) as threads:
        for outcome in [threads.submit(call) for call in started]:
            outcome.result()
