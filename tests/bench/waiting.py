"""What ADDs that wait for their pods' annotations cost the pods of other namespaces.

`python tests/bench/waiting.py [--json] [--rounds N] [--waiting N]`, as root. So many calls of namespace `crowd` wait for
addresses that never come, and eight callers begin one more each, ten times a second: far more often than a kubelet does.
Namespace `calm` has a pod whose address is there. Its ADD and DEL are measured with and without the crowd, in turns of one
run, and told as a ratio, for the machine's own speed drifts between runs.

Milliseconds, p50 / p95, from the spawn of the shim to its end.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.bench.calls import milliseconds
from tests.bench.report import arguments, machine, tell
from tests.lab.kube.apiserver import ApiServer
from tests.lab.kube.pods import Pod
from tests.lab.node.agent import Agent, running
from tests.lab.node.node import Node, clean
from tests.lab.runtimes.runtime import Call, netns
from tests.lab.switch.switch import Switch, wait_until
from userspace_cni.cni import protocol

CALLERS = 8
TURNS = 4
PAUSE_S = 0.1
NETWORK = {
    "cniVersion": "1.0.0",
    "name": "podnet",
    "type": "userspace",
    "host": {"iftype": "veth", "bridge": {"bridgeName": "br-test"}},
    "addresses": "annotations",
}


def added(api: ApiServer, namespace: str, **annotations: str) -> Pod:
    pod = Pod("app", namespace)
    manifest = pod.manifest()
    manifest["spec"]["nodeName"] = "n1"
    manifest["metadata"]["annotations"] = annotations
    api.add_pod(manifest)
    return pod


class Crowd:
    """Callers whose pod gets no address."""

    def __init__(self, node: Node, agent: Agent, pod: Pod, sandbox: str) -> None:
        self._node, self._agent, self._pod, self._sandbox = node, agent, pod, sandbox
        self.refused = 0

    def _begin(self, number: int) -> socket.socket:
        client = socket.socket(socket.AF_UNIX)
        client.connect(self._agent.socket)
        environ = self._node.variables("ADD", self._sandbox, f"{number:064x}", "net1", CNI_ARGS=self._pod.args)
        client.sendall(protocol.request_bytes("/api/v1/add", environ, json.dumps(NETWORK).encode()))
        return client

    @contextmanager
    def there(self, waiting: int) -> Iterator[None]:
        """So many have begun, and callers that are refused begin again, until the end of the block."""
        over = threading.Event()
        clients = [self._begin(number) for number in range(waiting)]

        def insist(number: int) -> None:
            while not over.wait(PAUSE_S):
                with self._begin(number) as client, suppress(OSError):
                    client.settimeout(0.5)
                    self.refused += bool(client.recv(1))

        threads = [threading.Thread(target=insist, args=(waiting + number,)) for number in range(CALLERS if waiting else 0)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join()
            for client in clients:
                client.close()


def measured(node: Node, agent: Agent, api: ApiServer, rounds: int, waiting: int) -> dict[str, Any]:
    """Walls of the calm namespace's calls, without the crowd and with it."""
    calm = added(api, "calm", **{"podnet.calm.ovn.kubernetes.io/ip_address": "10.16.0.7/16"})
    with netns() as sandbox, netns() as other:
        crowd = Crowd(node, agent, added(api, "crowd"), other)

        def call(verb: str) -> Call:
            done = node.run(verb, NETWORK, sandbox, CNI_ARGS=calm.args)
            assert done.status == 0, done.stdout
            return done

        walls: dict[str, dict[str, list[float]]] = {kind: {"ADD": [], "DEL": []} for kind in ("alone", "crowd")}
        busy = 0.0
        call("ADD"), call("DEL")
        for turn in range(TURNS * 2):
            kind = ("alone", "crowd")[turn % 2]
            with crowd.there(waiting if turn % 2 else 0):
                for _ in range(rounds // TURNS):
                    for verb in ("ADD", "DEL"):
                        walls[kind][verb].append(call(verb).wall)
                busy = max(busy, agent.metric("userspace_cni_workers_busy"))
            wait_until(lambda: agent.metric("userspace_cni_workers_busy") == 0, what="the crowd to end")
    found = {kind: {verb: milliseconds(taken) for verb, taken in of.items()} for kind, of in walls.items()}
    ratios = {verb: round(found["crowd"][verb]["p50"] / found["alone"][verb]["p50"], 2) for verb in ("ADD", "DEL")}
    return {"machine": machine(), "waiting": waiting, "refused": crowd.refused, "threads held": busy, **found, "ratio": ratios}


def show(report: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(report, indent=1) + "\n")


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=80)
    parser.add_argument("--waiting", type=int, default=64)
    given = parser.parse_args()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="uc-")))
        switch = stack.enter_context(Switch())
        node = stack.enter_context(clean(Node(directory / "n", switch)))
        api = stack.enter_context(ApiServer())
        node.settings |= {
            "USERSPACE_CNI_KUBECONFIG": api.kubeconfig(node.directory),
            "USERSPACE_CNI_NODE_NAME": "n1",
            "USERSPACE_CNI_KUBEOVN_ANNOTATIONS": "true",
        }
        agent = stack.enter_context(running(node))
        return tell(measured(node, agent, api, given.rounds, given.waiting), given.json, show)


if __name__ == "__main__":
    sys.exit(main())
