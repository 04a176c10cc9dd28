"""The command that removes everything from a cluster, when kubectl fails: after a question without an answer nothing is changed.

The kubectl here answers from files, as API server and agents of two nodes would, and its n-th call fails. On a real cluster the
same command runs in tests/cluster.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
UNINSTALL = ROOT / "deploy" / "cluster" / "uninstall.sh"
BIN, PROFILES = "/opt/cni/bin", "/data/kubelet/seccomp"
IMAGE = "registry.example/userspace-cni:0.1.0"
AGENT, DONE = "userspace-cni", "userspace-cni-uninstall"
CHANGES = ("apply", "delete")
NONE, LEFT = "[]", '["left"]'
KUBECTL = """\
#!/bin/bash
# kubectl, answering from the files beside it; the call whose number is in FAILING fails, with half an answer where it has one
cd "${0%/*}"
[[ $1 != --namespace ]] || shift 2
echo "$*" >>calls
mapfile -t calls <calls
refuse() { echo "$1" >&2; exit 1; }
((${#calls[@]} != FAILING)) || { [[ $1 != api-resources ]] || echo namespaces; refuse "The server refused"; }
names() { for each in "$1"/*; do [[ ! -e $each ]] || echo "$2/${each##*/}"; done; }
# an agent NAME runs on the node NAME, unless a file says which, and is of the DaemonSet userspace-cni
pods() { for each in $(names agents userspace-cni); do echo "$each,$(on "${each#*/}"),DaemonSet/userspace-cni"; done; }
on() { if [[ -e nodes/$1 ]]; then cat "nodes/$1"; else echo "$1"; fi; }
case $* in
    "get daemonsets --output name") names daemonsets daemonset.apps ;;
    "get daemonset "*image*) printf %s "$(<fields/image)" ;;
    "get daemonset "*seccomp*) printf %s "$(<fields/seccomp)" ;;
    "get daemonset "*hostPath*) printf %s "$(<fields/hostPath)" ;;
    "get daemonset "*configMap*) printf %s "$(<fields/configMap)" ;;
    "get daemonset "*desiredNumberScheduled*) printf %s "$(<fields/nodes)" ;;
    "get pods --all-namespaces "*name=userspace-cni\\ *) pods; cat others ;;
    "get nodes "*) cat cluster-nodes ;;
    "get pods "*) ;;
    exec*" gc") [[ $(<"agents/${2#pod/}") != *left* ]] || echo "[]" >"agents/${2#pod/}" ;;
    exec*)
        cat "agents/${2#pod/}"
        [[ $(<"agents/${2#pod/}") != *broken* ]] || refuse "command terminated with exit code 1"
        ;;
    apply*) cat >applied && touch daemonsets/userspace-cni-uninstall ;;
    "delete daemonset "*) rm "daemonsets/$3" ;;
    delete*) echo "$2" >>deleted ;;
    api-resources*) printf "%s\\n" namespaces clusterroles.rbac.authorization.k8s.io ;;
    "rollout status "*) rm -f agents/* ;;
    *) refuse "the kubectl of the tests does not know: $*" ;;
esac
"""


class FakeCluster:
    """A cluster as far as kubectl shows it, new, in `directory`: its DaemonSets, and what its agents have as attached."""

    def __init__(self, directory: Path, daemonsets: Iterable[str], **agents: str) -> None:
        self.directory = directory
        for name in ("daemonsets", "agents", "fields", "nodes"):
            (directory / name).mkdir(parents=True)
        for name in daemonsets:
            (directory / "daemonsets" / name).touch()
        for name, attached in agents.items():
            (directory / "agents" / name).write_text(attached)
        for name in ("others", "cluster-nodes"):
            (directory / name).touch()
        fields = {
            "image": IMAGE,
            "hostPath": BIN,
            "seccomp": PROFILES,
            "configMap": "userspace-cni-settings",
            "nodes": str(len(agents)),
        }
        for name, value in fields.items():
            (directory / "fields" / name).write_text(value)
        kubectl = directory / "kubectl"
        kubectl.write_text(KUBECTL)
        kubectl.chmod(0o755)

    def uninstall(self, *options: str, failing: int = 0) -> subprocess.CompletedProcess[str]:
        """Run the command there; the `failing`-th call of kubectl fails, the first being 1."""
        environ = {**os.environ, "PATH": f"{self.directory}:{os.environ['PATH']}", "FAILING": str(failing)}
        argv = ["bash", str(UNINSTALL), *options]
        return subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=60, check=False)

    @property
    def calls(self) -> list[str]:
        """Every call of kubectl so far."""
        return (self.directory / "calls").read_text().splitlines()

    @property
    def changes(self) -> list[str]:
        return [call for call in self.calls if call.startswith(CHANGES)]

    @property
    def state(self) -> tuple[tuple[str, str], ...]:
        """Each file that kubectl answers from or has written, but for the list of its calls."""
        files = sorted(path for path in self.directory.rglob("*") if path.is_file() and path.name != "calls")
        return tuple((str(path.relative_to(self.directory)), path.read_text()) for path in files)

    @property
    def deleted(self) -> set[str]:
        """The kinds of what was deleted beside DaemonSets."""
        return set((self.directory / "deleted").read_text().splitlines())


AGENTS = {"one": NONE, "two": LEFT}
SITUATIONS: dict[str, tuple[list[str], tuple[str, ...], dict[str, str]]] = {
    "agents": ([AGENT], (), AGENTS),
    "forced": ([AGENT], ("--force",), AGENTS),
    "cut short once the nodes were asked": ([AGENT, DONE], (), AGENTS),
    "cut short once the agents had ended": ([DONE], (), AGENTS),
    "a cluster without nodes": ([AGENT], (), {}),
    "without agents": ([], (), {}),
}


@pytest.mark.parametrize("situation", SITUATIONS)
def test_each_question_without_an_answer_once(situation: str, tmp_path: Path) -> None:
    """Each call of kubectl fails in turn: nothing is changed after it, and the command says so and fails.

    A second run, whose kubectl answers, ends like one that never failed. It is made once for each state that a failed run left.
    """
    daemonsets, options, agents = SITUATIONS[situation]
    whole = FakeCluster(tmp_path / "whole", daemonsets, **agents)
    ended = {whole.state}
    done = whole.uninstall(*options)
    assert done.returncode == 0, done.stderr
    assert {"clusterroles.rbac.authorization.k8s.io", "customresourcedefinitions", "namespace"} == whole.deleted
    for number in range(1, len(whole.calls) + 1):
        cluster = FakeCluster(tmp_path / str(number), daemonsets, **agents)
        failed = cluster.uninstall(*options, failing=number)
        after = [call for call in cluster.calls[number:] if call.startswith(CHANGES)]
        told = failed.stderr.splitlines()[-1]
        assert (failed.returncode != 0, after) == (True, []), f"call {number}, {cluster.calls[number - 1]}:\n{failed.stderr}"
        assert "uninstall: done" not in failed.stderr
        assert "run this again" in told if cluster.changes else "nothing was changed" in told or "not done" in failed.stderr, (
            failed.stderr
        )
        if cluster.state in ended:
            continue
        ended.add(cluster.state)
        again = cluster.uninstall(*options)
        assert again.returncode == 0, again.stderr
        assert list((cluster.directory / "daemonsets").iterdir()) == []
        assert cluster.deleted == whole.deleted


def test_what_the_nodes_are_sent(tmp_path: Path) -> None:
    """The agents' own image, directory and settings, no text of the template is left; what was left of pods goes first."""
    cluster = FakeCluster(tmp_path / "cluster", [AGENT], one=NONE, two=LEFT)
    done = cluster.uninstall()
    assert (done.returncode, done.stderr.splitlines()[-1]) == (0, "uninstall: done: nothing of userspace-cni is left")
    applied = (cluster.directory / "applied").read_text()
    assert f'"{IMAGE}"' in applied
    [container] = yaml.safe_load(applied)["spec"]["template"]["spec"]["initContainers"]
    assert container["args"] == ["uninstall", "--bin-dir", BIN, "--seccomp-dir", PROFILES, "--wait", "120"]
    assert f"hostPath: {{path: {json.dumps(BIN)}, " in applied
    assert f"hostPath: {{path: {json.dumps(PROFILES)}, " in applied
    assert '{name: "userspace-cni-settings"}' in applied
    assert "exec pod/two --container agent -- userspace-cni gc" in cluster.calls


def test_agents_that_put_no_profile_on_their_nodes(tmp_path: Path) -> None:
    """An earlier version's `uninstall` has no option for the seccomp profile: none is sent."""
    cluster = FakeCluster(tmp_path / "cluster", [AGENT], one=NONE)
    (cluster.directory / "fields" / "seccomp").write_text("")
    assert cluster.uninstall("--force").returncode == 0
    applied = (cluster.directory / "applied").read_text()
    [container] = yaml.safe_load(applied)["spec"]["template"]["spec"]["initContainers"]
    assert container["args"] == ["uninstall", "--bin-dir", BIN, "--wait", "120", "--force"]
    assert PROFILES not in applied


@pytest.mark.parametrize("field", ["image", "hostPath", "configMap"])
def test_an_agent_that_does_not_say_how_it_runs(field: str, tmp_path: Path) -> None:
    """What the nodes would be sent lacks a value: they are not asked, and the field is named."""
    cluster = FakeCluster(tmp_path / "cluster", [AGENT], one=NONE)
    (cluster.directory / "fields" / field).write_text("")
    done = cluster.uninstall("--force")
    assert done.returncode == 1
    assert cluster.changes == []
    assert field in done.stderr


@pytest.mark.parametrize("nodes", ["2", ""])
def test_a_node_whose_agent_is_not_there(nodes: str, tmp_path: Path) -> None:
    """What is attached there cannot be asked: nothing is changed."""
    cluster = FakeCluster(tmp_path / "cluster", [AGENT], one=NONE)
    (cluster.directory / "fields" / "nodes").write_text(nodes)
    done = cluster.uninstall()
    assert (done.returncode, "nothing was changed" in done.stderr) == (1, True)
    assert cluster.changes == []


def test_two_agents_of_one_node(tmp_path: Path) -> None:
    """They count as one node's answer: the second node's is missing, and nothing is changed."""
    cluster = FakeCluster(tmp_path / "cluster", [AGENT], one=NONE, two=NONE)
    (cluster.directory / "nodes" / "two").write_text("one")
    done = cluster.uninstall()
    assert (done.returncode, "could be asked: 1, nodes: 2" in done.stderr) == (1, True)
    assert cluster.changes == []
    (cluster.directory / "nodes" / "two").unlink()
    assert cluster.uninstall().returncode == 0


def test_agents_for_none_of_the_nodes(tmp_path: Path) -> None:
    """A DaemonSet that is meant for no node, as by a selector, has asked none of those that are there."""
    cluster = FakeCluster(tmp_path / "cluster", [AGENT])
    (cluster.directory / "cluster-nodes").write_text("node/one\n")
    done = cluster.uninstall()
    assert (done.returncode, "nothing was changed" in done.stderr, "nodeSelector" in done.stderr) == (1, True, True)
    assert cluster.changes == []
    (cluster.directory / "cluster-nodes").write_text("")
    assert cluster.uninstall().returncode == 0


OTHERS = {
    "of a DaemonSet of another name": ([], "userspace-cni/my-agent-x,three,DaemonSet/my-userspace-cni"),
    "of another namespace": ([AGENT], "kube-system/userspace-cni-x,three,DaemonSet/userspace-cni"),
    "whose DaemonSet has gone": ([], "userspace-cni/userspace-cni-x,three,DaemonSet/userspace-cni"),
    "that were orphaned": ([AGENT], "userspace-cni/userspace-cni-x,three,/"),
}


@pytest.mark.parametrize("options", [(), ("--force",)])
@pytest.mark.parametrize("case", OTHERS)
def test_agents_without_a_daemonset_of_ours(case: str, options: tuple[str, ...], tmp_path: Path) -> None:
    """Their nodes would be neither asked nor cleaned: the error names agents and node, and nothing is changed."""
    daemonsets, line = OTHERS[case]
    cluster = FakeCluster(tmp_path / "cluster", daemonsets, **({"one": NONE} if daemonsets else {}))
    (cluster.directory / "others").write_text(f"{line}\n")
    done = cluster.uninstall(*options)
    assert (done.returncode, "nothing was changed" in done.stderr) == (1, True)
    assert f"{line.partition(',')[0]}, node three" in done.stderr
    assert cluster.changes == []
    (cluster.directory / "others").write_text("")
    assert cluster.uninstall(*options).returncode == 0


@pytest.mark.parametrize("seconds", ["5m", "abc", "0", "-1", "1.5", "", "5s", "99999999999999999999"])
def test_a_time_that_kubectl_would_not_take(seconds: str, tmp_path: Path) -> None:
    """An invalid time is refused before kubectl is called at all, with the valid form."""
    cluster = FakeCluster(tmp_path / "cluster", [AGENT], one=NONE)
    done = cluster.uninstall("--timeout", seconds)
    assert (done.returncode, "whole seconds" in done.stderr, f'"{seconds}"' in done.stderr) == (2, True, True)
    assert not (cluster.directory / "calls").exists()
    assert cluster.uninstall("--timeout", "5").returncode == 0
    assert [call for call in cluster.calls if call.startswith("rollout status ") and call.endswith(" --timeout 5s")] != []


def test_attached_pods(tmp_path: Path) -> None:
    """They are listed, and nothing is changed."""
    cluster = FakeCluster(tmp_path / "cluster", [AGENT], one=NONE, two='["default/app/net1"]')
    done = cluster.uninstall()
    assert (done.returncode, "default/app/net1" in done.stdout + done.stderr, "pod/two" in done.stderr) == (1, True, True)
    assert cluster.changes == []


def test_attached_pods_of_which_one_is_broken(tmp_path: Path) -> None:
    """An agent that lists what is broken answers with exit code 1, and has been asked; what was left of pods goes as always."""
    cluster = FakeCluster(tmp_path / "cluster", [AGENT], one='["broken, default/app/net1"]')
    done = cluster.uninstall()
    assert (done.returncode, "broken, default/app/net1" in done.stdout, "cannot be asked" in done.stderr) == (1, True, False)
    assert cluster.changes == []
    left = FakeCluster(tmp_path / "left", [AGENT], one='["broken, left"]')
    assert left.uninstall().returncode == 0


def test_a_cluster_that_has_no_agents(tmp_path: Path) -> None:
    """Its nodes were not looked at, and it does not claim that nothing is left there."""
    cluster = FakeCluster(tmp_path / "cluster", [])
    done = cluster.uninstall()
    assert done.returncode == 0
    assert "no node was looked at" in done.stderr
