#!/usr/bin/env python3
"""`kubectl userspace`: runs commands of userspace-cni on the node that they are about, in the agent's container there.

It finds the pod's node, the agent's pod on it, and calls `kubectl exec`: so it has the rights of whoever calls it, and no others.
Output, files and exit codes are those of the command. One file of Python's standard library alone (3.9 or newer), because it is
copied to machines that have kubectl and nothing of this project:

    install -m 755 kubectl_userspace.py /usr/local/bin/kubectl-userspace
    ln -s kubectl-userspace /usr/local/bin/kubectl_complete-userspace     # kubectl completes its words by that name
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

FOUND, USAGE, UNREACHABLE, INTERRUPTED = 1, 2, 3, 130
AGENT_NAMESPACE, AGENT_LABEL, CONTAINER = "userspace-cni", "app.kubernetes.io/name=userspace-cni", "agent"

OF_PODS = {
    "why": "what is wrong with a pod's interface, and what to do",
    "show": "everything of a pod's attachments",
    "check": "whether they are as ADD made them",
    "capture": "the frames of a port; --write FILE writes here",
    "enter": "a program of the node in a pod's network",
    "ping": "round trips between two unused ports",
    "load": "the rate between two unused ports",
}
OF_NODES = {
    "doctor": "what disturbs the switch",
    "top": "what attachments carry now",
    "map": "a picture of the node's network; --html FILE writes here",
    "status": "the state of agent, plugin and switch",
    "support": "one archive for a maintainer, without secrets; --output FILE writes here",
}
SEVERAL_NODES = ("list", "doctor", "status", "support", "check")
"""Commands that can run on each node, one after the other."""
WRITES = {"capture": "--write", "map": "--html", "support": "--output"}
"""The options that name a file: it is written here, not in the container."""
KUBECTL_VALUES = (
    "--context", "--kubeconfig", "--cluster", "--user", "--as", "--as-group", "--as-uid", "--server", "--token",
    "--request-timeout", "--tls-server-name", "--certificate-authority", "--client-key", "--client-certificate", "--cache-dir",
)  # fmt: skip
OUR_VALUES = ("--node", "--agent-namespace", "--agent-selector", "--agent-container")
WITH_VALUE = (
    "-o", "--output", "--network", "--write", "--html", "--count", "--seconds", "--snaplen", "--interval", "--size", "--batch",
    "--bridge", "--bin-dir", "--log-mib", "-d", "--delay", "-n", "--iterations", "--sort", "-f", "--filter", "--timeout",
)  # fmt: skip
"""Options of the commands whose next word is a value, no pod or node."""
_ENDED = re.compile(rb"^command terminated with exit code \d+\s*$")


class Failed(Exception):
    """Why this ends here, and with which exit code."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class Unanswered(Exception):
    """kubectl failed; the text is what it said."""


@dataclass
class Words:
    """The words of a call: kubectl's own options, ours, the command and what is for it."""

    kubectl: list[str] = field(default_factory=list)
    namespace: str = ""
    node: str = ""
    everywhere: bool = False
    agent_namespace: str = AGENT_NAMESPACE
    agent_selector: str = AGENT_LABEL
    agent_container: str = CONTAINER
    command: str = ""
    rest: list[str] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        """Those of the rest that are no option and no option's value; what follows `--` is none."""
        found, skip = [], False
        for word in self.rest[: self.rest.index("--") if "--" in self.rest else None]:
            if skip:
                skip = False
            elif word.startswith("-") and len(word) > 1:
                skip = word in WITH_VALUE and not (self.command == "top" and word == "--batch")
            else:
                found.append(word)
        return found


def read_words(given: Sequence[str]) -> Words:
    """Split the call. `-n` is the namespace, but behind `top`, which has an option of that name."""
    words, left = Words(), list(given)
    while left:
        word = left.pop(0)
        name, equals, value = word.partition("=")
        if word == "--" or (words.command == "enter" and len(words.names) > 1):  # the rest is the program's
            words.rest += [word, *left]
            break
        of_namespace = name == "--namespace" or (name == "-n" and words.command != "top")
        if of_namespace or name in KUBECTL_VALUES or name in OUR_VALUES:
            if not equals and not left:
                raise Failed(f"{name} needs a value", USAGE)
            value = value if equals else left.pop(0)
            if of_namespace:
                words.namespace = value
            elif name in OUR_VALUES:
                setattr(words, name[2:].replace("-", "_"), value)
            else:
                words.kubectl.append(f"{name}={value}")
        elif word == "--insecure-skip-tls-verify":
            words.kubectl.append(word)
        elif word == "--all":
            words.everywhere = True
        elif not words.command and not word.startswith("-"):
            words.command = word
        else:
            words.rest.append(word)
    return words


