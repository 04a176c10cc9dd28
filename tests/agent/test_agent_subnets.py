"""Pods in a Subnet, with an agent that watches it: where their addresses come from, and the IP objects that describe them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest

from tests.agent.living import LiveNode, container
from tests.cni.spec import refused, succeeded, switch_of
from tests.lab.kube.apiserver import ApiServer, Fault
from tests.lab.kube.cluster_objects import node
from tests.lab.kube.definitions import defined_server
from tests.lab.kube.network_objects import SUBNETS, add, ips
from tests.lab.kube.pods import Pod
from tests.lab.node.links import addresses, pings, routes
from tests.lab.node.node import CONTAINER
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.switch import FOR_EVER_S, wait_until
from userspace_cni.base.back_off import BackOff
from userspace_cni.controller.absence import Absence
from userspace_cni.controller.status_rounds import Rounds, RoundTimes, WriteListener
from userspace_cni.controller.watches import Watches
from userspace_cni.kube.list_watch import WatchTimes
from userspace_cni.kube.object_requests import Objects
from userspace_cni.kube.pod_requests import KubeClient

PODS = 20
EAGER = RoundTimes(rounds_s=0.05, writes_s=0.0, lag_s=0.0, back_off=BackOff(0.1, 0.2))
SUBNET = {"cidrBlock": "10.56.0.0/16", "gateway": "10.56.0.1", "bridge": "br-test", "mtu": 1400, "perNodePrefix": 24}
RANGES = [{"node": "n1", "range": "10.56.1.0/24"}, {"node": "n2", "range": "10.56.2.0/24"}]
WRITES = ("PATCH", "POST", "PUT", "DELETE")


@pytest.fixture
def api() -> Iterator[ApiServer]:
    """An API server with Subnet `pods`, in which nodes n1 and n2 have ranges."""
    with defined_server() as started:
        add(started, "Subnet", "pods", spec=SUBNET, status={"nodeRanges": RANGES})
        yield started


def reads_objects(node: LiveNode, api: ApiServer, name: str) -> LiveNode:
    """The node, by its name in the API, with credentials of its own."""
    node.settings["USERSPACE_CNI_KUBECONFIG"] = api.kubeconfig(node.directory)
    node.settings["USERSPACE_CNI_NODE_NAME"] = name
    node.settings["USERSPACE_CNI_NETWORK_OBJECTS"] = "true"
    return node


@pytest.fixture
def first(live: LiveNode, api: ApiServer) -> LiveNode:
    """Node n1, whose agent is not started yet."""
    return reads_objects(live, api, "n1")


@pytest.fixture
def second(other: LiveNode, api: ApiServer) -> LiveNode:
    """Node n2, whose agent is not started yet."""
    return reads_objects(other, api, "n2")


def podnet(node: LiveNode, **keys: Any) -> dict[str, Any]:
    """A network that names the Subnet; its default route is another interface's."""
    host = {"iftype": "veth", "port": "system"}
    ipam: dict[str, Any] = {"routes": []}
    return {"cniVersion": "1.0.0", "name": "podnet", "type": "userspace", "subnet": "pods", "host": host, "ipam": ipam, **keys}


def container_of(node: LiveNode) -> str:
    """A container of that node alone: both have one switch."""
    return container(int(node.settings["USERSPACE_CNI_NODE_NAME"].removeprefix("n")))


def leases(node: LiveNode) -> list[str]:
    """The addresses of the Subnet that are leased on the node."""
    return sorted(each.name for each in (node.state / "leases" / "pods").iterdir() if each.name[0].isdigit())


