"""How `kubectl userspace` reads its words: what is kubectl's, what is ours, and what is a pod or node of the command."""

from __future__ import annotations

import pytest

from deploy.kubectl.kubectl_userspace import Cluster, Failed, complete, local_file, plan, read_words


@pytest.mark.parametrize(
    ("typed", "kubectl", "command", "rest", "names"),
    [
        ("why web -n shop", [], "why", ["web"], ["web"]),
        ("--context c why web --kubeconfig=/k", ["--context=c", "--kubeconfig=/k"], "why", ["web"], ["web"]),
        ("capture web/net1 --count 3 icmp", [], "capture", ["web/net1", "--count", "3", "icmp"], ["web/net1", "icmp"]),
        ("top n1 -n 5 --batch", [], "top", ["n1", "-n", "5", "--batch"], ["n1"]),
        ("top --batch n1", [], "top", ["--batch", "n1"], ["n1"]),
        ("list -o wide", [], "list", ["-o", "wide"], []),
        ("enter web -n shop ip -n x --all", [], "enter", ["web", "ip", "-n", "x", "--all"], ["web", "ip"]),
        ("enter web -- ip -n x --context y", [], "enter", ["web", "--", "ip", "-n", "x", "--context", "y"], ["web"]),
        ("doctor --all --as joe", ["--as=joe"], "doctor", [], []),
    ],
)
def test_words(typed: str, kubectl: list[str], command: str, rest: list[str], names: list[str]) -> None:
    """kubectl's options may stand anywhere; a value of an option is no name; behind `--` everything is the program's."""
    words = read_words(typed.split())
    assert (words.kubectl, words.command, words.rest, words.names) == (kubectl, command, rest, names)


@pytest.mark.parametrize(
    ("typed", "name", "rest"),
    [
        ("capture a --write f.pcap icmp", "f.pcap", ["a", "icmp"]),
        ("support n --output=x", "x", ["n"]),
        ("map n --html -", "-", ["n"]),
        ("list --output wide", "", ["--output", "wide"]),
        ("capture a --write", "", ["a", "--write"]),
    ],
)
def test_files_are_ours(typed: str, name: str, rest: list[str]) -> None:
    """The file that a command is to write is not told to the container; another option of the name is."""
    words = read_words(typed.split())
    assert (local_file(words), words.rest) == (name, rest)


class Known(Cluster):
    """A cluster whose pods and agents are known."""

    def pod(self, namespace: str, name: str) -> dict[str, object] | None:
        node = {"a": "n1", "b": "n2", "icmp": "n2"}.get(name)
        return {"metadata": {"namespace": namespace or "default"}, "spec": {"nodeName": node}} if node else None

    def agents(self, node: str = "") -> list[dict[str, object]]:
        return [{"spec": {"nodeName": each}} for each in ("n1", "n2")]


def planned(typed: str) -> dict[str, str]:
    return {node: " ".join(command) for node, command in plan(Known(read_words(typed.split())))}


def test_each_pod_is_asked_for_on_its_node() -> None:
    """Pods of two nodes are two calls; a filter's word that is called as a pod stays; ping needs both on one node."""
    assert planned("show a b/net1 --json") == {"n1": "show default/a --json", "n2": "show default/b/net1 --json"}
    assert planned("capture icmp/net1 icmp") == {"n2": "capture default/icmp/net1 icmp"}
    assert planned("capture a a") == {"n1": "capture default/a a"}
    assert planned("why shop/a") == {"n1": "why shop/a"}
    assert planned("doctor --all") == {"n1": "doctor", "n2": "doctor"} == planned("doctor --all")
    assert planned("list") == {"n1": "list", "n2": "list"}
    assert planned("routes list --node n2") == {"n2": "routes list"}
    assert planned("support n2 --log-mib 9") == {"n2": "support --log-mib 9"}
    assert planned("why --help") == {"n1": "why --help"}
    assert planned("enter b -- df -h") == {"n2": "enter default/b -- df -h"}
    assert planned("enter b df -h --all") == {"n2": "enter default/b df -h --all"}
    for typed, code in (("ping a b", 1), ("doctor", 2), ("top --all", 2), ("why", 2), ("why c", 1)):
        with pytest.raises(Failed) as refused:
            planned(typed)
        assert refused.value.code == code, typed


def test_completion_without_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands and options need no cluster; without kubectl there is nothing to say of pods, and no error."""
    monkeypatch.setenv("KUBECTL", "/no/kubectl")
    assert complete(["wh"]).startswith("why\t")
    assert complete(["why", ""]) == ":4\n"
    assert "--node" in complete(["why", "--no"])
