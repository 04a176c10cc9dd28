"""The manifests as `kubectl apply -k` builds them, with Debian 13's kubectl and with this machine's."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client import ApiClient

from tests.lab.kube.daemonset import CLUSTER
from tests.lab.kube.kubectl import build, kubectls

BUILT = [CLUSTER, CLUSTER.parent / "dashboards", *sorted(path.parent for path in CLUSTER.glob("overlays/*/kustomization.yaml"))]
OF_OTHERS = {"KubeVirt", "PodMonitor", "PrometheusRule", "SecurityContextConstraints"}
"""Kinds that Kubernetes' own client has no model for."""
HASH = re.compile(r"(userspace-cni-(?:settings|ovn|ovn-scripts))-[a-z0-9]{10}(?=\")")


@pytest.fixture(scope="module")
def programs(machine_as_it_was: None) -> dict[str, str]:
    return kubectls()


def plain(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """The objects by kind and name, without the hashes of ConfigMaps, which kustomize versions compute differently."""
    text = HASH.sub(r"\1", json.dumps(objects))
    return {f"{each['kind']} {each['metadata']['name']}": _stripped(each) for each in json.loads(text)}


def _stripped(found: dict[str, Any]) -> dict[str, Any]:
    found["metadata"] = {key: value for key, value in found["metadata"].items() if value != {}}
    if found["kind"] == "DaemonSet":
        found["spec"]["template"]["spec"]["volumes"].sort(key=lambda volume: volume["name"])
    return found


def _beside_its_overlay(component: Path, within: Path) -> Path:
    """A kustomization with the component and the overlay that its first lines name, in a copy of the manifests."""
    named = re.search(r"resources: \[\.\./(\S+)\]", (component / "kustomization.yaml").read_text())
    assert named, f"{component} does not say beside which overlay it is built"
    shutil.copytree(CLUSTER, within / "cluster")
    mine = within / "cluster" / "overlays" / "mine"
    mine.mkdir()
    (mine / "kustomization.yaml").write_text(f"resources: [../{named[1]}]\ncomponents: [../{component.name}]\n")
    return mine


@pytest.mark.parametrize("directory", BUILT, ids=lambda path: path.name)
def test_it_is_built(programs: dict[str, str], directory: Path, tmp_path: Path) -> None:
    """Each kustomize builds the same objects, and Kubernetes knows every field with its type."""
    if "kind: Component" in (directory / "kustomization.yaml").read_text():
        directory = _beside_its_overlay(directory, tmp_path)
    made = [plain(build(program, directory)) for program in programs.values()]
    assert all(each == made[0] for each in made)
    client = ApiClient()
    for found in made[0].values():
        if found["kind"] in OF_OTHERS:
            continue
        model = f"V1{found['kind']}"
        read = client.deserialize(json.dumps(found), model, "application/json")
        assert client.sanitize_for_serialization(read) == found  # type: ignore[no-untyped-call]


def test_another_image_and_other_settings_in_an_overlay(programs: dict[str, str], tmp_path: Path) -> None:
    """As deploy/cluster/README.md says: one name of the image changes every container, and settings are replaced and renamed."""
    for name in ("base", "image"):
        shutil.copytree(CLUSTER / name, tmp_path / name)
    mine = tmp_path / "mine"
    mine.mkdir()
    [text] = re.findall(r"```yaml\n(.*?)```", (CLUSTER / "README.md").read_text(), re.DOTALL)
    (mine / "kustomization.yaml").write_text(re.sub(r"\[.*/base\]", "[../base]", text))
    (mine / "config.toml").write_text('log_level = "debug"\n')
    for program in programs.values():
        objects = {each["kind"]: each for each in build(program, mine)}
        pod = objects["DaemonSet"]["spec"]["template"]["spec"]
        images = {container["image"] for container in (*pod["initContainers"], *pod["containers"])}
        assert images == {"registry.example/userspace-cni:0.1.0"}
        assert objects["ConfigMap"]["data"] == {"config.toml": 'log_level = "debug"\n'}
        [settings] = [volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume]
        assert settings == objects["ConfigMap"]["metadata"]["name"] != "userspace-cni-settings"