class Pods:
    """Pods p0, p1, … of a node, each an interface of one sandbox."""

    def __init__(self, node: LiveNode, api: ApiServer, sandbox: str) -> None:
        self.node, self.sandbox = node, sandbox
        self.pods = [Pod(name=f"p{number}") for number in range(PODS)]
        for pod in self.pods:
            manifest = pod.manifest()
            manifest["spec"]["nodeName"] = node.settings["USERSPACE_CNI_NODE_NAME"]
            api.add_pod(manifest)

    def run(self, verb: str, number: int, **keys: Any) -> dict[str, Any]:
        args = self.pods[number].args
        network = podnet(self.node, **keys)
        return succeeded(self.node.run(verb, network, self.sandbox, container(number), f"net{number}", CNI_ARGS=args))

    def run_all(self, verb: str) -> list[dict[str, Any]]:
        """One call for each of them, at once."""
        with ThreadPoolExecutor(PODS) as threads:
            return list(threads.map(lambda number: self.run(verb, number), range(PODS)))


def asked(api: ApiServer) -> int:
    """How many requests came in without watches, which end and are opened again at their own time."""
    return sum(each.verb != "WATCH" for each in api.requests)


def is_quiet(live: LiveNode, api: ApiServer) -> bool:
    """Whether two passes of reconciliation send no request."""
    before = asked(api)
    live.reconcile()
    live.reconcile()
    return asked(api) == before


def test_two_nodes(first: LiveNode, second: LiveNode) -> None:
    """Pods get addresses of their nodes' ranges, with bridge, MTU and gateway of the Subnet, and reach each other."""
    with ExitStack() as stack:
        sandboxes = [stack.enter_context(netns()) for _ in range(3)]
        for node, sandbox, expected in zip((first, second), sandboxes, ("10.56.1.0/16", "10.56.2.0/16"), strict=False):
            node.start()
            result = succeeded(node.run("ADD", podnet(node, ipam={}), sandbox, container_of(node), "eth0"))
            assert result["ips"] == [{"address": expected, "gateway": "10.56.0.1", "interface": 1}]
            assert [each["mtu"] for each in result["interfaces"]] == [1400, 1400]
            assert addresses(sandbox, "eth0") == [expected]
            assert [(each["dst"], each["gateway"]) for each in routes(sandbox)] == [("default", "10.56.0.1")]
        assert pings(sandboxes[0], "10.56.2.0") == 3
        beside = podnet(first, name="another")  # networks of two names have one Subnet's addresses
        assert succeeded(first.run("ADD", beside, sandboxes[2], "d" * 64))["ips"][0]["address"] == "10.56.1.1/16"
        assert len(leases(first)) == 2
        succeeded(first.run("DEL", beside, sandboxes[2], "d" * 64))
        for node, sandbox in zip((first, second), sandboxes, strict=False):
            succeeded(node.run("DEL", podnet(node), sandbox, container_of(node), "eth0"))
            assert leases(node) == []
        first.require_clean()


def test_it_is_needed_for_add_alone(first: LiveNode, api: ApiServer, sandbox: str) -> None:
    """After the Subnet was deleted, CHECK, GC and DEL of attachments work, also without their records."""
    network = podnet(first)
    first.start()
    result = succeeded(first.run("ADD", network, sandbox))
    succeeded(first.run("ADD", network, sandbox, "d" * 64, "eth1"))
    api.objects(SUBNETS).remove("", "pods")
    wait_until(lambda: first.run("ADD", network, sandbox, "e" * 64, "eth2").document.get("code") == 7)
    succeeded(first.run("CHECK", {**network, "prevResult": result}, sandbox))
    valid = [{"containerID": CONTAINER, "ifname": "net1"}]
    succeeded(first.run("GC", {**network, "cniVersion": "1.1.0", "cni.dev/valid-attachments": valid}))
    for record in (first.state / "attachments").iterdir():
        record.unlink()
    assert len(leases(first)) == 1
    succeeded(first.run("DEL", network, sandbox))
    first.require_clean()
    assert leases(first) == []