class Cluster:
    """The API server, asked by kubectl."""

    def __init__(self, words: Words) -> None:
        self.words = words
        self.program = [os.environ.get("KUBECTL", "kubectl"), *words.kubectl]

    def ask(self, *arguments: str) -> str:
        """What kubectl prints. Raises Unanswered."""
        argv = [*self.program, *arguments]
        try:
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        except OSError as error:
            raise Failed(f"{self.program[0]}: {error.strerror}; install kubectl, or name it in KUBECTL", UNREACHABLE) from error
        if done.returncode:
            raise Unanswered(done.stderr.strip() or f"kubectl ended with {done.returncode}")
        return done.stdout

    def get(self, *arguments: str) -> Any:
        return json.loads(self.ask("get", *arguments, "--output=json"))

    def pod(self, namespace: str, name: str) -> dict[str, Any] | None:
        """The pod; None where there is none. Raises Failed."""
        where = [f"--namespace={namespace}"] if namespace else []
        try:
            found: dict[str, Any] = self.get("pod", name, *where)
        except Unanswered as error:
            if "(NotFound)" in str(error):
                return None
            right = f"get pods in namespace {namespace or 'of the context'}"
            raise self.failure(error, f"looking for pod {name}", right) from error
        return found

    def agents(self, node: str = "") -> list[dict[str, Any]]:
        """The agents' pods, of one node or all, those that run first. Raises Failed."""
        words = self.words
        chosen = [f"--namespace={words.agent_namespace}", f"--selector={words.agent_selector}"]
        chosen += [f"--field-selector=spec.nodeName={node}"] if node else []
        try:
            pods = self.get("pods", *chosen)["items"]
        except Unanswered as error:
            right = f"list pods in namespace {words.agent_namespace}"
            raise self.failure(error, "looking for the agents", right) from error
        with_agent = [each for each in pods if words.agent_container in [item["name"] for item in each["spec"]["containers"]]]
        return sorted(
            with_agent, key=lambda each: ("running" not in _state(each, words.agent_container), each["metadata"]["name"])
        )

    def failure(self, error: Unanswered, what: str, right: str) -> Failed:
        """What kubectl said, in a sentence with what to do."""
        lacking = (
            f" You may not; you need the right to {right}, as deploy/kubectl/rbac.yaml gives it."
            if "orbidden" in str(error)
            else ""
        )
        return Failed(f"{what}: {error}.{lacking}", UNREACHABLE)


def _state(pod: dict[str, Any], container: str) -> dict[str, Any]:
    """The state of the container; {} where the kubelet has reported none."""
    statuses = pod.get("status", {}).get("containerStatuses") or []
    return next((each.get("state") or {} for each in statuses if each["name"] == container), {})


def find_agent(cluster: Cluster, node: str, command: Sequence[str]) -> str:
    """The name of the agent's pod on the node. Raises Failed with what else there is where none runs."""
    words = cluster.words
    agents, namespace = cluster.agents(node), cluster.words.agent_namespace
    if agents and "running" in _state(agents[0], words.agent_container):
        return str(agents[0]["metadata"]["name"])
    if agents:
        name, state = agents[0]["metadata"]["name"], _state(agents[0], words.agent_container)
        reason = next((each.get("reason") or kind for kind, each in state.items()), "it was not started yet")
        problem = (
            f"the agent on node {node} does not run: pod {name}: {reason}. kubectl -n {namespace} describe pod {name}, and "
            f"kubectl -n {namespace} logs {name} -c {words.agent_container} --previous, say why"
        )
    else:
        problem = (
            f"no agent runs on node {node}: no pod with {words.agent_selector} is in namespace {namespace} (--agent-selector, "
            f"--agent-namespace). kubectl -n {namespace} get daemonsets,pods -o wide says whether the node is meant to have one"
        )
    raise Failed(f"{problem}. {_without_agent(cluster, node, command)}", UNREACHABLE)


