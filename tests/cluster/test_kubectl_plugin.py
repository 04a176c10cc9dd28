"""`kubectl userspace`: commands on the node of a pod, by the real kubectl, with the rights that a user has."""

from __future__ import annotations

import io
import json
import os
import shlex
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE, STDOUT, CompletedProcess, Popen, run

import pytest

from tests.lab.cluster.cluster import AGENT_LABEL, NAMESPACE, RUNNING_S, Cluster
from tests.lab.cluster.pods import attached_pod, network
from tests.lab.runtimes.dockerfile import ROOT

pytestmark = pytest.mark.timeout(900)
PLUGIN = ROOT / "deploy" / "kubectl"
COMPLETION = "kubectl_complete-userspace"


class Keyboard:
    """Someone with a kubectl that has the plugin, in a directory of their own."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.cluster = cluster
        self.directory = directory
        programs = directory / "bin"
        programs.mkdir()
        program = cluster.control.kubectl()[:3]  # without its options: kubectl takes none before the name of a plugin
        (programs / "kubectl").write_text(f'#!/bin/sh\nexec {shlex.join(program)} "$@"\n')
        (programs / "kubectl").chmod(0o755)
        (programs / "kubectl-userspace").symlink_to(PLUGIN / "kubectl_userspace.py")
        (programs / COMPLETION).symlink_to("kubectl-userspace")
        mine = {"KUBECONFIG": str(cluster.control.kubeconfig()), "HOME": str(programs)}
        self.environ = {**os.environ, **mine, "PATH": f"{programs}:{os.environ['PATH']}"}

    def raw(self, *words: str) -> CompletedProcess[bytes]:
        argv = ["kubectl", *words]
        return run(
            argv, env=self.environ, cwd=self.directory, stdin=PIPE, capture_output=True, timeout=2 * RUNNING_S, check=False
        )

    def type(self, *words: str, code: int = 0) -> CompletedProcess[str]:
        """`kubectl userspace WORD...`, which ends with this code."""
        done = self.raw("userspace", *words)
        told = CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())
        assert told.returncode == code, (told.stdout, told.stderr)
        assert "Traceback" not in told.stderr
        assert "command terminated" not in told.stderr
        return told


@pytest.fixture
def keyboard(clean: Cluster, tmp_path: Path) -> Keyboard:
    return Keyboard(clean, tmp_path)


@pytest.fixture
def attached(clean: Cluster) -> str:
    """A pod with an interface of ours; its node."""
    clean.join(network("dpdk-net"))
    clean.apply(attached_pod("app"))
    clean.wait_running("app")
    return str(clean.pod("app")["spec"]["nodeName"])


def test_commands_of_a_pod(keyboard: Keyboard, attached: str) -> None:
    """Each way to name a pod leads to its node; output, notes and exit codes are the command's own."""
    cluster = keyboard.cluster
    listed = json.loads(cluster.agent("list", "--json"))
    [port] = (each["port"] for each in listed if each["name"] == "default/app/eth1")
    for name in ("app", "app/eth1", "default/app", "default/app/eth1"):
        told = json.loads(keyboard.type("list", name, "--json").stdout)
        assert port in [each["port"] for each in told]
    assert json.loads(keyboard.type("list", "--json").stdout) == listed
    assert port in keyboard.type("show", "-n", "default", "app").stdout
    assert port in keyboard.type("show", "app", "--context=", "--namespace", "default").stdout
    # its application has never been started, which is a finding
    why = json.loads(keyboard.type("why", "app", "--json", code=1).stdout)
    assert [each["name"] for each in why["attachments"]] == ["default/app/eth1"]
    refused = keyboard.type("show", "app/eth7", code=1)
    assert "did you mean default/app/eth1?" in refused.stderr
    assert keyboard.type("show", "app", "--bogus", code=2).stdout == ""
    assert "default/app" in keyboard.type("enter", "default/app", "--", "sh", "-c", "echo default/app; ls /proc/self").stdout
    keyboard.type("enter", "default/app", "--", "sh", "-c", "exit 7", code=7)