def test_objects_follow_pods(first: LiveNode, api: ApiServer, sandbox: str) -> None:
    """Each pod has an object while it is attached, and none afterwards; at rest no request is sent."""
    pods = Pods(first, api, sandbox)
    first.start()
    results = pods.run_all("ADD")
    wait_until(lambda: len(ips(api)) == PODS)
    address = results[7]["ips"][0]["address"].partition("/")[0]
    found = ips(api)["p7.default.podnet"]
    assert found == {
        "podName": "p7",
        "namespace": "default",
        "subnet": "pods",
        "network": "podnet",
        "interface": "net7",
        "nodeName": "n1",
        "ipAddress": address,
        "v4IpAddress": address,
        "macAddress": results[7]["interfaces"][-1]["mac"],
        "containerID": container(7),
    }
    wait_until(lambda: is_quiet(first, api), what="nothing is asked any more")  # the node's report comes a second after its start
    pods.run_all("DEL")
    wait_until(lambda: not ips(api))
    assert sum(each.method in WRITES and "/ips/" in each.path for each in api.requests) == 2 * PODS
    first.require_clean()


def test_a_verb_waits_for_no_object(first: LiveNode, api: ApiServer, sandbox: str) -> None:
    """Verbs end while the server hangs over an object; if the agent dies then, the next one does the rest."""
    pods = Pods(first, api, sandbox)
    first.start()
    api.faults.append(Fault("PATCH", hang=60.0, about="/ips"))
    for number in range(3):
        pods.run("ADD", number)
    pods.run("DEL", 2)
    wait_until(lambda: [each for each in api.requests if "/ips/" in each.path])
    assert ips(api) == {}
    first.kill()
    api.faults.clear()
    first.start()
    wait_until(lambda: ips(api).keys() == {"p0.default.podnet", "p1.default.podnet"})
    for number in range(2):
        pods.run("DEL", number)
    wait_until(lambda: not ips(api))


def test_a_dead_agents_objects(first: LiveNode, api: ApiServer, sandbox: str) -> None:
    """The next agent deletes the objects of what was detached without an agent; it does not read another node's."""
    pods = Pods(first, api, sandbox)
    add(
        api,
        "IP",
        "x.default",
        spec={"podName": "x", "namespace": "default", "nodeName": "n2"},
        labels={"userspace-cni.io/node": "n2"},
    )
    first.start()
    for number in range(2):
        pods.run("ADD", number)
    wait_until(lambda: len(ips(api)) == 3)
    first.kill()
    pods.run("DEL", 0)  # the shim keeps it for the next agent
    first.start()
    wait_until(lambda: ips(api).keys() == {"p1.default.podnet", "x.default"})
    pods.run("DEL", 1)


def is_no_more_awaited(live: LiveNode, network: dict[str, Any], sandbox: str, args: str) -> bool:
    """Whether ADD refuses it finally."""
    return bool(live.run("ADD", network, sandbox, CNI_ARGS=args).document["code"] == 7)