def _without_agent(cluster: Cluster, node: str, command: Sequence[str]) -> str:
    """The commands work without an agent, as root on the node."""
    image = "IMAGE-OF-THE-AGENT"
    with contextlib.suppress(Unanswered, Failed, LookupError):
        where = (f"--namespace={cluster.words.agent_namespace}", f"--selector={cluster.words.agent_selector}")
        sets = cluster.get("daemonsets", *where)
        containers = [each for item in sets["items"] for each in item["spec"]["template"]["spec"]["containers"]]
        image = next(each["image"] for each in containers if each["name"] == cluster.words.agent_container)
    call = shlex.join(["userspace-cni", *command])
    debug = f"kubectl debug node/{node} -it --profile=sysadmin --image={image} -- env USERSPACE_CNI_HOST_ROOT=/host {call}"
    return f"Without it the command works on the node itself: {call}, as root, or from here: {debug}"


def find_pod(cluster: Cluster, name: str) -> tuple[str, str]:
    """The node of the pod that a name means, and the name as the node takes it: NAMESPACE/POD[/IFNAME]. Raises Failed.

    POD, POD/IFNAME, NAMESPACE/POD or NAMESPACE/POD/IFNAME: of two parts the first is a pod of the namespace, if there is one.
    """
    parts, given = name.split("/"), cluster.words.namespace
    if len(parts) > 3 or not all(parts):
        raise Failed(f"{name!r} is no name: POD, POD/IFNAME, NAMESPACE/POD or NAMESPACE/POD/IFNAME", USAGE)
    tries = [(given, parts[0], "".join(parts[1:]))] if len(parts) < 3 else []
    tries += [(parts[0], parts[1], "".join(parts[2:]))] if len(parts) > 1 else []
    for namespace, pod_name, ifname in tries:
        pod = cluster.pod(namespace, pod_name)
        if pod is None:
            continue
        node = pod["spec"].get("nodeName", "")
        if not node:
            told = [each.get("message", "") for each in pod.get("status", {}).get("conditions") or []]
            raise Failed(f"pod {name} is on no node yet: {next(filter(None, told), 'see kubectl describe pod')}", FOUND)
        return node, "/".join(filter(None, (pod["metadata"]["namespace"], pod_name, ifname)))
    where = f"namespace {given}" if given else "the context's namespace"
    raise Failed(f"there is no pod {name} in {where}; -n NAMESPACE names another: kubectl get pods -A", FOUND)


def agent_nodes(cluster: Cluster) -> list[str]:
    """The nodes with an agent's pod. Raises Failed for none."""
    found = list(dict.fromkeys(each["spec"].get("nodeName", "") for each in cluster.agents()))
    if not found:
        raise Failed(
            f"no agent is in namespace {cluster.words.agent_namespace} (--agent-namespace, --agent-selector)", UNREACHABLE
        )
    return found


def find_node(cluster: Cluster) -> list[str]:
    """The nodes that the call is about: --node, the first name of a node's command, all, or the only one with an agent."""
    words = cluster.words
    if words.everywhere:
        if words.command not in SEVERAL_NODES:
            raise Failed(f"{words.command} runs on one node: name it; --all is for {', '.join(SEVERAL_NODES)}", USAGE)
    elif words.node:
        return [words.node]
    elif words.command in OF_NODES and words.names:
        node = words.names[0]
        words.rest.remove(node)
        return [node]
    found = agent_nodes(cluster)
    if len(found) > 1 and not words.everywhere and words.command != "list":
        raise Failed(f"{words.command}: on which node? --node with one of {', '.join(found)}, or --all", USAGE)
    return found


def plan(cluster: Cluster) -> list[tuple[str, list[str]]]:
    """Each node with the words that userspace-cni gets there. Raises Failed."""
    words = cluster.words
    names = words.names
    if {"-h", "--help"} & set(words.rest[:1] if words.command == "enter" else words.rest) and not words.node:
        return [(agent_nodes(cluster)[0], [words.command, "--help"])]
    if words.command in OF_PODS or (words.command == "list" and names):
        names = names[:1] if words.command in ("capture", "enter") else names
        if words.node or (words.command in ("check", "ping", "load") and not names):
            return [(node, [words.command, *words.rest]) for node in find_node(cluster)]
        if not names:
            raise Failed(f"{words.command}: of which pod? {words.command} POD[/IFNAME]", USAGE)
        return _by_node(words, {name: find_pod(cluster, name) for name in names})
    return [(node, [words.command, *words.rest]) for node in find_node(cluster)]


