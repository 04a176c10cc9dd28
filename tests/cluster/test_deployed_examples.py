"""deploy/examples on the cluster: each does what its comment says.

Their networks become the node's, because there is no Multus, and their image the lab's, with this machine's testpmd and this
checkout's reader. Otherwise the pods are unchanged. tap.yaml is the quick start's.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.lab.cluster.cluster import RUNNING_S, Cluster
from tests.lab.cluster.pods import with_the_machine
from tests.lab.runtimes.dockerfile import ROOT

pytestmark = pytest.mark.timeout(600)  # the first test of a run starts the cluster
EXAMPLES = ROOT / "deploy" / "examples"
NETWORKS = "k8s.v1.cni.cncf.io/networks"


def read(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The networks as files of the node, in the order in which the pod names them, and the Deployment."""
    *definitions, deployment = yaml.safe_load_all(path.read_text())
    by_name = {each["metadata"]["name"]: json.loads(each["spec"]["config"]) for each in definitions}
    asked = deployment["spec"]["template"]["metadata"]["annotations"].pop(NETWORKS)
    plugins = [by_name[name.strip()] for name in asked.split(",")]
    return [{"cniVersion": each["cniVersion"], "name": each["name"], "plugins": [each]} for each in plugins], deployment


@pytest.mark.parametrize(("example", "pods", "ports"), [("pair", 2, 1), ("trunk", 1, 2), ("non-root", 1, 2)])
def test_frames_arrive(clean: Cluster, example: str, pods: int, ports: int) -> None:
    """The Deployment of the example becomes available, and the count of received frames grows at each port of its pods."""
    networks, deployment = read(EXAMPLES / f"{example}.yaml")
    clean.join(*networks)
    with_the_machine(deployment["spec"]["template"]["spec"])
    clean.apply(deployment)
    clean.kubectl("rollout", "status", f"deployment/{example}", f"--timeout={RUNNING_S:.0f}s")
    names = [pod["metadata"]["name"] for pod in clean.pods(f"app={example}")]
    assert len(names) == pods
    for name in names:
        clean.wait_frames(name, ports)
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(clean.paused(name, "app"))
        clean.wait_as_made()
