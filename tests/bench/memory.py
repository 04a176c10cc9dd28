"""What the agent's memory is, as the cluster's manifests run it, before and after pods.

`python tests/bench/memory.py [--json] [--pods N] [--together N] [--living N]`, as root. An agent follows objects of an API
server, puts routes into pods and offers devices to a kubelet. N (1000) pods come and go, half of them with a vhost-user port and
half with a veth, so many ADDs and DELs at a time (30), while at most so many live (240). MiB, resident, and of them not shared.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from tests.bench.report import arguments, machine, tell
from tests.lab.kube.apiserver import ApiServer
from tests.lab.kube.cluster_objects import node as node_object
from tests.lab.kube.definitions import define_all
from tests.lab.kube.kubelet import Kubelet
from tests.lab.kube.pods import Pod
from tests.lab.node.agent import Agent, running
from tests.lab.node.node import Node, clean
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.switch import Switch, wait_until

BRIDGE: Final = "br-dev"
REST_S: Final = 5.0


def memory(agent: Agent) -> dict[str, float]:
    """Resident MiB of the agent, and what of them is its own."""
    lines = Path(f"/proc/{agent.pid}/smaps_rollup").read_text().splitlines()[1:]
    kib = {name: int(words.split()[0]) for name, _, words in (line.partition(":") for line in lines)}
    return {"resident": round(kib["Rss"] / 1024, 1), "own": round((kib["Private_Dirty"] + kib["Private_Clean"]) / 1024, 1)}


class Pods:
    """Pods that are made and deleted, each in one of the sandboxes."""

    def __init__(self, node: Node, api: ApiServer, sandboxes: Sequence[str]) -> None:
        self._node, self._api, self._sandboxes = node, api, sandboxes

    def add(self, number: int) -> None:
        """Make the pod, and attach it."""
        pod = self._pod(number)
        self._api.add_pod({**pod.manifest(), "spec": {**pod.manifest()["spec"], "nodeName": "n1"}})
        self._node.empty_dir(pod.uid)
        self._call("ADD", number)

    def delete(self, number: int) -> None:
        self._call("DEL", number)
        self._api.remove_pod("default", self._pod(number).name)

    def _call(self, verb: str, number: int) -> None:
        network = self._node.network("1.0.0")
        if number % 2:
            host = {"engine": "ovs-dpdk", "iftype": "veth", "port": "system", "bridge": {"bridgeName": "br-test"}}
            network = {**network, "name": "links", "host": host}
        place = self._sandboxes[number % len(self._sandboxes)]
        done = self._node.run(verb, network, place, f"{number:012x}{'c' * 52}", f"net{number}", CNI_ARGS=self._pod(number).args)
        assert done.status == 0, done

    def _pod(self, number: int) -> Pod:
        return Pod(f"app-{number}", uid=f"7d1a2c00-0000-4000-8000-{number:012x}", volume={"emptyDir": {}})


def measure(agent: Agent, pods: Pods, options: argparse.Namespace) -> dict[str, Any]:
    """Memory at rest, and after pods."""
    resting = partial(wait_until, lambda: agent.metric("userspace_cni_workers_busy") <= 1, what="the agent to rest")
    threading.Event().wait(REST_S)
    found = {"at rest": memory(agent)}
    with ThreadPoolExecutor(options.together) as pool:
        for first in range(0, options.pods, options.living):
            numbers = range(first, min(first + options.living, options.pods))
            list(pool.map(pods.add, numbers))
            found[f"{numbers[-1] + 1} pods made, {len(numbers)} there"] = memory(agent)
            list(pool.map(pods.delete, numbers))
            found[f"{numbers[-1] + 1} pods gone"] = memory(agent)
    resting()
    threading.Event().wait(REST_S)
    return {"machine": machine(), "MiB": found | {"after all": memory(agent)}}


def show(report: dict[str, Any]) -> None:
    table = Table(title="memory of the agent, MiB", title_justify="left")
    for column in ("", "resident", "own"):
        table.add_column(column, justify="right" if column else "left")
    for when, row in report["MiB"].items():
        table.add_row(when, *map(str, row.values()))
    Console(width=140).print(table, report["machine"])


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--together", type=int, default=30)
    parser.add_argument("--living", type=int, default=240)
    options = parser.parse_args()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="uc-")))
        switch = stack.enter_context(Switch())
        switch.vsctl("add-br", BRIDGE, "--", "set", "Bridge", BRIDGE, "datapath_type=netdev")
        node = stack.enter_context(clean(Node(directory / "n", switch)))
        api = stack.enter_context(ApiServer(tls=directory))
        define_all(api)
        api.add(node_object("n1", "192.0.2.11"))
        kubelet = stack.enter_context(Kubelet(node.kubelet))
        sandboxes = [stack.enter_context(netns()) for _ in range(options.together)]
        node.settings |= {
            "USERSPACE_CNI_KUBECONFIG": api.kubeconfig(directory),
            "USERSPACE_CNI_NODE_NAME": "n1",
            "USERSPACE_CNI_NETWORK_OBJECTS": "true",
            "USERSPACE_CNI_ROUTES": "true",
            "USERSPACE_CNI_DEVICES_PER_BRIDGE": "64",
            "USERSPACE_CNI_METRICS_LISTEN": "127.0.0.1:19117",
        }
        agent = stack.enter_context(running(node, USERSPACE_CNI_TICK_S="30", MALLOC_ARENA_MAX="1"))
        kubelet.await_health(f"userspace-cni.io/{BRIDGE}", "Healthy")
        report = measure(agent, Pods(node, api, sandboxes), options)
    return tell(report, options.json, show)


if __name__ == "__main__":
    sys.exit(main())
