"""What overlays/dra deploys: the setting, the class of devices, and rights of the agents to slices that are what they use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.lab.kube.apiserver import ApiServer
from tests.lab.kube.daemonset import BASE, CLUSTER, MANIFEST
from tests.lab.kube.resource_definitions import SLICES, WITHOUT_CAPACITY, define_resources
from tests.lab.switch.switch import wait_until
from userspace_cni.base.settings import load
from userspace_cni.dra.device_names import DRIVER
from userspace_cni.dra.node_slices import NodeSlices
from userspace_cni.dra.slice_content import PoolBridge
from userspace_cni.dra.slice_keeper import SliceTimes
from userspace_cni.kube.pod_requests import KubeClient

COMPONENT = CLUSTER / "overlays" / "dra" / "component"


def read(name: str) -> Any:
    return yaml.safe_load((COMPONENT / name).read_text())


class ChangingPool:
    """A node's pool of one bridge with so much room, as `NodePool` gives it."""

    def __init__(self) -> None:
        self.room = 200

    def has_changed(self) -> bool:
        return True

    def read(self) -> list[PoolBridge]:
        return [PoolBridge("br0", healthy=True, room=self.room, free=self.room)]


@pytest.mark.parametrize(
    ("patch", "manifest"),
    [("daemonset.yaml", MANIFEST), ("controller.yaml", CLUSTER / "overlays" / "controller" / "deployment.yaml")],
)
def test_the_setting(patch: str, manifest: Path) -> None:
    """Agents and controllers get it as a further variable of their first container."""
    [change] = read(patch)
    assert (change["op"], change["path"]) == ("add", "/spec/template/spec/containers/0/env/-")
    assert load({change["value"]["name"]: change["value"]["value"]}).dra is True
    [container] = yaml.safe_load(manifest.read_text())["spec"]["template"]["spec"]["containers"]
    assert isinstance(container["env"], list)
    targets = {each["path"]: each["target"] for each in read("kustomization.yaml")["patches"]}
    found = yaml.safe_load(manifest.read_text())
    assert targets[patch] == {"kind": found["kind"], "name": found["metadata"]["name"]}


def test_the_class() -> None:
    """It is about devices of our driver, and uninstall finds it by its label."""
    found = read("device-class.yaml")
    assert [each["cel"]["expression"] for each in found["spec"]["selectors"]] == [f"device.driver == '{DRIVER}'"]
    text = (CLUSTER / "uninstall.sh").read_text()
    [(key, value)] = found["metadata"]["labels"].items()
    assert f"delete deviceclasses.resource.k8s.io --selector {key}={value}" in text
    for name in ("cluster-role.yaml", "controller-cluster-role.yaml"):
        assert f" {read(name)['metadata']['name']} " in text


def test_the_agents_right_to_slices_is_what_it_uses(tmp_path: Path) -> None:
    """From an empty cluster over a pool that shrinks to a kubelet that wipes: each request is allowed, and each right used."""
    pool = ChangingPool()
    with ApiServer() as api:
        define_resources(api, WITHOUT_CAPACITY)
        api.add({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
        times = SliceTimes(settle_s=0.0, apart_s=0.0)
        slices = NodeSlices(KubeClient(api.kubeconfig(tmp_path)).session, "n1", pool, lambda _: None, times)  # type: ignore[arg-type]
        slices.start()
        try:
            store = api.objects(SLICES)
            wait_until(lambda: len(store.names()) == 4)
            pool.room = 1
            slices.look()
            wait_until(lambda: len(store.names()) == 1)
            wait_until(lambda: any(each.verb == "WATCH" for each in api.requests))
            before = store.read("", "n1-userspace-cni-0")["metadata"]["uid"]
            store.remove("", "n1-userspace-cni-0")
            wait_until(lambda: store.names() and store.read("", "n1-userspace-cni-0")["metadata"]["uid"] != before)
        finally:
            slices.stop()
        verbs = {"PATCH": "patch", "DELETE": "delete", "GET": "get", "LIST": "list", "WATCH": "watch"}
        used = {
            (each.path.split("/")[-2 if each.verb in ("GET", "PATCH", "DELETE") else -1].partition("?")[0], verbs[each.verb])
            for each in api.requests
        }
    rules = [rule for rule in read("cluster-role.yaml")["rules"] if not rule["resources"][0].startswith("resourceclaims")]
    allowed = {(name, verb) for rule in rules for name in rule["resources"] for verb in rule["verbs"]}
    # server-side apply makes an object that is missing, for which the server asks for create, too
    assert used | {("resourceslices", "create")} == allowed
    account = yaml.safe_load((BASE / "service-account.yaml").read_text())["metadata"]
    [subject] = read("cluster-role-binding.yaml")["subjects"]
    assert (subject["name"], subject["namespace"]) == (account["name"], account["namespace"])
