"""The overlays of deploy/cluster and the templates of uninstall.sh agree with the base that they are used with."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from kubernetes.client import ApiClient

from tests.lab.kube.daemonset import BASE, CLUSTER, MANIFEST
from userspace_cni.base.settings import Settings, load
from userspace_cni.cli.command_line import load_command
from userspace_cni.cli.main import userspace_cni

OVERLAYS = CLUSTER / "overlays"
NAMES = [
    "admission-policy",
    "controller",
    "dra",
    "kubevirt",
    "logical-ports",
    "openshift",
    "ovn",
    "ovn-default-network",
    "ovn-single",
    "ovs-pod",
    "pod-monitor",
]


def objects(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


@pytest.fixture(scope="module")
def daemonset() -> dict[str, Any]:
    [found] = objects(MANIFEST)
    return found


def test_overlays() -> None:
    """Each is there and named in no other place than its own; what a kustomization names is there."""
    assert sorted(path.name for path in OVERLAYS.iterdir()) == NAMES
    for path in CLUSTER.glob("**/kustomization.yaml"):
        [found] = objects(path)
        assert found.keys() <= {"apiVersion", "kind", "resources", "patches", "components", "images", "configMapGenerator"}, (
            "kustomize warns of it"
        )
        named = [
            *found.get("resources", ()),
            *found.get("components", ()),
            *(patch["path"] for patch in found.get("patches", ())),
        ]
        named += [name for made in found.get("configMapGenerator", ()) for name in made.get("files", made.get("envs"))]
        assert [name for name in named if not (path.parent / name).exists()] == []


def test_settings_for_a_switch_in_a_pod() -> None:
    """They are read, and what they do not say of the switch is as in the base."""
    base, pod = (load({"USERSPACE_CNI_CONFIG": str(top / "config.toml")}) for top in (BASE, OVERLAYS / "ovs-pod"))
    assert (pod.health_listen, pod.metrics_listen) == (base.health_listen, base.metrics_listen)
    assert pod.ovsdb == f"unix:{pod.ovs_rundir}/db.sock"
    assert pod.mount_pod_dirs == Settings().mount_pod_dirs


def test_what_openshift_allows(daemonset: dict[str, Any]) -> None:
    """The SCC has each permission that the pod needs, for the base's account alone, and the patch names a volume of the pod."""
    [scc] = objects(OVERLAYS / "openshift" / "security-context-constraints.yaml")
    role, binding = objects(OVERLAYS / "openshift" / "role-binding.yaml")
    [patch] = objects(OVERLAYS / "openshift" / "daemonset.yaml")
    pod = daemonset["spec"]["template"]["spec"]
    asked = {"allowHostNetwork": pod["hostNetwork"], "allowHostPID": pod["hostPID"], "allowHostPorts": True}
    asked |= {"allowPrivilegedContainer": True, "allowHostDirVolumePlugin": True}
    assert {name: scc[name] for name in asked} == asked
    kinds = {kind for volume in pod["volumes"] for kind in volume if kind != "name"}
    assert kinds <= set(scc["volumes"])
    assert (scc["users"], scc["groups"]) == ([], [])
    assert role["rules"][0]["resourceNames"] == [scc["metadata"]["name"]]
    [account] = objects(BASE / "service-account.yaml")
    assert binding["subjects"] == [{"kind": "ServiceAccount", **{key: account["metadata"][key] for key in ("name", "namespace")}}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    [volume] = patch["spec"]["template"]["spec"]["volumes"]
    assert volume["name"] in {each["name"] for each in pod["volumes"]}


def test_who_has_the_agents_token() -> None:
    """Of the pod of ovn-controller only what asks for the node's subnet; the agent's variable is in the file that people edit."""
    overlay = OVERLAYS / "ovn"
    [controller] = objects(overlay / "ovn-controller.yaml")
    pod = controller["spec"]["template"]["spec"]
    place = "/var/run/secrets/kubernetes.io/serviceaccount"
    holders = [
        each["name"]
        for each in (*pod["initContainers"], *pod["containers"])
        if any(mount["mountPath"] == place for mount in each.get("volumeMounts", ()))
    ]
    assert (pod["automountServiceAccountToken"], holders) == (False, ["node"])
    [account] = [each["projected"]["sources"] for each in pod["volumes"] if each["name"] == "account"]
    assert [next(iter(each)) for each in account] == ["serviceAccountToken", "configMap", "downwardAPI"]
    [patch] = objects(overlay / "agent.yaml")
    [variable] = patch["spec"]["template"]["spec"]["containers"][0]["env"]
    assert f"\n{variable['valueFrom']['configMapKeyRef']['key']}=\n" in (overlay / "ovn.env").read_text()
    assert variable["name"] == "USERSPACE_CNI_OVN_GATEWAY_BRIDGE"


def test_what_the_pod_monitor_finds(daemonset: dict[str, Any]) -> None:
    """Its selector and port are the pod's."""
    [monitor] = objects(OVERLAYS / "pod-monitor" / "pod-monitor.yaml")
    template = daemonset["spec"]["template"]
    assert monitor["metadata"]["namespace"] == daemonset["metadata"]["namespace"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    [port] = template["spec"]["containers"][0]["ports"]
    assert monitor["spec"]["podMetricsEndpoints"][0]["port"] == port["name"]
    assert monitor["spec"]["podMetricsEndpoints"][0]["honorLabels"], "a port's namespace and pod would be renamed"


def test_what_the_controllers_monitor_finds() -> None:
    """Its selector and port are those of the controller's pods."""
    [monitor] = objects(OVERLAYS / "pod-monitor" / "controller-monitor.yaml")
    [deployment] = objects(OVERLAYS / "controller" / "deployment.yaml")
    template = deployment["spec"]["template"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert monitor["spec"]["podMetricsEndpoints"][0]["port"] in {
        port["name"] for port in template["spec"]["containers"][0]["ports"]
    }


def test_whom_the_policy_is_about() -> None:
    """The policy applies to the base's account, and to all that this account may write of pods."""
    [policy] = objects(OVERLAYS / "admission-policy" / "policy.yaml")
    [binding] = objects(OVERLAYS / "admission-policy" / "binding.yaml")
    [account] = objects(BASE / "service-account.yaml")
    user = f"system:serviceaccount:{account['metadata']['namespace']}:{account['metadata']['name']}"
    assert policy["spec"]["matchConditions"][0]["expression"] == f"request.userInfo.username == '{user}'"
    [role] = objects(BASE / "cluster-role.yaml")
    written = {name for rule in role["rules"] if {"patch", "update"} & set(rule["verbs"]) for name in rule["resources"]}
    assert written - {"events", "ips"} <= set(policy["spec"]["matchConstraints"]["resourceRules"][0]["resources"])
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]


def test_the_registration_is_the_generators() -> None:
    """The KubeVirt CR is what `kubevirt manifests` prints."""
    printed = CliRunner().invoke(userspace_cni, ["kubevirt", "manifests", "kubevirt"]).output
    assert objects(OVERLAYS / "kubevirt" / "kubevirt.yaml") == list(yaml.safe_load_all(printed))


def test_uninstall_runs_as_the_agent_did(daemonset: dict[str, Any]) -> None:
    """It has the same root, settings, node, plugins and profiles as the agent and `install`.

    The texts of the script exist, and Kubernetes knows the fields.
    """
    text = (CLUSTER / "uninstall.yaml").read_text()
    script = (CLUSTER / "uninstall.sh").read_text()
    assert [name for name in ("IMAGE", "BIN", "PROFILES", "SETTINGS", ', \\"FORCE\\"') if f"s|{name}|" not in script] == []
    found = yaml.safe_load(text)
    client = ApiClient()
    read = client.deserialize(json.dumps(found), "V1DaemonSet", "application/json")
    assert client.sanitize_for_serialization(read) == found  # type: ignore[no-untyped-call]
    here, there = found["spec"]["template"]["spec"], daemonset["spec"]["template"]["spec"]
    [uninstall], [agent], [install] = here["initContainers"], there["containers"], there["initContainers"]
    mounts = [[f"{mount}" for mount in each["volumeMounts"]] for each in (uninstall, agent, install)]
    assert set(mounts[0]) == {*mounts[1], *mounts[2]}
    assert [volume["name"] for volume in here["volumes"]] == [volume["name"] for volume in there["volumes"]]
    for key in ("env", "securityContext"):
        assert uninstall[key] == agent[key]
    for key in ("hostNetwork", "hostPID", "nodeSelector", "serviceAccountName", "tolerations"):
        assert here[key] == there[key]
    command = load_command(userspace_cni.commands["uninstall"])
    options = {option for parameter in command.params for option in parameter.opts}
    assert [word for word in uninstall["args"] if word.startswith("--") and word not in options] == []
    assert uninstall["args"][0] == "uninstall"


AWAY = r"""#!/bin/bash
case "$*" in
    *"get daemonset"*) echo daemonset.apps/userspace-cni ;;
    *"get pods"*) printf 'userspace-cni/%s,DaemonSet/userspace-cni\n' away,one here,two ;;
    *"exec pod/away"*) echo "Error from server: error dialing backend" >&2; exit 1 ;;
    *"exec pod/here"*list*) echo "blue/app net1" ;;
esac
"""


def test_uninstall_while_a_node_is_away(tmp_path: Path) -> None:
    """A node whose agent cannot be asked is named, with what to do, and the others are still looked at; nothing is changed."""
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(AWAY)
    kubectl.chmod(0o755)
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    argv = ["bash", str(CLUSTER / "uninstall.sh")]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "blue/app net1\n")
    assert "bring its node back" in done.stderr
    assert "nothing was changed" in done.stderr