def test_commands_of_a_node(keyboard: Keyboard, attached: str) -> None:
    """A node is named, is the only one, or all are meant; another command of the program needs --node alone."""
    one, only, every = (keyboard.type(*words, "--json") for words in (("status", attached), ("status",), ("status", "--all")))
    assert json.loads(one.stdout)["agent"]["reachable"]
    assert json.loads(only.stdout).keys() == json.loads(one.stdout).keys() == json.loads(every.stdout).keys()
    assert "CPU" in keyboard.raw("userspace", "doctor", attached).stdout.decode()
    assert "specs" in json.loads(keyboard.type("network", "--node", attached, "--json").stdout)
    assert b"</svg>" in keyboard.raw("userspace", "map", attached).stdout
    sample = json.loads(keyboard.type("top", attached, "--json", "-n", "1").stdout)
    assert "default/app/eth1" in json.dumps(sample)
    assert "Usage:" in keyboard.type("capture", "--help").stdout
    assert "on which node" not in keyboard.type("top", "--help").stderr


def test_files_are_written_here(keyboard: Keyboard, attached: str) -> None:
    """An archive comes whole, with mode 0600, and replaces none; frames come as they are."""
    path = keyboard.directory / "node.tar.gz"
    told = keyboard.type("support", attached, "--output", str(path))
    assert "names and addresses are in it" in told.stderr
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    names = _names_in(path.read_bytes())
    assert {"index.json", "agent/agent.log", "switch/tables.json", "commands/why.json"} <= names
    assert "exists already" in keyboard.type("support", attached, "--output", str(path), code=2).stderr
    keyboard.type("support", attached)
    [dated] = keyboard.directory.glob(f"userspace-cni-support-{attached}-*.tar.gz")
    assert _names_in(dated.read_bytes()) >= {"index.json"}
    assert _names_in(keyboard.raw("userspace", "support", attached, "--output=-").stdout) >= {"index.json"}
    assert "agent/agent.log" in keyboard.type("support", attached, "--list").stdout
    frames = keyboard.directory / "frames.pcap"
    capture = ("userspace", "capture", "app/eth1", "--seconds", "1")
    wait = keyboard.cluster.wait  # its first port makes ovs-vswitchd silent for a while
    wait(lambda: keyboard.raw(*capture, "--write", str(frames)).returncode == 0, "frames in a file")
    piped = wait(lambda: (done := keyboard.raw(*capture)).returncode == 0 and done, "frames in a pipe")
    for taken in (frames.read_bytes(), piped.stdout):
        assert taken[:4] in (b"\xd4\xc3\xb2\xa1", b"\x4d\x3c\xb2\xa1")
    page = keyboard.directory / "node.html"
    keyboard.type("map", attached, "--html", str(page))
    assert b"<svg" in page.read_bytes()
    assert [each for each in keyboard.directory.iterdir() if each.name.startswith(".")] == []


def _names_in(raw: bytes) -> set[str]:
    with tarfile.open(fileobj=io.BytesIO(raw), mode="r:gz") as tar:
        index = next(each for each in tar.getmembers() if each.name.endswith("/index.json"))
        file = tar.extractfile(index)
        assert file
        problems = {each["what"]: each["problem"] for each in json.loads(file.read())["items"] if each["problem"]}
        assert not {what for what in problems if what.startswith("the agent")}, problems
        return {each.name.partition("/")[2] for each in tar.getmembers()}


def test_at_a_terminal(keyboard: Keyboard, attached: str) -> None:
    """At a terminal the command has one, too, and is as wide."""
    argv = ["script", "-qec", "stty cols 200; kubectl userspace list -o wide app", "/dev/null"]
    with Popen(argv, env=keyboard.environ, stdin=PIPE, stdout=PIPE, stderr=STDOUT, text=True) as process:
        output, _ = process.communicate(timeout=RUNNING_S)
    assert process.returncode == 0, output
    assert "eth1" in output
    assert "\x1b[1m" in output  # headings are bold, as on a terminal