def test_what_is_awaited(first: LiveNode, api: ApiServer, sandbox: str) -> None:
    """ADD answers "try again" (11) while the node has no range; a Subnet that does not exist, or is not for its pods, is 7."""
    rules = '[[rule]]\nnamespaces = ["default"]\nbridges = ["br-test"]\nvlans = [0, "200-299"]\n'
    Path(first.environ["USERSPACE_CNI_CONFIG"]).write_text(rules)
    add(api, "Vlan", "v7", spec={"id": 7, "provider": "net1"})
    add(api, "Subnet", "closed", spec={**SUBNET, "vlan": "v7"}, status={"nodeRanges": RANGES})
    add(api, "Subnet", "open", spec={**SUBNET, "vlan": "v200"}, status={"nodeRanges": RANGES})
    add(api, "Vlan", "v200", spec={"id": 200, "provider": "net1"})
    add(api, "Subnet", "late", spec=SUBNET)
    add(api, "Subnet", "theirs", spec={**SUBNET, "namespaces": ["tenant"]}, status={"nodeRanges": RANGES})
    add(api, "Subnet", "tagged", spec={**SUBNET, "bridge": "", "vlan": "v100"}, status={"nodeRanges": RANGES})
    [pod, *_] = Pods(first, api, sandbox).pods
    first.start(CONFIRM_S=FOR_EVER_S)

    def answer(subnet: str, code: int, *words: str) -> None:
        refused(first.run("ADD", podnet(first, subnet=subnet), sandbox, CNI_ARGS=pod.args), code, *words)

    answer("late", 11, "Subnet 'late' has no range for this node yet", "nodeRanges")
    answer("theirs", 7, "key 'subnet' is 'theirs'", "namespace 'default'", "tenant")
    answer("absent", 11, "Subnet 'absent' is not known yet", "another list")
    first.kill()
    first.start()
    absent, tagged = (podnet(first, subnet=subnet) for subnet in ("absent", "tagged"))
    for network in (absent, tagged):
        wait_until(partial(is_no_more_awaited, first, network, sandbox, pod.args), what="the second list")
    answer("absent", 7, "Subnet 'absent' does not exist")
    answer("tagged", 7, "Vlan 'v100' does not exist")
    answer("closed", 7, "VLAN 7 of bridge 'br-test'", "[[rule]] number 1")
    status = first.run("STATUS", podnet(first, subnet="late", cniVersion="1.1.0"), sandbox)
    refused(status, 50, "Subnet 'late' has no range")
    host = succeeded(first.run("ADD", podnet(first, subnet="open"), sandbox, CNI_ARGS=pod.args))["interfaces"][0]["name"]
    assert switch_of(first).row("Port", host)["tag"] == 200
    succeeded(first.run("DEL", podnet(first, subnet="open"), sandbox, CNI_ARGS=pod.args))
    add(api, "Subnet", "late", spec=SUBNET, status={"nodeRanges": RANGES})
    wait_until(lambda: first.run("ADD", podnet(first, subnet="late"), sandbox, CNI_ARGS=pod.args).status == 0)
    succeeded(first.run("DEL", podnet(first, subnet="late"), sandbox, CNI_ARGS=pod.args))
    first.await_clean()


def test_the_server_was_never_there(first: LiveNode, api: ApiServer, sandbox: str) -> None:
    """What is unknown because the server is away is "try again" (11), and works as soon as it is known."""
    api.faults.append(Fault(status=503, about="/subnets"))
    first.start()
    refused(first.run("ADD", podnet(first), sandbox), 11, "Subnet 'pods' is not known yet")
    api.faults.clear()
    wait_until(lambda: first.run("ADD", podnet(first), sandbox).status == 0)
    succeeded(first.run("DEL", podnet(first), sandbox))


def test_a_controller_divides_it(first: LiveNode, api: ApiServer, sandbox: str) -> None:
    """A leader gives the node the range that ADD lacked, and counts the addresses that the agent reports."""
    api.add(node("n1"))
    add(api, "Subnet", "divided", spec={**SUBNET, "perNodePrefix": 28})
    network = podnet(first, subnet="divided")
    [pod, *_] = Pods(first, api, sandbox).pods
    first.start()
    refused(first.run("ADD", network, sandbox, CNI_ARGS=pod.args), 11, "Subnet 'divided' has no range")
    session = KubeClient(api.kubeconfig(first.directory)).session
    watches = Watches(session, lambda: rounds.ask(), WatchTimes(page=100, confirm_s=0))  # noqa: PLW0108 - it is made after them
    rounds = Rounds(Objects(session), watches.cluster, lambda: True, Absence(), WriteListener(), EAGER)
    with ExitStack() as stack:
        stack.callback(watches.stop)
        stack.callback(rounds.stop)
        rounds.start()
        watches.start()
        wait_until(lambda: first.run("ADD", network, sandbox, CNI_ARGS=pod.args).status == 0)
        store = api.objects(SUBNETS)
        wait_until(lambda: store.read("", "divided")["status"].get("v4usingIPs") == 1)
        [found] = ips(api).values()
        [given] = store.read("", "divided")["status"]["nodeRanges"]
        assert ip_address(found["v4IpAddress"]) in ip_network(given["range"])
        succeeded(first.run("DEL", network, sandbox, CNI_ARGS=pod.args))
        wait_until(lambda: store.read("", "divided")["status"].get("v4usingIPs") == 0)
