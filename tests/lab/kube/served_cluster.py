"""The API server for tests in a process of its own, with as many Nodes and pods as are asked for.

In the process of a measurement it would share the interpreter with what is measured, or with the measuring.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.lab.kube.apiserver import ApiServer
from tests.lab.kube.cluster_objects import node
from tests.lab.kube.resource_definitions import define_resources
from tests.lab.ovn.started import Started

_SWITCH_S = 0.0005
"""After so long one of the server's threads lets another one go on: an answer would wait for ten times as long."""


class ServedCluster(Started):
    """The server; entering it starts the process. `directory`: for the kubeconfig."""

    def __init__(self, directory: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._asking, asked = context.Pipe()
        self._process = context.Process(target=_serve, args=(asked, str(directory)), daemon=True)
        self.kubeconfig = ""

    def begin(self) -> None:
        self._process.start()
        self.kubeconfig = str(self._asking.recv())

    def stop(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.join(10)

    def add_nodes(self, count: int) -> None:
        self._ask("add_nodes", count)

    def add_pods(self, first: int, count: int, nodes: int) -> float:
        """Make pods of these numbers, spread over the nodes; the moment at which the first one was made (time.monotonic)."""
        return float(self._ask("add_pods", first, count, nodes))

    def put(self, things: Sequence[Mapping[str, Any]]) -> None:
        """Make or change these objects, which have their namespace in themselves."""
        self._ask("put", things)

    def uids(self, resource: str) -> dict[str, str]:
        """The UID of each object of this resource, as "resourceclaims.resource.k8s.io", by its name."""
        found: dict[str, str] = self._ask("uids", resource)
        return found

    def remove_pods(self, first: int, count: int) -> None:
        self._ask("remove_pods", first, count)

    def noted(self, first: int, count: int) -> tuple[int, float]:
        """How many of the pods of these numbers have the annotation `ovn`, and when one got it last (time.monotonic)."""
        found: tuple[int, float] = self._ask("noted", first, count)
        return found

    def annotations(self) -> dict[str, dict[str, str]]:
        """Those of all pods by "namespace/name"."""
        found: dict[str, dict[str, str]] = self._ask("annotations")
        return found

    def relabel(self, namespace: str, name: str, labels: Mapping[str, str]) -> None:
        """Change these labels of a pod."""
        self._ask("relabel", namespace, name, labels)

    def cpu_s(self) -> float:
        """Seconds of processor that the server has used."""
        return float(self._ask("cpu_s"))

    def _ask(self, what: str, *args: Any) -> Any:
        self._asking.send((what, args))
        return self._asking.recv()


class _Pods:
    """What is asked of the process."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api
        self._noted: dict[str, float] = {}
        self._write = api.store.write
        api.store.write = self._count  # type: ignore[method-assign]

    def _count(self, *args: Any, **options: Any) -> dict[str, Any]:
        made = self._write(*args, **options)
        if "ovn" in made["metadata"].get("annotations", ()):
            self._noted.setdefault(made["metadata"]["name"], time.monotonic())
        return made

    def add_nodes(self, count: int) -> None:
        for number in range(count):
            self._api.add(node(f"n{number}"))

    def put(self, things: Sequence[Mapping[str, Any]]) -> None:
        for each in things:
            if each["kind"] == "Pod":
                self._api.add_pod(each)
                continue
            metadata = {key: value for key, value in each["metadata"].items() if key not in ("uid", "creationTimestamp")}
            self._api.add({**each, "metadata": metadata}, each["metadata"].get("namespace", ""))

    def uids(self, resource: str) -> dict[str, str]:
        store = self._api.objects(resource)
        return {name: store.read(namespace, name)["metadata"]["uid"] for namespace, name in store.names()}

    def add_pods(self, first: int, count: int, nodes: int) -> float:
        began = time.monotonic()
        for number in range(first, first + count):
            self._api.add_pod(_pod(number, f"n{number % nodes}"))
        return began

    def remove_pods(self, first: int, count: int) -> None:
        for number in range(first, first + count):
            self._api.remove_pod("default", f"p{number}")
            self._noted.pop(f"p{number}", None)

    def noted(self, first: int, count: int) -> tuple[int, float]:
        moments = [self._noted[name] for name in map("p{}".format, range(first, first + count)) if name in self._noted]
        return len(moments), max(moments, default=0.0)

    def relabel(self, namespace: str, name: str, labels: Mapping[str, str]) -> None:
        self._api.change(namespace, name, {"metadata": {"labels": dict(labels)}})

    def annotations(self) -> dict[str, dict[str, str]]:
        with self._api.store.changed:
            things = self._api.store.things.items()
            return {f"{space}/{name}": dict(each["metadata"].get("annotations") or {}) for (space, name), each in things}

    def cpu_s(self) -> float:
        return time.process_time()


def _serve(asked: Connection, directory: str) -> None:
    sys.setswitchinterval(_SWITCH_S)
    with ApiServer() as api:
        define_resources(api)
        pods = _Pods(api)
        asked.send(api.kubeconfig(Path(directory)))
        while True:
            what, args = asked.recv()
            asked.send(getattr(pods, what)(*args))


def _pod(number: int, on: str) -> Mapping[str, Any]:
    """A pod with about what a Deployment's have, 3 KiB of JSON."""
    name = f"p{number}"
    labels = {"app": "web", "pod-template-hash": "6d4b75cb6d", "team": "blue"}
    mount = {"name": "kube-api-access-x7k2p", "readOnly": True, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
    container = {
        "name": "web",
        "image": "registry.example.org/team/web@sha256:4bf1a0e5e6c4c9f1a8ad0d9b2b0f1f0c0f6a7c3c6e2b8f9d1a2b3c4d5e6f7a8b",
        "env": [{"name": f"SETTING_{each}", "value": f"value-{each}"} for each in range(8)],
        "resources": {"limits": {"cpu": "1", "memory": "512Mi"}, "requests": {"cpu": "100m", "memory": "128Mi"}},
        "volumeMounts": [mount],
        "imagePullPolicy": "IfNotPresent",
    }
    times = "2026-01-01T00:00:00Z"
    owned: dict[str, Any] = {
        f"f:{each}": {} for each in ("name", "image", "env", "resources", "volumeMounts", "restartPolicy", "schedulerName")
    }
    return {
        "metadata": {
            "name": name,
            "labels": labels,
            "creationTimestamp": times,
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-6d4b75cb6d", "uid": "c0ffee"}],
            "managedFields": [
                {"manager": each, "operation": "Update", "apiVersion": "v1", "time": times, "fieldsV1": {"f:spec": owned}}
                for each in ("kube-controller-manager", "kubelet")
            ],
        },
        "spec": {
            "nodeName": on,
            "containers": [container],
            "serviceAccountName": "web",
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}],
            "volumes": [
                {"name": "kube-api-access-x7k2p", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
            ],
        },
        "status": {
            "phase": "Pending",
            "conditions": [
                {"type": each, "status": "True", "lastTransitionTime": times} for each in ("PodScheduled", "Initialized")
            ],
        },
    }
