"""What is deployed on a cluster: the facts in the manifest and the image on which the agent relies, and the probe."""

from __future__ import annotations

import json
import os
import re
import select
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.client import ApiClient

from tests.lab.runtimes.dockerfile import AGENT, PROBE, ROOT, copies
from userspace_cni.base.root import HostRoot
from userspace_cni.base.settings import Settings, load
from userspace_cni.cni.protocol import reply
from userspace_cni.node.surroundings import _CAPABILITIES, _CAPABILITIES_ELSEWHERE

MANIFEST = ROOT / "deploy" / "kubernetes" / "agent.yaml"


@pytest.fixture(scope="module")
def documents() -> dict[str, Any]:
    """The manifest's objects by their kind."""
    found = {document["kind"]: document for document in yaml.safe_load_all(MANIFEST.read_text())}
    assert set(found) == {"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "DaemonSet"}
    return found


@pytest.fixture(scope="module")
def pod(documents: dict[str, Any]) -> dict[str, Any]:
    """The pod's spec."""
    spec: dict[str, Any] = documents["DaemonSet"]["spec"]["template"]["spec"]
    return spec


@pytest.fixture(scope="module")
def agent(pod: dict[str, Any]) -> dict[str, Any]:
    """The one container."""
    (container,) = pod["containers"]
    found: dict[str, Any] = container
    return found


@pytest.fixture(scope="module")
def settings(agent: dict[str, Any]) -> Settings:
    """What the agent reads from its environment there."""
    return load({entry["name"]: entry.get("value", "node-of-the-field") for entry in agent["env"]})


def mounts(container: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Volume name to mount."""
    return {mount["name"]: mount for mount in container["volumeMounts"]}


def paths(pod: dict[str, Any]) -> dict[str, str]:
    """Volume name to path on the host; every volume is one of the host's."""
    return {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"]}


def test_names_fit_together(documents: dict[str, Any]) -> None:
    """Account, role, binding and selector name each other."""
    account = documents["ServiceAccount"]["metadata"]
    binding = documents["ClusterRoleBinding"]
    daemon = documents["DaemonSet"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account["name"], "namespace": account["namespace"]}]
    assert binding["roleRef"]["name"] == documents["ClusterRole"]["metadata"]["name"]
    assert daemon["metadata"]["namespace"] == account["namespace"] == "kube-system"
    assert daemon["spec"]["template"]["spec"]["serviceAccountName"] == account["name"]
    assert daemon["spec"]["selector"]["matchLabels"].items() <= daemon["spec"]["template"]["metadata"]["labels"].items()


def test_rights_on_the_api(documents: dict[str, Any]) -> None:
    """The agent may read pods, annotate them and make events, and nothing else."""
    rights = {resource: set(rule["verbs"]) for rule in documents["ClusterRole"]["rules"] for resource in rule["resources"]}
    assert rights == {
        "pods": {"get", "list", "watch"},
        "pods/status": {"patch", "update"},
        "events": {"create", "patch"},
    }
    assert {group for rule in documents["ClusterRole"]["rules"] for group in rule["apiGroups"]} == {""}


def test_the_hosts_root(pod: dict[str, Any], agent: dict[str, Any], settings: Settings) -> None:
    """The host's / is mounted where the setting says, in both directions, which takes a privileged container."""
    mount = mounts(agent)["host"]
    assert paths(pod)["host"] == "/"
    assert (mount["mountPath"], mount["mountPropagation"]) == (settings.host_root, "Bidirectional")
    assert agent["securityContext"] == {"privileged": True}
    assert pod["hostPID"] is True
    assert pod["hostNetwork"] is True


def test_what_privileged_is_used_for_is_told(settings: Settings) -> None:
    """The manifest and the documentation list the capabilities that the agent misses when they are missing."""
    names = {*_CAPABILITIES, *_CAPABILITIES_ELSEWHERE}
    comment = MANIFEST.read_text().partition("The agent uses these capabilities:")[2].partition(".")[0]
    assert set(re.findall(r"\b[A-Z]+_?[A-Z]+\b", comment)) == names
    told = (ROOT / "docs" / "settings.md").read_text()
    assert [name for name in names if f"`CAP_{name}`" not in told] == []


def test_the_agent_and_the_plugin_read_the_same(pod: dict[str, Any], agent: dict[str, Any]) -> None:
    """Settings are the host's file at its own path, for the agent and for what is installed; the node is named."""
    (install,) = pod["initContainers"]
    for container in (agent, install):
        mount = mounts(container)["settings"]
        assert mount["mountPath"] == paths(pod)["settings"] == "/etc/userspace-cni"
        assert mount["readOnly"] is True
        assert container["image"] == agent["image"]
    assert [entry["valueFrom"]["fieldRef"]["fieldPath"] for entry in agent["env"] if entry["name"] == "NODE_NAME"] == [
        "spec.nodeName"
    ]


def test_the_plugin_is_installed_on_the_host(pod: dict[str, Any]) -> None:
    """The first container puts the plugin in the runtime's directory, which the kubelet resolves, and needs no privilege."""
    (install,) = pod["initContainers"]
    assert install["args"] == ["install", "--bin-dir", mounts(install)["bin"]["mountPath"]]
    assert paths(pod)["bin"] == "/opt/cni/bin"
    assert "securityContext" not in install


def test_scheduling(documents: dict[str, Any], pod: dict[str, Any], agent: dict[str, Any]) -> None:
    """It runs on every node before ordinary pods, never twice, and has time to end by itself."""
    assert pod["priorityClassName"] == "system-node-critical"
    assert pod["tolerations"] == [{"operator": "Exists"}]
    assert pod["terminationGracePeriodSeconds"] == 10
    assert documents["DaemonSet"]["spec"]["updateStrategy"]["rollingUpdate"]["maxSurge"] == 0
    assert set(agent["resources"]["requests"]) == {"cpu", "memory"}
    assert "cpu" not in agent["resources"]["limits"]


@pytest.mark.parametrize(
    ("kind", "question"), [("startupProbe", "/healthz"), ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")]
)
def test_probes_ask_the_agents_socket(agent: dict[str, Any], settings: Settings, kind: str, question: str) -> None:
    """Each probe asks at the socket that these settings give, and gives up before the kubelet does."""
    program, path, asked = agent[kind]["exec"]["command"]
    assert path == HostRoot(settings.host_root).directory + settings.agent_socket
    assert asked == question
    assert f"/usr/local/bin/{program}" in AGENT.read_text()
    assert agent[kind]["timeoutSeconds"] > float(re.findall(r"^SECONDS = (.*)$", PROBE.read_text(), re.MULTILINE)[0])


def test_a_rollout_waits_for_the_agent_and_for_no_period(agent: dict[str, Any]) -> None:
    """A new agent is noticed within a second; no probe waits before its first question."""
    startup = agent["startupProbe"]
    assert startup["periodSeconds"] == 1
    assert startup["failureThreshold"] * startup["periodSeconds"] >= 60
    assert [name for name in agent if name.endswith("Probe") and "initialDelaySeconds" in agent[name]] == []


def test_probes_that_run_for_ever_run_rarely(agent: dict[str, Any]) -> None:
    """They take a process each from the CPUs that are not isolated."""
    assert agent["readinessProbe"]["periodSeconds"] >= 30
    assert agent["livenessProbe"]["periodSeconds"] >= 60


def test_the_image_has_what_it_is_built_from() -> None:
    """Every file that the image is built from exists, and what it runs is the command line."""
    text = AGENT.read_text()
    copied = [name for copy in copies(AGENT) for name in copy.sources]
    assert {"pyproject.toml", "deploy/images/probe"} <= set(copied)
    assert [name for name in copied if not (ROOT / name).exists()] == []
    assert 'ENTRYPOINT ["userspace-cni"]' in text
    assert "musl-tools" in text


@contextmanager
def answering(path: Path, *answers: bytes, closing: bool = False) -> Iterator[list[bytes]]:
    """A server that gives one answer per connection, and what it was asked; an empty answer is silence.

    It leaves closing to its peer, as the agent does, unless it is `closing`.
    """
    asked: list[bytes] = []
    over = threading.Event()

    def serve() -> None:
        for answer in answers:
            peer, _ = server.accept()
            with peer, suppress(BrokenPipeError, ConnectionResetError):
                asked.append(peer.recv(4096))
                peer.sendall(answer)
                while not (closing or over.is_set() or select.select([peer], [], [], 0.05)[0]):
                    pass

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(path))
        server.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield asked
        finally:
            over.set()
            thread.join(20)


def probe(*arguments: str) -> tuple[int, str]:
    """Exit status and output of the probe."""
    done = subprocess.run([str(PROBE), *arguments], capture_output=True, text=True, timeout=20, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_probe(tmp_path: Path) -> None:
    """The probe succeeds with a 2xx answer alone, and shows any other."""
    path = tmp_path / "s"
    bad = reply(503, b"OVSDB is away \xff")
    with answering(path, reply(200, b"{}"), bad, reply(404, b"")) as asked:
        assert probe(str(path), "/healthz") == (0, "")
        status, shown = probe(str(path), "/readyz")
        assert (status, "OVSDB is away" in shown) == (1, True)
        assert probe(str(path), "/healthz")[0] == 1
    assert [request.split(b"\r\n")[0] for request in asked[:2]] == [b"GET /healthz HTTP/1.1", b"GET /readyz HTTP/1.1"]


@pytest.mark.parametrize("size", [4096 - 200, 4096, 1 << 20])
def test_probe_of_a_large_answer(tmp_path: Path, size: int) -> None:
    """An answer larger than the probe's buffer is judged by its beginning, and not waited for."""
    path = tmp_path / "s"
    with answering(path, reply(200, b"x" * size), reply(503, b"y" * size)):
        assert probe(str(path), "/healthz") == (0, "")
        status, shown = probe(str(path), "/healthz")
        assert (status, shown.count("y") > 3000) == (1, True)


@pytest.mark.parametrize("answer", [b"", b"\r\n", b"HTTP/1.1", b"HTTP/1.1 200 OK\r\n", reply(200, b"whole")[:-1]])
def test_probe_of_an_answer_cut_short(tmp_path: Path, answer: bytes) -> None:
    """An agent that dies amid its answer has not answered, whatever the answer began with."""
    path = tmp_path / "s"
    with answering(path, answer, closing=True):
        told = f"GET /healthz of the agent at {path}: the answer is cut short after {len(answer)} bytes\n"
        assert probe(str(path), "/healthz") == (1, told)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n1234"])
def test_probe_of_a_silent_or_absent_agent(tmp_path: Path, answer: bytes) -> None:
    """An agent that does not answer whole in time, and one that is not there, fail the probe with a sentence."""
    path = tmp_path / "s"
    with answering(path, answer):
        assert probe(str(path), "/healthz", "0.2") == (1, f"GET /healthz of the agent at {path}: timed out\n")
    assert probe(f"{path}-absent", "/healthz")[0] == 1
    assert probe()[0] == 1


def test_probe_of_something_else(tmp_path: Path) -> None:
    """What is no HTTP fails the probe with a sentence."""
    path = tmp_path / "s"
    with answering(path, b"HTTP/1.1 200 OK\r\nContent-Length: five\r\n\r\n", b"220 mail\r\n\r\n"):
        status, shown = probe(str(path), "/healthz")
        assert (status, "five" in shown) == (1, True)
        assert probe(str(path), "/healthz") == (1, "220 mail\n\n\n")


def test_probe_is_executable() -> None:
    """The image copies it as it is."""
    assert os.access(PROBE, os.X_OK)


@pytest.mark.parametrize("kind", ["ServiceAccount", "ClusterRole", "ClusterRoleBinding", "DaemonSet"])
def test_objects_are_of_their_types(documents: dict[str, Any], kind: str) -> None:
    """Every field is one that Kubernetes knows and of its type: read by the client's models and written back, nothing is lost."""
    client = ApiClient()
    read = client.deserialize(json.dumps(documents[kind]), f"V1{kind}", "application/json")
    assert client.sanitize_for_serialization(read) == documents[kind]  # type: ignore[no-untyped-call]
