"""OVN on the lab's cluster, by overlays/ovn-single as it is applied."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from tests.lab.cluster.cluster import AGENT, NAMESPACE, Cluster
from tests.lab.cluster.control import NODE_NAME
from tests.lab.cluster.machine import MachineError
from tests.lab.cluster.node import ADDRESS
from tests.lab.kube.definitions import multus_definition
from tests.lab.runtimes import ovn_image

OVERLAYS: Final = AGENT / "overlays"
WORKLOADS: Final = ("statefulset/ovn-databases", "deployment/ovn-northd", "daemonset/ovn-controller")
CONTROLLER: Final = "deployment/userspace-cni-controller"
DEFINITION: Final = multus_definition()
LABEL: Final = "userspace-cni.io/ovn-databases"
_CONFIG: Final = "userspace-cni-ovn"


def apply_ovn(
    cluster: Cluster, directory: Path, variables: Mapping[str, str] | None = None, components: Sequence[str] = (), **more: Any
) -> None:
    """Apply the overlay with the node's address and these variables, by a kustomization in `directory`; all of it is Ready then.

    `components`: overlays that are components; `more`: further fields of the kustomization.
    """
    import_image(cluster, ovn_image.archive())
    databases = {f"USERSPACE_CNI_OVN_{each}": f"tcp:{ADDRESS}:{port}" for each, port in (("NB", 6641), ("SB", 6642))}
    literals = [f"{name}={value}" for name, value in {**databases, **(variables or {})}.items()]
    mine = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [_way(directory, "ovn-single")],
        "components": [_way(directory, each) for each in components],
        "configMapGenerator": [{"name": _CONFIG, "namespace": NAMESPACE, "behavior": "merge", "literals": literals}],
        **more,
    }
    (directory / "kustomization.yaml").write_text(yaml.safe_dump(mine))
    cluster.apply(DEFINITION)
    cluster.kubectl("label", "node", NODE_NAME, f"{LABEL}=")
    cluster.apply(directory)
    for each in (*WORKLOADS, CONTROLLER):
        wait_rolled_out(cluster, each)


def import_image(cluster: Cluster, archive: Path) -> None:
    """Give the node's containerd the images of an archive."""
    cluster.node.machine.run("ctr", "--namespace=k8s.io", "images", "import", str(archive), seconds=300)


def wait_rolled_out(cluster: Cluster, workload: str) -> None:
    """Wait for it; AssertionError has what its pods say."""
    try:
        cluster.kubectl("-n", NAMESPACE, "rollout", "status", workload, "--timeout=110s")
    except MachineError as error:
        found = json.loads(cluster.kubectl("-n", NAMESPACE, "get", "pods", "-o", "json"))["items"]
        told = [f"{each['metadata']['name']}: {json.dumps(each['status'].get('containerStatuses'))}" for each in found]
        for each in found:
            for part in (*each["spec"].get("initContainers", ()), *each["spec"]["containers"]):
                try:
                    log = cluster.logs(each["metadata"]["name"], NAMESPACE, part["name"])
                except MachineError as refused:
                    log = str(refused)
                told.append(f"{each['metadata']['name']} {part['name']}: {log[-1500:]}")
        raise AssertionError("\n".join([str(error), *told])) from error


def _way(directory: Path, overlay: str) -> str:
    return os.path.relpath(OVERLAYS / overlay, directory.resolve())
