"""How long a living pod's limit takes from its annotation to the switch.

`python tests/bench/live.py [--json] [--times N] [--others N]`, as root: an API server, an agent, an ordinary pod and one with a
vhost-user interface, and N other pods attached on the node. For each kind of port: milliseconds from the write to the API server
until ovs-vswitchd has the new rate (`qos/show`), looked at every few milliseconds: median and the longest.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.agent.living import LiveNode, container
from tests.cni.spec import succeeded
from tests.lab.kube.apiserver import ApiServer
from tests.lab.kube.pods import Pod
from tests.lab.node.node import clean
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.switch import Switch, wait_until

POD = Pod()
KINDS = {"ordinary": "eth0", "vhost-user": "net1"}


@contextmanager
def node_with_pod(others: int) -> Iterator[tuple[LiveNode, ApiServer, dict[str, str]]]:
    """A node whose agent knows the pod, with both interfaces attached; and the ports' names by kind."""
    with ExitStack() as stack:
        switch, api = stack.enter_context(Switch()), stack.enter_context(ApiServer())
        live = LiveNode(Path(stack.enter_context(TemporaryDirectory(prefix="uc-"))) / "n", switch)
        stack.enter_context(clean(live))
        stack.callback(live.close)
        sandbox = stack.enter_context(netns())
        live.settings["USERSPACE_CNI_KUBECONFIG"] = api.kubeconfig(live.directory)
        live.settings |= {"USERSPACE_CNI_NODE_NAME": "n1", "USERSPACE_CNI_REQUIRE_VOLUME": "false"}
        live.settings["USERSPACE_CNI_TICK_S"] = "600"
        manifest = POD.manifest()
        api.add_pod({**manifest, "spec": {**manifest["spec"], "nodeName": "n1"}})
        live.start()
        for number in range(others):
            succeeded(live.run("ADD", live.network(), sandbox, container(number)))
        host = {"engine": "ovs-dpdk", "iftype": "veth", "bridge": {"bridgeName": "br-test"}}
        networks = {"ordinary": live.network("1.0.0", host=host, ipam=live.host_local()), "vhost-user": live.network()}
        ports: dict[str, str] = {}
        for kind, ifname in KINDS.items():
            before = set(switch.ports("br-test")) if switch.bridges() else set()
            succeeded(live.run("ADD", networks[kind], sandbox, ifname=ifname, CNI_ARGS=POD.args))
            [ports[kind]] = set(switch.ports("br-test")) - before
        yield live, api, ports


def changed(live: LiveNode, api: ApiServer, ifname: str, port: str, rate: int) -> float:
    """Milliseconds until the switch has the rate, in Mbit/s."""
    assert live.switch
    switch = live.switch
    said = {"userspace/bandwidth": json.dumps({ifname: {"ingressRate": f"{rate}M"}})}
    shown = (f"max-rate: {rate * 10**6}", f"cir: {rate * 10**6 // 8}")  # a queue's in bits, a policer's in bytes
    began = time.monotonic()
    api.change(POD.namespace, POD.name, {"metadata": {"annotations": said}})
    wait_until(lambda: any(each in switch.appctl("qos/show", port) for each in shown), what=f"{rate} Mbit/s", pause=0.002)
    return (time.monotonic() - began) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--others", type=int, default=50)
    options = parser.parse_args()
    found: dict[str, Any] = {}
    with node_with_pod(options.others) as (live, api, ports):
        for kind, ifname in KINDS.items():
            took = [changed(live, api, ifname, ports[kind], rate) for rate in range(10, 10 + options.times)]
            found[kind] = {"median_ms": round(statistics.median(took), 1), "max_ms": round(max(took), 1)}
    if options.json:
        print(json.dumps(found))
        return
    table = Table("port", "median ms", "longest ms")
    for kind, numbers in found.items():
        table.add_row(kind, str(numbers["median_ms"]), str(numbers["max_ms"]))
    Console().print(table)


if __name__ == "__main__":
    main()
