"""What is deployed on a cluster: the facts in the manifests and the image on which the agent relies."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from kubernetes.client import ApiClient

from tests.lab.kube.daemonset import BASE, CLUSTER, CONFIG, MANIFEST
from tests.lab.pages import section
from tests.lab.runtimes.dockerfile import AGENT, ROOT, copies
from userspace_cni.base import whereabouts
from userspace_cni.base.settings import Settings, load
from userspace_cni.node.surroundings import _CAPABILITIES, _CAPABILITIES_ELSEWHERE

IMAGE = CLUSTER / "image"
KINDS = ["Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Service", "DaemonSet"]


@pytest.fixture(scope="module")
def kustomization() -> dict[str, Any]:
    """What is built of the base."""
    found: dict[str, Any] = yaml.safe_load((BASE / "kustomization.yaml").read_text())
    return found


@pytest.fixture(scope="module")
def documents(kustomization: dict[str, Any]) -> dict[str, Any]:
    """The base's objects by their kind, as their files have them."""
    names = [name for name in kustomization["resources"] if not name.startswith("definitions/")]
    read = [yaml.safe_load((BASE / name).read_text()) for name in names]
    found = {document["kind"]: document for document in read}
    assert list(found) == KINDS
    return found


@pytest.fixture(scope="module")
def pod(documents: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = documents["DaemonSet"]["spec"]["template"]["spec"]
    return spec


@pytest.fixture(scope="module")
def agent(pod: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod["containers"]
    found: dict[str, Any] = container
    return found


@pytest.fixture(scope="module")
def settings(agent: dict[str, Any]) -> Settings:
    """What the agent reads there: the ConfigMap and its environment."""
    environ = {entry["name"]: entry.get("value", "node-of-the-field") for entry in agent["env"]}
    return load({**environ, "USERSPACE_CNI_CONFIG": str(CONFIG)})


def mounts(container: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {mount["name"]: mount for mount in container["volumeMounts"]}


def paths(pod: dict[str, Any]) -> dict[str, str]:
    """Volume name to path on the host, of those of the host's."""
    return {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}


def test_names_fit_together(documents: dict[str, Any]) -> None:
    """Account, role, binding and selector name each other."""
    account = documents["ServiceAccount"]["metadata"]
    binding = documents["ClusterRoleBinding"]
    daemon = documents["DaemonSet"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account["name"], "namespace": account["namespace"]}]
    assert binding["roleRef"]["name"] == documents["ClusterRole"]["metadata"]["name"]
    names = {documents[kind]["metadata"]["namespace"] for kind in ("ServiceAccount", "Service", "DaemonSet")}
    assert names == {documents["Namespace"]["metadata"]["name"]} == {"userspace-cni"}
    assert documents["Service"]["spec"]["selector"].items() <= daemon["spec"]["template"]["metadata"]["labels"].items()
    assert daemon["spec"]["template"]["spec"]["serviceAccountName"] == account["name"]
    assert daemon["spec"]["selector"]["matchLabels"].items() <= daemon["spec"]["template"]["metadata"]["labels"].items()


def test_rights_on_the_api(documents: dict[str, Any]) -> None:
    """The agent may read and annotate pods, tell what is wrong with them, read what nodes are to have, and keep IP objects; for
    routes in pods, read what people ask for and on what that depends; and see KubeVirt's Plugins, and a pod's network."""
    rights = {resource: set(rule["verbs"]) for rule in documents["ClusterRole"]["rules"] for resource in rule["resources"]}
    assert rights == {
        "pods": {"get", "list", "watch"},
        "pods/status": {"patch", "update"},
        "events": {"create", "patch"},
        **{name: {"list", "watch"} for name in ("provider-networks", "nodes")},
        **{
            name: {"list", "watch"}
            for name in ("routes", "services", "endpoints", "namespaces", "replicasets", "jobs", "servicecidrs")
        },
        **{name: {"get", "list", "watch"} for name in ("vlans", "subnets")},  # get: in a process of one call
        "ips": {"create", "patch", "delete", "list", "get"},
        **{name: {"list"} for name in ("plugins", "kubevirts")},
        "network-attachment-definitions": {"get"},
    }
    groups = {group for rule in documents["ClusterRole"]["rules"] for group in rule["apiGroups"]}
    assert groups == {
        "",
        "userspace-cni.io",
        "k8s.cni.cncf.io",
        "k8s.ovn.org",
        "apps",
        "batch",
        "networking.k8s.io",
        "kubevirt.io",
        "plugin.kubevirt.io",
    }


def test_the_hosts_root(pod: dict[str, Any], agent: dict[str, Any], settings: Settings) -> None:
    """The host's / is mounted where the setting says, in both directions, which requires a privileged container."""
    mount = mounts(agent)["host"]
    assert paths(pod)["host"] == "/"
    assert (mount["mountPath"], mount["mountPropagation"]) == (settings.host_root, "Bidirectional")
    assert agent["securityContext"] == {"privileged": True}
    assert pod["hostPID"] is True
    assert pod["hostNetwork"] is True


def test_what_privileged_is_used_for_is_told(settings: Settings) -> None:
    """The manifest and the documentation list the capabilities that the agent reports when they are missing."""
    names = {*_CAPABILITIES, *_CAPABILITIES_ELSEWHERE}
    comment = MANIFEST.read_text().partition("The agent uses these capabilities:")[2].partition(".")[0]
    assert set(re.findall(r"\b[A-Z]+_?[A-Z]+\b", comment)) == names
    told = (ROOT / "docs" / "settings.md").read_text()
    assert [name for name in names if f"`CAP_{name}`" not in told] == []


def test_the_agent_and_the_plugin_read_the_same(
    documents: dict[str, Any], kustomization: dict[str, Any], pod: dict[str, Any], agent: dict[str, Any]
) -> None:
    """The agent and what is installed read the ConfigMap, and over it the host's file at its own path; the node is named."""
    (install,) = pod["initContainers"]
    (made,) = kustomization["configMapGenerator"]
    [volume] = [volume for volume in pod["volumes"] if volume["name"] == "settings"]
    assert volume == {"name": "settings", "configMap": {"name": made["name"]}}
    assert made["namespace"] == documents["DaemonSet"]["metadata"]["namespace"]
    assert made["files"] == [CONFIG.name]
    for container in (agent, install):
        cluster, node = mounts(container)["settings"], mounts(container)["node-settings"]
        assert f"{cluster['mountPath']}/{CONFIG.name}" == whereabouts.CLUSTER_FILE
        assert f"{node['mountPath']}/config.toml" == whereabouts.CONFIG_FILE
        assert node["mountPath"] == paths(pod)["node-settings"]
        assert (cluster["readOnly"], node["readOnly"]) == (True, True)
    assert [entry["valueFrom"]["fieldRef"]["fieldPath"] for entry in agent["env"] if entry["name"] == "NODE_NAME"] == [
        "spec.nodeName"
    ]


def test_definitions_have_no_field_that_is_not_kept(kustomization: dict[str, Any]) -> None:
    """The API server drops `preserveUnknownFields: false`, so that each `kubectl apply` would change all of them again."""
    names = [name for name in kustomization["resources"] if name.startswith("definitions/")]
    assert len(names) > 1
    assert [name for name in names if "preserveUnknownFields" in yaml.safe_load((BASE / name).read_text())["spec"]] == []


def test_the_images_are_named_once() -> None:
    """One file makes images of the names that containers have, and each kustomization with containers includes it."""
    named = yaml.safe_load((IMAGE / "kustomization.yaml").read_text())["images"]
    images = {path: set(re.findall(r"^ +image: (\S+)$", path.read_text(), re.MULTILINE)) for path in CLUSTER.rglob("*.yaml")}
    users = sorted(path for path, found in images.items() if found and path.name != "uninstall.yaml")
    assert [str(path.relative_to(CLUSTER)) for path in users] == [
        "base/daemonset.yaml",
        "overlays/controller/deployment.yaml",
        "overlays/ovn/databases.yaml",
        "overlays/ovn/northd.yaml",
        "overlays/ovn/ovn-controller.yaml",
    ]
    for path in users:
        including = yaml.safe_load((path.parent / "kustomization.yaml").read_text())
        assert [(path.parent / each).resolve() for each in including["components"]] == [IMAGE]
    assert {each["name"] for each in named} == {name for path in users for name in images[path]}
    naming = [path for path in CLUSTER.rglob("*") if path.is_file() and f"newTag: {named[0]['newTag']}\n" in path.read_text()]
    assert naming == [IMAGE / "kustomization.yaml"]


def test_the_plugin_is_installed_on_the_host(pod: dict[str, Any]) -> None:
    """The first container puts plugin and seccomp profile where runtime and kubelet look for them, and needs no privilege."""
    (install,) = pod["initContainers"]
    places = {name: mounts(install)[name]["mountPath"] for name in ("bin", "seccomp")}
    assert install["args"] == ["install", "--bin-dir", places["bin"], "--seccomp-dir", places["seccomp"]]
    assert {name: paths(pod)[name] for name in places} == {"bin": "/opt/cni/bin", "seccomp": "/var/lib/kubelet/seccomp"}
    assert "securityContext" not in install


def test_scheduling(documents: dict[str, Any], pod: dict[str, Any], agent: dict[str, Any]) -> None:
    """The agent runs on every node before ordinary pods.

    Its successor's pod is made at once, because that agent waits for the former one's end.
    """
    assert pod["priorityClassName"] == "system-node-critical"
    assert pod["tolerations"] == [{"operator": "Exists"}]
    assert pod["terminationGracePeriodSeconds"] == 0
    assert documents["DaemonSet"]["spec"]["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": 1}  # 1.20 has no maxSurge
    assert set(agent["resources"]["requests"]) == {"cpu", "memory"}
    assert "cpu" not in agent["resources"]["limits"]


@pytest.mark.parametrize(
    ("kind", "question"), [("startupProbe", "/healthz"), ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")]
)
def test_probes_ask_where_the_agent_answers(agent: dict[str, Any], settings: Settings, kind: str, question: str) -> None:
    """Each probe is a request to the port of the settings, on loopback: without
    a process on the node, and without a peer in between.
    """
    asked = agent[kind]["httpGet"]
    assert f"{asked['host']}:{asked['port']}" == settings.health_listen
    assert (asked["host"], asked["path"]) == ("127.0.0.1", question)
    assert set(asked) == {"host", "port", "path"}


def test_metrics_are_where_the_service_says(documents: dict[str, Any], agent: dict[str, Any], settings: Settings) -> None:
    """The port of the setting is the container's, which is the Service's."""
    (port,) = agent["ports"]
    (served,) = documents["Service"]["spec"]["ports"]
    assert settings.metrics_listen.rpartition(":")[2] == str(port["containerPort"]) == str(served["port"])
    assert served["targetPort"] == port["name"]
    assert documents["Service"]["metadata"]["annotations"]["prometheus.io/port"] == str(served["port"])


def test_the_answers_about_security(documents: dict[str, Any], settings: Settings) -> None:
    """The page says where the agents answer, as whom controller and sidecar run, and what no account may read."""
    answers = section(ROOT / "docs" / "security.md", "The answers")
    assert f"`{settings.health_listen}`" in answers
    assert f"`{settings.metrics_listen}`" in answers
    controller = yaml.safe_load((CLUSTER / "overlays/controller/deployment.yaml").read_text())["spec"]["template"]["spec"]
    [container] = controller["containers"]
    assert (controller["securityContext"]["runAsNonRoot"], container["securityContext"]["capabilities"]) == (
        True,
        {"drop": ["ALL"]},
    )
    assert f"(user {controller['securityContext']['runAsUser']})" in answers
    assert "USER 107:107" in (ROOT / "deploy/images/kubevirt-sidecar.Dockerfile").read_text()
    assert "(user 107)" in answers
    assert "cannot read Secrets" in answers
    assert not {"secrets", "*"} & {each for rule in documents["ClusterRole"]["rules"] for each in rule["resources"]}


def test_a_rollout_waits_for_the_agent_and_for_no_period(agent: dict[str, Any]) -> None:
    """A new agent is noticed within a second, and ready two later, although
    kubelets before 1.22 wait for the readiness probe's period.
    """
    startup = agent["startupProbe"]
    assert startup["periodSeconds"] == 1
    assert startup["failureThreshold"] * startup["periodSeconds"] >= 60
    assert agent["readinessProbe"]["periodSeconds"] <= 2
    assert [name for name in agent if name.endswith("Probe") and "initialDelaySeconds" in agent[name]] == []


def test_the_image_has_what_it_is_built_from() -> None:
    """Every file that the image is built from exists, and what it runs is the command line."""
    text = AGENT.read_text()
    copied = [name for copy in copies(AGENT) for name in copy.sources]
    assert {"pyproject.toml", "userspace_cni"} <= set(copied)
    assert [name for name in copied if not (ROOT / name).exists()] == []
    assert 'ENTRYPOINT ["userspace-cni"]' in text
    assert "musl-tools" in text


@pytest.mark.parametrize("kind", KINDS)
def test_objects_are_of_their_types(documents: dict[str, Any], kind: str) -> None:
    """Every field is one that Kubernetes knows and of its type: read by the client's models and written back, nothing is lost."""
    client = ApiClient()
    read = client.deserialize(json.dumps(documents[kind]), f"V1{kind}", "application/json")
    assert client.sanitize_for_serialization(read) == documents[kind]  # type: ignore[no-untyped-call]