def _by_node(words: Words, found: dict[str, tuple[str, str]]) -> list[tuple[str, list[str]]]:
    nodes = list(dict.fromkeys(node for node, _ in found.values()))
    if len(nodes) > 1 and words.command in ("ping", "load"):
        on = ", ".join(f"{name} on {node}" for name, (node, _) in found.items())
        raise Failed(f"{words.command}: both pods have to be on one node: {on}", FOUND)
    planned = []
    for node in nodes:
        awaited, mine = list(found), [words.command]
        for word in words.rest:
            is_name = word in awaited  # once: a filter's word may be called as the pod
            if is_name:
                awaited.remove(word)
            if not is_name or found[word][0] == node:
                mine.append(found[word][1] if is_name else word)
        planned.append((node, mine))
    return planned


def run(cluster: Cluster, node: str, command: list[str], out: IO[bytes] | None) -> int:
    """Run it in the agent's container of that node; its exit code. `out`: where its stdout goes, None for our own."""
    words, terminal = cluster.words, sys.stdin.isatty() and sys.stdout.isatty() and out is None
    agent = find_agent(cluster, node, command)
    typed = ["--stdin"] if terminal or command[0] == "enter" else []
    typed += ["--tty"] if terminal else []
    where = [f"--namespace={words.agent_namespace}", f"--container={words.agent_container}"]
    argv = [*cluster.program, "exec", *typed, *where, agent, "--", "userspace-cni", *command]
    stdin = None if typed else subprocess.DEVNULL  # else it would swallow what a script reads
    with subprocess.Popen(argv, stdin=stdin, stdout=out, stderr=subprocess.PIPE) as process:
        said: list[bytes] = []
        reader = threading.Thread(target=_pass_on, args=(process.stderr, said), daemon=True)
        reader.start()
        try:
            code = process.wait()
        except KeyboardInterrupt:
            process.wait()
            return INTERRUPTED
        reader.join()
    if code and not any(map(_ENDED.match, said)):  # it is kubectl's own
        error = Unanswered(b"".join(said).decode("utf-8", "replace").strip() or f"kubectl ended with {code}")
        right = f"create pods/exec in namespace {words.agent_namespace}"
        raise cluster.failure(error, f"running a command in pod {agent} on node {node}", right)
    sys.stderr.buffer.write(b"".join(line for line in said if not _ENDED.match(line)))
    sys.stderr.buffer.flush()
    return code


def _pass_on(stream: IO[bytes] | None, said: list[bytes]) -> None:
    """Pass stderr on, line by line; what may be kubectl's own words is kept until its end, when that is known."""
    for line in stream or ():
        if line.startswith((b"Error from server", b"error: ", b"command terminated")):
            said.append(line)
            continue
        sys.stderr.buffer.write(line)
        sys.stderr.buffer.flush()


def local_file(words: Words) -> str:
    """The file that the command is to write, taken out of its words; "" for stdout or none."""
    option = WRITES.get(words.command, "")
    for number, word in enumerate(words.rest):
        name, equals, value = word.partition("=")
        if option and name == option and (equals or number + 1 < len(words.rest)):
            value = value if equals else words.rest[number + 1]
            words.rest[number : number + (1 if equals else 2)] = []
            return value
    return ""


def write_archive(cluster: Cluster, node: str, command: list[str], path: Path) -> int:
    """Run `support`, and write the archive to a file, whole or not at all; no other file goes."""
    if os.path.lexists(path):
        raise Failed(f"{path} exists already, and is not replaced", USAGE)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            code = run(cluster, node, command, file)
        if code == 0:
            os.link(temporary, path)
            print(f"{path}: {path.stat().st_size:,} bytes", file=sys.stderr)
        return code
    except OSError as error:
        raise Failed(f"writing {path}: {error.strerror}", FOUND) from error
    finally:
        temporary.unlink(missing_ok=True)