def test_what_is_not_there(keyboard: Keyboard, attached: str) -> None:
    """A pod that is not there, one on no node, and a call that names none each say so, and what to do."""
    cluster = keyboard.cluster
    assert "there is no pod absent" in keyboard.type("why", "absent", code=1).stderr
    assert "there is no pod app" in keyboard.type("why", "app", "-n", "kube-system", code=1).stderr
    assert "of which pod?" in keyboard.type("why", code=2).stderr
    assert "is no name" in keyboard.type("why", "a/b/c/d", code=2).stderr
    assert "needs a value" in keyboard.type("why", "app", "-n", code=2).stderr
    cluster.apply(attached_pod("unplaced", nodeSelector={"nowhere": "yes"}))

    def told() -> str:
        return keyboard.raw("userspace", "why", "unplaced").stderr.decode()

    assert "pod unplaced is on no node yet" in cluster.wait(
        lambda: "nodes are available" in told() and told(), "the scheduler's word"
    )
    assert "no agent runs on node nowhere" in keyboard.type("status", "nowhere", code=3).stderr
    cluster.delete("pod", "unplaced", "--force", "--grace-period=0")
    assert "kubectl userspace why" in keyboard.type("help").stdout


def test_an_agent_that_is_absent(keyboard: Keyboard, attached: str) -> None:
    """Without an agent on the node the user is told so, why that may be, and the commands that work all the same."""
    cluster = keyboard.cluster
    [daemonset] = cluster.get("daemonsets", f"--namespace={NAMESPACE}")["items"]
    name, before = daemonset["metadata"]["name"], daemonset["spec"]["template"]["spec"]["nodeSelector"]
    image = daemonset["spec"]["template"]["spec"]["containers"][0]["image"]
    patch = ["patch", "daemonset", name, f"--namespace={NAMESPACE}", "--type=json", "-p"]
    path = "/spec/template/spec/nodeSelector"
    cluster.kubectl(*patch, json.dumps([{"op": "replace", "path": path, "value": {**before, "nowhere": "yes"}}]))
    try:
        cluster.wait(lambda: not cluster.pods(AGENT_LABEL, NAMESPACE), "no agent")
        told = keyboard.type("why", "app", code=3).stderr
        assert f"no agent runs on node {attached}" in told
        assert f"kubectl debug node/{attached} -it --profile=sysadmin --image={image} " in told
        assert "userspace-cni why default/app, as root" in told
        assert "no agent is in namespace" in keyboard.type("list", code=3).stderr
    finally:
        cluster.kubectl(*patch, json.dumps([{"op": "replace", "path": path, "value": before}]))
        cluster.wait_agent()
    keyboard.type("list", "app")


@pytest.fixture
def bound(clean: Cluster) -> Iterator[Cluster]:
    """With the rights of rbac.yaml, and those to see pods, for the group that it names."""
    clean.apply(PLUGIN / "rbac.yaml")
    clean.kubectl("create", "clusterrolebinding", "plugin-view", "--clusterrole=view", "--group=node-admins")
    yield clean
    clean.kubectl("delete", "-f", str(PLUGIN / "rbac.yaml"))
    clean.kubectl("delete", "clusterrolebinding", "plugin-view")


def test_rights(keyboard: Keyboard, attached: str, bound: Cluster) -> None:
    """Who may not get pods, or run commands in the agent's container, is told which right is missing; rbac.yaml has all."""
    stranger = ["--as=joe"]
    told = keyboard.type("why", "app", *stranger, code=3).stderr
    assert "you need the right to get pods in namespace of the context" in told
    assert "list pods in namespace userspace-cni" in keyboard.type("status", *stranger, code=3).stderr
    bound.kubectl("create", "clusterrolebinding", "plugin-viewer", "--clusterrole=view", "--user=ann")
    try:
        told = keyboard.type("why", "app", "--as=ann", code=3).stderr
    finally:
        bound.kubectl("delete", "clusterrolebinding", "plugin-viewer")
    assert "you need the right to create pods/exec in namespace userspace-cni" in told
    assert "rbac.yaml" in told
    keyboard.type("list", "app", "--as=joe", "--as-group=node-admins")


def test_completion(keyboard: Keyboard, attached: str) -> None:
    """kubectl completes commands, pods, nodes and options."""

    def completed(*words: str) -> list[str]:
        done = keyboard.raw("__complete", "userspace", *words)
        return [line.partition("\t")[0] for line in done.stdout.decode().splitlines()]

    assert {"why", "support", "capture"} <= set(completed(""))
    assert completed("wh")[0] == "why"
    assert "app" in completed("why", "")
    assert attached in completed("doctor", "")
    assert "--agent-namespace" in completed("why", "app", "--agent-n")