def run_command(cluster: Cluster) -> int:
    """Run the command on each of its nodes; the highest exit code."""
    name, planned, codes = local_file(cluster.words), plan(cluster), []
    for node, command in planned:
        if len(planned) == 1:
            return _run_on(cluster, node, command, name)
        if command[0] != "support":
            print(f"node {node}", flush=True)
        try:
            codes.append(_run_on(cluster, node, command, ""))
        except Failed as failed:
            print(f"Error: {failed}", file=sys.stderr)
            codes.append(failed.code)
    return max(codes)


def _run_on(cluster: Cluster, node: str, command: list[str], name: str) -> int:
    makes_archive = command[0] == "support" and not {"--list", "-h", "--help"} & set(command)
    if name or makes_archive:
        command = [*command, WRITES[command[0]], "-"]
    if makes_archive and name != "-":
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        return write_archive(cluster, node, command, Path(name or f"userspace-cni-support-{node}-{stamp}.tar.gz"))
    if name in ("", "-"):
        return run(cluster, node, command, None)
    try:
        with os.fdopen(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            return run(cluster, node, command, file)
    except OSError as error:
        raise Failed(f"writing {name}: {error.strerror}", FOUND) from error


def usage() -> str:
    """The help."""
    pods = "\n".join(f"  {name:<8} POD[/IFNAME]  {text}" for name, text in OF_PODS.items())
    nodes = "\n".join(f"  {name:<8} NODE          {text}" for name, text in OF_NODES.items())
    nodes = f"  list     [POD[/IFNAME]] what is attached: of pods, else of all nodes\n{nodes}"
    return f"""Run commands of userspace-cni on the right node: where the pod is, or on the node that is named.

kubectl userspace COMMAND POD... [OPTION]...
kubectl userspace COMMAND NODE [OPTION]...
kubectl userspace COMMAND --node NODE [WORD]...      any other command of userspace-cni

{pods}
{nodes}

  -n, --namespace NS, --context, --kubeconfig and the other options of kubectl are kubectl's.
  --all                  on every node with an agent: {", ".join(SEVERAL_NODES)}
  --node NODE            on that node
  --agent-namespace NS   where the agents are: {AGENT_NAMESPACE}
  --agent-selector SEL   their label: {AGENT_LABEL}
  --agent-container NAME their container: {CONTAINER}

POD is POD, POD/IFNAME, NAMESPACE/POD or NAMESPACE/POD/IFNAME. A COMMAND with --help shows its own options.

Exit code: that of the command (0 good, 1 a finding, 2 a mistake in the call, 3 cannot be reached); 1 for a pod that is not there
or on no node, 3 for an API server, an agent or a right that is missing; of several nodes the highest.

  kubectl userspace why web-1 -n shop
  kubectl userspace list
  kubectl userspace capture web-1/net1 icmp --write web-1.pcap
  kubectl userspace doctor --all
  kubectl userspace support node-1
"""


def complete(given: list[str]) -> str:
    """What kubectl shows for the last word: a line each, then how the shell takes them (4: no names of files)."""
    before, word = given[:-1], given[-1] if given else ""
    try:
        words = read_words(before)
    except Failed:
        return ":4\n"
    cluster = Cluster(words)
    found: list[str] = []
    with contextlib.suppress(Unanswered, Failed):
        if word.startswith("-"):
            found = [*OUR_VALUES, "--all", *KUBECTL_VALUES, "--namespace"]
        elif not words.command:
            found = [f"{name}\t{text}" for name, text in {**OF_PODS, **OF_NODES}.items()]
        elif before[-1:] == ["--node"] or words.command in OF_NODES:
            found = [each["spec"].get("nodeName", "") for each in cluster.agents()]
        elif words.command in OF_PODS:
            where = [f"--namespace={words.namespace}"] if words.namespace else []
            found = [each.partition("/")[2] for each in cluster.ask("get", "pods", *where, "--output=name").split()]
    return "".join(f"{each}\n" for each in found if each.startswith(word)) + ":4\n"


def main(program: str, given: list[str]) -> int:
    """The plugin, or with its other name its completion."""
    if Path(program).name.startswith("kubectl_complete"):
        print(complete(given), end="")
        return 0
    try:
        words = read_words(given)
        if not words.command or words.command == "help":
            print(usage(), end="")
            return 0 if given else USAGE
        return run_command(Cluster(words))
    except Failed as failed:
        print(f"Error: {failed}", file=sys.stderr)
        return failed.code
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    try:
        code = main(sys.argv[0], sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # its reader has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = FOUND
    sys.exit(code)
